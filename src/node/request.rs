//! The requests to one master.

use std::sync::Arc;
use std::time::Duration;

use super::claim::Claim;
use super::shape::Shape;
use super::value::{NewValue, ServerRun};
use crate::protocol::instant::Instant;

/// One lock in a request that extends many locks.
#[derive(Clone, Debug)]
pub struct ExtendItem {
    /// The claim whose lock is extended.
    pub claim: Arc<Claim>,
    /// The TTL that the lock gets. On a master where the lock has a longer remaining TTL, it keeps the longer one.
    pub ttl: Duration,
    /// Whether the expiry of the holder's note is raised as well. Not every renewal does this, because a note has a
    /// longer expiry than its lock.
    pub note: bool,
}

/// One lock in a request that writes holders' notes.
#[derive(Clone, Debug)]
pub struct NoteItem {
    /// The claim whose lock the note describes.
    pub claim: Arc<Claim>,
    /// The text of the note, without the holder's value and the start time.
    pub says: Arc<str>,
    /// When the lock was acquired, in milliseconds of wall-clock time.
    pub since: u64,
    /// Whether to notify the observers of the election, because the holder is a new leader.
    pub announce: bool,
}

/// A request for one page of a list of keys.
#[derive(Clone, Debug)]
pub struct Page {
    /// The pattern that key names must match, in the master's syntax.
    pub pattern: Box<[u8]>,
    /// The cursor that the previous page returned; 0 for the first page.
    pub cursor: u64,
    /// About how many keys the master examines for this page.
    pub count: u32,
}

/// A request to one master.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Request {
    /// Take the lock if it is free (docs/protocol.md, "Majority").
    Acquire {
        /// The claim that asks for the lock.
        claim: Arc<Claim>,
        /// The TTL that the lock key gets.
        ttl: Duration,
        /// The proposed fencing number: the client's wall clock in microseconds since 1970.
        proposal: u64,
    },
    /// Set the fencing counter to exactly `token`, if the lock is ours and the counter is not above `token`.
    Confirm {
        /// The claim that holds the lock.
        claim: Arc<Claim>,
        /// The agreed fencing number.
        token: u64,
    },
    /// Delete the lock if it is ours, and wake the next waiter.
    Release {
        /// The claim whose lock is deleted.
        claim: Arc<Claim>,
        /// Whether the waiter leaves the queue as well. False after an attempt that found no majority: the waiter then
        /// keeps its place.
        leave: bool,
    },
    /// Raise the remaining TTL of many locks, and restore the locks that are missing on the master.
    Extend {
        /// The locks, each with its TTL.
        items: Arc<[ExtendItem]>,
    },
    /// Read the state of a lock.
    Look {
        /// The lock key.
        key: Arc<[u8]>,
    },
    /// Delete a lock, whichever client holds it. This is an operator's last resort.
    Break {
        /// The lock key.
        key: Arc<[u8]>,
    },
    /// Read the value under a lock that is ours, and set the fencing counter to the claim's number, as
    /// [`Confirm`](Self::Confirm) does. From then on the master refuses writes with a smaller number, so that no such
    /// write can replace the value that was read.
    Read {
        /// The claim that holds the lock.
        claim: Arc<Claim>,
        /// The fencing number of the claim, to which the counter is set.
        token: u64,
    },
    /// Write the value under a lock, unless the master has seen a larger fencing number. If the connection breaks, the
    /// request is never sent again on another connection.
    Write {
        /// The claim under whose lock the value is written.
        claim: Arc<Claim>,
        /// The fencing number of the claim.
        token: u64,
        /// The new value. It is behind a pointer, because every queued request takes the size of the largest variant.
        value: Arc<NewValue>,
    },
    /// Write the holders' notes of these locks.
    Note {
        /// The locks, each with its note.
        items: Arc<[NoteItem]>,
    },
    /// List the lock keys that match a pattern.
    List {
        /// The page of the list to return.
        page: Arc<Page>,
    },
    /// Begin or end a subscription to new leaders of an election.
    Watch {
        /// The lock key of the election.
        key: Arc<[u8]>,
        /// Whether the subscription begins (`true`) or ends (`false`).
        on: bool,
    },
}

impl Request {
    /// The shape of the claim in this request. The shape decides how the message is encoded. If one lock of an
    /// extension is a group, all locks of the message are encoded as groups. Requests without a claim are encoded as
    /// for a plain lock.
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

    /// Whether the claim of this request was withdrawn, so that the request need not be sent. Releases are never
    /// withdrawn.
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

    /// Whether this request is a write that must not be sent any more: it is for another run of the server than `run`,
    /// or too late at `now`.
    pub fn is_void(&self, now: Instant, run: &ServerRun) -> bool {
        let Self::Write { value, .. } = self else {
            return false;
        };
        value.until <= now || value.run.as_ref().is_some_and(|read| read != run)
    }

    /// Whether the answer to this request is a vote. The answer to a write of a value is not, because a write counts
    /// only on masters that answered a read before.
    pub fn is_vote(&self) -> bool {
        matches!(
            self,
            Self::Acquire { .. } | Self::Confirm { .. } | Self::Extend { .. } | Self::Read { .. }
        )
    }

    /// Whether the restart guard withholds this request from a restarted master. The guard withholds requests for votes
    /// and looks at locks, because a master that may have lost a lock cannot report that there is none. It does not
    /// withhold a force-release, because that must reach every master that may have the key.
    pub fn rests_on_memory(&self) -> bool {
        self.is_vote() || matches!(self, Self::Look { .. } | Self::List { .. })
    }

    /// Whether this request may be sent only to the current masters. That holds for votes, looks, force-releases and
    /// writes of values. Replaced masters do not show what is locked now, and a value written there is missing on the
    /// masters that replaced them. Releases are sent to replaced masters too.
    pub(crate) fn is_for_current_masters(&self) -> bool {
        let looks = matches!(
            self,
            Self::Look { .. } | Self::List { .. } | Self::Break { .. } | Self::Write { .. }
        );
        looks || self.is_vote()
    }
}
