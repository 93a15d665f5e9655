//! The guard of a held lock, for callers without a runtime.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use super::home::Home;
use super::kept::Kept;
use crate::error::{CannotBlock, ExtendError};
use crate::hold::guard;
use crate::hold::released::Released;
use crate::kinds::shared::DowngradeError;
use crate::outcome::LossCause;

/// A held lock: as [`quorate::LockGuard`](crate::LockGuard), whose questions it answers as well
/// ([`fencing_token`](crate::LockGuard::fencing_token), [`is_valid`](crate::LockGuard::is_valid),
/// [`remaining`](crate::LockGuard::remaining), ..).
///
/// It is renewed by the thread in the background, whatever this one does. Nothing can stop a body that blocks: look
/// at [`is_valid`](crate::LockGuard::is_valid) right before each step that needs the lock, or be told by
/// [`on_lost`](Self::on_lost), and hand the fencing token to what is written to.
///
/// Dropping it gives the lock back in the background.
#[must_use = "dropping the guard releases the lock"]
pub struct LockGuard {
    kept: Kept<guard::LockGuard>,
}

impl LockGuard {
    pub(super) fn new(guard: guard::LockGuard, home: &Home) -> Self {
        Self {
            kept: Kept::new(guard, home),
        }
    }

    /// How it ended, if it has; nothing is waited for.
    pub fn loss(&self) -> Option<LossCause> {
        self.kept.get().ended()
    }

    /// Waits until it is lost, or for so long.
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
        let lost = self.kept.get().lost();
        self.kept.home.wait_for(within, lost)
    }

    /// Calls `told` when the lock is lost, from the thread in the background: it must not block. Not called for a
    /// lock that is given back.
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
    /// // The work looks at `stop` between its steps.
    /// # assert!(!stop.load(Ordering::Relaxed));
    /// # }
    /// ```
    pub fn on_lost(&self, told: impl FnOnce(LossCause) + Send + 'static) {
        let lost = self.kept.get().lost();
        self.kept.home.spawn(async move {
            let cause = lost.await;
            if cause != LossCause::Released {
                told(cause);
            }
        });
    }

    /// Prolongs the lock once; see [`quorate::LockGuard::extend`](crate::LockGuard::extend).
    ///
    /// # Errors
    ///
    /// As there, and [`ExtendError::CannotBlock`].
    pub fn extend(&self, ttl: Duration) -> Result<(), ExtendError> {
        let extended = self.kept.home.wait(self.kept.get().extend(ttl));
        extended.map_err(ExtendError::CannotBlock)?
    }

    /// Gives the lock back, and waits until a majority of masters has let go.
    ///
    /// # Errors
    ///
    /// [`CannotBlock`] on a thread of a Tokio runtime: then it is given back in the background.
    pub fn release(self) -> Result<Released, CannotBlock> {
        let (guard, home) = self.kept.take();
        home.wait(guard.release())
    }

    /// Goes on as a reader; see [`quorate::LockGuard::downgrade`](crate::LockGuard::downgrade).
    ///
    /// # Errors
    ///
    /// As there, and [`DowngradeError::CannotBlock`]; in every case nothing is held afterwards.
    pub fn downgrade(self) -> Result<LockGuard, DowngradeError> {
        let (guard, home) = self.kept.take();
        let reader = home.wait(guard.downgrade());
        let reader = reader.map_err(DowngradeError::CannotBlock)??;
        Ok(LockGuard::new(reader, &home))
    }
}

impl Deref for LockGuard {
    type Target = guard::LockGuard;

    fn deref(&self) -> &guard::LockGuard {
        self.kept.get()
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.kept.get(), f)
    }
}
