//! Re-entrant locks: holds with the same owner id share the lock.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::acquire::kind::Kind;
use crate::error::AcquireError;
use crate::hold::guard::LockGuard;
use crate::hold::released::Released;
use crate::redlock::Redlock;
use crate::redlock::request::LockRequest;
use crate::resource::{InvalidResource, MAX_OWNER_LEN};

/// An owner can hold the same lock several times, in several tasks, processes and machines. Each of these holds has its
/// own guard. For example, several services that process the same customer order can act as one owner.
///
/// Made with [`Redlock::owner`].
///
/// - Holds of the same owner share the lock; all other clients are excluded.
/// - All holds have the same fencing token.
/// - Each hold has its own validity, renewal, loss and `max_hold`. The lock ends when its last hold ends.
/// - A further hold does not wait in the queue: it overtakes all waiters and shares the lock.
///
/// If an owner always has a hold, other clients never get the lock. Release all holds from time to time, for example
/// after each step of the work.
///
/// **Within a process**, a further [`acquire`](Self::acquire) on the same `Owner` or its clones sends no request: it
/// returns a clone of the existing guard. After that guard has lost its lock, the next [`acquire`](Self::acquire) makes
/// a new hold.
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

/// For each resource, the latest hold of this owner within this process.
type Holds = HashMap<Box<[u8]>, Weak<LockGuard>>;

/// The guard of one hold of an [`Owner`]. Clones of the guard share the hold; dropping the last clone releases the
/// hold.
#[derive(Clone)]
#[must_use = "dropping the last clone of this guard releases its hold on the lock"]
pub struct OwnedGuard {
    guard: Arc<LockGuard>,
}

impl Redlock {
    /// The owner with this id, which other processes and machines may use as well.
    ///
    /// # Errors
    ///
    /// [`InvalidResource::Owner`] if the id is empty, longer than 64 bytes, or contains control characters;
    /// [`InvalidResource::OwnerIsValue`] for 32 hexadecimal digits, which look like the token of a lock.
    pub fn owner(&self, id: impl Into<String>) -> Result<Owner, InvalidResource> {
        let id: String = id.into();
        let has_valid_length = (1..=MAX_OWNER_LEN).contains(&id.len());
        if !has_valid_length || id.chars().any(char::is_control) {
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
    /// The owner's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Acquires a hold on `resource` for this owner. If this `Owner` or one of its clones already has a valid hold on
    /// `resource`, returns a clone of that hold's guard, and sends no request. Otherwise, this call asks the masters.
    ///
    /// Holds of the same owner in other processes or machines do not prevent the acquire.
    ///
    /// # Errors
    ///
    /// Those of [`Redlock::acquire`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Redlock::acquire`].
    pub async fn acquire(&self, resource: impl AsRef<[u8]>) -> Result<OwnedGuard, AcquireError> {
        let resource = resource.as_ref();
        if let Some(held_guard) = self.valid_guard(resource) {
            return Ok(held_guard);
        }
        let guard = self.lock(resource).acquire().await?;
        Ok(self.remember(resource, guard))
    }

    /// Creates a request for a hold of this owner on `resource`. Options that are set on the request apply to this hold
    /// only. The request always asks the masters, even if this `Owner` already has a valid hold on `resource`.
    pub fn lock(&self, resource: impl AsRef<[u8]>) -> LockRequest {
        let kind = Kind::Owner(self.id.clone());
        self.redlock.lock(resource).of_kind(kind)
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The valid hold that this `Owner` or one of its clones has on the resource; `None` if there is none.
    fn valid_guard(&self, resource: &[u8]) -> Option<OwnedGuard> {
        let guard = self.holds().get(resource)?.upgrade()?;
        guard.is_valid().then_some(OwnedGuard { guard })
    }

    fn remember(&self, resource: &[u8], guard: LockGuard) -> OwnedGuard {
        let guard = Arc::new(guard);
        let mut holds = self.holds();
        holds.retain(|_, guard| guard.strong_count() > 0);
        holds.insert(resource.into(), Arc::downgrade(&guard));
        OwnedGuard { guard }
    }
}

impl OwnedGuard {
    /// Drops this guard. If no clone of the guard is left, this call releases the hold as [`LockGuard::release`] does,
    /// and returns the result. Otherwise it sends no request and returns `None`.
    ///
    /// # Cancel safety
    ///
    /// As for [`LockGuard::release`].
    pub async fn release(self) -> Option<Released> {
        let last_guard = Arc::into_inner(self.guard)?;
        Some(last_guard.release().await)
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
    async fn owner_drops_its_records_of_released_holds_at_the_next_acquire() {
        let redlock = Redlock::builder().in_memory(1).build().expect("good");
        let owner = redlock.owner("worker").expect("the id must be valid");
        for resource in ["a", "b", "c"] {
            let guard = owner.acquire(resource).await.expect("free");
            assert_eq!(owner.holds().len(), 1, "{resource}");
            guard.release().await;
        }
    }
}
