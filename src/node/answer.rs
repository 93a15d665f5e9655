//! The answer of one master to one request.

use std::time::{Duration, SystemTime};

use super::fault::Fault;
use super::note::Note;
use super::token::is_of_quorate;
use super::value::{ServerRun, StoredValue};
use super::waiter_id::{self, WaiterDescription};

/// The state of a lock on one master.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyState {
    /// The value of the lock key; `None` if there is no such key.
    pub holder: Option<Vec<u8>>,
    /// The remaining TTL of the lock key on this master; `None` for a key without expiry, or if there is no key.
    pub ttl_left: Option<Duration>,
    /// The fencing counter of the lock; `None` if it does not exist on the master.
    pub counter: Option<u64>,
    /// The waiters in the queue, in order; at most 100. The first entry can be the holder: a waiter that gets the lock
    /// is not removed from the queue immediately.
    pub queue: Vec<Waiter>,
    /// The holder's note; `None` if the holder wrote none.
    pub note: Option<Note>,
    /// The leader's term, from the holder's note; `None` if the note contains no term. Only the leader of an election
    /// writes a term.
    pub term: Option<u64>,
    /// The holds that share the lock, if it is held by readers or by one owner; otherwise empty. If there are more than
    /// 100, only the 100 with the longest remaining TTL are listed.
    pub holds: Vec<Hold>,
}

impl KeyState {
    /// Whether another program wrote the value of the lock key. This is also true for the lock of another Redlock
    /// library. False if there is no lock key.
    pub fn is_foreign(&self) -> bool {
        self.holder
            .as_deref()
            .is_some_and(|value| !is_of_quorate(value))
    }
}

/// One hold of a shared lock, as one master stores it. A lock can be shared by several readers, or by several holds of
/// one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hold {
    /// The random value of the attempt that took the hold. It is the same on every master.
    pub value: Vec<u8>,
    /// The remaining TTL of the hold on this master.
    pub lives: Duration,
    /// The note of this hold; `None` if its holder wrote none.
    pub note: Option<Note>,
}

impl Hold {
    /// Creates a hold as a master reports it. `lives` is the remaining TTL of the hold on this master.
    pub fn new(value: Vec<u8>, lives: Duration, note: Option<Note>) -> Self {
        Self { value, lives, note }
    }
}

/// One waiter in the queue, as one master stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The waiter's id, which is the same on every master. It has the form `PROCESS:NUMBER`, or `PROCESS:NUMBER:r` for
    /// a reader. `PROCESS` is 16 hexadecimal digits for the waiter's [`Redlock`](crate::Redlock). `NUMBER` is the
    /// number of the waiter within that `Redlock`.
    pub id: String,
    /// The remaining TTL of the waiter's place in this master's queue. Each heartbeat renews it.
    pub lives: Duration,
    /// The waiter's host name. All characters are removed except ASCII letters, digits, `.`, `-` and `_`. `None` in
    /// these cases:
    ///
    /// - No character is left.
    /// - The waiter's request or builder sets `note(None)`.
    /// - The waiter uses an old version of the library, which does not publish the host.
    pub host: Option<String>,
    /// The waiter's process id. `None` if the waiter's request or builder sets `note(None)`, or if the waiter uses an
    /// old version of the library.
    pub pid: Option<u32>,
    /// The time at which the client began to wait, by the client's clock. The wait begins in the local queue of the
    /// client's process, before the waiter joins the masters' queues. `None` for the same reasons as
    /// [`pid`](Waiter::pid).
    pub since: Option<SystemTime>,
}

impl Waiter {
    /// Creates a waiter as a master reports it.
    ///
    /// - `id`: the full id in the master's queue. It can include host, process id and start of the wait.
    /// - `lives`: the remaining TTL of the waiter's place in the queue.
    pub fn new(id: String, lives: Duration) -> Self {
        let (id, WaiterDescription { host, pid, since }) = waiter_id::read(&id);
        Self {
            id,
            lives,
            host,
            pid,
            since,
        }
    }
}

/// The state of a lock's queue on one master. The master reports this state when it refuses a claim that waits its turn
/// in the queue ([`Fairness::Fair`](super::Fairness::Fair)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueInfo {
    /// The number of waiters ahead of the refused waiter.
    pub ahead: u64,
    /// The largest ticket number in the queue.
    pub ticket: u64,
    /// The value of the lock key; `None` if there is no such key.
    pub holder: Option<Vec<u8>>,
    /// The free slots of a semaphore as a bit set; the lowest bit is the first slot. 0 for other locks.
    pub free: u64,
    /// The holder's note; `None` if the holder wrote none.
    pub note: Option<Note>,
}

/// The result of extending one lock. A request can extend several locks, and each of them has its own result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extended {
    /// The lock was held by this claim, and its remaining TTL is now at least the requested TTL.
    Kept,
    /// The lock was missing on this master, and the extension restored it.
    Restored,
    /// The lock is held by another client.
    NotOurs,
    /// The claim was withdrawn before the request was sent, so the request did not touch its lock.
    Withdrawn,
    /// The lock was held by this claim and its TTL was extended, but the holder's note is gone.
    Unnoted,
    /// The master could not extend this lock, for the given reason: the master is out of memory, the user lacks a
    /// right, or a key that belongs to the lock contains foreign data. This result counts neither as a grant nor as a
    /// refusal.
    Unknown(Fault),
}

/// The message for a lock that is not extended because one of its related keys contains foreign data.
const STRANGE: &str = "the lock is not renewed, because another program wrote to one of its keys";

impl Extended {
    /// The result for a lock that is not extended because one of its related keys, for example its counter, contains
    /// foreign data.
    pub(crate) fn strange() -> Self {
        Self::Unknown(Fault::Server(STRANGE.into()))
    }

    /// Whether the claim now holds the lock on this master for at least the TTL in the renewal request.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self, Self::Kept | Self::Restored | Self::Unnoted)
    }
}

/// The answer of one master to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// The lock is held by this claim on this master.
    Granted {
        /// The value of the fencing counter; `None` if the claim is not fenced.
        counter: Option<u64>,
    },
    /// Another client holds the lock, or another waiter is ahead of this one in the queue.
    Refused {
        /// The remaining TTL of the lock key; `None` if the master does not report it. If the lock is free, but another
        /// waiter is first in the queue, this is the time until the deadline of that waiter's next heartbeat.
        ttl_left: Option<Duration>,
        /// The state of the queue; `None` if the master does not report it.
        line: Option<Box<QueueInfo>>,
    },
    /// The fencing counter of the lock now equals the requested number.
    Confirmed,
    /// The fencing counter of the lock is larger than the number in the request. The field is the value of the counter.
    CounterAbove(u64),
    /// The lock is not held by this claim on this master.
    NotOurs,
    /// The master rejected the new fencing number, because the claim's owner has other holds of the same lock on this
    /// master. All holds of one owner on one lock must have the same fencing number.
    NotAlone,
    /// The lock was released; `true` if the key existed and was held by this claim.
    Released(bool),
    /// The result for each lock, in the order of the request.
    Extended(Vec<Extended>),
    /// The state of the lock, as the answer to a status request or a force-release. After a force-release this is the
    /// state before the force-release.
    State(KeyState),
    /// The value that is stored under the lock was read, and the fencing counter now equals the number in the read
    /// request.
    Value {
        /// The id of the server run that answered.
        run: ServerRun,
        /// The stored value; `None` if there is none.
        stored: Option<StoredValue>,
        /// The time on the master's clock, in microseconds since 1970. `None` if the master has no clock, or if its
        /// clock shows an impossible time.
        clock: Option<u64>,
    },
    /// The value that is stored under the lock was written or removed.
    Written {
        /// The id of the server run that answered.
        run: ServerRun,
    },
    /// Whether each note was written, in the order of the notes in the request.
    Noted(Vec<bool>),
    /// The settings of the locks (prefix, fencing, order of waiters). They determine the rights that the user needs.
    Keys {
        /// The cursor for the next page; 0 after the last page.
        cursor: u64,
        /// The keys of this page. The same key can be on two pages.
        keys: Vec<Vec<u8>>,
    },
    /// The subscription to new leaders has begun or ended, as requested.
    Watching,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Token;

    #[test]
    fn lock_is_foreign_if_its_value_was_written_by_another_program() {
        let token = Token::from_bytes([7; 16]).to_hex();
        let text: &[u8] = b"another program";
        for (holder, is_foreign) in [(None, false), (Some(&token[..]), false), (Some(text), true)] {
            let state = KeyState {
                holder: holder.map(<[u8]>::to_vec),
                ..KeyState::default()
            };
            assert_eq!(state.is_foreign(), is_foreign, "{state:?}");
        }
    }
}
