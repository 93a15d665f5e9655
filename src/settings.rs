//! Settings of the public API that internal modules use as well.

use std::time::Duration;

use crate::protocol::instant::Instant;

/// How long [`acquire`](crate::Redlock::acquire) waits while another client holds the lock, or while less than a
/// majority of the masters answers. Default: 30 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Do not wait: make one attempt.
    None,
    /// Wait at most this long. In two cases the call lasts longer:
    ///
    /// - The first attempt is always completed. It can exceed the limit by at most one node timeout.
    /// - The first attempt of a `Redlock` also waits until the masters are connected. This adds at most the connect
    ///   timeout.
    For(Duration),
    /// Wait without a time limit. The call still ends early if waiting cannot help: see
    /// [`FailedAcquire::passes_by_itself`](crate::FailedAcquire::passes_by_itself).
    Forever,
}

impl Wait {
    pub(crate) fn deadline(self, started_at: Instant) -> Instant {
        match self {
            Self::None => started_at,
            Self::For(time) => started_at + time,
            Self::Forever => Instant::NEVER,
        }
    }
}

/// Which waiter gets a lock next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// First come, first served, across all processes and machines that use this order. Waiters queue on every master
    /// and are woken one at a time. The default.
    #[default]
    Fair,
    /// Plain Redlock: waiters poll with jittered pauses, and the first one that asks after a release gets the lock. The
    /// masters store no queue. Such clients may overtake clients that use [`Fair`](Self::Fair).
    Unordered,
}

/// How long clients ignore the votes of a master that has restarted. Default: [`On`](Self::On).
///
/// A master that lost its memory no longer knows which locks it granted. With the guard on, clients ignore the votes of
/// a restarted master for [`max_ttl`](crate::RedlockBuilder::max_ttl) after its start. By then, every lock that the
/// master may have forgotten has expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestartGuard {
    /// A master's votes do not count until `max_ttl` after the start of the master. The default.
    #[default]
    On,
    /// When a client first connects to a master, the client counts the master's votes, even if the master has just
    /// started. After later restarts of the master, the guard applies as with [`On`](Self::On). Use this in programs
    /// that have just started the masters themselves.
    AfterFirstContact,
    /// No guard. Use this only with masters that never lose a write: `appendonly yes` with `appendfsync always`
    /// (`docs/operations.md`, Masters, says how to turn them on without losing data).
    Off,
}
