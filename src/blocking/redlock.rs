//! The blocking [`Redlock`], which acquires locks, and its operations.

use std::fmt;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use super::election::Election;
use super::guard::LockGuard;
use super::owner::Owner;
use super::request::{LockRequest, TryAcquire};
use super::runtime_thread::RuntimeThread;
use super::values::{Once, Quota};
use crate::builder::RedlockBuilder;
use crate::error::{AcquireError, BuildError, CannotBlock, ScopeError};
use crate::kinds::semaphore::SemaphoreStatus;
use crate::listing::{ListedValue, Listing};
use crate::node::NodeName;
use crate::node::inspection::Inspection;
use crate::redlock;
use crate::redlock::status::Status;
use crate::resource::InvalidResource;

/// Acquires locks on a set of masters; the blocking version of [`quorate::Redlock`](crate::Redlock). Cheap to clone;
/// share one `Redlock` per process.
///
/// Made by [`RedlockBuilder::build_blocking`]. The [module documentation](super) describes how to use a `Redlock` in a
/// Tokio runtime, and when its background thread ends.
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
    runtime_thread: RuntimeThread,
}

/// Why the masters could not be asked about a lock or a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LookError {
    /// The resource name cannot be locked.
    #[error(transparent)]
    InvalidResource(#[from] InvalidResource),
    /// The call was made on a thread of a Tokio runtime.
    #[error(transparent)]
    CannotBlock(#[from] CannotBlock),
}

impl RedlockBuilder {
    /// Checks the settings as [`build`](Self::build) does, and starts the background thread of the blocking
    /// [`Redlock`]. This method does not connect to the masters. It can be called on any thread, also on a thread of a
    /// Tokio runtime.
    ///
    /// # Errors
    ///
    /// [`BuildError`], whose message says what to change; [`BuildError::NoThread`] if no thread could be started.
    #[cfg_attr(docsrs, doc(cfg(feature = "blocking")))]
    pub fn build_blocking(self) -> Result<Redlock, BuildError> {
        let redlock = self.build()?;
        let runtime_thread = RuntimeThread::start(redlock.clone())?;
        Ok(Redlock {
            redlock,
            runtime_thread,
        })
    }
}

impl Redlock {
    /// Creates a `Redlock` with this number of masters in memory, to test your own code without a server.
    ///
    /// # Panics
    ///
    /// If `masters` is 0 or above 64, or if no thread can be started.
    #[cfg(any(test, feature = "testing"))]
    pub fn in_memory(masters: usize) -> Self {
        let settings = redlock::Redlock::builder().in_memory(masters);
        settings
            .build_blocking()
            .expect("building a `Redlock` over 1 to 64 masters in memory must succeed")
    }

    /// Returns a handle for the threads of `tokio::task::spawn_blocking`. Calls through this handle never return
    /// [`CannotBlock`].
    ///
    /// Do not use the handle in async tasks: a call blocks the thread. If the call waits for a task that runs on the
    /// same thread, the call never returns.
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
            runtime_thread: self.runtime_thread.allowing_runtime_threads(),
        }
    }

    /// Takes the lock on `resource`, and waits for it as long as the builder's `wait` allows (default: 30 s). Locks are
    /// not re-entrant: see [`quorate::Redlock::acquire`](crate::Redlock::acquire).
    ///
    /// # Errors
    ///
    /// [`AcquireError`], which gives the reason: for example, another client holds the lock, or too few masters
    /// answered. [`AcquireError::CannotBlock`] on a thread of a Tokio runtime.
    pub fn acquire(&self, resource: impl AsRef<[u8]>) -> Result<LockGuard, AcquireError> {
        self.lock(resource).acquire()
    }

    /// Tries once to take the lock, and does not wait if another client holds the lock; see
    /// [`quorate::Redlock::try_acquire`](crate::Redlock::try_acquire).
    ///
    /// # Errors
    ///
    /// Those of [`quorate::Redlock::try_acquire`](crate::Redlock::try_acquire), and [`AcquireError::CannotBlock`] on a
    /// thread of a Tokio runtime.
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

    /// A request for a lock on `resource`, with options that are set for this lock only; see
    /// [`quorate::Redlock::lock`](crate::Redlock::lock).
    pub fn lock(&self, resource: impl AsRef<[u8]>) -> LockRequest {
        LockRequest::new(self.redlock.lock(resource), &self.runtime_thread)
    }

    /// A request for several resources in one lock; see [`quorate::Redlock::lock_all`](crate::Redlock::lock_all).
    pub fn lock_all<R: AsRef<[u8]>>(&self, resources: impl IntoIterator<Item = R>) -> LockRequest {
        LockRequest::new(self.redlock.lock_all(resources), &self.runtime_thread)
    }

    /// A request for one permit of the semaphore `name`, which has at most `permits` holders; see
    /// [`quorate::Redlock::semaphore`](crate::Redlock::semaphore).
    pub fn semaphore(&self, name: impl AsRef<[u8]>, permits: usize) -> LockRequest {
        LockRequest::new(self.redlock.semaphore(name, permits), &self.runtime_thread)
    }

    /// Takes the lock, runs `body`, and releases the lock.
    ///
    /// If the lock is lost, the library cannot stop `body`: it runs to its end. The body should check
    /// [`is_valid`](crate::LockGuard::is_valid) between its steps, and pass the fencing token to every system that it
    /// writes to.
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
    /// - [`ScopeError::NotAcquired`] if the lock was not acquired. The body did not run.
    /// - [`ScopeError::Lost`] if the lock ended while the body ran. The error contains the body's value.
    pub fn scope<T>(
        &self,
        resource: impl AsRef<[u8]>,
        body: impl FnOnce(&LockGuard) -> T,
    ) -> Result<T, ScopeError<T>> {
        self.lock(resource).scope(body)
    }

    /// Takes the lock, runs a body that returns a `Result`, and releases the lock; see
    /// [`quorate::Redlock::try_scope`](crate::Redlock::try_scope).
    ///
    /// # Errors
    ///
    /// - If the body returned an error: this error, even if the lock was lost too.
    /// - Otherwise: a [`ScopeError`] as from [`scope`](Self::scope), converted into `E`. If the lock was lost while the
    ///   body ran, the body's `Ok` value is dropped.
    pub fn try_scope<T, E: From<ScopeError>>(
        &self,
        resource: impl AsRef<[u8]>,
        body: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.lock(resource).try_scope(body)
    }

    /// The state of the lock on `resource` on every master. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`LookError`] if the resource name is not valid, or on a thread of a Tokio runtime. If a master fails, the
    /// returned [`Status`] contains the fault of this master.
    pub fn status(&self, resource: impl AsRef<[u8]>) -> Result<Status, LookError> {
        Ok(self.runtime_thread.wait(self.redlock.status(resource))??)
    }

    /// Deletes the lock on `resource` on all masters, no matter which client holds it; see
    /// [`quorate::Redlock::break_lock`](crate::Redlock::break_lock).
    ///
    /// # Errors
    ///
    /// Those of [`status`](Self::status).
    pub fn break_lock(&self, resource: impl AsRef<[u8]>) -> Result<Status, LookError> {
        Ok(self
            .runtime_thread
            .wait(self.redlock.break_lock(resource))??)
    }

    /// The state of the semaphore `name` on every master; see
    /// [`quorate::Redlock::semaphore_status`](crate::Redlock::semaphore_status).
    ///
    /// # Errors
    ///
    /// Those of [`status`](Self::status).
    pub fn semaphore_status(&self, name: impl AsRef<[u8]>) -> Result<SemaphoreStatus, LookError> {
        Ok(self
            .runtime_thread
            .wait(self.redlock.semaphore_status(name))??)
    }

    /// The state of the permit with number `slot` of the semaphore `name` on every master; see
    /// [`quorate::Redlock::permit_status`](crate::Redlock::permit_status).
    ///
    /// # Errors
    ///
    /// Those of [`status`](Self::status).
    pub fn permit_status(&self, name: impl AsRef<[u8]>, slot: usize) -> Result<Status, LookError> {
        Ok(self
            .runtime_thread
            .wait(self.redlock.permit_status(name, slot))??)
    }

    /// Deletes the permit with number `slot` of the semaphore `name` on all masters, no matter which client holds it;
    /// see [`quorate::Redlock::break_permit`](crate::Redlock::break_permit).
    ///
    /// # Errors
    ///
    /// Those of [`status`](Self::status).
    pub fn break_permit(&self, name: impl AsRef<[u8]>, slot: usize) -> Result<Status, LookError> {
        Ok(self
            .runtime_thread
            .wait(self.redlock.break_permit(name, slot))??)
    }

    /// Reads every master's configuration and the rights of the configured user, to find problems; see
    /// [`quorate::Redlock::inspect`](crate::Redlock::inspect).
    ///
    /// # Errors
    ///
    /// [`CannotBlock`] on a thread of a Tokio runtime.
    pub fn inspect(&self) -> Result<Vec<Inspection>, CannotBlock> {
        self.runtime_thread.wait(self.redlock.inspect())
    }

    /// Lists the locks that are held now and whose names begin with `prefix`; an empty `prefix` lists all locks. See
    /// [`quorate::Redlock::list`](crate::Redlock::list).
    ///
    /// # Errors
    ///
    /// [`CannotBlock`] on a thread of a Tokio runtime.
    pub fn list(&self, prefix: impl AsRef<[u8]>) -> Result<Listing, CannotBlock> {
        self.runtime_thread.wait(self.redlock.list(prefix))
    }

    /// Lists the quotas and the records of jobs, to find masters that have lost a value. See
    /// [`quorate::Redlock::list_values`](crate::Redlock::list_values).
    ///
    /// # Errors
    ///
    /// [`CannotBlock`] on a thread of a Tokio runtime.
    pub fn list_values(&self) -> Result<Vec<ListedValue>, CannotBlock> {
        self.runtime_thread.wait(self.redlock.list_values())
    }

    /// Waits until no request to any master is outstanding, at most for `within`. Returns false if requests are still
    /// outstanding after that time.
    ///
    /// # Errors
    ///
    /// [`CannotBlock`] on a thread of a Tokio runtime.
    pub fn flush(&self, within: Duration) -> Result<bool, CannotBlock> {
        let flushed = self.runtime_thread.wait_for(within, self.redlock.flush())?;
        Ok(flushed.is_some())
    }

    /// The names of the masters, without credentials, in the order in which they were added to the builder.
    pub fn masters(&self) -> impl Iterator<Item = &NodeName> {
        self.redlock.masters()
    }

    /// The election with this name; see [`quorate::Redlock::election`](crate::Redlock::election).
    pub fn election(&self, name: impl AsRef<[u8]>) -> Election {
        Election::new(self.redlock.election(name), &self.runtime_thread)
    }

    /// The owner with this id; see [`quorate::Redlock::owner`](crate::Redlock::owner).
    ///
    /// # Errors
    ///
    /// Those of [`quorate::Redlock::owner`](crate::Redlock::owner).
    pub fn owner(&self, id: impl Into<String>) -> Result<Owner, InvalidResource> {
        Ok(Owner::new(self.redlock.owner(id)?, &self.runtime_thread))
    }

    /// The quota with this name: a limited number of units that callers take; see [`quorate::Quota`](crate::Quota).
    pub fn quota(&self, name: impl AsRef<[u8]>) -> Quota {
        Quota::new(self.redlock.quota(name), &self.runtime_thread)
    }

    /// Work that runs once per `period` across all machines; see [`quorate::Once`](crate::Once).
    pub fn once(&self, name: impl AsRef<[u8]>, period: Duration) -> Once {
        Once::new(self.redlock.once(name, period), &self.runtime_thread)
    }

    /// Work that runs once across all machines between the start and the end of `period`; see
    /// [`quorate::Redlock::once_in`](crate::Redlock::once_in).
    pub fn once_in(&self, name: impl AsRef<[u8]>, period: Range<SystemTime>) -> Once {
        Once::new(self.redlock.once_in(name, period), &self.runtime_thread)
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.redlock, f)
    }
}
