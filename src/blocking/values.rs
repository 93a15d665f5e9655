//! What is kept under a lock, for callers without a runtime.

use std::fmt;

use super::home::Home;
use crate::error::AcquireError;
use crate::hold::guard::LockGuard;
use crate::kinds::once::{self, OnceOutcome};
use crate::kinds::quota::{self, Take};
use crate::kinds::value_error::ValueError;
use crate::settings::Wait;

/// So many pieces and no more: as [`quorate::Quota`](crate::Quota).
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
    home: Home,
}

/// Once a period: as [`quorate::Once`](crate::Once).
#[derive(Clone)]
pub struct Once {
    once: once::Once,
    home: Home,
}

/// Waits for what a value says.
fn wait<T>(
    home: &Home,
    asked: impl Future<Output = Result<T, ValueError>>,
) -> Result<T, ValueError> {
    let said = home.wait(asked);
    said.map_err(|refused| ValueError::NotAcquired(AcquireError::CannotBlock(refused)))?
}

impl Quota {
    pub(super) fn new(quota: quota::Quota, home: &Home) -> Self {
        let home = home.clone();
        Self { quota, home }
    }

    /// How long each call waits for its turn. Default: the builder's.
    #[must_use]
    pub fn wait(self, wait: Wait) -> Self {
        let quota = self.quota.wait(wait);
        Self { quota, ..self }
    }

    /// Creates it with so many pieces; see [`quorate::Quota::create`](crate::Quota::create).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn create(&self, pieces: u64) -> Result<(), ValueError> {
        wait(&self.home, self.quota.create(pieces))
    }

    /// Takes so many pieces, or none; see [`quorate::Quota::take`](crate::Quota::take).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn take(&self, pieces: u64) -> Result<Take, ValueError> {
        wait(&self.home, self.quota.take(pieces))
    }

    /// How many are left.
    ///
    /// # Errors
    ///
    /// As [`quorate::Quota::left`](crate::Quota::left).
    pub fn left(&self) -> Result<u64, ValueError> {
        wait(&self.home, self.quota.left())
    }

    /// Removes it from every master; see [`quorate::Quota::drop_quota`](crate::Quota::drop_quota).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn drop_quota(&self) -> Result<(), ValueError> {
        wait(&self.home, self.quota.drop_quota())
    }
}

impl Once {
    pub(super) fn new(once: once::Once, home: &Home) -> Self {
        let home = home.clone();
        Self { once, home }
    }

    /// How long each call waits for its turn. Default: the builder's.
    #[must_use]
    pub fn wait(self, wait: Wait) -> Self {
        let once = self.once.wait(wait);
        Self { once, ..self }
    }

    /// Creates the record, with no period done; see [`quorate::Once::create`](crate::Once::create).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn create(&self) -> Result<(), ValueError> {
        wait(&self.home, self.once.create())
    }

    /// Runs `body` under the lock, unless this period is done, which is written down before; see
    /// [`quorate::Once::at_most_once`](crate::Once::at_most_once). A body that blocks runs to its end, also when the
    /// lock is lost meanwhile: [`OnceOutcome::Outlived`] says so.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn at_most_once<T>(
        &self,
        body: impl FnOnce(&LockGuard) -> T,
    ) -> Result<OnceOutcome<T>, ValueError> {
        let body = async |guard: &LockGuard| body(guard);
        wait(&self.home, self.once.at_most_once(body))
    }

    /// Runs `body` under the lock, unless this period is done, which is written down behind it; see
    /// [`quorate::Once::at_least_once`](crate::Once::at_least_once). A body that blocks runs to its end, also when
    /// the lock is lost meanwhile: then [`OnceOutcome::NotRecorded`] says so.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn at_least_once<T, E>(
        &self,
        body: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<OnceOutcome<Result<T, E>>, ValueError> {
        let body = async |guard: &LockGuard| body(guard);
        wait(&self.home, self.once.at_least_once(body))
    }

    /// Removes the record from every master.
    ///
    /// # Errors
    ///
    /// As [`quorate::Once::drop_record`](crate::Once::drop_record).
    pub fn drop_record(&self) -> Result<(), ValueError> {
        wait(&self.home, self.once.drop_record())
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
