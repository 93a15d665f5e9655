//! The result of `try_acquire`.

use std::fmt;
use std::time::Duration;

use crate::error::{held_text, with_replies};
use crate::hold::guard::LockGuard;
use crate::node::Note;
use crate::report::NodeReport;

/// The result of [`Redlock::try_acquire`](crate::Redlock::try_acquire).
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub enum TryAcquire {
    /// The lock was acquired.
    Acquired(LockGuard),
    /// Another client holds the lock. This is a result, not an error.
    Held(Refusal),
}

impl TryAcquire {
    /// The guard if the lock was acquired; `None` if another client holds it.
    pub fn acquired(self) -> Option<LockGuard> {
        match self {
            Self::Acquired(guard) => Some(guard),
            Self::Held(_) => None,
        }
    }
}

/// The masters' reports of a lock that another client holds. The `Display` text names no master and no holder, so a
/// service may show it to its users.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The longest remaining TTL of the holder's lock key that any master reported; `None` if no master reported one.
    pub ttl_left: Option<Duration>,
    /// The reply of each master. Empty if no masters were asked, because this `Redlock` itself holds the lock and
    /// another task already waits for it.
    pub reports: Vec<NodeReport>,
    /// Whether this [`Redlock`](crate::Redlock) itself holds the lock. A task that tries to take its own lock sees
    /// `true`, because locks are not re-entrant.
    pub held_here: bool,
    /// Whether another program holds the lock: the lock key has a value that quorate did not write
    /// ([`FailedAcquire::foreign`](crate::FailedAcquire::foreign)).
    pub foreign: bool,
    /// The holder's note; `None` if the holder has written none, or if no master returned it.
    pub note: Option<Box<Note>>,
}

impl Refusal {
    /// The full text for operators: the `Display` text, the lock's holder (its note, host and process), and the reply
    /// of each master with its address.
    pub fn details(&self) -> String {
        let text = match &self.note {
            Some(holder) if !self.held_here => format!("{self}, {holder}"),
            _ => self.to_string(),
        };
        with_replies(text, &self.reports)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lock {}", held_text(self.held_here, self.foreign))
    }
}
