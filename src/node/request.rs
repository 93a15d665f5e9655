//! The requests to one master.

use std::sync::Arc;
use std::time::Duration;

use super::claim::Claim;
use super::ended::Ended;
use super::shape::Shape;
use super::value::{NewValue, ServerRun};
use crate::protocol::instant::Instant;

/// One lock in a request that extends several locks.
#[derive(Clone, Debug)]
pub struct ExtendItem {
    /// The claim whose lock is extended.
    pub claim: Arc<Claim>,
    /// The new TTL of the lock key. If the remaining TTL on a master is longer, the master does not change it.
    pub ttl: Duration,
    /// Whether the request also extends the expiry of the holder's note. Most renewals do not, because a note gets a
    /// longer TTL than its lock.
    pub note: bool,
}

impl ExtendItem {
    /// An item that extends the lock of `claim`, but not the expiry of its note.
    pub fn new(claim: Arc<Claim>, ttl: Duration) -> Self {
        let note = false;
        Self { claim, ttl, note }
    }

    /// Sets whether the request also extends the expiry of the holder's note.
    #[must_use]
    pub fn note(self, note: bool) -> Self {
        Self { note, ..self }
    }
}

/// One lock in a request that writes notes of holders.
#[derive(Clone, Debug)]
pub struct NoteItem {
    /// The claim whose lock the note describes.
    pub claim: Arc<Claim>,
    /// The part of the note that follows the lock value and the time of the acquire ([`since`](Self::since)).
    pub says: Arc<str>,
    /// The time at which the lock was acquired, in milliseconds since 1970 by the wall clock.
    pub since: u64,
    /// Whether the master announces the new leader to the election's observers.
    pub announce: bool,
}

/// A request for one page of the list of lock keys, as with the command `SCAN`.
#[derive(Clone, Debug)]
pub struct Page {
    /// The pattern that key names must match, in the master's syntax.
    pub pattern: Box<[u8]>,
    /// The cursor that the previous page returned; 0 for the first page.
    pub cursor: u64,
    /// The approximate number of keys that the master examines for this page.
    pub count: u32,
}

/// A request to one master.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Request {
    /// Take the lock that the claim requests, if the lock is free (docs/protocol.md, "Majority").
    Acquire {
        /// The claim that requests the lock.
        claim: Arc<Claim>,
        /// The TTL that the lock key gets.
        ttl: Duration,
        /// The proposed fencing number: the client's wall clock in microseconds since 1970.
        proposal: u64,
    },
    /// If the claim still holds the lock on this master, set the fencing counter to `token`. A larger counter stays
    /// unchanged.
    Confirm {
        /// The claim that holds the lock.
        claim: Arc<Claim>,
        /// The fencing number to confirm. The client has chosen it from the numbers that a majority granted.
        token: u64,
    },
    /// Delete the lock if the claim holds it on this master, and wake the next waiter.
    Release {
        /// The claim whose lock is released.
        claim: Arc<Claim>,
        /// Whether the waiter leaves the queue. `false` if it continues to wait after an attempt without a majority.
        leave: bool,
    },
    /// Extend the remaining TTL of several locks. If a lock is missing on the master, restore it.
    Extend {
        /// The locks, each with its TTL.
        items: Arc<[ExtendItem]>,
    },
    /// Read the state of a lock.
    Status {
        /// The lock key whose state is read.
        key: Arc<[u8]>,
    },
    /// A step of a force-release, an operator's last resort: add locks to the break record of the key, so that their
    /// holders cannot renew them, and return the state of the lock. If `ended` is empty, only return the state.
    Break {
        /// The lock key.
        key: Arc<[u8]>,
        /// The locks that the force-release ends, as the masters reported them.
        ended: Arc<[Ended]>,
        /// Whether the master also deletes the lock key, if the key has the value of one of the locks in `ended`. If
        /// holds share the lock, the master keeps the key if it has a hold that the break record does not contain.
        delete: bool,
    },
    /// Read the value that is stored under a held lock, and set the fencing counter of the lock to `token`. The master
    /// then refuses writes with a smaller fencing number.
    Read {
        /// The claim that holds the lock.
        claim: Arc<Claim>,
        /// The fencing number of the claim, to which the counter is set.
        token: u64,
    },
    /// Write the value that is stored under a lock, unless the master has a fencing number larger than `token` for this
    /// lock. If the connection breaks, the client never sends this request again.
    Write {
        /// The claim under whose lock the value is written.
        claim: Arc<Claim>,
        /// The fencing number of the claim.
        token: u64,
        /// The new value. The value is behind a pointer to keep this variant small, because every queued request has
        /// the size of the largest variant.
        value: Arc<NewValue>,
    },
    /// Write the notes that describe the holders of these locks.
    Note {
        /// The locks, each with its note.
        items: Arc<[NoteItem]>,
    },
    /// List the lock keys that match a pattern.
    List {
        /// Which page of the list the master returns.
        page: Arc<Page>,
    },
    /// Begin or end the subscription to announcements of new leaders of an election.
    Watch {
        /// The lock key of the election.
        key: Arc<[u8]>,
        /// Whether the subscription begins (`true`) or ends (`false`).
        on: bool,
    },
}

impl Request {
    /// The kind of lock for which this request is encoded. It is the kind of the request's claim. A request without a
    /// claim is encoded as for a plain lock.
    ///
    /// An extension is encoded for a group if at least one of its claims is a group, and otherwise for plain locks.
    pub(crate) fn shape(&self) -> &Shape {
        let is_group = |shape: &&Shape| matches!(shape, Shape::Group(_));
        match self {
            Self::Acquire { claim, .. }
            | Self::Confirm { claim, .. }
            | Self::Release { claim, .. }
            | Self::Read { claim, .. }
            | Self::Write { claim, .. } => claim.shape(),
            Self::Extend { items } => {
                let mut shapes = items.iter().map(|item| item.claim.shape());
                shapes.find(is_group).unwrap_or(Shape::plain())
            }
            Self::Status { .. }
            | Self::Break { .. }
            | Self::Note { .. }
            | Self::List { .. }
            | Self::Watch { .. } => Shape::plain(),
        }
    }

    /// Whether the request is no longer needed, because every claim in it was withdrawn.
    ///
    /// Always false for releases, for requests without a claim, and for writes that have a [`NewValue::run`].
    pub fn is_withdrawn(&self) -> bool {
        match self {
            Self::Acquire { claim, .. }
            | Self::Confirm { claim, .. }
            | Self::Read { claim, .. } => claim.is_withdrawn(),
            Self::Write { claim, value, .. } => value.run.is_none() && claim.is_withdrawn(),
            Self::Extend { items } => items.iter().all(|item| item.claim.is_withdrawn()),
            Self::Note { items } => items.iter().all(|item| item.claim.is_withdrawn()),
            Self::Release { .. }
            | Self::Status { .. }
            | Self::Break { .. }
            | Self::List { .. }
            | Self::Watch { .. } => false,
        }
    }

    /// Whether this request is an outdated write, which the client must not send. A write is outdated in two cases:
    ///
    /// - Its deadline ([`NewValue::until`]) has been reached at `now`.
    /// - It is for a server run ([`NewValue::run`]) that differs from the current run, `run`.
    pub fn is_void(&self, now: Instant, run: &ServerRun) -> bool {
        let Self::Write { value, .. } = self else {
            return false;
        };
        value.until <= now || value.run.as_ref().is_some_and(|read| read != run)
    }

    /// Whether the answer to this request counts as a vote: true for `Acquire`, `Confirm`, `Extend` and `Read`.
    pub fn is_vote(&self) -> bool {
        matches!(
            self,
            Self::Acquire { .. } | Self::Confirm { .. } | Self::Extend { .. } | Self::Read { .. }
        )
    }

    /// Whether the restart guard withholds this request from a master that restarted recently.
    ///
    /// - True for votes ([`is_vote`](Self::is_vote)), `Status` and `List`. A restarted master may have forgotten a
    ///   lock, and would report the lock as free.
    /// - False for all other requests. For example, a force-release must reach every master that may have the key.
    pub fn rests_on_memory(&self) -> bool {
        self.is_vote() || matches!(self, Self::Status { .. } | Self::List { .. })
    }

    /// Whether this request is withheld from a master whose generation marker does not admit this client.
    ///
    /// - True for requests for votes, for the state or the list of locks, for force-releases, and for writes of values.
    /// - False for all other requests, for example releases.
    pub(crate) fn is_for_current_masters(&self) -> bool {
        let reads_state = matches!(
            self,
            Self::Status { .. } | Self::List { .. } | Self::Break { .. } | Self::Write { .. }
        );
        reads_state || self.is_vote()
    }
}
