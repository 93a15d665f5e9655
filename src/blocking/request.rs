//! One lock with its options, for callers without a runtime.

use std::fmt;
use std::time::Duration;

use super::guard::LockGuard;
use super::home::Home;
use crate::error::{AcquireError, ScopeError};
use crate::node::note::NoteText;
use crate::redlock::{self, Refusal};
use crate::settings::Wait;
use crate::waiting::Waiting;

/// What [`Redlock::try_acquire`](super::Redlock::try_acquire) found.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub enum TryAcquire {
    /// The lock is ours.
    Acquired(LockGuard),
    /// Another holder has it: an answer, not an error.
    Held(Refusal),
}

impl TryAcquire {
    /// The guard, if the lock is ours.
    pub fn acquired(self) -> Option<LockGuard> {
        match self {
            Self::Acquired(guard) => Some(guard),
            Self::Held(_) => None,
        }
    }
}

/// One lock with its options: as [`quorate::LockRequest`](crate::LockRequest).
#[must_use = "a lock request does nothing until acquire() is called"]
pub struct LockRequest<'a> {
    request: redlock::LockRequest<'a>,
    home: &'a Home,
}

impl<'a> LockRequest<'a> {
    pub(super) fn new(request: redlock::LockRequest<'a>, home: &'a Home) -> Self {
        Self { request, home }
    }

    fn with(
        self,
        option: impl FnOnce(redlock::LockRequest<'a>) -> redlock::LockRequest<'a>,
    ) -> Self {
        Self {
            request: option(self.request),
            home: self.home,
        }
    }

    /// How long the masters keep the lock without a renewal. Default: the builder's.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|request| request.ttl(ttl))
    }

    /// How long to wait for it. Default: the builder's.
    pub fn wait(self, wait: Wait) -> Self {
        self.with(|request| request.wait(wait))
    }

    /// The longest it is held, renewals included. Default: the builder's.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.with(|request| request.max_hold(max_hold))
    }

    /// Whether it is renewed in the background. Default: it is.
    pub fn renewal(self, renewal: bool) -> Self {
        self.with(|request| request.renewal(renewal))
    }

    /// What those who look are told of the holder; see [`quorate::LockRequest::note`](crate::LockRequest::note).
    pub fn note(self, note: impl Into<NoteText>) -> Self {
        self.with(|request| request.note(note))
    }

    /// Holds it as a reader; see [`quorate::LockRequest::shared`](crate::LockRequest::shared).
    pub fn shared(self) -> Self {
        self.with(redlock::LockRequest::shared)
    }

    /// Calls `observer` after every missed attempt; see
    /// [`quorate::LockRequest::waiting`](crate::LockRequest::waiting).
    pub fn waiting(self, observer: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        self.with(|request| request.waiting(observer))
    }

    /// Takes the lock; see [`Redlock::acquire`](super::Redlock::acquire).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn acquire(self) -> Result<LockGuard, AcquireError> {
        let guard = self.home.wait(self.request.acquire());
        let guard = guard.map_err(AcquireError::CannotBlock)??;
        Ok(LockGuard::new(guard, self.home))
    }

    /// One attempt; see [`Redlock::try_acquire`](super::Redlock::try_acquire).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_acquire(self) -> Result<TryAcquire, AcquireError> {
        let found = self.home.wait(self.request.try_acquire());
        Ok(match found.map_err(AcquireError::CannotBlock)?? {
            redlock::TryAcquire::Acquired(guard) => {
                TryAcquire::Acquired(LockGuard::new(guard, self.home))
            }
            redlock::TryAcquire::Held(refusal) => TryAcquire::Held(refusal),
        })
    }

    /// Runs `body` under this lock; see [`Redlock::scope`](super::Redlock::scope).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn scope<T>(self, body: impl FnOnce(&LockGuard) -> T) -> Result<T, ScopeError<T>> {
        let guard = self.acquire()?;
        let value = body(&guard);
        let lost = guard.loss();
        // On the thread that acquired it may be waited.
        let _ = guard.release();
        match lost {
            None => Ok(value),
            Some(cause) => {
                let value = Some(value);
                Err(ScopeError::Lost { cause, value })
            }
        }
    }

    /// Runs a body that may fail under this lock; see [`Redlock::try_scope`](super::Redlock::try_scope).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_scope<T, E: From<ScopeError>>(
        self,
        body: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.scope(body)
            .unwrap_or_else(|error| Err(error.into_one()))
    }
}

impl fmt::Debug for LockRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.request, f)
    }
}
