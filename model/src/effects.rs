//! The effects of the steps: each function here takes one step in a state.

use crate::action::Action;
use crate::changed_rule::ChangedRule;
use crate::rules::{Agreement, Answer, LockKey, Masters};
use crate::steps::Search;
use crate::world::{
    ACQUIRE, Attempt, Broken, CONFIRM, Case, EARLIER_EXTEND, EXTEND, Phase, World, members,
};

/// How much a fencing counter that starts from the clock rises in each tick.
const NUMBERS_PER_TICK: u8 = 8;

impl Search {
    pub(crate) fn begin(&self, world: &mut World, index: usize, step: u8, proposal: u8) -> bool {
        let reuses = self.rules.has(ChangedRule::ReusedValue) && index == 1;
        if reuses && world.attempts[index - 1].phase != Phase::Ended {
            return false;
        }
        let value = if reuses {
            world.attempts[index - 1].value
        } else {
            index as u8 + 1
        };
        world.attempts[index] = Attempt {
            phase: Phase::Asking,
            step,
            value,
            floor: world.largest_token,
            proposal,
            ..Attempt::default()
        };
        for master in members(self.masters_of(&world.attempts[index])) {
            world.masters[master].exchanges[index].in_flight = ACQUIRE;
        }
        true
    }

    /// A request reaches a master, which executes it. If the attempt is still waiting for the answer, the client may
    /// count the vote.
    pub(crate) fn arrive(&self, world: &mut World, index: usize, master: usize, request: u8) {
        let attempt = world.attempts[index];
        let state = &mut world.masters[master];
        let is_admitted = if request & (EXTEND | EARLIER_EXTEND) != 0 {
            self.rules.admits_extension(state.marker, attempt.step)
        } else {
            self.rules.admits(state.marker, attempt.step)
        };
        if self.is_change() && !is_admitted {
            return;
        }
        let ttl = match request {
            EXTEND => attempt.extended_ttl,
            _ => self.case.ttl,
        };
        let key = LockKey {
            value: attempt.value.into(),
            expires: ttl.into(),
        };
        let mut stored = state.stored();
        let answer = match request {
            ACQUIRE => {
                let number = self.next_number(world.now, state.counter, attempt.proposal);
                self.rules.acquire(&mut stored, key, number, true)
            }
            CONFIRM => self
                .rules
                .confirm(&mut stored, key.value, attempt.token.into()),
            _ => self.rules.extend(&mut stored, key),
        };
        state.store(stored);
        let awaited = match attempt.phase {
            Phase::Asking => ACQUIRE,
            Phase::Confirming => CONFIRM,
            Phase::Holding | Phase::Overdue => EXTEND,
            Phase::Unused | Phase::Ended => 0,
        };
        if request != awaited || state.guard > 0 {
            return;
        }
        let exchange = &mut state.exchanges[index];
        match answer {
            Answer::Granted(number) => {
                exchange.votes |= ACQUIRE;
                exchange.number = if self.case.fencing { number as u8 } else { 0 };
            }
            Answer::Confirmed => exchange.votes |= CONFIRM,
            Answer::Extended => exchange.votes |= EXTEND,
            _ => {}
        }
    }

    fn next_number(&self, now: u8, counter: u8, proposal: u8) -> u64 {
        if !self.case.fencing {
            return 0;
        }
        let clock = |tick: u8| u64::from(tick) * u64::from(NUMBERS_PER_TICK);
        let has_clock = self.case.ticks > 0;
        let clock = |tick: u8| if has_clock { clock(tick) } else { 0 };
        let slack = clock(self.case.slack);
        self.rules
            .next_number(counter.into(), clock(now), clock(proposal), slack)
    }

    pub(crate) fn count_votes(&self, world: &mut World, index: usize, voters: Masters) {
        let sets = self.sets_at(world.attempts[index].step);
        if !self.case.fencing {
            return self.obtain(world, index, 0);
        }
        let numbers = members(voters);
        let numbers = numbers.map(|m| (m, u64::from(world.masters[m].exchanges[index].number)));
        match self.rules.fencing_token(numbers, voters, sets) {
            Agreement::Agreed(token) => self.obtain(world, index, token as u8),
            Agreement::Confirm(token) => {
                world.attempts[index].phase = Phase::Confirming;
                world.attempts[index].token = token as u8;
                for master in members(sets[0] | sets[1]) {
                    let exchange = &mut world.masters[master].exchanges[index];
                    exchange.in_flight |= CONFIRM;
                    (exchange.votes, exchange.number) = (0, 0);
                }
            }
        }
    }

    pub(crate) fn count_confirmations(&self, world: &mut World, index: usize) -> bool {
        let sets = self.sets_at(world.attempts[index].step);
        let confirming = world.masters_where(|m| m.exchanges[index].votes & CONFIRM != 0);
        let is_won = self.rules.has_token_quorum(confirming, confirming, sets);
        if is_won {
            self.obtain(world, index, world.attempts[index].token);
        }
        is_won
    }

    /// The validity, in ticks, that is left to a client which gets the lock at this age of its attempt.
    fn validity_left(&self, age: u8) -> u8 {
        let Case { ttl, drift, .. } = self.case;
        let end = self
            .rules
            .validity_end(0, age.into(), ttl.into(), drift.into());
        end.saturating_sub(age.into()) as u8
    }

    /// The client has the votes that it needs. It holds the lock from now on.
    fn obtain(&self, world: &mut World, index: usize, token: u8) {
        let attempt = world.attempts[index];
        let left = self.validity_left(attempt.age);
        let is_used = |other: &Attempt| other.has_lock() && other.token == token;
        let has_risen = token > attempt.floor && !world.attempts.iter().any(is_used);
        if self.case.fencing && !has_risen {
            world.broken = Broken::RisingTokens;
        }
        let held = &mut world.attempts[index];
        held.phase = Phase::Holding;
        held.had_lock = 1;
        held.token = token;
        held.left = left;
        (held.age, held.floor) = (0, 0);
        world.largest_token = world.largest_token.max(token);
        for master in &mut world.masters {
            (
                master.exchanges[index].votes,
                master.exchanges[index].number,
            ) = (0, 0);
        }
        for other in &mut world.attempts {
            other.is_overtaken |= u8::from(other.phase == Phase::Overdue);
        }
        let holders = world.attempts.iter();
        let holders = holders.filter(|attempt| attempt.phase == Phase::Holding);
        if holders.count() > 1 {
            world.broken = Broken::OneHolder;
        }
    }

    pub(crate) fn extend(&self, world: &mut World, index: usize, ttl: u8) {
        let masters = self.masters_of(&world.attempts[index]);
        world.extensions += 1;
        world.attempts[index].extending = 1;
        world.attempts[index].extended_ttl = ttl;
        for master in members(masters) {
            let exchange = &mut world.masters[master].exchanges[index];
            if exchange.in_flight & EXTEND != 0 {
                exchange.in_flight |= EARLIER_EXTEND;
            }
            exchange.in_flight |= EXTEND;
            exchange.votes &= !EXTEND;
        }
    }

    pub(crate) fn count_extension(&self, world: &mut World, index: usize) -> bool {
        let attempt = world.attempts[index];
        let sets = self.sets_at(attempt.step);
        let extending = world.masters_where(|m| m.exchanges[index].votes & EXTEND != 0);
        let in_time = self.rules.extension_counts(0, attempt.left.into());
        if !in_time || !self.rules.is_quorum(extending, extending, sets) {
            return false;
        }
        let age = u64::from(attempt.extending - 1);
        let (ttl, drift) = (attempt.extended_ttl.into(), self.case.drift.into());
        let end = self.rules.extended_end(0, age, ttl, drift);
        let left = attempt.left.max(end.saturating_sub(age) as u8);
        if left == 0 {
            return false;
        }
        let held = &mut world.attempts[index];
        held.phase = Phase::Holding;
        held.left = left;
        held.extending = 0;
        for master in &mut world.masters {
            let exchange = &mut master.exchanges[index];
            if exchange.in_flight & EXTEND != 0 {
                exchange.in_flight = exchange.in_flight & !EXTEND | EARLIER_EXTEND;
            }
            exchange.votes = 0;
        }
        if attempt.is_overtaken > 0 {
            world.broken = Broken::NoticeOfLoss;
        }
        let holders = world.attempts.iter();
        let holders = holders.filter(|attempt| attempt.phase == Phase::Holding);
        if holders.count() > 1 {
            world.broken = Broken::OneHolder;
        }
        true
    }

    pub(crate) fn tick(&self, world: &mut World) -> bool {
        if self.case.ticks > 0 {
            if world.now >= self.case.ticks {
                return false;
            }
            world.now += 1;
        }
        for master in &mut world.masters {
            master.guard = master.guard.saturating_sub(1);
            master.left = master.left.saturating_sub(1);
            if master.left == 0 {
                master.value = 0;
            }
        }
        if self.is_change() && self.is_closed(world) {
            world.closed_for = (world.closed_for + 1).min(self.longest_wait());
        }
        let reads_late = self.rules.has(ChangedRule::LateExtension);
        for index in 0..world.attempts.len() {
            let attempt = &mut world.attempts[index];
            match attempt.phase {
                Phase::Asking | Phase::Confirming => {
                    attempt.age = (attempt.age + 1).min(self.case.ttl);
                    // An attempt whose validity would already have ended can only be given up.
                    if self.validity_left(attempt.age) == 0 {
                        world.end(index);
                    }
                }
                Phase::Holding => {
                    attempt.left -= 1;
                    if attempt.extending > 0 {
                        attempt.extending = (attempt.extending + 1).min(self.case.ttl + 1);
                    }
                    if attempt.left == 0 && reads_late && attempt.extending > 0 {
                        attempt.phase = Phase::Overdue;
                    } else if attempt.left == 0 {
                        world.end(index);
                    }
                }
                Phase::Overdue => {
                    attempt.extending = (attempt.extending + 1).min(self.case.ttl + 1);
                }
                Phase::Unused | Phase::Ended => {}
            }
        }
        true
    }

    pub(crate) fn restart(&self, world: &mut World, master: usize, keeps_counter: bool) {
        world.restarts += 1;
        let restarted = &mut world.masters[master];
        (restarted.value, restarted.left) = (0, 0);
        restarted.counter = if keeps_counter { restarted.counter } else { 0 };
        restarted.guard = self.rules.restart_guard(self.case.max_ttl.into()) as u8;
    }
}

impl World {
    /// Lets the operator take a step.
    pub(crate) fn operate(&mut self, action: Action) {
        match action {
            Action::Close { master } => self.masters[master].marker = 1,
            Action::ReadCounters { from } => {
                let counters = members(from).map(|master| self.masters[master].counter);
                self.copied = counters.max().unwrap_or(0) + 1;
            }
            Action::RaiseCounter { master } => {
                let raised = &mut self.masters[master];
                raised.counter = raised.counter.max(self.copied - 1);
                raised.is_raised = 1;
            }
            Action::Open { master } => self.masters[master].marker = 2,
            Action::Finish { master } => self.masters[master].marker = 4,
            _ => unreachable!("only steps of the operator"),
        }
    }
}
