//! The arguments with which a client acquires a lock, and the guards of held locks.

use std::sync::Arc;
use std::time::Duration;

use quorate::node::Token;
use quorate::{Instant, Leadership, LockGuard, OwnedGuard, Wait};

use crate::kind::Kind;
pub(crate) use crate::place::{
    PERMITS, PLACES, RESOURCES, SEMAPHORES, is_semaphore_queue, key_of_place, place_of_key,
    semaphore_of_key, semaphore_of_place, slot_place,
};

/// The arguments with which a client acquires a lock.
#[derive(Clone, Debug)]
pub(crate) struct AcquireArgs {
    pub(crate) resource: u8,
    /// The timeout of the acquire; `None` waits without a limit.
    pub(crate) wait: Option<Duration>,
    pub(crate) renew: bool,
    pub(crate) kind: Kind,
}

impl AcquireArgs {
    pub(crate) fn wait(&self) -> Wait {
        match self.wait {
            Some(Duration::ZERO) => Wait::None,
            Some(wait) => Wait::For(wait),
            None => Wait::Forever,
        }
    }
}

/// Why an acquire failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcquireFailure {
    HeldByOther,
    NoQuorum,
    TooLate,
}

/// A lock that a client holds: the guard that the library has returned.
pub(crate) enum Hold {
    Lock(LockGuard),
    Leader(Leadership),
    /// The hold of an owner, which all tasks of a process share.
    Owner(OwnedGuard),
}

impl Hold {
    /// The guard of the lock.
    pub(crate) fn guard(&self) -> &LockGuard {
        match self {
            Self::Lock(guard) => guard,
            Self::Leader(leadership) => leadership.guard(),
            Self::Owner(guard) => guard,
        }
    }

    /// For a permit of a semaphore: its slot number. `None` for other locks.
    pub(crate) fn slot(&self) -> Option<usize> {
        self.guard().slot()
    }

    pub(crate) fn value(&self) -> Token {
        self.guard().token()
    }

    pub(crate) fn fencing(&self) -> Option<u64> {
        self.guard().fencing_token()
    }

    /// The end of the validity, on the client's clock; `None` once the library reports that the lock is no longer held.
    pub(crate) fn end_of_validity(&self) -> Option<Instant> {
        quorate::testing::end_of_validity(self.guard())
    }

    pub(crate) async fn release(self: Arc<Self>) {
        match self.into_sole() {
            Self::Lock(guard) => drop(guard.release().await),
            Self::Leader(leadership) => drop(leadership.resign().await),
            Self::Owner(guard) => drop(guard.release().await),
        }
    }

    /// Downgrades the lock to a reader's lock; `None` if the lock has been lost.
    pub(crate) async fn downgrade(self: Arc<Self>) -> Option<Arc<Self>> {
        let Self::Lock(guard) = self.into_sole() else {
            unreachable!("a leader or an owner cannot be downgraded")
        };
        let reader = guard.downgrade().await.ok()?;
        Some(Arc::new(Self::Lock(reader)))
    }

    fn into_sole(self: Arc<Self>) -> Self {
        Arc::into_inner(self).expect("the hold must have no other reference")
    }
}
