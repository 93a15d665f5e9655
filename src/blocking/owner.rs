//! Re-entrant locks for callers without a runtime.

use std::fmt;
use std::ops::Deref;

use super::on_runtime::OnRuntime;
use super::request::LockRequest;
use super::runtime_thread::RuntimeThread;
use crate::error::{AcquireError, CannotBlock};
use crate::hold::guard;
use crate::hold::released::Released;
use crate::kinds::owner;

/// An owner of re-entrant locks; the blocking version of [`quorate::Owner`](crate::Owner). One owner can acquire
/// the same lock several times. Each hold has its own [`OwnedGuard`].
#[derive(Clone)]
pub struct Owner {
    owner: owner::Owner,
    runtime_thread: RuntimeThread,
}

/// The guard of one hold of an [`Owner`]; the blocking version of [`quorate::OwnedGuard`](crate::OwnedGuard). Clones of
/// the guard share the hold.
#[must_use = "dropping the last clone of this guard releases its hold on the lock"]
pub struct OwnedGuard {
    inner: OnRuntime<owner::OwnedGuard>,
}

impl Owner {
    pub(super) fn new(owner: owner::Owner, runtime_thread: &RuntimeThread) -> Self {
        let runtime_thread = runtime_thread.clone();
        Self {
            owner,
            runtime_thread,
        }
    }

    /// The owner's id.
    pub fn id(&self) -> &str {
        self.owner.id()
    }

    /// Acquires a hold on `resource` for this owner. If this `Owner` or one of its clones already has a valid hold on
    /// `resource`, returns a clone of that hold's guard, and sends no request.
    ///
    /// # Errors
    ///
    /// Those of [`Redlock::acquire`](super::Redlock::acquire).
    pub fn acquire(&self, resource: impl AsRef<[u8]>) -> Result<OwnedGuard, AcquireError> {
        let acquire_result = self.runtime_thread.wait(self.owner.acquire(resource));
        let guard = acquire_result.map_err(AcquireError::from)??;
        Ok(OwnedGuard {
            inner: OnRuntime::new(guard, &self.runtime_thread),
        })
    }

    /// Creates a request for a hold of this owner on `resource`. Options that are set on the request apply to this hold
    /// only. The request always asks the masters, even if this `Owner` already has a valid hold on `resource`.
    pub fn lock(&self, resource: impl AsRef<[u8]>) -> LockRequest {
        LockRequest::new(self.owner.lock(resource), &self.runtime_thread)
    }
}

impl OwnedGuard {
    /// Releases this guard. Returns `None` if clones of this guard still share the hold, or if this guard was released
    /// before. Otherwise releases the hold and returns the result.
    ///
    /// # Errors
    ///
    /// [`CannotBlock`] on a thread of a Tokio runtime. The hold is then released in the background.
    pub fn release(&self) -> Result<Option<Released>, CannotBlock> {
        self.inner.release_with(owner::OwnedGuard::release)
    }
}

impl Clone for OwnedGuard {
    fn clone(&self) -> Self {
        Self {
            inner: OnRuntime::new(self.inner.get().clone(), &self.inner.runtime_thread),
        }
    }
}

impl Deref for OwnedGuard {
    type Target = guard::LockGuard;

    fn deref(&self) -> &guard::LockGuard {
        self.inner.get()
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.owner, f)
    }
}

impl fmt::Debug for OwnedGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.inner.get(), f)
    }
}
