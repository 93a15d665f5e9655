//! Holds that join each other: an owner, by an id that the user gives.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::acquire::kind::Kind;
use crate::error::AcquireError;
use crate::hold::guard::LockGuard;
use crate::hold::released::Released;
use crate::redlock::{LockRequest, Redlock};
use crate::resource::{InvalidResource, MAX_OWNER_LEN};

/// Somebody whose holds join each other across tasks, processes and machines: an order that is worked on by
/// several services, a job that calls itself. Made with [`Redlock::owner`].
///
/// Two holds of one owner stand beside each other, and nobody else beside them. They have the same fencing
/// number, and each its own life: validity, renewal, loss and `max_hold`. The lock ends with the last one. A
/// further hold passes all who wait: an owner whose holds overlap without end keeps others out, so whoever
/// wants fairness between its steps takes new locks.
///
/// **Within a process** a further hold of the same `Owner` costs nothing: the guards count clones of one held
/// lock, and every clone says what that lock says. A hold that has been lost stays lost for all its clones; the
/// next [`acquire`](Self::acquire) is a new one.
///
/// ```no_run
/// # async fn example(redlock: quorate::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// let order = redlock.owner("order-4711")?;
/// let outer = order.acquire("stock").await?;
/// let inner = order.acquire("stock").await?; // at once, also in another process
/// assert_eq!(outer.fencing_token(), inner.fencing_token());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Owner {
    redlock: Redlock,
    id: Arc<str>,
    holds: Arc<Mutex<Holds>>,
}

/// The latest hold on each resource.
type Holds = HashMap<Box<[u8]>, Weak<LockGuard>>;

/// One hold of an [`Owner`]. Clones share it; the last one that is dropped releases it.
#[derive(Clone)]
#[must_use = "dropping the last guard releases the hold"]
pub struct OwnedGuard {
    guard: Arc<LockGuard>,
}

impl Redlock {
    /// An owner of this id, which may be used in other processes and on other machines as well.
    ///
    /// # Errors
    ///
    /// [`InvalidResource::Owner`] for an id that is empty, longer than 64 bytes, or holds control characters;
    /// [`InvalidResource::OwnerIsValue`] for 32 hexadecimal digits, as the value of a lock has.
    pub fn owner(&self, id: impl Into<String>) -> Result<Owner, InvalidResource> {
        let id: String = id.into();
        let fits = (1..=MAX_OWNER_LEN).contains(&id.len());
        if !fits || id.chars().any(char::is_control) {
            return Err(InvalidResource::Owner(id.len()));
        }
        if id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(InvalidResource::OwnerIsValue);
        }
        Ok(Owner {
            redlock: self.clone(),
            id: id.into(),
            holds: Arc::default(),
        })
    }
}

impl Owner {
    /// The id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Another hold, at once where this handle or one of its clones has a valid one on the resource; otherwise
    /// by the masters, beside all other holds of this owner.
    ///
    /// # Errors
    ///
    /// As [`Redlock::acquire`].
    ///
    /// # Cancel safety
    ///
    /// As [`Redlock::acquire`].
    pub async fn acquire(&self, resource: impl AsRef<[u8]>) -> Result<OwnedGuard, AcquireError> {
        let resource = resource.as_ref();
        if let Some(held) = self.held(resource) {
            return Ok(held);
        }
        let guard = self.lock(resource).acquire().await?;
        Ok(self.keep(resource, guard))
    }

    /// A hold with options of its own, always by the masters.
    pub fn lock(&self, resource: impl AsRef<[u8]>) -> LockRequest<'_> {
        let kind = Kind::Owner(self.id.clone());
        self.redlock.lock(resource).of_kind(kind)
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is valid now: what is counted here never answers for the masters.
    fn held(&self, resource: &[u8]) -> Option<OwnedGuard> {
        let guard = self.holds().get(resource)?.upgrade()?;
        guard.is_valid().then_some(OwnedGuard { guard })
    }

    fn keep(&self, resource: &[u8], guard: LockGuard) -> OwnedGuard {
        let guard = Arc::new(guard);
        let mut holds = self.holds();
        holds.retain(|_, guard| guard.strong_count() > 0);
        holds.insert(resource.into(), Arc::downgrade(&guard));
        OwnedGuard { guard }
    }
}

impl OwnedGuard {
    /// Gives this clone back. Where it was the last, the hold is released, and it is waited for as by
    /// [`LockGuard::release`]; otherwise nothing is sent and there is nothing to tell.
    ///
    /// # Cancel safety
    ///
    /// As [`LockGuard::release`].
    pub async fn release(self) -> Option<Released> {
        let last = Arc::into_inner(self.guard)?;
        Some(last.release().await)
    }
}

impl Deref for OwnedGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for OwnedGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn owner_forgets_holds_that_were_released_when_it_takes_another() {
        let redlock = Redlock::builder().in_memory(1).build().expect("good");
        let owner = redlock.owner("worker").expect("a good id");
        for resource in ["a", "b", "c"] {
            let guard = owner.acquire(resource).await.expect("free");
            assert_eq!(owner.holds().len(), 1, "{resource}");
            guard.release().await;
        }
    }
}
