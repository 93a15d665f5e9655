//! The requests to one master.

use std::sync::Arc;
use std::time::Duration;

use super::claim::Claim;
use super::shape::Shape;
use super::value::{NewValue, ServerRun};
use crate::protocol::instant::Instant;

/// One lock within an extension of many.
#[derive(Clone, Debug)]
pub struct ExtendItem {
    /// The lock.
    pub claim: Arc<Claim>,
    /// The expiry. A master with a later one keeps its own.
    pub ttl: Duration,
    /// Whether the expiry of the holder's note is raised as well. It is not raised with each renewal, because a note
    /// has a longer expiry than its lock.
    pub note: bool,
}

/// One lock within a message that writes holders' notes.
#[derive(Clone, Debug)]
pub struct NoteItem {
    /// The lock.
    pub claim: Arc<Claim>,
    /// The text of the note.
    pub says: Arc<str>,
    /// When the lock was acquired, in milliseconds of wall clock.
    pub since: u64,
    /// Whether to notify the clients that watch for a new leader.
    pub announce: bool,
}

/// One page of a list of keys.
#[derive(Clone, Debug)]
pub struct Page {
    /// The pattern of the names, in the master's syntax.
    pub pattern: Box<[u8]>,
    /// The cursor of the page before; 0 for the first page.
    pub cursor: u64,
    /// About how many keys the master examines.
    pub count: u32,
}

/// A request to one master.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Request {
    /// Take the lock if it is free (docs/protocol.md, "Majority").
    Acquire {
        /// The attempt.
        claim: Arc<Claim>,
        /// How long the master keeps the key.
        ttl: Duration,
        /// The proposed fencing number, in microseconds of wall clock.
        proposal: u64,
    },
    /// Set the fencing counter to exactly this number, if the lock is ours and the counter is not
    /// above it.
    Confirm {
        /// The attempt.
        claim: Arc<Claim>,
        /// The number.
        token: u64,
    },
    /// Delete the lock if it is ours, and wake the next waiter.
    Release {
        /// The attempt.
        claim: Arc<Claim>,
        /// Whether to leave the queue as well. After a lost attempt the waiter keeps its place.
        leave: bool,
    },
    /// Raise the expiry of many locks, and restore those that are missing.
    Extend {
        /// The locks.
        items: Arc<[ExtendItem]>,
    },
    /// Read a lock.
    Look {
        /// The lock key.
        key: Arc<[u8]>,
    },
    /// Delete a lock, whichever client holds it: an operator's last resort.
    Break {
        /// The lock key.
        key: Arc<[u8]>,
    },
    /// Read the value under a lock that is ours, and set the counter as [`Confirm`](Self::Confirm) does. From then
    /// on the master refuses writes with a smaller number, so none of them can replace the value that was read.
    Read {
        /// The attempt.
        claim: Arc<Claim>,
        /// The number that the counter is set to.
        token: u64,
    },
    /// Write the value under a lock, unless the master has seen a larger number. Never sent again on another
    /// connection.
    Write {
        /// The attempt.
        claim: Arc<Claim>,
        /// The fencing number of the attempt.
        token: u64,
        /// The value. It is behind a pointer, because every queued request has the size of the largest one.
        value: Arc<NewValue>,
    },
    /// Write the holders' notes of these locks.
    Note {
        /// The locks.
        items: Arc<[NoteItem]>,
    },
    /// List keys that hold strings.
    List {
        /// Which keys.
        page: Arc<Page>,
    },
    /// Begin or end a subscription to new leaders of an election.
    Watch {
        /// The lock key of the election.
        key: Arc<[u8]>,
        /// Whether to begin (`true`) or to end.
        on: bool,
    },
}

impl Request {
    /// The shape of the claim that is asked about, which decides the words of the message. The locks of an extension
    /// are asked about in the words of groups as soon as one of them is a group. Everything else is plain.
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
            Self::Look { .. }
            | Self::Break { .. }
            | Self::Note { .. }
            | Self::List { .. }
            | Self::Watch { .. } => Shape::plain(),
        }
    }

    /// Whether the caller has withdrawn this request. Releases are never withdrawn.
    pub fn is_withdrawn(&self) -> bool {
        match self {
            Self::Acquire { claim, .. }
            | Self::Confirm { claim, .. }
            | Self::Read { claim, .. } => claim.is_withdrawn(),
            Self::Write { claim, value, .. } => value.run.is_none() && claim.is_withdrawn(),
            Self::Extend { items } => items.iter().all(|item| item.claim.is_withdrawn()),
            Self::Note { items } => items.iter().all(|item| item.claim.is_withdrawn()),
            Self::Release { .. }
            | Self::Look { .. }
            | Self::Break { .. }
            | Self::List { .. }
            | Self::Watch { .. } => false,
        }
    }

    /// Whether the request must not be sent to this run of the server, or is too late at `now`.
    pub fn is_void(&self, now: Instant, run: &ServerRun) -> bool {
        let Self::Write { value, .. } = self else {
            return false;
        };
        value.until <= now || value.run.as_ref().is_some_and(|read| read != run)
    }

    /// Whether the answer is a vote. The answer to a write is not: a write counts only on masters that answered a
    /// read before.
    pub fn is_vote(&self) -> bool {
        matches!(
            self,
            Self::Acquire { .. } | Self::Confirm { .. } | Self::Extend { .. } | Self::Read { .. }
        )
    }

    /// Whether the restart guard withholds this request from a restarted master. It withholds votes and looks at
    /// locks, because a master that may have lost a lock cannot say that there is none. It lets a break pass, because
    /// a break must reach every master that may have the key.
    pub fn rests_on_memory(&self) -> bool {
        self.is_vote() || matches!(self, Self::Look { .. } | Self::List { .. })
    }

    /// Whether only masters in force may be sent this request: votes, looks, breaks and writes of values. Masters
    /// that have been replaced do not show what is locked now, and a late write there is missing on the next masters.
    /// Releases are sent to all masters.
    pub(crate) fn is_for_current_masters(&self) -> bool {
        let looks = matches!(
            self,
            Self::Look { .. } | Self::List { .. } | Self::Break { .. } | Self::Write { .. }
        );
        looks || self.is_vote()
    }
}
