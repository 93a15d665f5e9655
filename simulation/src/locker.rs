//! The interface between the clients of the simulation and a lock implementation: the library or a seeded bug.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use quorate::node::Token;
use quorate::runtime::BoxFuture;
use quorate::{Instant, Leadership, LockGuard, OwnedGuard, Redlock, RiskWatch, Wait};

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

/// A lock implementation for one client process: the library, or the small client of a seeded bug.
pub(crate) trait Locker: Send + Sync {
    fn acquire(&self, args: AcquireArgs) -> BoxFuture<Result<Arc<dyn Hold>, AcquireFailure>>;

    /// The real library; `None` if this implementation does not use it.
    fn redlock(&self) -> Option<&Redlock> {
        None
    }

    /// The small client that some seeded bugs use to read and write values; `None` without such a bug.
    fn register(&self) -> Option<&dyn Register> {
        None
    }
}

/// A client that reads and writes once-per-period records under a lock that the library holds.
pub(crate) trait Register: Send + Sync {
    /// Reads the record, and returns the content with the largest fencing token. Returns `None` if the lock has no
    /// fencing token, or if no majority of the masters has returned a usable content.
    fn read<'a>(
        &'a self,
        resource: u8,
        guard: &'a LockGuard,
    ) -> LocalFuture<'a, Option<Box<dyn ReadRecord + 'a>>>;
}

/// A once-per-period record that the client has read and may write.
pub(crate) trait ReadRecord: Send {
    /// Records that the work of the period that began at `period_start_us` (microseconds) was done. Returns:
    ///
    /// - `None` if the record already contains this period or a later one, or if it is not a once-per-period record;
    /// - `Some(true)` if a majority of the masters has written the record;
    /// - `Some(false)` if no majority has written it.
    fn write_period<'a>(self: Box<Self>, period_start_us: u64) -> LocalFuture<'a, Option<bool>>
    where
        Self: 'a;
}

/// A boxed future that may borrow.
pub(crate) type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A lock that a client holds.
pub(crate) trait Hold: Send + Sync {
    fn value(&self) -> Token;
    fn fencing(&self) -> Option<u64>;
    /// For a permit of a semaphore: its slot number. `None` for other locks.
    fn slot(&self) -> Option<usize> {
        None
    }
    /// The end of the validity, on the client's clock; `None` once the library reports that the lock is no longer held.
    fn end_of_validity(&self) -> Option<Instant>;
    /// Resolves when the holder is notified that the lock is lost.
    fn lost(&self) -> BoxFuture<()>;
    /// Watches for the notice that no more than `margin` of the validity is left; `None` if this implementation has no
    /// such notice.
    fn at_risk(&self, _margin: Duration) -> Option<RiskWatch> {
        None
    }
    fn extend(self: Arc<Self>, ttl: Duration) -> BoxFuture<()>;
    fn release(self: Arc<Self>) -> BoxFuture<()>;
    /// Downgrades the lock to a reader's lock; `None` if the lock has been lost.
    fn downgrade(self: Arc<Self>) -> BoxFuture<Option<Arc<dyn Hold>>>;
    /// The library's guard of this lock; `None` if this implementation has no such guard.
    fn guard(&self) -> Option<&LockGuard> {
        None
    }
}

impl Hold for LockGuard {
    fn value(&self) -> Token {
        self.token()
    }

    fn fencing(&self) -> Option<u64> {
        self.fencing_token()
    }

    fn slot(&self) -> Option<usize> {
        LockGuard::slot(self)
    }

    fn end_of_validity(&self) -> Option<Instant> {
        quorate::testing::end_of_validity(self)
    }

    fn lost(&self) -> BoxFuture<()> {
        let lost = LockGuard::lost(self);
        Box::pin(async move {
            lost.await;
        })
    }

    fn at_risk(&self, margin: Duration) -> Option<RiskWatch> {
        Some(LockGuard::at_risk(self, margin))
    }

    fn extend(self: Arc<Self>, ttl: Duration) -> BoxFuture<()> {
        Box::pin(async move {
            let _outcome = LockGuard::extend(&self, ttl).await;
        })
    }

    fn release(self: Arc<Self>) -> BoxFuture<()> {
        let guard = Arc::into_inner(self).expect("the guard must have no other reference");
        Box::pin(async move {
            let _released = guard.release().await;
        })
    }

    fn downgrade(self: Arc<Self>) -> BoxFuture<Option<Arc<dyn Hold>>> {
        let guard = Arc::into_inner(self).expect("the guard must have no other reference");
        Box::pin(async move {
            let reader = guard.downgrade().await.ok()?;
            Some(Arc::new(reader) as Arc<dyn Hold>)
        })
    }

    fn guard(&self) -> Option<&LockGuard> {
        Some(self)
    }
}

impl Hold for Leadership {
    fn value(&self) -> Token {
        self.guard().token()
    }

    fn fencing(&self) -> Option<u64> {
        Some(self.term())
    }

    fn end_of_validity(&self) -> Option<Instant> {
        quorate::testing::end_of_validity(self.guard())
    }

    fn lost(&self) -> BoxFuture<()> {
        let lost = Leadership::lost(self);
        Box::pin(async move {
            lost.await;
        })
    }

    fn at_risk(&self, margin: Duration) -> Option<RiskWatch> {
        Some(self.guard().at_risk(margin))
    }

    fn extend(self: Arc<Self>, ttl: Duration) -> BoxFuture<()> {
        Box::pin(async move {
            let _outcome = self.guard().extend(ttl).await;
        })
    }

    fn release(self: Arc<Self>) -> BoxFuture<()> {
        let leadership = Arc::into_inner(self).expect("the guard must have no other reference");
        Box::pin(async move {
            let _resigned = leadership.resign().await;
        })
    }

    fn downgrade(self: Arc<Self>) -> BoxFuture<Option<Arc<dyn Hold>>> {
        unreachable!("a leadership cannot be downgraded")
    }
}

impl Hold for OwnedGuard {
    fn value(&self) -> Token {
        self.token()
    }

    fn fencing(&self) -> Option<u64> {
        self.fencing_token()
    }

    fn end_of_validity(&self) -> Option<Instant> {
        quorate::testing::end_of_validity(self)
    }

    fn lost(&self) -> BoxFuture<()> {
        let lost = LockGuard::lost(self);
        Box::pin(async move {
            lost.await;
        })
    }

    fn at_risk(&self, margin: Duration) -> Option<RiskWatch> {
        Some(LockGuard::at_risk(self, margin))
    }

    fn extend(self: Arc<Self>, ttl: Duration) -> BoxFuture<()> {
        Box::pin(async move {
            let _outcome = LockGuard::extend(&self, ttl).await;
        })
    }

    fn release(self: Arc<Self>) -> BoxFuture<()> {
        let guard = Arc::into_inner(self).expect("the guard must have no other reference");
        Box::pin(async move {
            let _released = guard.release().await;
        })
    }

    fn downgrade(self: Arc<Self>) -> BoxFuture<Option<Arc<dyn Hold>>> {
        unreachable!("a lock that an owner holds cannot be downgraded")
    }
}
