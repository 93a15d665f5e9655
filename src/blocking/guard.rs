//! The guard of a held lock, for callers without a runtime.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use super::on_runtime::OnRuntime;
use super::runtime_thread::RuntimeThread;
use crate::error::{CannotBlock, ExtendError};
use crate::hold::guard;
use crate::hold::released::Released;
use crate::hold::risk::{self, AtRisk};
use crate::kinds::shared::DowngradeError;
use crate::outcome::LossCause;

/// A held lock; the blocking version of [`quorate::LockGuard`](crate::LockGuard). This guard dereferences to
/// `quorate::LockGuard`. So it also has the methods [`fencing_token`](crate::LockGuard::fencing_token),
/// [`is_valid`](crate::LockGuard::is_valid), [`remaining`](crate::LockGuard::remaining),
/// [`loss`](crate::LockGuard::loss) and [`risk`](crate::LockGuard::risk).
///
/// A background thread renews the lock, even while the calling thread is blocked. If the lock is lost, the library
/// cannot stop your code. Therefore:
///
/// - Check [`is_valid`](crate::LockGuard::is_valid) right before each step that needs the lock, or register a callback
///   with [`on_lost`](Self::on_lost).
/// - Pass the fencing token to every system that you write to.
///
/// Dropping the guard releases the lock in the background.
#[must_use = "dropping the guard releases the lock"]
pub struct LockGuard {
    inner: OnRuntime<guard::LockGuard>,
}

impl LockGuard {
    pub(super) fn new(guard: guard::LockGuard, runtime_thread: &RuntimeThread) -> Self {
        Self {
            inner: OnRuntime::new(guard, runtime_thread),
        }
    }

    /// Waits for at most `within` until the lock is lost. Returns `None` if the lock is still held at the end of that
    /// time.
    ///
    /// # Errors
    ///
    /// [`CannotBlock`] on a thread of a Tokio runtime.
    ///
    /// ```
    /// # #[cfg(feature = "testing")] {
    /// # use std::time::Duration;
    /// # let redlock = quorate::blocking::Redlock::in_memory(3);
    /// let guard = redlock.acquire("nightly").expect("it is free");
    /// assert_eq!(guard.wait_lost(Duration::from_millis(5)), Ok(None)); // still held
    /// # }
    /// ```
    pub fn wait_lost(&self, within: Duration) -> Result<Option<LossCause>, CannotBlock> {
        let loss = self.inner.get().lost();
        self.inner.runtime_thread.wait_for(within, loss)
    }

    /// Calls `notify` when the lock is lost. The callback runs on the background thread and must not block. It is not
    /// called when the lock is released.
    ///
    /// ```
    /// # #[cfg(feature = "testing")] {
    /// # use std::sync::Arc;
    /// # use std::sync::atomic::{AtomicBool, Ordering};
    /// # let redlock = quorate::blocking::Redlock::in_memory(3);
    /// let guard = redlock.acquire("nightly").expect("it is free");
    /// let stop = Arc::new(AtomicBool::new(false));
    /// let tell = stop.clone();
    /// guard.on_lost(move |_cause| tell.store(true, Ordering::Relaxed));
    /// // The work checks `stop` between its steps.
    /// # assert!(!stop.load(Ordering::Relaxed));
    /// # }
    /// ```
    pub fn on_lost(&self, notify: impl FnOnce(LossCause) + Send + 'static) {
        let loss = self.inner.get().lost();
        self.inner.runtime_thread.spawn(async move {
            let cause = loss.await;
            if cause != LossCause::Released {
                notify(cause);
            }
        });
    }

    /// Watches for the notice that the lock may be lost soon; see
    /// [`quorate::LockGuard::at_risk`](crate::LockGuard::at_risk).
    pub fn at_risk(&self, margin: Duration) -> RiskWatch {
        RiskWatch {
            inner: OnRuntime::new(self.inner.get().at_risk(margin), &self.inner.runtime_thread),
        }
    }

    /// Calls `notify` each time when the lock may be lost soon, at most once per episode. The callback runs on the
    /// background thread and must not block. [`quorate::LockGuard::at_risk`](crate::LockGuard::at_risk) says when the
    /// notice comes.
    ///
    /// ```
    /// # #[cfg(feature = "testing")] {
    /// # use std::time::Duration;
    /// # let redlock = quorate::blocking::Redlock::in_memory(3);
    /// let guard = redlock.acquire("nightly").expect("it is free");
    /// guard.on_risk(Duration::from_secs(2), |risk| eprintln!("{}", risk.details()));
    /// # }
    /// ```
    pub fn on_risk(&self, margin: Duration, mut notify: impl FnMut(AtRisk) + Send + 'static) {
        let mut risks = self.inner.get().at_risk(margin);
        self.inner.runtime_thread.spawn(async move {
            while let Ok(risk) = risks.next().await {
                notify(risk);
            }
        });
    }

    /// Extends the lock once, to `ttl` from now; see [`quorate::LockGuard::extend`](crate::LockGuard::extend).
    ///
    /// # Errors
    ///
    /// Those of [`quorate::LockGuard::extend`](crate::LockGuard::extend), and [`ExtendError::CannotBlock`] on a thread
    /// of a Tokio runtime.
    pub fn extend(&self, ttl: Duration) -> Result<(), ExtendError> {
        let extended = self.inner.runtime_thread.wait(self.inner.get().extend(ttl));
        extended.map_err(ExtendError::CannotBlock)?
    }

    /// Releases the lock, and waits until a majority of the masters has released it. Another thread may still use the
    /// guard: see [`quorate::LockGuard::release`](crate::LockGuard::release).
    ///
    /// # Errors
    ///
    /// [`CannotBlock`] on a thread of a Tokio runtime. The lock is then released in the background.
    pub fn release(&self) -> Result<Released, CannotBlock> {
        self.inner.release_with(guard::LockGuard::release)
    }

    /// Converts the lock into a reader's lock; see [`quorate::LockGuard::downgrade`](crate::LockGuard::downgrade).
    ///
    /// # Errors
    ///
    /// Those of [`quorate::LockGuard::downgrade`](crate::LockGuard::downgrade), and [`DowngradeError::CannotBlock`] on
    /// a thread of a Tokio runtime. After an error nothing is held.
    pub fn downgrade(self) -> Result<LockGuard, DowngradeError> {
        let (guard, runtime_thread) = self.inner.into_parts();
        let downgrade_result = runtime_thread.wait(guard.downgrade());
        let reader = downgrade_result.map_err(DowngradeError::CannotBlock)??;
        Ok(LockGuard::new(reader, &runtime_thread))
    }
}

/// Watches a held lock for the notice that it may be lost soon; the blocking version of
/// [`quorate::RiskWatch`](crate::RiskWatch).
pub struct RiskWatch {
    inner: OnRuntime<risk::RiskWatch>,
}

impl RiskWatch {
    /// Waits for at most `within` until the lock is at risk; see [`quorate::RiskWatch::next`](crate::RiskWatch::next).
    /// Returns `None` if there is no notice in that time. If the lock has ended, the result contains the cause.
    ///
    /// # Errors
    ///
    /// [`CannotBlock`] on a thread of a Tokio runtime.
    pub fn next_within(
        &mut self,
        within: Duration,
    ) -> Result<Option<Result<AtRisk, LossCause>>, CannotBlock> {
        let (risks, runtime_thread) = self.inner.parts();
        runtime_thread.wait_for(within, risks.next())
    }
}

impl Deref for LockGuard {
    type Target = guard::LockGuard;

    fn deref(&self) -> &guard::LockGuard {
        self.inner.get()
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.inner.get(), f)
    }
}

impl fmt::Debug for RiskWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.inner.get(), f)
    }
}
