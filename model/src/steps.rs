//! The steps of the search: the actions of clients, masters, the network and the operator in a state. Their effects are
//! in `effects.rs`.

use crate::action::Action;
use crate::changed_rule::ChangedRule;
use crate::counts::Counts;
use crate::rules::{Answer, Masters, Rules, Sets};
use crate::search::Model;
use crate::world::{
    ACQUIRE, Attempt, Broken, CONFIRM, Case, EARLIER_EXTEND, EXTEND, Phase, World, members, subsets,
};

/// The model of one case with these rules.
#[derive(Clone, Debug)]
pub struct Search {
    /// The sizes of the search.
    pub case: Case,
    /// The rules, of which one may be changed.
    pub rules: Rules,
    /// Counts of the situations that the search has tested.
    pub counts: Counts,
}

impl Search {
    /// The search of a case with these rules.
    pub fn new(case: Case, rules: Rules) -> Self {
        Self {
            case,
            rules,
            counts: Counts::default(),
        }
    }

    pub(crate) fn sets_at(&self, step: u8) -> Sets {
        let [old, next] = self.case.sets;
        match step {
            0 => [old, old],
            1 => [old, next],
            _ => [next, next],
        }
    }

    pub(crate) fn masters_of(&self, attempt: &Attempt) -> Masters {
        let [first, second] = self.sets_at(attempt.step);
        first | second
    }

    /// The time for which the operator waits before it opens the next masters.
    pub(crate) fn longest_wait(&self) -> u8 {
        self.case.max_ttl + self.case.drift
    }

    pub(crate) fn is_change(&self) -> bool {
        self.case.sets[0] != self.case.sets[1]
    }

    pub(crate) fn is_closed(&self, world: &World) -> bool {
        let closed = world.masters_where(|master| master.marker > 0);
        self.rules.is_closed(closed, self.case.sets[0])
    }

    pub(crate) fn may_open(&self, world: &World) -> bool {
        let Case { max_ttl, drift, .. } = self.case;
        let is_closed = self.is_closed(world);
        is_closed
            && self
                .rules
                .may_open(world.closed_for.into(), max_ttl.into(), drift.into())
    }

    fn add_client_actions(&self, world: &World, index: usize, actions: &mut Vec<Action>) {
        let attempt = index;
        let client = &world.attempts[index];
        let votes = |vote: u8| world.masters_where(|m| m.exchanges[index].votes & vote != 0);
        match client.phase {
            Phase::Asking => {
                actions.push(Action::GiveUp { attempt });
                let granting = votes(ACQUIRE);
                let sets = self.sets_at(client.step);
                let is_won = |voters: &Masters| self.rules.is_quorum(*voters, *voters, sets);
                let won = subsets(granting).filter(is_won);
                // Without fencing tokens, it does not matter which votes a client has counted.
                let won = won.filter(|voters| self.case.fencing || *voters == granting);
                actions.extend(won.map(|voters| Action::CountVotes { attempt, voters }));
            }
            Phase::Confirming => {
                actions.push(Action::GiveUp { attempt });
                actions.push(Action::CountConfirmations { attempt });
            }
            Phase::Holding => {
                actions.push(Action::Release { attempt });
                if world.extensions < self.case.extensions {
                    let ttls = [self.case.ttl, self.case.short_ttl];
                    let ttls = ttls.into_iter().filter(|ttl| *ttl > 0);
                    actions.extend(ttls.map(|ttl| Action::Extend { attempt, ttl }));
                }
                if client.extending > 0 {
                    actions.push(Action::CountExtension { attempt });
                }
            }
            Phase::Overdue => actions.push(Action::CountExtension { attempt }),
            Phase::Unused | Phase::Ended => {}
        }
    }

    fn add_arrivals(&self, world: &World, attempt: usize, actions: &mut Vec<Action>) {
        for (master, state) in world.masters.iter().enumerate() {
            let in_flight = state.exchanges[attempt].in_flight;
            for request in [ACQUIRE, CONFIRM, EXTEND, EARLIER_EXTEND] {
                if in_flight & request != 0 {
                    let repeats = [false, true];
                    let may_repeat = world.duplicates < self.case.duplicates;
                    let repeats = repeats.into_iter().filter(|again| !again || may_repeat);
                    actions.extend(repeats.map(|again| Action::Arrive {
                        attempt,
                        master,
                        request,
                        again,
                    }));
                }
            }
            // A release may arrive late, and any number of times. Only a release that finds a key has an effect.
            if world.attempts[attempt].phase == Phase::Ended && state.value > 0 {
                actions.push(Action::ReleaseArrives { attempt, master });
            }
        }
    }

    fn add_beginnings(&self, world: &World, actions: &mut Vec<Action>) {
        let unused = |attempt: &Attempt| attempt.phase == Phase::Unused;
        let attempts = &world.attempts[..self.case.attempts.into()];
        let Some(attempt) = attempts.iter().position(unused) else {
            return;
        };
        let (now, slack) = (world.now, self.case.slack);
        for &step in self.case.steps {
            for proposal in [now.saturating_sub(slack), now + slack] {
                actions.push(Action::Begin {
                    attempt,
                    step,
                    proposal,
                });
                if slack == 0 {
                    break;
                }
            }
        }
    }

    fn add_operator_actions(&self, world: &World, actions: &mut Vec<Action>) {
        let [old, next] = self.case.sets;
        let marker = |master: usize| world.masters[master].marker;
        let open = members(old).filter(|master| marker(*master) == 0);
        actions.extend(open.map(|master| Action::Close { master }));
        let carries = self.case.fencing && !self.rules.has(ChangedRule::NoCarry);
        let early = self.rules.has(ChangedRule::CarryBeforeClose);
        if carries && world.copied == 0 && (early || self.may_open(world)) {
            let closed = world.masters_where(|master| master.marker > 0 || early) & old;
            let minority = self.rules.has(ChangedRule::CarryMinority);
            let sources =
                subsets(closed).filter(|from| minority || self.rules.is_closed(*from, old));
            actions.extend(sources.map(|from| Action::ReadCounters { from }));
        }
        let is_raised = |master: usize| world.masters[master].is_raised > 0;
        if world.copied > 0 {
            let left = members(next).filter(|master| !is_raised(*master));
            actions.extend(left.map(|master| Action::RaiseCounter { master }));
        }
        let raised = world.masters_where(|master| master.is_raised > 0);
        if self.may_open(world) && (!carries || self.rules.is_majority(raised, raised, next)) {
            let unopened = members(next).filter(|master| marker(*master) < 2);
            actions.extend(unopened.map(|master| Action::Open { master }));
        }
        let opened = world.masters_where(|master| master.marker >= 2);
        if self.rules.is_majority(opened, opened, next) {
            let unfinished = members(next).filter(|master| marker(*master) == 2);
            actions.extend(unfinished.map(|master| Action::Finish { master }));
        }
    }
}

impl Model for Search {
    type State = World;
    type Action = Action;

    fn initial_state(&self) -> World {
        World::default()
    }

    fn add_actions(&self, world: &World, actions: &mut Vec<Action>) {
        if self.is_change() {
            self.add_operator_actions(world, actions);
        }
        self.add_beginnings(world, actions);
        for attempt in 0..self.case.attempts.into() {
            self.add_client_actions(world, attempt, actions);
            self.add_arrivals(world, attempt, actions);
        }
        for (master, state) in world.masters.iter().enumerate() {
            if state.value > 0 && state.left <= self.case.drift {
                actions.push(Action::ExpireEarly { master });
            }
            let is_used = (self.case.sets[0] | self.case.sets[1]) >> master & 1 == 1;
            if is_used && world.restarts < self.case.restarts {
                actions.extend([true, false].map(|keeps_counter| Action::Restart {
                    master,
                    keeps_counter,
                }));
            }
        }
        actions.push(Action::Tick);
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        let is_possible = match action {
            Action::Begin {
                attempt,
                step,
                proposal,
            } => self.begin(&mut world, attempt, step, proposal),
            Action::Arrive {
                attempt,
                master,
                request,
                again,
            } => {
                self.arrive(&mut world, attempt, master, request);
                if again {
                    world.duplicates += 1;
                } else {
                    world.masters[master].exchanges[attempt].in_flight &= !request;
                }
                true
            }
            Action::ReleaseArrives { attempt, master } => {
                let value = world.attempts[attempt].value.into();
                let mut stored = world.masters[master].stored();
                let answer = self.rules.release(&mut stored, value);
                world.masters[master].store(stored);
                answer == Answer::Released(true)
            }
            Action::CountVotes { attempt, voters } => {
                self.count_votes(&mut world, attempt, voters);
                true
            }
            Action::CountConfirmations { attempt } => self.count_confirmations(&mut world, attempt),
            Action::GiveUp { attempt } | Action::Release { attempt } => {
                world.end(attempt);
                true
            }
            Action::Extend { attempt, ttl } => {
                self.extend(&mut world, attempt, ttl);
                true
            }
            Action::CountExtension { attempt } => self.count_extension(&mut world, attempt),
            Action::Tick => self.tick(&mut world),
            Action::ExpireEarly { master } => {
                (world.masters[master].value, world.masters[master].left) = (0, 0);
                true
            }
            Action::Restart {
                master,
                keeps_counter,
            } => {
                self.restart(&mut world, master, keeps_counter);
                true
            }
            operator_action => {
                world.operate(operator_action);
                true
            }
        };
        world.forget_unneeded();
        (is_possible && world != *before).then_some(world)
    }

    fn normalize(&self, world: &mut World) {
        // Masters that are in the same sets are equal. They are next to each other, because the sets are intervals.
        let [old, next] = self.case.sets;
        let group = |master: usize| (old >> master & 1, next >> master & 1);
        let mut from = 0;
        while from < world.masters.len() {
            let in_group = (from..world.masters.len()).take_while(|m| group(*m) == group(from));
            let end = from + in_group.count();
            world.masters[from..end].sort_unstable();
            from = end;
        }
    }

    fn broken_promise(&self, world: &World) -> Option<&'static str> {
        match world.broken {
            Broken::Nothing => None,
            Broken::OneHolder => Some("one holder"),
            Broken::RisingTokens => Some("rising tokens"),
            Broken::NoticeOfLoss => Some("notice of a loss"),
        }
    }

    fn count(&mut self, before: &World, action: Action, after: &World) {
        self.counts.count(before, action, after);
    }

    fn describe(&self, world: &World) -> String {
        world.describe(self.case.sets[0] | self.case.sets[1], self.case.fencing)
    }
}
