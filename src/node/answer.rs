//! The answer of one master to one request.

use std::time::Duration;

use super::fault::Fault;
use super::note::Note;
use super::value::{ServerRun, StoredValue};

/// The state of a lock on one master.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyState {
    /// The value of the lock key, if the key exists.
    pub holder: Option<Vec<u8>>,
    /// The remaining TTL of the lock key on this master; `None` for a key without expiry, or if there is no key.
    pub ttl_left: Option<Duration>,
    /// The fencing counter of the lock, if the master has one.
    pub counter: Option<u64>,
    /// The queue, first waiter first; at most 100 waiters.
    pub queue: Vec<Waiter>,
    /// The holder's note, if the holder wrote one.
    pub note: Option<Note>,
    /// The term that an elected holder wrote into its note.
    pub term: Option<u64>,
    /// If readers or an owner share the lock: each of their holds. At most the 100 holds that expire last.
    pub holds: Vec<Hold>,
}

/// One of the holds of readers or of an owner that share a lock key, as one master keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hold {
    /// The value of the hold, which is the same on every master.
    pub value: Vec<u8>,
    /// How long the master keeps the hold if it is not renewed.
    pub lives: Duration,
    /// The note of this hold, if its holder wrote one.
    pub note: Option<Note>,
}

impl Hold {
    /// Creates a hold as a node reports it; `lives` is the remaining time without a renewal.
    pub fn new(value: Vec<u8>, lives: Duration, note: Option<Note>) -> Self {
        Self { value, lives, note }
    }
}

/// One waiter in the queue, as one master keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The waiter's id, which is the same on every master.
    pub id: String,
    /// How long the master keeps the waiter in the queue if it sends no further heartbeat.
    pub lives: Duration,
}

impl Waiter {
    /// Creates a waiter as a node reports it; `lives` is the remaining time without another heartbeat.
    pub fn new(id: String, lives: Duration) -> Self {
        Self { id, lives }
    }
}

/// The state of the queue when the master refuses a fair claim. Other refusals do not report it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueInfo {
    /// How many waiters are ahead of the refused waiter.
    pub ahead: u64,
    /// The largest ticket in the queue.
    pub ticket: u64,
    /// The value of the lock key, if the key exists.
    pub holder: Option<Vec<u8>>,
    /// The free slots of a semaphore as a bit set, in which the lowest bit is the first slot. 0 for other locks.
    pub free: u64,
    /// The holder's note, if the holder wrote one.
    pub note: Option<Note>,
}

/// The result for one of the locks in a request that extends locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extended {
    /// The lock was ours, and its remaining TTL is now at least the requested one.
    Kept,
    /// The lock was missing on this master, and the extension restored it.
    Restored,
    /// Another client holds the lock.
    NotOurs,
    /// The claim was withdrawn before the request was sent, so the master left its lock alone.
    Withdrawn,
    /// The lock was ours and its TTL was extended, but the holder's note is gone.
    Unnoted,
    /// The master could not extend this lock, for the given reason: the master is full, the user lacks a right, or a
    /// key that belongs to the lock holds foreign data. Such a result is not a vote.
    Unknown(Fault),
}

/// The text of the fault that is reported if a key that belongs to the lock holds foreign data.
const STRANGE: &str =
    "a related key of the lock was not written by quorate: the lock is not renewed";

impl Extended {
    /// The result for a lock if a key that belongs to it holds foreign data.
    pub(crate) fn strange() -> Self {
        Self::Unknown(Fault::Server(STRANGE.into()))
    }

    /// Whether the lock is ours on this master, and its remaining TTL is now at least the requested one.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self, Self::Kept | Self::Restored | Self::Unnoted)
    }
}

/// The answer of one master to one request: one variant for each possible result.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// The lock is ours on this master.
    Granted {
        /// The fencing counter, if the claim is fenced.
        counter: Option<u64>,
    },
    /// Another client holds the lock, or another waiter is ahead of this one in the queue.
    Refused {
        /// The remaining TTL of the holder's key, or how long the first waiter keeps its place; `None` if the master
        /// does not report it.
        ttl_left: Option<Duration>,
        /// The state of the queue; `None` if the master does not report it.
        line: Option<Box<QueueInfo>>,
    },
    /// The fencing counter of the lock now equals the requested number.
    Confirmed,
    /// The fencing counter of the lock is larger than the requested number. This is the value of the counter.
    CounterAbove(u64),
    /// The lock is not ours on this master.
    NotOurs,
    /// The same owner has other holds on this master. Their fencing number applies to this hold too, but this hold does
    /// not know it.
    NotAlone,
    /// Released; `true` if the key existed and was ours.
    Released(bool),
    /// The result for each lock, in the order of the request.
    Extended(Vec<Extended>),
    /// The state of the lock, as the answer to a look or a force-release. After a force-release it is the state before.
    State(KeyState),
    /// The value under the lock was read, and the fencing counter now equals the requested number.
    Value {
        /// The id of the server run that answered.
        run: ServerRun,
        /// The stored value, if there is one.
        stored: Option<StoredValue>,
    },
    /// The value under the lock was written or removed.
    Written {
        /// The id of the server run that answered.
        run: ServerRun,
    },
    /// Whether each note was written, in the order of the request.
    Noted(Vec<bool>),
    /// One page of a list of lock keys.
    Keys {
        /// The cursor for the next page; 0 after the last page.
        cursor: u64,
        /// The keys of this page. A key can appear on two pages.
        keys: Vec<Vec<u8>>,
    },
    /// The subscription to new leaders has begun or ended, as requested.
    Watching,
}
