//! What a workload asks of a lock: the real library, or a canary in its place.

use std::sync::Arc;
use std::time::Duration;

use quorate::node::Token;
use quorate::runtime::BoxFuture;
use quorate::{AcquireError, Instant, LockGuard, Redlock, Wait};

/// One acquire of a workload.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) resource: u8,
    /// `None` for as long as it takes.
    pub(crate) wait: Option<Duration>,
    pub(crate) renew: bool,
}

/// Why there is no lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    HeldByOther,
    NoQuorum,
    TooLate,
}

/// Something that takes locks.
pub(crate) trait Locker: Send + Sync {
    fn acquire(&self, order: Order) -> BoxFuture<Result<Arc<dyn Hold>, Miss>>;
}

/// A held lock.
pub(crate) trait Hold: Send + Sync {
    fn value(&self) -> Token;
    fn fencing(&self) -> Option<u64>;
    /// Until when it is valid; none once the holder, if it asked, would hear that it is over. A look
    /// that changes nothing.
    fn look(&self) -> Option<Instant>;
    /// Resolves when the holder is told that it is lost.
    fn lost(&self) -> BoxFuture<()>;
    fn extend(self: Arc<Self>, ttl: Duration) -> BoxFuture<()>;
    fn release(self: Arc<Self>) -> BoxFuture<()>;
}

/// The most resources of a run.
pub(crate) const RESOURCES: usize = 20;

const NAMES: [&str; RESOURCES] = [
    "r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15", "r16", "r17", "r18", "r19",
];

/// The resource's name.
pub(crate) fn name(resource: u8) -> &'static str {
    NAMES[usize::from(resource)]
}

/// The number of the resource that a key names.
pub(crate) fn resource_of(key: &[u8]) -> usize {
    let digits = key.iter().skip(1).map(|digit| usize::from(digit - b'0'));
    digits.fold(0, |number, digit| 10 * number + digit)
}

impl Locker for Redlock {
    fn acquire(&self, order: Order) -> BoxFuture<Result<Arc<dyn Hold>, Miss>> {
        let redlock = self.clone();
        Box::pin(async move {
            let mut request = redlock.lock(name(order.resource));
            if !order.renew {
                request = request.fixed_lease();
            }
            request = request.wait(match order.wait {
                Some(Duration::ZERO) => Wait::None,
                Some(wait) => Wait::For(wait),
                None => Wait::Forever,
            });
            match request.acquire().await {
                Ok(guard) => Ok(Arc::new(guard) as Arc<dyn Hold>),
                Err(AcquireError::HeldByOther(_)) => Err(Miss::HeldByOther),
                Err(AcquireError::NoQuorum(_)) => Err(Miss::NoQuorum),
                Err(AcquireError::TooLate(_)) => Err(Miss::TooLate),
                Err(error) => panic!("a scenario with bad input: {error}"),
            }
        })
    }
}

impl Hold for LockGuard {
    fn value(&self) -> Token {
        self.token()
    }

    fn fencing(&self) -> Option<u64> {
        self.fencing_token()
    }

    fn look(&self) -> Option<Instant> {
        quorate::testing::look(self)
    }

    fn lost(&self) -> BoxFuture<()> {
        let lost = LockGuard::lost(self);
        Box::pin(async move {
            lost.await;
        })
    }

    fn extend(self: Arc<Self>, ttl: Duration) -> BoxFuture<()> {
        Box::pin(async move {
            let _outcome = LockGuard::extend(&self, ttl).await;
        })
    }

    fn release(self: Arc<Self>) -> BoxFuture<()> {
        let guard = Arc::into_inner(self).expect("whoever looked at it has let go");
        Box::pin(async move {
            let _released = guard.release().await;
        })
    }
}
