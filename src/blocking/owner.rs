//! Holds that join each other, for callers without a runtime.

use std::fmt;
use std::ops::Deref;

use super::home::Home;
use super::kept::Kept;
use super::request::LockRequest;
use crate::error::{AcquireError, CannotBlock};
use crate::hold::guard;
use crate::hold::released::Released;
use crate::kinds::owner;

/// Somebody whose holds join each other: as [`quorate::Owner`](crate::Owner).
#[derive(Clone)]
pub struct Owner {
    owner: owner::Owner,
    home: Home,
}

/// One hold of an [`Owner`]: as [`quorate::OwnedGuard`](crate::OwnedGuard). Clones share it.
#[must_use = "dropping the last guard releases the hold"]
pub struct OwnedGuard {
    kept: Kept<owner::OwnedGuard>,
}

impl Owner {
    pub(super) fn new(owner: owner::Owner, home: &Home) -> Self {
        let home = home.clone();
        Self { owner, home }
    }

    /// The id.
    pub fn id(&self) -> &str {
        self.owner.id()
    }

    /// Another hold, at once where there is a valid one here.
    ///
    /// # Errors
    ///
    /// As [`Redlock::acquire`](super::Redlock::acquire).
    pub fn acquire(&self, resource: impl AsRef<[u8]>) -> Result<OwnedGuard, AcquireError> {
        let guard = self.home.wait(self.owner.acquire(resource));
        let guard = guard.map_err(AcquireError::CannotBlock)??;
        Ok(OwnedGuard {
            kept: Kept::new(guard, &self.home),
        })
    }

    /// A hold with options of its own, always by the masters.
    pub fn lock(&self, resource: impl AsRef<[u8]>) -> LockRequest<'_> {
        LockRequest::new(self.owner.lock(resource), &self.home)
    }
}

impl OwnedGuard {
    /// Gives this clone back; where it was the last, the hold is released.
    ///
    /// # Errors
    ///
    /// [`CannotBlock`] on a thread of a Tokio runtime: then it is given back in the background.
    pub fn release(self) -> Result<Option<Released>, CannotBlock> {
        let (guard, home) = self.kept.take();
        home.wait(guard.release())
    }
}

impl Clone for OwnedGuard {
    fn clone(&self) -> Self {
        Self {
            kept: Kept::new(self.kept.get().clone(), &self.kept.home),
        }
    }
}

impl Deref for OwnedGuard {
    type Target = guard::LockGuard;

    fn deref(&self) -> &guard::LockGuard {
        self.kept.get()
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.owner, f)
    }
}

impl fmt::Debug for OwnedGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.kept.get(), f)
    }
}
