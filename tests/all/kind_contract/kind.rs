//! The interface of a kind of lock, as the questions of the contract need it.

use std::time::Duration;

use futures::future::BoxFuture;
use quorate::{ExtendError, Leadership, LockGuard, LossCause, Redlock, RedlockBuilder, Status};
use quorate::{ValueError, Wait};

/// The result of an acquire. The errors of locks are in [`ValueError::NotAcquired`].
pub(crate) type Acquired = Result<Box<dyn Held>, ValueError>;

/// The name of the lock in all questions.
pub(crate) const LOCK_NAME: &str = "job";

/// A kind of lock.
pub(crate) trait Kind: Sync {
    /// The parts of the library that this kind stands for: variants of the enum `Kind` in `src/acquire/kind.rs`, files
    /// of `src/kinds/`, and calls in the first table of `docs/kinds.md`.
    fn parts_of_the_library(&self) -> &'static [&'static str];

    /// Adds the settings of the clients that take this kind of lock.
    fn settings(&self, builder: RedlockBuilder) -> RedlockBuilder {
        builder
    }

    /// Creates the value that this kind needs on the masters.
    fn prepare(&self, _redlock: &Redlock) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Acquires the lock.
    fn acquire(&self, redlock: &Redlock, wait: Wait) -> BoxFuture<'static, Acquired>;

    /// Acquires a lock that excludes the lock of [`acquire`](Self::acquire).
    fn acquire_as_rival(&self, redlock: &Redlock, wait: Wait) -> BoxFuture<'static, Acquired> {
        self.acquire(redlock, wait)
    }

    fn force_release(&self, redlock: &Redlock) -> BoxFuture<'static, Status> {
        let redlock = redlock.clone();
        Box::pin(async move { redlock.break_lock(LOCK_NAME).await.expect("a valid name") })
    }

    /// The lock keys that a held lock has on each master. The rival needs the last of them.
    fn lock_keys(&self) -> &'static [&'static str] {
        &[LOCK_NAME]
    }

    /// The name of the queue in which the lock and its rival wait.
    fn queue(&self) -> &'static str {
        LOCK_NAME
    }

    /// Whether a refused client learns that another program wrote the lock key.
    fn sees_foreign_values(&self) -> bool {
        true
    }

    /// Whether a client learns that a lock key has another data type. Otherwise the lock is reported as held.
    fn sees_foreign_types(&self) -> bool {
        true
    }

    /// The subject of the error that refuses this kind to a client without fencing tokens. `None` if such a client gets
    /// the lock.
    fn needs_fencing(&self) -> Option<&'static str>;
}

/// A held lock. Dropping it releases the lock.
pub(crate) trait Held: Send {
    fn token(&self) -> Option<u64>;
    fn is_valid(&self) -> bool;
    fn lost(&self) -> BoxFuture<'static, LossCause>;
    fn extend(&mut self, ttl: Duration) -> BoxFuture<'_, Result<(), ExtendError>>;
    fn release(self: Box<Self>) -> BoxFuture<'static, ()>;
}

impl Held for LockGuard {
    fn token(&self) -> Option<u64> {
        self.fencing_token()
    }

    fn is_valid(&self) -> bool {
        LockGuard::is_valid(self)
    }

    fn lost(&self) -> BoxFuture<'static, LossCause> {
        Box::pin(LockGuard::lost(self))
    }

    fn extend(&mut self, ttl: Duration) -> BoxFuture<'_, Result<(), ExtendError>> {
        Box::pin(LockGuard::extend(self, ttl))
    }

    fn release(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { drop(LockGuard::release(&self).await) })
    }
}

impl Held for Leadership {
    fn token(&self) -> Option<u64> {
        Some(self.term())
    }

    fn is_valid(&self) -> bool {
        Leadership::is_valid(self)
    }

    fn lost(&self) -> BoxFuture<'static, LossCause> {
        Box::pin(Leadership::lost(self))
    }

    fn extend(&mut self, ttl: Duration) -> BoxFuture<'_, Result<(), ExtendError>> {
        Box::pin(self.guard().extend(ttl))
    }

    fn release(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { drop(self.resign().await) })
    }
}
