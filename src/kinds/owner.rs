//! Re-entrant locks: holds with the same owner id share the lock.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
type Holds = HashMap<Box<[u8]>, Weak<Hold>>;

/// The guard of one hold of an [`Owner`]. Clones of the guard share the hold. The hold is released when each clone has
/// been released or dropped. A clone of a released guard counts as released.
#[must_use = "dropping the last clone of this guard releases its hold on the lock"]
pub struct OwnedGuard {
    hold: Arc<Hold>,
    /// Whether this clone has been released. It then no longer counts in [`Hold::users`].
    is_released: AtomicBool,
}

/// One hold of an owner.
struct Hold {
    guard: LockGuard,
    /// How many guards share the hold, without those that have been released. If the number is 0, the hold has been
    /// released, and the number stays 0.
    users: AtomicUsize,
}

impl Hold {
    /// Counts one more guard. Returns false if the hold has been released.
    fn join(&self) -> bool {
        let count_up = |users: usize| (users > 0).then_some(users + 1);
        let order = Ordering::SeqCst;
        self.users.fetch_update(order, order, count_up).is_ok()
    }

    /// Counts one guard less. Returns true if it was the last one.
    fn leave(&self) -> bool {
        self.users.fetch_sub(1, Ordering::SeqCst) == 1
    }
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
        // In a forked process, another thread of the parent may have held this mutex during the fork.
        if self.redlock.core.coordinator.process.is_not_current() {
            return None;
        }
        let hold = self.holds().get(resource)?.upgrade()?;
        (hold.guard.is_valid() && hold.join()).then(|| OwnedGuard::of(hold))
    }

    fn remember(&self, resource: &[u8], guard: LockGuard) -> OwnedGuard {
        let hold = Arc::new(Hold {
            guard,
            users: AtomicUsize::new(1),
        });
        let mut holds = self.holds();
        holds.retain(|_, hold| hold.strong_count() > 0);
        holds.insert(resource.into(), Arc::downgrade(&hold));
        OwnedGuard::of(hold)
    }
}

impl OwnedGuard {
    /// A guard that `hold` already counts as one of its users.
    fn of(hold: Arc<Hold>) -> Self {
        Self {
            hold,
            is_released: AtomicBool::new(false),
        }
    }

    /// Releases this guard. If all clones of the guard have been released or dropped, this call releases the hold as
    /// [`LockGuard::release`] does, and returns the result. Otherwise it sends no request and returns `None`. A second
    /// release of the same guard also returns `None`.
    ///
    /// While clones still share the hold, the methods of a released guard describe this hold.
    ///
    /// # Cancel safety
    ///
    /// As for [`LockGuard::release`]: the call itself releases, even if the future is never polled.
    pub fn release(&self) -> impl Future<Output = Option<Released>> + Send + use<> {
        let is_last = !self.is_released.swap(true, Ordering::SeqCst) && self.hold.leave();
        let release = is_last.then(|| self.hold.guard.release());
        async move { Some(release?.await) }
    }
}

impl Clone for OwnedGuard {
    fn clone(&self) -> Self {
        let is_released = self.is_released.load(Ordering::SeqCst) || !self.hold.join();
        Self {
            hold: self.hold.clone(),
            is_released: AtomicBool::new(is_released),
        }
    }
}

impl Drop for OwnedGuard {
    fn drop(&mut self) {
        if !*self.is_released.get_mut() && self.hold.leave() {
            // Released clones may still exist, so the guard of the hold may not be dropped yet.
            self.hold.guard.release_in_background();
        }
    }
}

impl Deref for OwnedGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.hold.guard
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

    #[tokio::test]
    async fn owner_remembers_all_holds_that_are_not_released() {
        let owner = Redlock::in_memory(1).owner("worker").expect("a valid id");
        let first = owner.acquire("a").await.expect("free");
        let second = owner.acquire("b").await.expect("free");
        assert_eq!(owner.holds().len(), 2);
        let again = owner.acquire("a").await.expect("held by this owner");
        assert!(Arc::ptr_eq(&first.hold, &again.hold));
        drop((first, second));
        assert!(again.is_valid(), "one guard still shares the hold");
    }

    #[tokio::test]
    async fn guard_that_is_released_twice_and_dropped_counts_once() {
        let owner = Redlock::in_memory(1).owner("worker").expect("a valid id");
        let first = owner.acquire("a").await.expect("free");
        let second = owner.acquire("a").await.expect("held by this owner");
        for _ in 0..2 {
            assert!(first.release().await.is_none(), "the second guard holds on");
        }
        drop(first);
        assert!(second.is_valid());
        assert!(second.release().await.is_some());
        assert!(second.release().await.is_none());
    }

    #[tokio::test]
    async fn released_hold_cannot_be_joined() {
        let owner = Redlock::in_memory(1).owner("worker").expect("a valid id");
        let guard = owner.acquire("a").await.expect("free");
        assert!(guard.hold.join());
        assert!(!guard.hold.leave());
        guard.release().await;
        assert!(!guard.hold.join());
    }

    #[tokio::test]
    async fn hold_of_the_parent_process_is_not_shared_in_a_forked_process() {
        let guard = Redlock::in_memory(1).acquire("a").await.expect("free");
        let child = Redlock::in_memory(1).seen_by_another_process();
        let owner = child.owner("worker").expect("a valid id");
        let inherited = owner.remember(b"a", guard);
        assert!(inherited.is_valid());
        assert!(owner.valid_guard(b"a").is_none());
    }

    #[test]
    fn owner_id_must_be_short_readable_and_unlike_the_token_of_a_lock() {
        let redlock = Redlock::in_memory(1);
        let token_text = "0123456789abcdefABCDEF0123456789";
        let error_of = |id: &str| redlock.owner(id).err();
        for id in ["a", &token_text[1..], &token_text.replace('9', "g")] {
            assert_eq!(error_of(id), None, "{id}");
        }
        let too_long = "a".repeat(MAX_OWNER_LEN + 1);
        for id in ["", "a\nb", &too_long] {
            assert_eq!(
                error_of(id),
                Some(InvalidResource::Owner(id.len())),
                "{id:?}"
            );
        }
        assert_eq!(error_of(token_text), Some(InvalidResource::OwnerIsValue));
    }
}
