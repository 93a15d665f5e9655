//! Waiting: what a waiter sees, and the local line of each resource.

pub(crate) mod heard;
pub(crate) mod local_line;
pub(crate) mod own;
pub(crate) mod watchers;

use std::time::Duration;

use crate::node::Note;
use crate::report::NodeReport;

/// What a waiter sees while it waits; see [`LockRequest::waiting`](crate::LockRequest::waiting).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// How many stand before this waiter, in this process or at the masters, where known.
    pub ahead: Option<u64>,
    /// The value of the lock key: the holder's token.
    pub holder: Option<Vec<u8>>,
    /// What the holder says of itself, where it did.
    pub note: Option<Note>,
    /// How long the holder's key lives on without a renewal.
    pub ttl_left: Option<Duration>,
    /// How many masters are not known to be silent: all but those in `trouble`. One whose answer
    /// was merely not needed any more when the others had decided counts as answering.
    pub answering: usize,
    /// The masters whose vote was missing in the last attempt because they failed, and why; the
    /// most telling reason first.
    pub trouble: Vec<NodeReport>,
    /// Whether this very [`Redlock`](crate::Redlock) holds it. A lock is not re-entrant: who waits
    /// for what it holds itself waits until it lets go.
    pub held_here: bool,
    /// How many masters are configured.
    pub masters: usize,
    /// How long it has waited so far.
    pub waited: Duration,
    /// How many attempts it has made.
    pub attempts: u32,
}
