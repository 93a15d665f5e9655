//! The answer of one master.

use std::time::Duration;

use super::fault::Fault;
use super::note::Note;
use super::value::{ServerRun, StoredValue};

/// The state of a lock on one master.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyState {
    /// The value of the lock key, if the key exists.
    pub holder: Option<Vec<u8>>,
    /// How long the master will keep it; `None` for a key without expiry, or no key.
    pub ttl_left: Option<Duration>,
    /// The fencing counter, if there is one.
    pub counter: Option<u64>,
    /// The queue, first waiter first; at most 100 waiters.
    pub queue: Vec<Waiter>,
    /// The holder's note, if it wrote one.
    pub note: Option<Note>,
    /// The term that an elected holder wrote into its note.
    pub term: Option<u64>,
    /// If readers or an owner hold the lock, each hold; at most the 100 holds that expire last.
    pub holds: Vec<Hold>,
}

/// One of the holds that share a lock key, as one master keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hold {
    /// The value of the hold: the same on every master.
    pub value: Vec<u8>,
    /// How long the master keeps the hold without a renewal.
    pub lives: Duration,
    /// The holder's note, if it wrote one.
    pub note: Option<Note>,
}

impl Hold {
    /// A hold, as a node reports it.
    pub fn new(value: Vec<u8>, lives: Duration, note: Option<Note>) -> Self {
        Self { value, lives, note }
    }
}

/// One waiter in the queue, as one master keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The waiter's id: the same on every master.
    pub id: String,
    /// How long the master keeps the waiter's place without another heartbeat.
    pub lives: Duration,
}

impl Waiter {
    /// A waiter, as a node reports it.
    pub fn new(id: String, lives: Duration) -> Self {
        Self { id, lives }
    }
}

/// The state of the queue in a refusal. Only the refusal of a fair claim has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueInfo {
    /// How many waiters are ahead of this one.
    pub ahead: u64,
    /// The largest ticket in the queue.
    pub ticket: u64,
    /// The value of the lock key, if the key exists.
    pub holder: Option<Vec<u8>>,
    /// The free slots of a semaphore: bit 0 is the first slot.
    pub free: u64,
    /// The holder's note, if it wrote one.
    pub note: Option<Note>,
}

/// The result of an extension for one of its locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extended {
    /// The lock was ours, and its expiry is at least the requested one.
    Kept,
    /// The lock was missing and has been restored.
    Restored,
    /// Another client holds the lock.
    NotOurs,
    /// The claim was withdrawn before the message was sent.
    Withdrawn,
    /// As `Kept`, but the holder's note is gone.
    Unnoted,
    /// The master could not extend this lock, and why: the master is full, the user lacks a right, or a key next to
    /// the lock is foreign. This is not a vote.
    Unknown(Fault),
}

/// The fault that is reported if a key next to the lock is foreign.
const STRANGE: &str =
    "a related key of the lock was not written by quorate: the lock is not renewed";

impl Extended {
    /// The result if a key next to the lock is foreign.
    pub(crate) fn strange() -> Self {
        Self::Unknown(Fault::Server(STRANGE.into()))
    }

    /// Whether the lease lasts as long as requested.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self, Self::Kept | Self::Restored | Self::Unnoted)
    }
}

/// The answer of one master.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// The lock is ours on this master.
    Granted {
        /// The fencing counter, if the claim is fenced.
        counter: Option<u64>,
    },
    /// Another client holds the lock, or another waiter is ahead.
    Refused {
        /// How long the holder's key, or the place of the first waiter, lasts; if the master reports it.
        ttl_left: Option<Duration>,
        /// The state of the queue, if reported.
        line: Option<Box<QueueInfo>>,
    },
    /// The counter now has the requested number.
    Confirmed,
    /// The counter is above the requested number, and has this number.
    CounterAbove(u64),
    /// The lock is not ours on this master.
    NotOurs,
    /// Other holds of the same owner exist, and only they know the owner's number.
    NotAlone,
    /// Released; `true` if the key existed and was ours.
    Released(bool),
    /// The result for each lock, in the order of the request.
    Extended(Vec<Extended>),
    /// The state of the lock; after a break, the state before it.
    State(KeyState),
    /// The value under the lock; the counter now has the requested number.
    Value {
        /// The run of the server that answered.
        run: ServerRun,
        /// The value, if there is one.
        stored: Option<StoredValue>,
    },
    /// The value has been written, or removed.
    Written {
        /// The run of the server that answered.
        run: ServerRun,
    },
    /// Whether each note was written, in the order of the request.
    Noted(Vec<bool>),
    /// One page of a list of keys.
    Keys {
        /// The cursor for the next page; 0 at the end.
        cursor: u64,
        /// The keys of this page; a key can appear twice.
        keys: Vec<Vec<u8>>,
    },
    /// The subscription to new leaders has begun or ended.
    Watching,
}
