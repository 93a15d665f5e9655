//! Waiting for a lock: the state of a waiter that is reported to its caller, and the local queue of each resource.

pub(crate) mod last_finding;
pub(crate) mod local_queue;
pub(crate) mod own;
pub(crate) mod watchers;

use std::time::Duration;

use crate::node::Note;
use crate::report::NodeReport;

/// The state of a waiter while it waits for a lock; see [`LockRequest::waiting`](crate::LockRequest::waiting).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// The number of waiters ahead of this one; `None` if unknown.
    ///
    /// - If waiters or a holder of this `Redlock` are ahead: the number of these clients.
    /// - Otherwise: the largest number of waiters ahead that any master reported.
    pub ahead: Option<u64>,
    /// The value of the lock key; `None` if unknown. If the lock is exclusive, this is the holder's random value.
    pub holder: Option<Vec<u8>>,
    /// The note of the lock's holder; `None` if unknown, or if the holder has written none.
    pub note: Option<Note>,
    /// How long the masters keep the holder's key if it is not renewed; `None` if unknown.
    pub ttl_left: Option<Duration>,
    /// The number of masters that are not in `trouble`. A master counts even if the attempt was decided before this
    /// master answered.
    pub answering: usize,
    /// Whether the masters that are not in `trouble` are a majority. While masters are being replaced, true only if
    /// these masters are a majority of the old masters and also a majority of the new masters.
    pub majority_answers: bool,
    /// The masters that failed in the last attempt, with the fault; the most informative fault first.
    pub trouble: Vec<NodeReport>,
    /// Whether this very [`Redlock`](crate::Redlock) holds the lock. Locks are not re-entrant: a task that waits for
    /// its own lock waits until the lock is released.
    pub held_here: bool,
    /// Whether another program wrote the lock key ([`FailedAcquire::foreign`](crate::FailedAcquire::foreign)).
    pub foreign: bool,
    /// How many masters are configured.
    pub masters: usize,
    /// How long this waiter has waited so far.
    pub waited: Duration,
    /// How many attempts this waiter has made.
    pub attempts: u32,
}
