//! Waiting: what a waiter can observe, and the local queue of each resource.

pub(crate) mod last_finding;
pub(crate) mod local_line;
pub(crate) mod own;
pub(crate) mod watchers;

use std::time::Duration;

use crate::node::Note;
use crate::report::NodeReport;

/// What a waiter observes while it waits; see [`LockRequest::waiting`](crate::LockRequest::waiting).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// The number of waiters before this one, in this process or at the masters; `None` if unknown.
    pub ahead: Option<u64>,
    /// The value of the lock key: the holder's token.
    pub holder: Option<Vec<u8>>,
    /// The holder's note, if it has one.
    pub note: Option<Note>,
    /// How long the holder's key lives on without a renewal.
    pub ttl_left: Option<Duration>,
    /// How many masters count as answering: all except those in `trouble`. A master whose answer was not needed,
    /// because the others had decided, counts as answering.
    pub answering: usize,
    /// The masters whose vote was missing in the last attempt because they failed, with the fault; the most informative
    /// fault first.
    pub trouble: Vec<NodeReport>,
    /// Whether this very [`Redlock`](crate::Redlock) holds the lock. Locks are not re-entrant: a task that waits for
    /// its own lock waits until the lock is released.
    pub held_here: bool,
    /// How many masters are configured.
    pub masters: usize,
    /// How long this waiter has waited so far.
    pub waited: Duration,
    /// How many attempts this waiter has made.
    pub attempts: u32,
}
