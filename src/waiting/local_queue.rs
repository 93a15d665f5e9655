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

use self::queue::{EVERYWHERE, LocalQueue, LocalWaiter};
use super::own::{OwnLocks, SlotReservation};
use super::watchers::Watchers;
use crate::node::{Permit, WakeSink};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// The local queues of all resources of one process.
pub(crate) struct LocalQueues {
    map: Mutex<HashMap<Arc<[u8]>, LocalQueue>>,
    /// The locks that tasks of this process hold without a place in a local queue, for example as readers. Also the
    /// semaphore slots that its tasks are requesting.
    own: Arc<OwnLocks>,
    /// The arrival numbers of the waiters that have left the queue of their semaphore because they are requesting a
    /// slot. Lock order: `map` is locked before this mutex.
    aside: Mutex<Aside>,
    /// The number of waiters that have entered a queue so far. It gives each waiter its arrival number.
    came: AtomicU64,
    /// For each key, the waiters that ask the masters at once, without a place in the local queue: readers, and
    /// requests of an owner, which may already hold the lock.
    unqueued: Mutex<Unqueued>,
    /// The observers of elections in this process, which wait for announcements of new leaders.
    pub(crate) watchers: Watchers,
}

/// For each key, the waiters that ask the masters without queueing locally.
type Unqueued = HashMap<Arc<[u8]>, Vec<Arc<LocalWaiter>>>;

/// For each semaphore (by the key of its queue), the arrival numbers of the waiters that are requesting a slot.
type Aside = HashMap<Arc<[u8]>, BTreeSet<u64>>;

impl LocalQueues {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            map: Mutex::default(),
            own: Arc::default(),
            aside: Mutex::default(),
            came: AtomicU64::new(0),
            unqueued: Mutex::default(),
            watchers: Watchers::default(),
        })
    }

    fn map(&self) -> MutexGuard<'_, HashMap<Arc<[u8]>, LocalQueue>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process holds a lock on `key`.
    pub(crate) fn is_held(&self, key: &[u8]) -> bool {
        let queued = self
            .map()
            .get(key)
            .is_some_and(|queue| queue.front.is_none());
        queued || self.own.is_held(key)
    }

    /// Records a lock that was acquired without queueing locally. The record lasts until [`lock_ended`](Self::lock_ended).
    pub(crate) fn hold<'a>(
        self: &Arc<Self>,
        keys: impl Iterator<Item = &'a Arc<[u8]>>,
    ) -> Arc<Self> {
        self.own.hold(keys);
        self.clone()
    }

    /// Records the end of a lock that [`hold`](Self::hold) recorded. The caller calls this once for each lock. If the
    /// lock was a slot of a semaphore, wakes the first local waiter for that semaphore.
    pub(crate) fn lock_ended(&self, key: &[u8], permit: Option<&Permit>) {
        self.own.lock_ended(key);
        let Some(permit) = permit else {
            return;
        };
        if let Some(front) = self.front(&permit.line()) {
            front.woken.store(EVERYWHERE, Ordering::Release);
            front.called.notify_one();
        }
    }

    fn front(&self, key: &[u8]) -> Option<Arc<LocalWaiter>> {
        self.map().get(key).and_then(|queue| queue.front.clone())
    }

    /// Bit masks of the slots of a semaphore: see [`OwnLocks::slots`].
    pub(crate) fn own_slots(
        &self,
        permit: &Permit,
        except: Option<&SlotReservation>,
    ) -> (u64, u64) {
        self.own.slots(permit, except)
    }

    fn aside(&self) -> MutexGuard<'_, Aside> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unqueued(&self) -> MutexGuard<'_, Unqueued> {
        self.unqueued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next waiter the first of the local queue, so that it may ask the masters. A holder calls this exactly
    /// once, when it releases the lock on `key`.
    pub(crate) fn pass_on(&self, key: &[u8]) {
        let next = {
            let mut map = self.map();
            let next = map.get_mut(key).and_then(LocalQueue::advance);
            if next.is_none() {
                map.remove(key);
            }
            next
        };
        if let Some(next) = next {
            next.called.notify_one();
        }
    }
}

impl WakeSink for LocalQueues {
    fn woken(&self, node: usize, key: &[u8]) {
        if let (Some(front), true) = (self.front(key), node < 64) {
            front.woken.fetch_or(1 << node, Ordering::AcqRel);
            front.called.notify_one();
        }
        for turn in self.unqueued().get(key).into_iter().flatten() {
            turn.woken.fetch_or(1 << (node % 64), Ordering::AcqRel);
            turn.called.notify_one();
        }
    }

    fn announced(&self, _: usize, key: &[u8]) {
        self.watchers.call(key);
    }
}

#[cfg(all(test, not(quorate_loom)))]
mod tests;

#[cfg(all(test, quorate_loom))]
mod models;
