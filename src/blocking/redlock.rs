//! The lock factory for callers without a runtime.

use std::fmt;
use std::time::Duration;

use super::election::Election;
use super::guard::LockGuard;
use super::home::Home;
use super::owner::Owner;
use super::request::{LockRequest, TryAcquire};
use super::values::{Once, Quota};
use crate::builder::RedlockBuilder;
use crate::error::{AcquireError, BuildError, CannotBlock, ScopeError};
use crate::kinds::semaphore::SemaphoreStatus;
use crate::listing::Listing;
use crate::node::NodeName;
use crate::node::inspection::Inspection;
use crate::redlock::{self, Status};
use crate::resource::InvalidResource;

/// Locks over one set of masters, without async: as [`quorate::Redlock`](crate::Redlock). Cheap to clone; share one
/// per process.
///
/// Made by [`RedlockBuilder::build_blocking`]. See the [module](super) for what happens in a Tokio runtime, and at
/// the end.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let redlock = quorate::Redlock::builder()
///     .masters(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
///     .build_blocking()?;
/// let guard = redlock.acquire("invoice-42")?;
/// println!("mine, with fencing token {:?}", guard.fencing_token());
/// guard.release()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Redlock {
    redlock: redlock::Redlock,
    home: Home,
}

/// Why a look at the masters came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LookError {
    /// The resource name cannot be locked.
    #[error(transparent)]
    InvalidResource(#[from] InvalidResource),
    /// Called on a thread of a Tokio runtime.
    #[error(transparent)]
    CannotBlock(#[from] CannotBlock),
}

impl RedlockBuilder {
    /// Checks the settings as [`build`](Self::build) does, and starts the one thread that keeps the locks of callers
    /// without a runtime. Never connects, and may be called anywhere.
    ///
    /// # Errors
    ///
    /// [`BuildError`], which says what to change; [`BuildError::NoThread`] where none could be started.
    #[cfg_attr(docsrs, doc(cfg(feature = "blocking")))]
    pub fn build_blocking(self) -> Result<Redlock, BuildError> {
        let redlock = self.build()?;
        let home = Home::start(redlock.clone())?;
        Ok(Redlock { redlock, home })
    }
}

impl Redlock {
    /// Locks over masters in memory: for tests of your own code, without a server.
    ///
    /// # Panics
    ///
    /// With no master, or more than 64, and where no thread can be started.
    #[cfg(any(test, feature = "testing"))]
    pub fn in_memory(masters: usize) -> Self {
        let settings = redlock::Redlock::builder().in_memory(masters);
        settings
            .build_blocking()
            .expect("between 1 and 64 masters, and a thread")
    }

    /// The same, for threads of `tokio::task::spawn_blocking`: it does not ask whether this thread may wait. On any
    /// other thread of a runtime it keeps tasks from running, and may wait for one of them for ever.
    ///
    /// ```
    /// # #[cfg(feature = "testing")]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let redlock = quorate::blocking::Redlock::in_memory(3);
    /// let locks = redlock.in_spawn_blocking();
    /// let work = tokio::task::spawn_blocking(move || locks.scope("report", |_| 20 + 22));
    /// assert_eq!(work.await.expect("no panic"), Ok(42));
    /// # }
    /// # #[cfg(not(feature = "testing"))]
    /// # fn main() {}
    /// ```
    #[must_use]
    pub fn in_spawn_blocking(&self) -> Self {
        Self {
            redlock: self.redlock.clone(),
            home: self.home.anywhere(),
        }
    }

    /// Takes the lock on `resource`, waiting as the builder's `wait` allows. Not re-entrant: see
    /// [`quorate::Redlock::acquire`](crate::Redlock::acquire).
    ///
    /// # Errors
    ///
    /// [`AcquireError`]; contention, outage and lateness are told apart. [`AcquireError::CannotBlock`] on a thread of
    /// a Tokio runtime.
    pub fn acquire(&self, resource: impl AsRef<[u8]>) -> Result<LockGuard, AcquireError> {
        self.lock(resource).acquire()
    }

    /// One attempt, without waiting for who holds it; see
    /// [`quorate::Redlock::try_acquire`](crate::Redlock::try_acquire).
    ///
    /// # Errors
    ///
    /// As there, and [`AcquireError::CannotBlock`].
    ///
    /// ```
    /// # #[cfg(feature = "testing")] {
    /// use quorate::blocking::TryAcquire;
    /// # let redlock = quorate::blocking::Redlock::in_memory(3);
    ///
    /// match redlock.try_acquire("invoice-42").expect("the masters answer") {
    ///     TryAcquire::Acquired(guard) => drop(guard),
    ///     TryAcquire::Held(refusal) => println!("free in {:?} at the latest", refusal.ttl_left),
    /// }
    /// # }
    /// ```
    pub fn try_acquire(&self, resource: impl AsRef<[u8]>) -> Result<TryAcquire, AcquireError> {
        self.lock(resource).try_acquire()
    }

    /// A lock with options of its own.
    pub fn lock(&self, resource: impl AsRef<[u8]>) -> LockRequest<'_> {
        LockRequest::new(self.redlock.lock(resource), &self.home)
    }

    /// Several resources in one lock; see [`quorate::Redlock::lock_all`](crate::Redlock::lock_all).
    pub fn lock_all<R: AsRef<[u8]>>(
        &self,
        resources: impl IntoIterator<Item = R>,
    ) -> LockRequest<'_> {
        LockRequest::new(self.redlock.lock_all(resources), &self.home)
    }

    /// One of `permits` permits; see [`quorate::Redlock::semaphore`](crate::Redlock::semaphore).
    pub fn semaphore(&self, name: impl AsRef<[u8]>, permits: usize) -> LockRequest<'_> {
        LockRequest::new(self.redlock.semaphore(name, permits), &self.home)
    }

    /// Runs `body` while the lock is held, and gives it back at the end.
    ///
    /// A body that blocks cannot be dropped when the lock is lost: it runs to its end. Let it look at
    /// [`is_valid`](crate::LockGuard::is_valid) between its steps, and hand the fencing token to what it writes to.
    ///
    /// ```
    /// # #[cfg(feature = "testing")] {
    /// # let redlock = quorate::blocking::Redlock::in_memory(3);
    /// let sum = redlock.scope("report", |guard| {
    ///     println!("fencing token {:?}", guard.fencing_token());
    ///     20 + 22
    /// });
    /// assert_eq!(sum, Ok(42));
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ScopeError::NotAcquired`] before the body has started; [`ScopeError::Lost`] where the lock had ended before
    /// the body did, with the body's value.
    pub fn scope<T>(
        &self,
        resource: impl AsRef<[u8]>,
        body: impl FnOnce(&LockGuard) -> T,
    ) -> Result<T, ScopeError<T>> {
        self.lock(resource).scope(body)
    }

    /// Runs a body that may fail while the lock is held; see
    /// [`quorate::Redlock::try_scope`](crate::Redlock::try_scope).
    ///
    /// # Errors
    ///
    /// The body's own, as they are; and those of [`scope`](Self::scope), made into the body's error type, where the
    /// body did not fail. The value of a body that outlived the lock is dropped.
    pub fn try_scope<T, E: From<ScopeError>>(
        &self,
        resource: impl AsRef<[u8]>,
        body: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.lock(resource).try_scope(body)
    }

    /// What every master knows of `resource`, without touching it.
    ///
    /// # Errors
    ///
    /// [`LookError`]; faults of masters are part of the answer.
    pub fn status(&self, resource: impl AsRef<[u8]>) -> Result<Status, LookError> {
        Ok(self.home.wait(self.redlock.status(resource))??)
    }

    /// Deletes the lock on `resource` everywhere, whoever holds it; see
    /// [`quorate::Redlock::break_lock`](crate::Redlock::break_lock).
    ///
    /// # Errors
    ///
    /// As [`status`](Self::status).
    pub fn break_lock(&self, resource: impl AsRef<[u8]>) -> Result<Status, LookError> {
        Ok(self.home.wait(self.redlock.break_lock(resource))??)
    }

    /// What every master knows of a semaphore.
    ///
    /// # Errors
    ///
    /// As [`status`](Self::status).
    pub fn semaphore_status(&self, name: impl AsRef<[u8]>) -> Result<SemaphoreStatus, LookError> {
        Ok(self.home.wait(self.redlock.semaphore_status(name))??)
    }

    /// Deletes one permit of a semaphore everywhere, whoever holds it.
    ///
    /// # Errors
    ///
    /// As [`status`](Self::status).
    pub fn break_permit(&self, name: impl AsRef<[u8]>, slot: usize) -> Result<Status, LookError> {
        Ok(self.home.wait(self.redlock.break_permit(name, slot))??)
    }

    /// Looks at every master as a lock meets it; see [`quorate::Redlock::inspect`](crate::Redlock::inspect).
    ///
    /// # Errors
    ///
    /// [`CannotBlock`] on a thread of a Tokio runtime.
    pub fn inspect(&self) -> Result<Vec<Inspection>, CannotBlock> {
        self.home.wait(self.redlock.inspect())
    }

    /// What is locked now; see [`quorate::Redlock::list`](crate::Redlock::list).
    ///
    /// # Errors
    ///
    /// [`CannotBlock`] on a thread of a Tokio runtime.
    pub fn list(&self, prefix: impl AsRef<[u8]>) -> Result<Listing, CannotBlock> {
        self.home.wait(self.redlock.list(prefix))
    }

    /// Waits until nothing that was sent to any master is under way any more, or for so long; whether that is so.
    /// Dropping the last handle does it as well.
    ///
    /// # Errors
    ///
    /// [`CannotBlock`] on a thread of a Tokio runtime.
    pub fn flush(&self, within: Duration) -> Result<bool, CannotBlock> {
        let flushed = self.home.wait_for(within, self.redlock.flush())?;
        Ok(flushed.is_some())
    }

    /// The masters' names, in the order of the builder, without credentials.
    pub fn masters(&self) -> impl Iterator<Item = &NodeName> {
        self.redlock.masters()
    }

    /// The election of that name; see [`quorate::Redlock::election`](crate::Redlock::election).
    pub fn election(&self, name: impl AsRef<[u8]>) -> Election {
        Election::new(self.redlock.election(name), &self.home)
    }

    /// An owner of this id; see [`quorate::Redlock::owner`](crate::Redlock::owner).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn owner(&self, id: impl Into<String>) -> Result<Owner, InvalidResource> {
        Ok(Owner::new(self.redlock.owner(id)?, &self.home))
    }

    /// The quota of this name; see [`quorate::Quota`](crate::Quota).
    pub fn quota(&self, name: impl AsRef<[u8]>) -> Quota {
        Quota::new(self.redlock.quota(name), &self.home)
    }

    /// What is done once a `period`; see [`quorate::Once`](crate::Once).
    pub fn once(&self, name: impl AsRef<[u8]>, period: Duration) -> Once {
        Once::new(self.redlock.once(name, period), &self.home)
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.redlock, f)
    }
}
