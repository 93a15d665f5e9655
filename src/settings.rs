//! The choices of a user that reach further down than the builder.

use std::time::Duration;

use crate::protocol::instant::Instant;

/// How long [`acquire`](crate::Redlock::acquire) waits for a lock that another holds, or for a
/// quorum that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Not at all: one attempt.
    None,
    /// At most this long. However short, one attempt is made in full: it may outlast the wait by a
    /// node timeout, and the very first one of a `Redlock`, which waits for its connections, by the
    /// connect timeout as well.
    For(Duration),
    /// Until it is there, however long that takes. As any wait it ends at once where waiting is in
    /// vain: see [`Missed::passes_by_itself`](crate::Missed::passes_by_itself).
    Forever,
}

impl Wait {
    pub(crate) fn deadline(self, began: Instant) -> Instant {
        match self {
            Self::None => began,
            Self::For(time) => began + time,
            Self::Forever => Instant::NEVER,
        }
    }
}

/// Who is next when a lock is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// First come, first served, over all processes and machines that wait in order. Waiters stand in line on every
    /// master and are woken one at a time. The default.
    #[default]
    Fair,
    /// Raw Redlock: whoever asks at the right moment, with jittered pauses in between, and no queue keys on the
    /// masters. Such clients may overtake those that wait in order.
    Unordered,
}

/// Whether a master that restarted lately may vote.
///
/// A master that lost its memory has forgotten who holds a lock. With the guard on its votes are
/// left out until every lock that it can have forgotten has expired: until
/// [`max_ttl`](crate::RedlockBuilder::max_ttl) after its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestartGuard {
    /// Every master that started less than `max_ttl` ago does not vote. The default.
    #[default]
    On,
    /// The first connection to each master is trusted whatever its age; restarts seen after that
    /// are guarded. For programs that have just started the masters themselves.
    AfterFirstContact,
    /// Never. Right only for masters that lose nothing: `appendonly yes` with
    /// `appendfsync always`.
    Off,
}
