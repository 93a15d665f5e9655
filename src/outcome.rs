//! How an attempt or a held lock ended: words that everybody shares.

use std::fmt;

use crate::protocol::finding::Finding;
use crate::protocol::quorum::Reason;

/// Why an attempt came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Another holder stands in the way.
    Contention,
    /// It is held by the owner that asks, and its holds show no common number to join.
    NotJoinable,
    /// Fewer masters than a majority can answer.
    Outage,
    /// A majority granted, but the validity or the wait was used up.
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
    /// A word for trace fields.
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
    /// The validity ended before a majority of masters had prolonged it.
    Expired,
    /// A majority of masters says that the lock is not ours.
    TakenAway,
    /// `max_hold` has passed.
    MaxHold,
    /// The guard was released or dropped.
    Released,
}

impl LossCause {
    /// A word for fields and machine-readable output; stable across versions.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::TakenAway => "taken_away",
            Self::MaxHold => "max_hold",
            Self::Released => "released",
        }
    }
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its validity ended before a majority of masters prolonged it",
            Self::TakenAway => "a majority of masters says that it is not ours",
            Self::MaxHold => "the longest allowed hold time has passed",
            Self::Released => "it was released",
        })
    }
}
