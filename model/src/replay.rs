//! Checks that every event of a recorded history is a step that the rules of the model allow.
//!
//! The check keeps the state of the model: what each master stores, and which votes each attempt has. It computes from
//! this state, by the rules, what each event may be. It takes from the history only what the model leaves open: which
//! request arrives next, the readings of the clocks, and the number that a client proposes as its token.

use std::collections::HashMap;
use std::fmt;

use crate::history::{AttemptId, Event, EventKind, Sent, Settings, Verb};
use crate::rules::{Answer, LockKey, Masters, Rules, Sets, StoredLock};

/// By how much a proposed fencing number may differ from the master's clock, in microseconds.
const PROPOSAL_SLACK: u64 = 1_000_000;

/// The fixed part of the drift allowance, in nanoseconds. The other part is 1 % of the TTL.
const FIXED_DRIFT: u64 = 2_000_000;

/// Durations are rounded to nanoseconds more than once.
const ROUNDING: u64 = 1_000;

/// An event that the rules do not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The true time of the event, in nanoseconds.
    pub at: u64,
    /// The rule: a heading of docs/protocol.md, or a promise.
    pub rule: &'static str,
    /// The event, and the reason for the refusal.
    pub description: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.description)
    }
}

count_fields! {
    /// How many events of each kind the check has accepted.
    Accepted
    /// Requests that clients have sent.
    sent,
    /// Acquires that masters have granted.
    granted,
    /// Acquires that masters have refused because another client held the lock.
    refused,
    /// Confirmed tokens.
    confirmed,
    /// Extensions on masters.
    extensions,
    /// Extensions that have restored a missing key.
    restored,
    /// Releases that have deleted a lock key.
    released,
    /// Locks that clients have got.
    obtained,
    /// Locks that clients have got with a token that had to be confirmed.
    obtained_by_confirm,
    /// Locks that clients have got from the old and the next masters together.
    obtained_from_both,
    /// Extended validities.
    extended,
    /// Locks that have ended.
    ended,
    /// Restarts of masters.
    restarts,
    /// Restarts after which a master has forgotten a lock key that had not expired.
    forgotten,
    /// Votes of masters that have restarted before.
    votes_after_restart,
    /// Steps of operators.
    markers,
    /// Next masters that were opened.
    opened,
    /// Fencing counters that operators have raised.
    raised,
}

/// One master.
#[derive(Clone, Debug)]
struct Master {
    locks: Vec<StoredLock>,
    /// The earlier states of each lock on this master.
    earlier: Vec<Vec<StoredLock>>,
    /// The true time of the last restart.
    restarted_at: Option<u64>,
    marker: u64,
    /// The last true time at which the master has voted for a client at each step.
    last_votes: HashMap<u8, u64>,
}

/// The requests of an attempt to one master, and the votes of this master.
#[derive(Clone, Debug, Default)]
struct Exchange {
    is_asked: bool,
    granted: Option<u64>,
    /// The tokens that the client wants to have confirmed, one after the other: after a refusal, it tries a larger one.
    to_confirm: Vec<u64>,
    /// The token that the master has confirmed last.
    confirmed: Option<u64>,
    /// The extensions that the client has sent: the reading of its clock, and the TTL.
    extensions: Vec<(u64, u64)>,
    /// The latest end of the validity that the master's answers to extensions allow, on the client's clock.
    extended_until: u64,
}

/// One attempt of a client.
#[derive(Clone, Debug)]
struct Attempt {
    id: AttemptId,
    step: u8,
    /// The reading of the client's clock when it sent the first request.
    started: u64,
    /// The largest token that any client had on the lock when the attempt began.
    floor: u64,
    has_released: bool,
    has_obtained: bool,
    sets: Sets,
    exchanges: Vec<Exchange>,
}

/// A lock that a client holds.
#[derive(Clone, Copy, Debug)]
struct Holder {
    id: AttemptId,
    ends_at: u64,
}

/// The check of one history.
#[derive(Clone, Debug)]
pub struct Replay {
    rules: Rules,
    settings: Settings,
    masters: Vec<Master>,
    attempts: HashMap<u128, Attempt>,
    /// The present holders of each lock.
    holders: Vec<Vec<Holder>>,
    /// The tokens that clients have got on each lock.
    tokens: Vec<Vec<u64>>,
    accepted: Accepted,
}

type Checked = Result<(), (&'static str, String)>;

fn require(is_allowed: bool, rule: &'static str, description: impl FnOnce() -> String) -> Checked {
    if is_allowed {
        return Ok(());
    }
    Err((rule, description()))
}

impl Replay {
    /// Checks all events of a history by the rules of docs/protocol.md.
    ///
    /// # Errors
    ///
    /// The first event that the rules do not allow.
    pub fn check(settings: Settings, history: &[Event]) -> Result<Accepted, Refusal> {
        let mut replay = Self::new(Rules::PROTOCOL, settings);
        history.iter().try_for_each(|event| replay.accept(event))?;
        Ok(replay.accepted)
    }

    /// Creates the check. No event has happened yet.
    pub fn new(rules: Rules, settings: Settings) -> Self {
        let master = Master {
            locks: vec![StoredLock::default(); settings.locks],
            earlier: vec![Vec::new(); settings.locks],
            restarted_at: None,
            marker: 0,
            last_votes: HashMap::new(),
        };
        Self {
            rules,
            masters: vec![master; settings.masters],
            attempts: HashMap::new(),
            holders: vec![Vec::new(); settings.locks],
            tokens: vec![Vec::new(); settings.locks],
            accepted: Accepted::default(),
            settings,
        }
    }

    /// How many events of each kind the check has accepted.
    pub fn accepted(&self) -> Accepted {
        self.accepted
    }

    /// Checks the next event of the history, and takes its step.
    ///
    /// # Errors
    ///
    /// If the rules do not allow the event.
    pub fn accept(&mut self, event: &Event) -> Result<(), Refusal> {
        let at = event.at;
        let checked = match &event.kind {
            EventKind::Begins {
                master,
                lock,
                stored,
            } => {
                self.store(*master, *lock, *stored);
                Ok(())
            }
            EventKind::Sent { .. } => self.check_sent(&event.kind),
            EventKind::Executed { .. } => self.check_executed(at, &event.kind),
            EventKind::Obtained { .. } => self.check_obtained(at, &event.kind),
            EventKind::Extended { .. } => self.check_extended(at, &event.kind),
            EventKind::Ended { attempt } => {
                self.holders[attempt.lock].retain(|holder| holder.id != *attempt);
                self.accepted.ended += 1;
                Ok(())
            }
            EventKind::Restarted {
                master,
                clock,
                locks,
            } => self.check_restarted(at, *master, *clock, locks),
            EventKind::Marked {
                master,
                clock,
                number,
                is_step,
            } => self.check_marked(at, *master, *clock, (*number, *is_step)),
            EventKind::Raised {
                master,
                lock,
                after,
            } => self.check_raised(*master, *lock, *after),
        };
        checked.map_err(|(rule, description)| Refusal {
            at,
            rule,
            description,
        })
    }

    fn store(&mut self, master: usize, lock: usize, stored: StoredLock) {
        let master = &mut self.masters[master];
        if master.locks[lock] != stored {
            master.earlier[lock].push(stored);
        }
        master.locks[lock] = stored;
    }

    fn drift(ttl: u64) -> u64 {
        ttl / 100 + FIXED_DRIFT
    }

    /// A duration that a client or an operator has measured, in true time: its clock may be fast.
    fn in_true_time(&self, measured: u64) -> u64 {
        measured - measured / 1_000_000 * (2 * self.settings.clock_error_ppm) - ROUNDING
    }

    /// "One value per attempt", "Release" and "Fencing tokens": what a client may send.
    fn check_sent(&mut self, kind: &EventKind) -> Checked {
        let EventKind::Sent {
            attempt: id,
            step,
            master,
            request,
            reading,
        } = *kind
        else {
            return Ok(());
        };
        self.accepted.sent += 1;
        let floor = self.tokens[id.lock].iter().max().copied().unwrap_or(0);
        let new_attempt = || Attempt {
            id,
            step,
            started: reading,
            floor,
            has_released: false,
            has_obtained: false,
            sets: [0, 0],
            exchanges: vec![Exchange::default(); self.settings.masters],
        };
        // A waiter leaves the queue with a release. It may leave before it has sent an acquire.
        let attempt = match request {
            Sent::Acquire | Sent::Release => {
                self.attempts.entry(id.value).or_insert_with(new_attempt)
            }
            Sent::Confirm(_) | Sent::Extend(_) => {
                let Some(attempt) = self.attempts.get_mut(&id.value) else {
                    let text = format!("client {} sends {request:?} without an acquire", id.client);
                    return Err(("one value per attempt", text));
                };
                attempt
            }
        };
        let is_granted = |number: u64| {
            let mut exchanges = attempt.exchanges.iter();
            exchanges.any(|exchange| exchange.granted == Some(number))
        };
        let is_allowed = match request {
            Sent::Acquire => {
                attempt.id == id && !attempt.has_released && !attempt.exchanges[master].is_asked
            }
            Sent::Confirm(token) => is_granted(token),
            Sent::Extend(_) | Sent::Release => true,
        };
        let rule = match request {
            Sent::Confirm(_) => "fencing tokens",
            _ => "one value per attempt",
        };
        let exchange = &mut attempt.exchanges[master];
        match request {
            Sent::Acquire => exchange.is_asked = true,
            Sent::Confirm(token) => exchange.to_confirm.push(token),
            Sent::Extend(ttl) => exchange.extensions.push((reading, ttl)),
            Sent::Release => attempt.has_released = true,
        }
        require(is_allowed, rule, || {
            format!("client {} must not send {request:?}", id.client)
        })
    }

    /// Computes by the rules what the master answers and stores, and compares both with the history.
    fn check_executed(&mut self, at: u64, kind: &EventKind) -> Checked {
        let EventKind::Executed {
            master,
            lock,
            value,
            verb,
            answer,
            clock,
            after,
            ..
        } = *kind
        else {
            return Ok(());
        };
        let before = self.masters[master].locks[lock].at(clock);
        let after = after.at(clock);
        let rule = match verb {
            Verb::Acquire => "majority",
            Verb::Confirm(_) => "fencing tokens",
            Verb::Extend => "renewal",
            Verb::Release => "release",
        };
        let Some(answer) = answer else {
            self.store(master, lock, after);
            return require(after == before, rule, || {
                format!("master {master} has executed nothing, but {before:?} became {after:?}")
            });
        };
        let Some(attempt) = self.attempts.get(&value) else {
            let text = format!("master {master} has executed a request that nobody has sent");
            return Err((rule, text));
        };
        let is_sent = match verb {
            Verb::Confirm(token) => attempt.exchanges[master].to_confirm.contains(&token),
            _ => true,
        };
        let mut possible = self.possible_answers(attempt, (verb, answer), (master, before), clock);
        let is_possible = is_sent && possible.any(|step| step == (answer, after));
        drop(possible);
        // Without fencing tokens, a master also refuses a request that it has granted before.
        let refuses_again = !self.settings.fencing && answer == Answer::Refused;
        let is_possible = is_possible || refuses_again && before.key.is_some() && after == before;
        let is_own_token = verb != Verb::Acquire || self.is_number_allowed(before, answer, clock);
        self.count_executed(verb, answer, before);
        self.store(master, lock, after);
        require(is_possible, rule, || {
            format!(
                "master {master} must not answer {verb:?} with {answer:?}, and turn {before:?} into {after:?}"
            )
        })?;
        require(is_own_token, "fencing tokens", || {
            format!("master {master} must not turn {before:?} into {after:?} at {clock}")
        })?;
        self.count_vote(at, kind)
    }

    /// The answers that the master may give, each with what the master then stores. For an extension there are several,
    /// because the history does not say which of the client's extensions has arrived.
    fn possible_answers<'a>(
        &'a self,
        attempt: &'a Attempt,
        (verb, answer): (Verb, Answer),
        (master, before): (usize, StoredLock),
        clock: u64,
    ) -> impl Iterator<Item = (Answer, StoredLock)> + 'a {
        let rules = self.rules;
        let exchange = &attempt.exchanges[master];
        let ttls: Vec<u64> = match verb {
            Verb::Extend => exchange.extensions.iter().map(|(_, ttl)| *ttl).collect(),
            _ => vec![self.settings.ttl],
        };
        ttls.into_iter().map(move |ttl| {
            let mut stored = before;
            let key = LockKey {
                value: attempt.id.value,
                expires: clock + ttl / 1_000,
            };
            let answer = match verb {
                Verb::Acquire => {
                    let number = match answer {
                        Answer::Granted(number) if self.settings.fencing => number,
                        _ => before.counter,
                    };
                    let has_turn = answer != Answer::Refused || !self.settings.ordered;
                    match rules.acquire(&mut stored, key, number, has_turn) {
                        Answer::Granted(_) if !self.settings.fencing => Answer::Granted(0),
                        answer => answer,
                    }
                }
                Verb::Confirm(token) => rules.confirm(&mut stored, key.value, token),
                Verb::Extend => rules.extend(&mut stored, key),
                Verb::Release => rules.release(&mut stored, key.value),
            };
            (answer, stored)
        })
    }

    /// Whether the number of a new grant is above the counter, and near the master's clock.
    fn is_number_allowed(&self, before: StoredLock, answer: Answer, clock: u64) -> bool {
        let Answer::Granted(number) = answer else {
            return true;
        };
        if before.key.is_some() || !self.settings.fencing {
            return true;
        }
        let next = |proposal: u64| {
            self.rules
                .next_number(before.counter, clock, proposal, PROPOSAL_SLACK)
        };
        (next(0)..=next(u64::MAX)).contains(&number)
    }

    fn count_executed(&mut self, verb: Verb, answer: Answer, before: StoredLock) {
        let accepted = &mut self.accepted;
        match answer {
            Answer::Granted(_) => accepted.granted += 1,
            Answer::Refused => accepted.refused += u64::from(before.key.is_some()),
            Answer::Confirmed => accepted.confirmed += 1,
            Answer::Extended => {
                accepted.extensions += 1;
                accepted.restored += u64::from(before.key.is_none());
            }
            Answer::Released(is_deleted) => accepted.released += u64::from(is_deleted),
            Answer::CounterAbove | Answer::NotOurs => {}
        }
        debug_assert!(verb != Verb::Release || matches!(answer, Answer::Released(_)));
    }

    /// "Restart guard" and "Replacing masters": whether a master may vote. Clients send no request for a vote to a master
    /// whose votes they ignore.
    fn count_vote(&mut self, at: u64, kind: &EventKind) -> Checked {
        let EventKind::Executed {
            master,
            value,
            answer: Some(answer),
            is_live,
            after,
            ..
        } = *kind
        else {
            return Ok(());
        };
        let is_vote = matches!(
            answer,
            Answer::Granted(_) | Answer::Confirmed | Answer::Extended
        );
        let guard = self.in_true_time(
            self.rules
                .restart_guard(self.settings.max_ttl)
                .max(ROUNDING),
        );
        let state = &mut self.masters[master];
        let Some(attempt) = self.attempts.get_mut(&value).filter(|_| is_vote) else {
            return Ok(());
        };
        let step = attempt.step;
        // Requests of clients of the first masters do not check the marker: their connections are closed instead.
        let marker = state.marker as u8;
        let is_admitted = step == 0 || self.rules.admits(marker, step);
        require(is_admitted, "replacing masters", || {
            format!("master {master} with the marker {marker} votes for a client at step {step}")
        })?;
        if !is_live {
            return Ok(());
        }
        state.last_votes.insert(step, at);
        let is_guarded = state
            .restarted_at
            .is_some_and(|restarted_at| at < restarted_at + guard);
        self.accepted.votes_after_restart += u64::from(state.restarted_at.is_some());
        require(!is_guarded || !self.settings.guard, "restart guard", || {
            format!("master {master} votes too early after its restart")
        })?;
        let exchange = &mut attempt.exchanges[master];
        match answer {
            Answer::Granted(number) => exchange.granted = Some(number),
            Answer::Confirmed => exchange.confirmed = Some(after.counter),
            _ => {
                let ends = exchange.extensions.iter();
                let ends = ends.map(|(sent, ttl)| {
                    self.rules
                        .extended_end(*sent, *sent, *ttl, Self::drift(*ttl))
                });
                exchange.extended_until = ends.max().unwrap_or(0);
            }
        }
        Ok(())
    }

    /// "Majority", "Fencing tokens" and "Validity": whether a client may have got a lock.
    fn check_obtained(&mut self, at: u64, kind: &EventKind) -> Checked {
        let EventKind::Obtained {
            attempt: id,
            sets,
            token,
            reading,
            valid_until,
            ends_at,
        } = *kind
        else {
            return Ok(());
        };
        let Some(attempt) = self.attempts.get_mut(&id.value) else {
            return Err((
                "majority",
                format!("client {} has asked no master", id.client),
            ));
        };
        let is_first = !std::mem::replace(&mut attempt.has_obtained, true);
        attempt.sets = sets;
        let attempt = &self.attempts[&id.value];
        require(
            is_first && attempt.id == id,
            "one value per attempt",
            || {
                format!(
                    "client {} gets a lock with the value of another attempt",
                    id.client
                )
            },
        )?;
        let by_confirm = self.check_votes(attempt, sets, token)?;
        let ttl = self.settings.ttl;
        let end = self
            .rules
            .validity_end(attempt.started, reading, ttl, Self::drift(ttl));
        let is_valid = valid_until <= end + ROUNDING
            && reading < valid_until + 4 * self.settings.longest_reading;
        require(is_valid, "validity", || {
            format!(
                "client {} may rely on its lock until {end}, not {valid_until}",
                id.client
            )
        })?;
        self.accepted.obtained += 1;
        self.accepted.obtained_by_confirm += u64::from(by_confirm && self.settings.fencing);
        self.accepted.obtained_from_both += u64::from(sets[0] != sets[1]);
        let floor = attempt.floor;
        self.check_one_holder(at, Holder { id, ends_at })?;
        self.check_rising(id, token.unwrap_or(0), floor)
    }

    /// "Majority" and "Fencing tokens": whether the votes of an attempt are enough for the lock and its token. Returns
    /// whether the token had to be confirmed.
    fn check_votes(
        &self,
        attempt: &Attempt,
        sets: Sets,
        token: Option<u64>,
    ) -> Result<bool, (&'static str, String)> {
        let id = attempt.id;
        let voting = |has_voted: &dyn Fn(&Exchange) -> bool| {
            let exchanges = attempt.exchanges.iter().enumerate();
            exchanges.fold(0, |masters: Masters, (master, exchange)| {
                masters | u16::from(has_voted(exchange)) << master
            })
        };
        let granting = voting(&|exchange| exchange.granted.is_some());
        require(
            self.rules.is_quorum(granting, granting, sets),
            "majority",
            || {
                format!(
                    "client {} gets a lock with the votes of the masters {granting:b}",
                    id.client
                )
            },
        )?;
        let has_granted = |exchange: &Exchange| exchange.granted == token;
        // A client counts the votes again from zero when it asks for a larger number.
        let has_confirmed = |exchange: &Exchange| {
            exchange.confirmed.is_some()
                && exchange.confirmed == token
                && exchange.to_confirm.last().copied() == token
        };
        let agreeing = voting(&has_granted) | voting(&has_confirmed);
        let is_agreed = self.rules.has_token_quorum(agreeing, agreeing, sets);
        require(
            is_agreed || !self.settings.fencing,
            "fencing tokens",
            || {
                format!(
                    "client {} takes the token {token:?} of the masters {agreeing:b}",
                    id.client
                )
            },
        )?;
        Ok(!self
            .rules
            .has_token_quorum(voting(&has_granted), granting, sets))
    }

    /// The promise "one holder". Adds the holder.
    fn check_one_holder(&mut self, at: u64, holder: Holder) -> Checked {
        let lock = holder.id.lock;
        let others = self.holders[lock].iter();
        let other = others
            .copied()
            .find(|other| other.ends_at > at && other.id != holder.id);
        self.holders[lock].retain(|other| other.ends_at > at && other.id != holder.id);
        self.holders[lock].push(holder);
        require(
            other.is_none() || !self.settings.one_holder,
            "one holder",
            || {
                format!(
                    "the clients {:?} and {} hold the lock {lock}",
                    other.map(|o| o.id.client),
                    holder.id.client
                )
            },
        )
    }

    /// The promise "rising tokens".
    fn check_rising(&mut self, id: AttemptId, token: u64, floor: u64) -> Checked {
        if !self.settings.fencing {
            return Ok(());
        }
        let is_used = self.tokens[id.lock].contains(&token);
        self.tokens[id.lock].push(token);
        let has_risen = token > floor && !is_used;
        require(
            has_risen || !self.settings.rising_tokens,
            "rising tokens",
            || {
                format!(
                    "client {} gets the token {token}, but a client had {floor} before",
                    id.client
                )
            },
        )
    }

    /// "Renewal": whether the validity of a client may have been extended.
    fn check_extended(&mut self, at: u64, kind: &EventKind) -> Checked {
        let EventKind::Extended {
            attempt: id,
            reading,
            old_end,
            valid_until,
            ends_at,
        } = *kind
        else {
            return Ok(());
        };
        let Some(attempt) = self
            .attempts
            .get(&id.value)
            .filter(|attempt| attempt.has_obtained)
        else {
            return Err((
                "renewal",
                format!("client {} extends a lock that it never had", id.client),
            ));
        };
        let exchanges = attempt.exchanges.iter().enumerate();
        let extending = exchanges.fold(0, |masters: Masters, (master, exchange)| {
            let has_extended = exchange.extended_until + ROUNDING >= valid_until;
            masters | u16::from(has_extended) << master
        });
        let is_extended = self.rules.is_quorum(extending, extending, attempt.sets);
        require(is_extended, "renewal", || {
            format!(
                "client {} extends its validity with the votes of the masters {extending:b}",
                id.client
            )
        })?;
        let end = old_end + 4 * self.settings.longest_reading;
        require(self.rules.extension_counts(reading, end), "renewal", || {
            format!(
                "client {} counts an extension after its old validity",
                id.client
            )
        })?;
        self.accepted.extended += 1;
        self.check_one_holder(at, Holder { id, ends_at })
    }

    /// A restart: the master has everything, nothing, or an earlier state.
    fn check_restarted(
        &mut self,
        at: u64,
        index: usize,
        clock: u64,
        locks: &[StoredLock],
    ) -> Checked {
        self.accepted.restarts += 1;
        let master = &mut self.masters[index];
        master.restarted_at = Some(at);
        let mut has_forgotten = false;
        for (lock, after) in locks.iter().enumerate() {
            let before = master.locks[lock].at(clock);
            let mut earlier = master.earlier[lock].iter().map(|stored| stored.at(clock));
            let is_possible =
                *after == StoredLock::default() || earlier.any(|stored| stored == *after);
            require(is_possible || *after == before, "restart guard", || {
                format!("master {index} had {before:?} before its restart, and has {after:?} now")
            })?;
            has_forgotten |= before.key.is_some() && after.key != before.key;
            master.locks[lock] = *after;
        }
        self.accepted.forgotten += u64::from(has_forgotten);
        Ok(())
    }

    /// "Replacing masters": whether an operator may take a step on a master.
    fn check_marked(
        &mut self,
        at: u64,
        index: usize,
        clock: u64,
        (number, is_step): (u64, bool),
    ) -> Checked {
        let change = (number / 4) as usize;
        if is_step {
            self.accepted.markers += 1;
            let is_raised = number >= self.masters[index].marker;
            require(is_raised, "replacing masters", || {
                format!("the marker of master {index} falls to {number}")
            })?;
            if number % 4 == 2 {
                self.check_opening(at, clock, change)?;
            }
        }
        self.masters[index].marker = number;
        Ok(())
    }

    /// Whether an operator may open the next masters of a change: a majority of the old masters has been closed, and has
    /// not voted for clients of the old masters, for the longest TTL. A majority of the next masters has counters that
    /// are not below any token.
    fn check_opening(&mut self, at: u64, clock: u64, change: usize) -> Checked {
        let (old, next) = (self.settings.sets[change], self.settings.sets[change + 1]);
        let masters_where = |is_true: &dyn Fn(&Master) -> bool| {
            let masters = self.masters.iter().enumerate();
            masters.fold(0, |set: Masters, (index, master)| {
                set | u16::from(is_true(master)) << index
            })
        };
        let step = 2 * change as u8;
        let wait = self.in_true_time(self.settings.max_ttl);
        let has_waited = |master: &Master| {
            let last_vote = master.last_votes.get(&step).copied().unwrap_or(0);
            self.rules.may_open(at.saturating_sub(last_vote), wait, 0)
        };
        let closed = |master: &Master| master.marker > 4 * change as u64 && has_waited(master);
        let closed = masters_where(&closed);
        require(
            self.rules.is_closed(closed, old),
            "replacing masters",
            || {
                format!(
                    "an operator opens next masters, but only the old masters {closed:b} have been closed long enough"
                )
            },
        )?;
        for lock in 0..self.settings.locks {
            let token = self.tokens[lock].iter().max().copied().unwrap_or(0);
            let grants_more = |master: &Master| {
                let counter = master.locks[lock].counter;
                self.rules.next_number(counter, clock, 0, PROPOSAL_SLACK) > token
            };
            let raised = masters_where(&grants_more);
            let is_raised = self.rules.is_majority(raised, raised, next);
            require(
                is_raised || !self.settings.fencing,
                "replacing masters",
                || {
                    format!(
                        "an operator opens next masters, but only the counters of {raised:b} have reached the token {token} of lock {lock}"
                    )
                },
            )?;
        }
        self.accepted.opened += 1;
        Ok(())
    }

    /// "Replacing masters": an operator never lowers a fencing counter, and leaves the lock key.
    fn check_raised(&mut self, master: usize, lock: usize, after: StoredLock) -> Checked {
        let before = self.masters[master].locks[lock];
        let known = self.masters.iter().map(|master| master.locks[lock].counter);
        let largest = known.max().unwrap_or(0);
        self.accepted.raised += u64::from(after.counter > before.counter);
        self.store(
            master,
            lock,
            StoredLock {
                key: before.key,
                ..after
            },
        );
        require(
            (before.counter..=largest).contains(&after.counter),
            "replacing masters",
            || {
                format!(
                    "an operator sets the counter of lock {lock} on master {master} from {} to {}",
                    before.counter, after.counter
                )
            },
        )
    }
}
