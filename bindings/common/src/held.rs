//! The locks that a client holds for the language, so that they can be released at the end of the process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use quorate::{Leadership, LockGuard};

/// A held lock.
pub(crate) enum Hold {
    Lock(LockGuard),
    Leadership(Leadership),
}

impl Hold {
    pub(crate) fn guard(&self) -> &LockGuard {
        match self {
            Self::Lock(guard) => guard,
            Self::Leadership(leadership) => leadership.guard(),
        }
    }
}

/// The place of one held lock. It is empty after the release.
pub(crate) struct HeldSlot {
    id: u64,
    hold: Mutex<Option<Arc<Hold>>>,
}

impl HeldSlot {
    fn hold(&self) -> MutexGuard<'_, Option<Arc<Hold>>> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self) -> Option<Arc<Hold>> {
        self.hold().clone()
    }

    pub(crate) fn take(&self) -> Option<Arc<Hold>> {
        self.hold().take()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.hold().is_none()
    }
}

/// All locks that a client holds for the language. Contains at most one entry for each guard of the language.
#[derive(Default)]
pub(crate) struct HeldLocks {
    next_id: AtomicU64,
    slots: Mutex<HashMap<u64, Weak<HeldSlot>>>,
}

impl HeldLocks {
    fn slots(&self) -> MutexGuard<'_, HashMap<u64, Weak<HeldSlot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, hold: Arc<Hold>) -> Arc<HeldSlot> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let hold = Mutex::new(Some(hold));
        let slot = Arc::new(HeldSlot { id, hold });
        self.slots().insert(id, Arc::downgrade(&slot));
        slot
    }

    pub(crate) fn remove(&self, slot: &HeldSlot) {
        self.slots().remove(&slot.id);
    }

    /// Releases all locks that have not been released. Must be called inside the runtime of the client. Returns how
    /// many there were.
    pub(crate) fn release_all(&self) -> usize {
        let slots = std::mem::take(&mut *self.slots());
        let slots = slots.values().filter_map(Weak::upgrade);
        let holds = slots.filter_map(|slot| slot.take());
        // The call queues the releases. Its future only waits for the answers.
        holds.map(|hold| drop(hold.guard().release())).count()
    }
}
