//! The local queue of each resource, and the wake-ups from the masters.
//!
//! Waiters of one process for one resource wait in a local queue. Only the first waiter, called the front, asks the
//! masters. So a thousand waiters send no more requests than one. The masters grant the locks; the local queue only
//! decides which waiter asks them.
//!
//! When the front has acquired the lock, it keeps its place as the holder until it sends its releases. The next waiter
//! then sends its requests on the same connections, without waiting for the replies to the releases.

pub(crate) mod place;
mod queue;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};

use self::queue::{LocalQueue, LocalWaiter, WOKEN_BY_LOCAL_RELEASE};
use super::own::{OwnLocks, SlotReservation};
use super::watchers::Watchers;
use crate::node::{Permit, WakeSink};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// The local queues of all resources of one process.
pub(crate) struct LocalQueues {
    queues_by_key: Mutex<HashMap<Arc<[u8]>, LocalQueue>>,
    /// The locks that tasks of this process hold without a place in a local queue, for example as readers. Also the
    /// semaphore slots that its tasks are requesting.
    own_locks: Arc<OwnLocks>,
    /// The arrival numbers of the waiters that have left the queue of their semaphore because they are requesting a
    /// slot. Lock order: `queues_by_key` is locked before this mutex.
    waiters_at_slots: Mutex<WaitersAtSlots>,
    /// The number of waiters that have entered a queue so far. It gives each waiter its arrival number.
    next_number: AtomicU64,
    /// For each key, the waiters that ask the masters at once, without a place in the local queue: readers, and
    /// requests of an owner, which may already hold the lock.
    unqueued: Mutex<Unqueued>,
    /// The observers of elections in this process, which wait for announcements of new leaders.
    pub(crate) watchers: Watchers,
}

/// For each key, the waiters that ask the masters without queueing locally.
type Unqueued = HashMap<Arc<[u8]>, Vec<Arc<LocalWaiter>>>;

/// For each semaphore (by the key of its queue), the arrival numbers of the waiters that are requesting a slot.
type WaitersAtSlots = HashMap<Arc<[u8]>, BTreeSet<u64>>;

impl LocalQueues {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            queues_by_key: Mutex::default(),
            own_locks: Arc::default(),
            waiters_at_slots: Mutex::default(),
            next_number: AtomicU64::new(0),
            unqueued: Mutex::default(),
            watchers: Watchers::default(),
        })
    }

    fn queues_by_key(&self) -> MutexGuard<'_, HashMap<Arc<[u8]>, LocalQueue>> {
        self.queues_by_key
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process holds a lock on `key`.
    pub(crate) fn is_held(&self, key: &[u8]) -> bool {
        let queued = self
            .queues_by_key()
            .get(key)
            .is_some_and(|queue| queue.front.is_none());
        queued || self.own_locks.is_held(key)
    }

    /// Records a lock that was acquired without queueing locally. The record lasts until
    /// [`lock_ended`](Self::lock_ended).
    pub(crate) fn hold<'a>(
        self: &Arc<Self>,
        keys: impl Iterator<Item = &'a Arc<[u8]>>,
    ) -> Arc<Self> {
        self.own_locks.hold(keys);
        self.clone()
    }

    /// Records the end of a lock that [`hold`](Self::hold) recorded. The caller calls this once for each lock. If the
    /// lock was a slot of a semaphore, wakes the first local waiter for that semaphore.
    pub(crate) fn lock_ended(&self, key: &[u8], permit: Option<&Permit>) {
        self.own_locks.lock_ended(key);
        let Some(permit) = permit else {
            return;
        };
        if let Some(front) = self.front_waiter(&permit.line()) {
            front
                .woken_by
                .store(WOKEN_BY_LOCAL_RELEASE, Ordering::Release);
            front.signal.notify_one();
        }
    }

    fn front_waiter(&self, key: &[u8]) -> Option<Arc<LocalWaiter>> {
        self.queues_by_key()
            .get(key)
            .and_then(|queue| queue.front.clone())
    }

    /// Bit masks of the slots of a semaphore: see [`OwnLocks::slots`].
    pub(crate) fn own_slots(
        &self,
        permit: &Permit,
        except: Option<&SlotReservation>,
    ) -> (u64, u64) {
        self.own_locks.slots(permit, except)
    }

    fn waiters_at_slots(&self) -> MutexGuard<'_, WaitersAtSlots> {
        self.waiters_at_slots
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn unqueued(&self) -> MutexGuard<'_, Unqueued> {
        self.unqueued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next waiter the first of the local queue, so that it may ask the masters. A holder calls this exactly
    /// once, when it releases the lock on `key`.
    pub(crate) fn pass_on(&self, key: &[u8]) {
        let next = {
            let mut queues_by_key = self.queues_by_key();
            let next = queues_by_key.get_mut(key).and_then(LocalQueue::advance);
            if next.is_none() {
                queues_by_key.remove(key);
            }
            next
        };
        if let Some(next) = next {
            next.signal.notify_one();
        }
    }
}

impl WakeSink for LocalQueues {
    fn woken(&self, node: usize, key: &[u8]) {
        // The bit mask has no bit for the 65th master or a later one.
        if node >= 64 {
            return;
        }
        let bit = 1 << node;
        if let Some(front) = self.front_waiter(key) {
            front.woken_by.fetch_or(bit, Ordering::AcqRel);
            front.signal.notify_one();
        }
        for waiter in self.unqueued().get(key).into_iter().flatten() {
            waiter.woken_by.fetch_or(bit, Ordering::AcqRel);
            waiter.signal.notify_one();
        }
    }

    fn announced(&self, _: usize, key: &[u8]) {
        self.watchers.notify(key);
    }
}

#[cfg(all(test, not(quorate_loom)))]
mod tests;

#[cfg(all(test, quorate_loom))]
mod models;
