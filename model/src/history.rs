//! The events of a recorded history. The simulation records them; the check of histories is in `replay.rs`.

use crate::rules::{Answer, Masters, Sets, StoredLock};

/// An event of a history, with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The true time of the event, in nanoseconds.
    pub at: u64,
    /// The kind of the event, and its details.
    pub kind: EventKind,
}

/// The attempt of a client to take a lock, to which an event belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptId {
    /// The client.
    pub client: usize,
    /// The number of the lock.
    pub lock: usize,
    /// The random value of the attempt.
    pub value: u128,
}

/// A request about a lock, as a client sends it to one master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Take the lock.
    Acquire,
    /// Set the fencing counter to this token.
    Confirm(u64),
    /// Extend the lock by this TTL, in nanoseconds.
    Extend(u64),
    /// Release the lock.
    Release,
}

/// The kind of a request that a master has executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Take the lock.
    Acquire,
    /// Set the fencing counter to this token.
    Confirm(u64),
    /// Extend the lock.
    Extend,
    /// Release the lock.
    Release,
}

/// The kinds of events, with their details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// At the beginning of the history, a master stores this for a lock.
    Begins {
        /// The master.
        master: usize,
        /// The number of the lock.
        lock: usize,
        /// The lock on this master.
        stored: StoredLock,
    },
    /// A client sends a request to a master.
    Sent {
        /// The attempt.
        attempt: AttemptId,
        /// The step of the client in the replacement of masters.
        step: u8,
        /// The master.
        master: usize,
        /// The request.
        request: Sent,
        /// The reading of the client's clock, in nanoseconds.
        reading: u64,
    },
    /// A master has executed a request.
    Executed {
        /// The master.
        master: usize,
        /// The number of the lock.
        lock: usize,
        /// The random value in the request.
        value: u128,
        /// The kind of the request.
        verb: Verb,
        /// The answer; `None` if the master has executed nothing.
        answer: Option<Answer>,
        /// Whether the client may receive the answer. False for a delayed second copy of a request.
        is_live: bool,
        /// The reading of the master's clock, in microseconds.
        clock: u64,
        /// The lock on this master after the request. The expiry is in microseconds on the master's clock.
        after: StoredLock,
    },
    /// A client has got a lock.
    Obtained {
        /// The attempt.
        attempt: AttemptId,
        /// The masters of which the client needs majorities.
        sets: Sets,
        /// The fencing token.
        token: Option<u64>,
        /// The reading of the client's clock, in nanoseconds.
        reading: u64,
        /// The end of the validity on the client's clock, in nanoseconds.
        valid_until: u64,
        /// The true time at which the validity ends, in nanoseconds.
        ends_at: u64,
    },
    /// A client's validity has been extended.
    Extended {
        /// The attempt.
        attempt: AttemptId,
        /// The reading of the client's clock, in nanoseconds.
        reading: u64,
        /// The end of the old validity on the client's clock, in nanoseconds.
        old_end: u64,
        /// The end of the new validity on the client's clock, in nanoseconds.
        valid_until: u64,
        /// The true time at which the new validity ends, in nanoseconds.
        ends_at: u64,
    },
    /// A client no longer holds a lock: it has released or lost it, or its process has ended.
    Ended {
        /// The attempt.
        attempt: AttemptId,
    },
    /// A master has restarted.
    Restarted {
        /// The master.
        master: usize,
        /// The reading of the master's clock, in microseconds.
        clock: u64,
        /// The state of each lock on this master after the restart.
        locks: Vec<StoredLock>,
    },
    /// A master has got a generation marker with this number.
    Marked {
        /// The master.
        master: usize,
        /// The reading of the master's clock, in microseconds.
        clock: u64,
        /// The number.
        number: u64,
        /// Whether an operator has written the marker in a step of a change. False for markers at the beginning, and
        /// for markers that somebody has restored.
        is_step: bool,
    },
    /// An operator has raised the fencing counter of a lock on a master.
    Raised {
        /// The master.
        master: usize,
        /// The number of the lock.
        lock: usize,
        /// The lock on this master afterwards.
        after: StoredLock,
    },
}

/// The facts about a run that the check of its history needs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The number of masters.
    pub masters: usize,
    /// The number of locks.
    pub locks: usize,
    /// The sets of masters, in the order in which operators replace them. One set if masters are not replaced.
    pub sets: Vec<Masters>,
    /// The TTL of an acquire, in nanoseconds.
    pub ttl: u64,
    /// The longest TTL, in nanoseconds.
    pub max_ttl: u64,
    /// By how much the clocks of masters and clients may run too fast or too slowly, in parts per million.
    pub clock_error_ppm: u64,
    /// The longest time that a client needs to read its clock, in nanoseconds.
    pub longest_reading: u64,
    /// Whether locks get fencing tokens.
    pub fencing: bool,
    /// Whether masters refuse a free lock to a client if other clients wait for it.
    pub ordered: bool,
    /// Whether the restart guard is on.
    pub guard: bool,
    /// Whether the conditions of the promise "one holder" are true in the run.
    pub one_holder: bool,
    /// Whether the conditions of the promise "rising tokens" are true in the run.
    pub rising_tokens: bool,
}
