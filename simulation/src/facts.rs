//! What the checkers are told, as it happens.

use std::sync::Arc;

use quorate::node::{Answer, Claim, Fault, Token};

use crate::clock::Clock;
use crate::locker::Hold;

/// A lock as it stands on one master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) holder: Option<[u8; 32]>,
    /// Microseconds on the master's clock; zero without a key.
    pub(crate) expires: u64,
    pub(crate) counter: u64,
}

impl Seen {
    /// How it stands later, if nothing was said about it.
    pub(crate) fn at(self, now_us: u64) -> Self {
        if self.holder.is_some() && now_us < self.expires {
            return self;
        }
        Self {
            holder: None,
            expires: 0,
            counter: self.counter,
        }
    }
}

/// Something that happened.
pub(crate) enum Fact<'a> {
    /// A client queued the first message of an attempt.
    Started {
        client: usize,
        claim: &'a Arc<Claim>,
    },
    /// A master executed a message about one lock.
    Applied {
        master: usize,
        /// On the master's clock.
        now_ms: u64,
        resource: usize,
        claim: &'a Arc<Claim>,
        verb: Verb,
        /// It came over a connection that was made to this very run of the server.
        live: bool,
        answer: &'a Result<Answer, Fault>,
        before: Seen,
        after: Seen,
        /// The true time at which the key expires if nothing more is said about it.
        expires: u64,
    },
    /// A master executed a message by which a waiter leaves the line.
    Left {
        master: usize,
        claim: &'a Arc<Claim>,
    },
    /// A client believes to hold a lock from now on.
    Obtained { believer: &'a Believer },
    /// A validity moved. `old` is where it stood.
    Prolonged { believer: &'a Believer, old: u64 },
    /// A call of the library has ended, which was to end after so long.
    Ended {
        client: usize,
        what: &'static str,
        began: u64,
        wait: u64,
    },
    /// A master came back.
    Restarted {
        master: usize,
        /// Without all that it knew.
        forgot: bool,
    },
}

/// What a message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Acquire,
    Confirm,
    Release,
    Extend,
}

/// Somebody who believes to hold a lock, until it is retired or its time is over.
pub(crate) struct Believer {
    pub(crate) id: u64,
    pub(crate) client: usize,
    pub(crate) resource: usize,
    pub(crate) value: Token,
    pub(crate) fencing: Option<u64>,
    /// The number of the event with which it began.
    pub(crate) since: u64,
    /// The end of its validity on its own clock, as last seen.
    pub(crate) until: u64,
    pub(crate) clock: Clock,
    pub(crate) hold: Arc<dyn Hold>,
}

impl Believer {
    /// Whether it believes at the true time `now`.
    pub(crate) fn believes(&self, now: u64) -> bool {
        self.clock.read(now) < self.hold.valid_until().as_nanos() && self.hold.is_valid()
    }
}

/// The first digits of a value, for traces.
pub(crate) fn short(value: &[u8]) -> String {
    String::from_utf8_lossy(&value[..value.len().min(6)]).into_owned()
}
