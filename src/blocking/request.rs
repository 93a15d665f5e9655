//! A lock request for callers without a runtime.

use std::fmt;
use std::time::Duration;

use super::guard::LockGuard;
use super::runtime_thread::RuntimeThread;
use crate::error::{AcquireError, ScopeError};
use crate::node::note::NoteText;
use crate::redlock::request as lock_request;
use crate::redlock::try_acquire::{self, Refusal};
use crate::settings::Wait;
use crate::waiting::Waiting;

/// The result of [`Redlock::try_acquire`](super::Redlock::try_acquire).
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub enum TryAcquire {
    /// The lock was acquired.
    Acquired(LockGuard),
    /// Another client holds the lock. This is a result, not an error.
    Held(Refusal),
}

impl TryAcquire {
    /// The guard if the lock was acquired; `None` if another client holds it.
    pub fn acquired(self) -> Option<LockGuard> {
        match self {
            Self::Acquired(guard) => Some(guard),
            Self::Held(_) => None,
        }
    }
}

/// A request for a lock with its options; the blocking version of [`quorate::LockRequest`](crate::LockRequest).
///
/// A request is independent of the `Redlock` that made it: it can be cloned, stored, and moved into another thread. The
/// background thread runs as long as the request exists.
///
/// The library logs a warning if you drop a request that was never used and never cloned.
///
/// ```
/// # #[cfg(feature = "testing")] {
/// let request = quorate::blocking::Redlock::in_memory(3).lock("job");
/// let other = request.clone();
/// let thread = std::thread::spawn(move || other.acquire().is_ok());
/// drop(request.acquire().expect("the lock, in turn"));
/// assert!(thread.join().expect("no panic"));
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a lock request does nothing until acquire() is called"]
pub struct LockRequest {
    request: lock_request::LockRequest,
    runtime_thread: RuntimeThread,
}

impl LockRequest {
    pub(super) fn new(request: lock_request::LockRequest, runtime_thread: &RuntimeThread) -> Self {
        Self {
            request: request.blocking(),
            runtime_thread: runtime_thread.clone(),
        }
    }

    fn map_request(
        self,
        change: impl FnOnce(lock_request::LockRequest) -> lock_request::LockRequest,
    ) -> Self {
        Self {
            request: change(self.request),
            runtime_thread: self.runtime_thread,
        }
    }

    /// How long the masters keep the lock without a renewal. Default: the builder's `ttl`.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.map_request(|request| request.ttl(ttl))
    }

    /// How long to wait for the lock. Default: the builder's `wait`.
    pub fn wait(self, wait: Wait) -> Self {
        self.map_request(|request| request.wait(wait))
    }

    /// The longest time that the lock is held, including renewals. Default: the builder's `max_hold`.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.map_request(|request| request.max_hold(max_hold))
    }

    /// Whether the lock is renewed in the background. Default: true.
    pub fn renewal(self, renewal: bool) -> Self {
        self.map_request(|request| request.renewal(renewal))
    }

    /// A text that describes the holder, at most 1 KiB. Other clients can read it while the lock is held. Default: the
    /// builder's `note`. See [`quorate::LockRequest::note`](crate::LockRequest::note).
    pub fn note(self, note: impl Into<NoteText>) -> Self {
        self.map_request(|request| request.note(note))
    }

    /// Acquires the lock as a reader; see [`quorate::LockRequest::shared`](crate::LockRequest::shared).
    pub fn shared(self) -> Self {
        self.map_request(lock_request::LockRequest::shared)
    }

    /// Calls `observer` after every failed attempt to acquire the lock; see
    /// [`quorate::LockRequest::waiting`](crate::LockRequest::waiting).
    pub fn waiting(self, observer: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        self.map_request(|request| request.waiting(observer))
    }

    /// Acquires the lock; see [`Redlock::acquire`](super::Redlock::acquire).
    ///
    /// # Errors
    ///
    /// Those of [`Redlock::acquire`](super::Redlock::acquire).
    pub fn acquire(self) -> Result<LockGuard, AcquireError> {
        let acquire_result = self.runtime_thread.wait(self.request.acquire());
        let guard = acquire_result.map_err(AcquireError::from)??;
        Ok(LockGuard::new(guard, &self.runtime_thread))
    }

    /// Tries once to acquire the lock, and does not wait if another client holds the lock; see
    /// [`Redlock::try_acquire`](super::Redlock::try_acquire).
    ///
    /// # Errors
    ///
    /// Those of [`Redlock::try_acquire`](super::Redlock::try_acquire).
    pub fn try_acquire(self) -> Result<TryAcquire, AcquireError> {
        let outcome = self.runtime_thread.wait(self.request.try_acquire());
        Ok(match outcome.map_err(AcquireError::from)?? {
            try_acquire::TryAcquire::Acquired(guard) => {
                TryAcquire::Acquired(LockGuard::new(guard, &self.runtime_thread))
            }
            try_acquire::TryAcquire::Held(refusal) => TryAcquire::Held(refusal),
        })
    }

    /// Runs `body` under this lock; see [`Redlock::scope`](super::Redlock::scope).
    ///
    /// # Errors
    ///
    /// Those of [`Redlock::scope`](super::Redlock::scope).
    pub fn scope<T>(self, body: impl FnOnce(&LockGuard) -> T) -> Result<T, ScopeError<T>> {
        let guard = self.acquire()?;
        let value = body(&guard);
        let lost_cause = guard.loss();
        // The release cannot fail with `CannotBlock`: the acquire has already waited on this thread, so waiting is
        // allowed.
        let _ = guard.release();
        match lost_cause {
            None => Ok(value),
            Some(cause) => {
                let value = Some(value);
                Err(ScopeError::Lost { cause, value })
            }
        }
    }

    /// Takes this lock, runs a body that returns a `Result`, and releases the lock; see
    /// [`Redlock::try_scope`](super::Redlock::try_scope).
    ///
    /// # Errors
    ///
    /// Those of [`Redlock::try_scope`](super::Redlock::try_scope).
    pub fn try_scope<T, E: From<ScopeError>>(
        self,
        body: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.scope(body)
            .unwrap_or_else(|error| Err(error.into_single_error()))
    }
}

impl fmt::Debug for LockRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.request, f)
    }
}
