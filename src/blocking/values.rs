//! Values that a lock protects (quotas and once-per-period records), for callers without a runtime.

use std::fmt;

use super::runtime_thread::RuntimeThread;
use crate::error::AcquireError;
use crate::hold::guard::LockGuard;
use crate::settings::Wait;
use crate::values::error::ValueError;
use crate::values::once::{self, OnceOutcome};
use crate::values::quota::{self, Take};
use crate::waiting::Waiting;

/// A quota: a limited number of units that clients on all machines take; the blocking version of
/// [`quorate::Quota`](crate::Quota).
///
/// ```
/// # #[cfg(feature = "testing")]
/// # fn main() -> Result<(), quorate::ValueError> {
/// use quorate::Take;
/// # let redlock = quorate::blocking::Redlock::in_memory(3);
///
/// let prizes = redlock.quota("prizes");
/// prizes.create(10)?; // once, by an operator
/// assert_eq!(prizes.take(1)?, Take::Taken { left: 9 });
/// # Ok(()) }
/// # #[cfg(not(feature = "testing"))]
/// # fn main() {}
/// ```
#[derive(Clone)]
pub struct Quota {
    quota: quota::Quota,
    runtime_thread: RuntimeThread,
}

/// Work that runs once per period across all machines; the blocking version of [`quorate::Once`](crate::Once).
#[derive(Clone)]
pub struct Once {
    once: once::Once,
    runtime_thread: RuntimeThread,
}

/// Waits on the calling thread until an operation on a value (quota or once-per-period record) has ended.
fn wait_for_value<T>(
    runtime_thread: &RuntimeThread,
    call: impl Future<Output = Result<T, ValueError>>,
) -> Result<T, ValueError> {
    let result = runtime_thread.wait(call);
    result.map_err(|error| ValueError::NotAcquired(AcquireError::from(error)))?
}

impl Quota {
    pub(super) fn new(quota: quota::Quota, runtime_thread: &RuntimeThread) -> Self {
        let runtime_thread = runtime_thread.clone();
        Self {
            quota,
            runtime_thread,
        }
    }

    /// How long each method of this quota waits for the lock that protects the quota. Default: the builder's `wait`.
    #[must_use]
    pub fn wait(self, wait: Wait) -> Self {
        let quota = self.quota.wait(wait);
        Self { quota, ..self }
    }

    /// Calls `observer` while a method of this quota waits for the lock that protects the quota; see
    /// [`quorate::Quota::waiting`](crate::Quota::waiting).
    #[must_use]
    pub fn waiting(self, observer: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        let quota = self.quota.waiting(observer);
        Self { quota, ..self }
    }

    /// Creates the quota with this number of units; see [`quorate::Quota::create`](crate::Quota::create).
    ///
    /// # Errors
    ///
    /// Those of [`quorate::Quota::create`](crate::Quota::create).
    pub fn create(&self, units: u64) -> Result<(), ValueError> {
        wait_for_value(&self.runtime_thread, self.quota.create(units))
    }

    /// Takes this number of units, all or none; see [`quorate::Quota::take`](crate::Quota::take).
    ///
    /// # Errors
    ///
    /// Those of [`quorate::Quota::take`](crate::Quota::take).
    pub fn take(&self, units: u64) -> Result<Take, ValueError> {
        wait_for_value(&self.runtime_thread, self.quota.take(units))
    }

    /// Reads the number of units that are left; see [`quorate::Quota::left`](crate::Quota::left).
    ///
    /// # Errors
    ///
    /// Those of [`quorate::Quota::left`](crate::Quota::left).
    pub fn left(&self) -> Result<u64, ValueError> {
        wait_for_value(&self.runtime_thread, self.quota.left())
    }

    /// Removes the quota from every master. Returns true if the quota existed on at least one master; see
    /// [`quorate::Quota::drop_quota`](crate::Quota::drop_quota).
    ///
    /// # Errors
    ///
    /// Those of [`quorate::Quota::drop_quota`](crate::Quota::drop_quota).
    pub fn drop_quota(&self) -> Result<bool, ValueError> {
        wait_for_value(&self.runtime_thread, self.quota.drop_quota())
    }
}

impl Once {
    pub(super) fn new(once: once::Once, runtime_thread: &RuntimeThread) -> Self {
        let runtime_thread = runtime_thread.clone();
        Self {
            once,
            runtime_thread,
        }
    }

    /// How long each method of this `Once` waits for its lock. Default: the builder's `wait`.
    #[must_use]
    pub fn wait(self, wait: Wait) -> Self {
        let once = self.once.wait(wait);
        Self { once, ..self }
    }

    /// Calls `observer` while a method of this `Once` waits for its lock; see
    /// [`quorate::Once::waiting`](crate::Once::waiting).
    #[must_use]
    pub fn waiting(self, observer: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        let once = self.once.waiting(observer);
        Self { once, ..self }
    }

    /// Creates the record of this `Once`. The record stores the last period that was done. In a new record, no period
    /// is done yet. See [`quorate::Once::create`](crate::Once::create).
    ///
    /// # Errors
    ///
    /// Those of [`quorate::Once::create`](crate::Once::create).
    pub fn create(&self) -> Result<(), ValueError> {
        wait_for_value(&self.runtime_thread, self.once.create())
    }

    /// Runs `body` under the lock of this `Once`, unless the period is already recorded as done. Records the period as
    /// done before `body` runs. See [`quorate::Once::at_most_once`](crate::Once::at_most_once).
    ///
    /// If the lock is lost while `body` runs, `body` still runs to its end, and the result is
    /// [`OnceOutcome::Outlived`].
    ///
    /// # Errors
    ///
    /// Those of [`quorate::Once::at_most_once`](crate::Once::at_most_once).
    pub fn at_most_once<T>(
        &self,
        body: impl FnOnce(&LockGuard) -> T,
    ) -> Result<OnceOutcome<T>, ValueError> {
        let body = async |guard: &LockGuard| body(guard);
        wait_for_value(&self.runtime_thread, self.once.at_most_once(body))
    }

    /// Runs `body` under the lock of this `Once`, unless the period is already recorded as done. Records the period as
    /// done after `body` has returned `Ok`. See [`quorate::Once::at_least_once`](crate::Once::at_least_once).
    ///
    /// If the lock is lost while `body` runs, `body` still runs to its end. If `body` then returns `Ok`, the result is
    /// [`OnceOutcome::NotRecorded`].
    ///
    /// # Errors
    ///
    /// Those of [`quorate::Once::at_least_once`](crate::Once::at_least_once).
    pub fn at_least_once<T, E>(
        &self,
        body: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<OnceOutcome<Result<T, E>>, ValueError> {
        let body = async |guard: &LockGuard| body(guard);
        wait_for_value(&self.runtime_thread, self.once.at_least_once(body))
    }

    /// Removes the record of this `Once` from every master. Returns true if at least one master had the record; see
    /// [`quorate::Once::drop_record`](crate::Once::drop_record).
    ///
    /// # Errors
    ///
    /// Those of [`quorate::Once::drop_record`](crate::Once::drop_record).
    pub fn drop_record(&self) -> Result<bool, ValueError> {
        wait_for_value(&self.runtime_thread, self.once.drop_record())
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.quota, f)
    }
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.once, f)
    }
}
