//! Why an attempt to take a lock failed, or why a held lock ended. All layers share these types.

use std::fmt;

use crate::protocol::finding::Finding;
use crate::protocol::quorum::Reason;

/// Why an attempt to take a lock failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Another client holds the lock, or another waiter is ahead in the queue.
    Contention,
    /// The owner already holds the lock, and a majority granted another hold. But no majority agreed on the fencing
    /// token of the earlier holds.
    NotJoinable,
    /// Less than a majority of the masters can answer.
    Outage,
    /// A majority granted the lock, but the validity time had ended, or the caller's wait limit had passed.
    Late,
}

impl From<Finding> for Failure {
    fn from(finding: Finding) -> Self {
        match finding {
            Finding::Held | Finding::Split => Self::Contention,
            Finding::NotJoinable => Self::NotJoinable,
            Finding::Outage => Self::Outage,
            Finding::Late => Self::Late,
        }
    }
}

impl From<Reason> for Failure {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Contention => Self::Contention,
            Reason::Outage => Self::Outage,
        }
    }
}

impl Failure {
    /// The failure as the text of trace fields and metric labels.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Contention => "held_by_other",
            Self::NotJoinable => "held_by_owner",
            Self::Outage => "no_quorum",
            Self::Late => "too_late",
        }
    }
}

/// Why a lock is no longer held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossCause {
    /// The validity ended before a majority of the masters had extended the lock.
    Expired,
    /// A majority of the masters reports that this client does not hold the lock.
    TakenAway,
    /// The lock was held for [`max_hold`](crate::RedlockBuilder::max_hold).
    MaxHold,
    /// The guard was released or dropped.
    Released,
    /// This process was forked from the process that holds the lock. The lock stays with that process, and this guard
    /// neither renews nor releases it.
    Forked,
}

impl LossCause {
    /// The cause as one word, for log fields and machine-readable output; stable across versions.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::TakenAway => "taken_away",
            Self::MaxHold => "max_hold",
            Self::Released => "released",
            Self::Forked => "forked",
        }
    }
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its validity ended before a majority of masters extended it",
            Self::TakenAway => "a majority of masters reports that this client no longer holds it",
            Self::MaxHold => "it was held for max_hold, the longest allowed time",
            Self::Released => "it was released",
            Self::Forked => "it belongs to the process from which this process was forked",
        })
    }
}
