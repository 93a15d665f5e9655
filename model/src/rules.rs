//! The rules of the protocol as pure functions. The comment of each function begins with the heading of
//! docs/protocol.md that has the rule.
//!
//! The search and the check of histories call the same functions. The search counts time in ticks, and the check of
//! histories in nanoseconds or microseconds. The functions only compare and add times.

use crate::changed_rule::ChangedRule;

/// A set of masters: bit n is master n.
pub type Masters = u16;

/// The sets of masters of a client: the old and the next masters. Without a change of masters, the two sets are equal.
pub type Sets = [Masters; 2];

/// The lock key on one master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockKey {
    /// The random value of the attempt that holds the lock on this master.
    pub value: u128,
    /// When the key expires, on the master's clock.
    pub expires: u64,
}

/// The state of one lock on one master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredLock {
    /// The lock key; `None` if the lock is free on this master.
    pub key: Option<LockKey>,
    /// The fencing counter; zero if there is none.
    pub counter: u64,
}

impl StoredLock {
    /// This lock at the time `now` on the master's clock: without the key, if the key has expired.
    #[must_use]
    pub fn at(self, now: u64) -> Self {
        let key = self.key.filter(|key| now < key.expires);
        Self { key, ..self }
    }

    /// Whether the lock key holds this value.
    pub fn is_held_by(&self, value: u128) -> bool {
        self.key.is_some_and(|key| key.value == value)
    }
}

/// The answer of a master to a request about a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The master grants the lock, with this fencing number.
    Granted(u64),
    /// The master refuses the lock.
    Refused,
    /// The master has set its fencing counter to the token.
    Confirmed,
    /// The fencing counter is above the token that the client wants to have confirmed.
    CounterAbove,
    /// The master has extended the lock, or has restored its missing key.
    Extended,
    /// The client does not hold the lock on this master.
    NotOurs,
    /// The master has executed the release. True if it has deleted the lock key.
    Released(bool),
}

/// A client's decision about its fencing token, from the numbers that the masters granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// The token.
    Agreed(u64),
    /// The client must ask the masters to confirm this number.
    Confirm(u64),
}

/// The rules of the protocol, of which at most one is changed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    changed: Option<ChangedRule>,
}

impl Rules {
    /// The rules of docs/protocol.md.
    pub const PROTOCOL: Self = Self { changed: None };

    /// The rules of docs/protocol.md with one change.
    pub const fn with(change: ChangedRule) -> Self {
        Self {
            changed: Some(change),
        }
    }

    /// The changed rule; `None` if no rule is changed.
    pub fn changed(self) -> Option<ChangedRule> {
        self.changed
    }

    /// Whether this is the changed rule.
    pub(crate) fn has(self, change: ChangedRule) -> bool {
        self.changed == Some(change)
    }

    /// "Majority": more than half of all masters of the set. `answered` are the masters whose answers the client has.
    pub fn is_majority(self, voters: Masters, answered: Masters, set: Masters) -> bool {
        let masters = if self.has(ChangedRule::ReachableQuorum) {
            (answered & set).count_ones()
        } else {
            set.count_ones()
        };
        let votes = (voters & set).count_ones();
        if self.has(ChangedRule::HalfQuorum) {
            votes >= (masters / 2).max(1)
        } else {
            2 * votes > masters
        }
    }

    /// "Replacing masters": a client of both sets needs a majority of each set.
    pub fn is_quorum(self, voters: Masters, answered: Masters, [old, next]: Sets) -> bool {
        let has_majority = |set: Masters| self.is_majority(voters, answered, set);
        match self.changed {
            Some(ChangedRule::JointUnion) => has_majority(old | next),
            Some(ChangedRule::JointOldOnly) => has_majority(old),
            Some(ChangedRule::JointNextOnly) => has_majority(next),
            _ => has_majority(old) && has_majority(next),
        }
    }

    /// "Validity": the end of the validity on the client's clock. `started` is the time before the first request,
    /// `replied` the time of the last answer.
    pub fn validity_end(self, started: u64, replied: u64, ttl: u64, drift: u64) -> u64 {
        let from = if self.has(ChangedRule::ValidityAfterReplies) {
            replied
        } else {
            started
        };
        self.end_from(from, ttl, drift)
    }

    /// "Renewal": the end of the validity after an extension. `started` is the time before the first request of the
    /// extension, `replied` the time of the last answer.
    pub fn extended_end(self, started: u64, replied: u64, ttl: u64, drift: u64) -> u64 {
        let from = if self.has(ChangedRule::ExtensionAfterReplies) {
            replied
        } else {
            started
        };
        self.end_from(from, ttl, drift)
    }

    /// "Clock drift": the validity ends earlier than the TTL by the drift allowance.
    fn end_from(self, from: u64, ttl: u64, drift: u64) -> u64 {
        let drift = if self.has(ChangedRule::NoDrift) {
            0
        } else {
            drift
        };
        from + ttl.saturating_sub(drift)
    }

    /// "Renewal": whether an extension counts that a majority has answered at `now`. `old_end` is the end of the old
    /// validity, on the client's clock.
    pub fn extension_counts(self, now: u64, old_end: u64) -> bool {
        now < old_end || self.has(ChangedRule::LateExtension)
    }

    /// "Fencing tokens": the number that a master grants. It is above the counter, and the proposal counts only if it is
    /// near the master's clock.
    pub fn next_number(self, counter: u64, clock: u64, proposal: u64, slack: u64) -> u64 {
        let proposed = proposal.clamp(clock.saturating_sub(slack), clock + slack);
        match self.changed {
            Some(ChangedRule::CounterNotRaised) => counter.max(1),
            Some(ChangedRule::CounterStartsAtZero) => counter + 1,
            _ => proposed.max(counter + 1),
        }
    }

    /// "Majority" and "One value per attempt": executes an acquire. The lock gets `number` as its fencing number, and
    /// the key expires at `expires`. `has_turn` is false if other clients wait for the lock and come first.
    pub fn acquire(
        self,
        stored: &mut StoredLock,
        key: LockKey,
        number: u64,
        has_turn: bool,
    ) -> Answer {
        if stored.is_held_by(key.value) {
            return Answer::Granted(stored.counter);
        }
        let is_free = stored.key.is_none() || self.has(ChangedRule::AcquireOverwrites);
        if !is_free || !has_turn {
            return Answer::Refused;
        }
        *stored = StoredLock {
            key: Some(key),
            counter: number,
        };
        Answer::Granted(number)
    }

    /// "Fencing tokens": executes a request to confirm a token.
    pub fn confirm(self, stored: &mut StoredLock, value: u128, token: u64) -> Answer {
        if !stored.is_held_by(value) && !self.has(ChangedRule::ConfirmWithoutCompare) {
            return Answer::NotOurs;
        }
        if stored.counter > token {
            return if self.has(ChangedRule::ConfirmAtLeast) {
                Answer::Confirmed
            } else {
                Answer::CounterAbove
            };
        }
        stored.counter = token;
        Answer::Confirmed
    }

    /// "Renewal": executes an extension. It restores a missing key, and never moves the expiry to an earlier time.
    pub fn extend(self, stored: &mut StoredLock, key: LockKey) -> Answer {
        match &mut stored.key {
            Some(held) if held.value == key.value => {
                held.expires = if self.has(ChangedRule::ShorteningExtend) {
                    key.expires
                } else {
                    held.expires.max(key.expires)
                };
                Answer::Extended
            }
            Some(_) if self.has(ChangedRule::ExtendWithoutCompare) => Answer::Extended,
            Some(_) => Answer::NotOurs,
            None => {
                stored.key = Some(key);
                Answer::Extended
            }
        }
    }

    /// "Release": deletes the lock key only if it holds the client's own value.
    pub fn release(self, stored: &mut StoredLock, value: u128) -> Answer {
        let is_deleted = stored.is_held_by(value)
            || stored.key.is_some() && self.has(ChangedRule::UnconditionalDelete);
        if is_deleted {
            stored.key = None;
        }
        Answer::Released(is_deleted)
    }

    /// "Fencing tokens": the token, if a majority granted exactly this number. Otherwise the largest number, which the
    /// client must have confirmed. `numbers` are pairs of a master and the number that it granted.
    pub fn fencing_token(
        self,
        numbers: impl Iterator<Item = (usize, u64)> + Clone,
        answered: Masters,
        sets: Sets,
    ) -> Agreement {
        let largest = numbers.clone().map(|(_, number)| number).max();
        let largest = largest.unwrap_or(0);
        if self.has(ChangedRule::LargestCounter) {
            return Agreement::Agreed(largest);
        }
        let granting = |wanted: u64| {
            let equal = numbers.clone().filter(|(_, number)| *number == wanted);
            equal.fold(0, |masters, (master, _)| masters | 1 << master)
        };
        let is_agreed = |number: u64| self.has_token_quorum(granting(number), answered, sets);
        let mut candidates = numbers.clone().map(|(_, number)| number);
        match candidates.find(|number| is_agreed(*number)) {
            Some(token) => Agreement::Agreed(token),
            None => Agreement::Confirm(largest),
        }
    }

    /// "Fencing tokens": whether the masters whose counters are equal to the token are enough.
    pub fn has_token_quorum(self, equal: Masters, answered: Masters, sets: Sets) -> bool {
        if self.has(ChangedRule::FenceOneSet) {
            return self.is_majority(equal, answered, sets[0]);
        }
        self.is_quorum(equal, answered, sets)
    }

    /// "Restart guard": for how long the votes of a restarted master are ignored.
    pub fn restart_guard(self, max_ttl: u64) -> u64 {
        match self.changed {
            Some(ChangedRule::GuardOff) => 0,
            Some(ChangedRule::GuardTooShort) => max_ttl / 2,
            _ => max_ttl,
        }
    }

    /// "Replacing masters": whether a master with this number in its generation marker votes for clients at this step.
    pub fn admits(self, marker: u8, step: u8) -> bool {
        let is_early = self.has(ChangedRule::ClosingOpens) && marker == 1 && step == 2;
        let is_admitted = (2 * step).saturating_sub(2) <= marker && marker <= 2 * step;
        is_admitted || is_early || self.has(ChangedRule::MarkersIgnored)
    }

    /// "Replacing masters": whether a master with this number in its marker extends locks of clients at this step.
    pub fn admits_extension(self, marker: u8, step: u8) -> bool {
        self.admits(marker, step) || self.has(ChangedRule::ExtendUnrefused)
    }

    /// "Replacing masters": whether the closed masters are enough for the operator to begin the wait of `open`.
    pub fn is_closed(self, closed: Masters, old: Masters) -> bool {
        closed & old != 0 && self.has(ChangedRule::CloseMinority)
            || self.is_majority(closed, closed, old)
    }

    /// "Replacing masters": whether the operator may open the next masters. `closed_for` is the time since a majority
    /// of the old masters has been closed.
    pub fn may_open(self, closed_for: u64, max_ttl: u64, drift: u64) -> bool {
        closed_for >= max_ttl + drift || self.has(ChangedRule::OpenWithoutWait)
    }
}
