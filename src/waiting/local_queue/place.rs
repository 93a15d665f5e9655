//! A waiter's place in the queues of its keys: how a waiter enters, waits, is woken and leaves.

use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use super::LocalQueues;
use super::queue::{LocalQueue, LocalWaiter, WOKEN_BY_LOCAL_RELEASE};
use crate::node::Permit;
use crate::protocol::instant::Instant;
use crate::protocol::quorum::{MasterSet, Quorum};
use crate::rounds::lock_target::LockTarget;
use crate::runtime::Runtime;
use crate::sync::{AtomicU64, Mutex, Notify, Ordering};
use crate::waiting::last_finding::LastFinding;
use crate::waiting::own::SlotReservation;

/// How long a waiter that was woken by one master waits for the wake-ups of the other masters. A release reaches all
/// masters within about one round trip.
const WAKE_UP_GRACE: Duration = Duration::from_millis(2);

/// A waiter's place in the local queues of all keys of a lock. Dropping the place notifies the next waiter in each
/// queue, unless the waiter at this place has become the holder.
pub(crate) struct LocalPlace {
    queues: Arc<LocalQueues>,
    keys: Keys,
    pub(super) waiter: Arc<LocalWaiter>,
    queue_state: QueueState,
}

/// Where a waiter is: in its local queues, or outside of them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum QueueState {
    Queued,
    /// The waiter does not queue locally. It is a reader, or its owner may already hold the lock.
    Unqueued,
    /// The waiter has left the queue while it asks for a slot of a semaphore.
    AtSlots,
}

/// The keys that a waiter waits for. Most waiters have a single key.
enum Keys {
    One(Arc<[u8]>),
    Several(Box<[Arc<[u8]>]>),
}

impl Keys {
    fn new(target: &LockTarget) -> Self {
        if target.keys().count() == 1 {
            return Self::One(target.key().clone());
        }
        Self::Several(target.keys().cloned().collect())
    }

    fn as_slice(&self) -> &[Arc<[u8]>] {
        match self {
            Self::One(key) => std::slice::from_ref(key),
            Self::Several(keys) => keys,
        }
    }
}

impl LocalQueues {
    /// Reserves a slot of the semaphore for the waiter at `place`: see [`OwnLocks::ask`].
    pub(crate) fn reserve_slot(
        &self,
        permit: &Permit,
        place: Option<&LocalPlace>,
        ignores_requests: bool,
    ) -> SlotReservation {
        let occupied_elsewhere = place.map_or(0, |place| place.waiter.occupied_elsewhere());
        self.own_locks
            .reserve_slot(permit, occupied_elsewhere, ignores_requests)
    }

    /// Adds a waiter at the end of the queue of each key. All queues are entered under one mutex, so that two waiters
    /// for several keys cannot wait for each other.
    pub(crate) fn enter(self: &Arc<Self>, target: &LockTarget) -> LocalPlace {
        let mut queues = self.queues_by_key();
        // Draw the arrival number under the mutex, so that arrival numbers follow the order of entry.
        let place = self.new_place(target);
        for key in place.keys.as_slice() {
            match queues.entry(key.clone()) {
                Entry::Vacant(queue) => {
                    queue.insert(LocalQueue::new(&place.waiter));
                }
                Entry::Occupied(mut queue) => {
                    let later_waiters = queue.get_mut().later_waiters.get_or_insert_default();
                    later_waiters.push_back(place.waiter.clone());
                }
            }
        }
        place
    }

    fn new_place(self: &Arc<Self>, target: &LockTarget) -> LocalPlace {
        LocalPlace {
            queues: self.clone(),
            keys: Keys::new(target),
            waiter: Arc::new(LocalWaiter {
                number: self.next_number.fetch_add(1, Ordering::Relaxed),
                wants_several: target.keys().count() > 1,
                woken_by: AtomicU64::new(0),
                signal: Notify::new(),
                last_finding: Mutex::default(),
                occupied_elsewhere: AtomicU64::new(0),
            }),
            queue_state: QueueState::Queued,
        }
    }

    /// Returns a place outside of the local queues, for a waiter that may ask the masters immediately. The wake-ups of
    /// the masters still reach the waiter.
    pub(crate) fn place_unqueued(self: &Arc<Self>, target: &LockTarget) -> LocalPlace {
        let mut place = self.new_place(target);
        place.leave_queues();
        place
    }

    /// Enters the local queues for a `try_acquire`, which does not wait. Returns a place if all queues are empty.
    ///
    /// Otherwise, the first queue that is not empty decides:
    ///
    /// - One entry (a holder or a waiter): returns `Ok(None)`. The caller then asks the masters without a place.
    /// - Several entries: returns the [`shared_finding`](LocalQueue::shared_finding) of the queue as an error, because
    ///   a waiter would be ahead of the caller. Returns `Ok(None)` if the queue has no shared finding yet.
    pub(crate) fn enter_if_free(
        self: &Arc<Self>,
        target: &LockTarget,
    ) -> Result<Option<LocalPlace>, LastFinding> {
        for key in target.keys() {
            match self.queues_by_key().get(key) {
                None => {}
                Some(queue) if queue.later_waiters.is_none() => return Ok(None),
                Some(queue) => return queue.shared_finding().map_or(Ok(None), Err),
            }
        }
        // Another waiter may have entered since the check above. Then this place is not the first in its queue, and
        // `try_acquire` must not wait.
        let place = self.enter(target);
        if place.is_front() {
            Ok(Some(place))
        } else {
            place.shared_finding().map_or(Ok(None), Err)
        }
    }
}

impl LocalPlace {
    /// Leaves the queues, so that the waiters behind this waiter may ask the masters as well. The masters still wake
    /// this waiter.
    pub(crate) fn leave_queues(&mut self) {
        {
            let mut unqueued = self.queues.unqueued();
            for key in self.keys.as_slice() {
                unqueued
                    .entry(key.clone())
                    .or_default()
                    .push(self.waiter.clone());
            }
        }
        self.leave();
        self.queue_state = QueueState::Unqueued;
    }

    /// Leaves the queue while the waiter asks for a slot, so that the next waiter may ask for another slot.
    pub(crate) fn leave_for_slot(&mut self) {
        if self.queue_state != QueueState::Queued {
            return;
        }
        {
            let mut waiters_at_slots = self.queues.waiters_at_slots();
            for key in self.keys.as_slice() {
                waiters_at_slots
                    .entry(key.clone())
                    .or_default()
                    .insert(self.waiter.number);
            }
        }
        self.leave();
        self.queue_state = QueueState::AtSlots;
    }

    /// Returns to the queue, in front of all waiters that arrived later. If the first waiter of the queue arrived
    /// later, it now waits behind this waiter.
    pub(crate) fn return_to_queue(&mut self) {
        if self.queue_state != QueueState::AtSlots {
            return;
        }
        self.queue_state = QueueState::Queued;
        let mut queues_by_key = self.queues.queues_by_key();
        for key in self.keys.as_slice() {
            match queues_by_key.entry(key.clone()) {
                Entry::Vacant(queue) => {
                    queue.insert(LocalQueue::new(&self.waiter));
                }
                Entry::Occupied(mut queue) => queue.get_mut().insert(&self.waiter),
            }
        }
        self.leave_slots();
    }

    fn leave_slots(&self) {
        let mut waiters_at_slots = self.queues.waiters_at_slots();
        for key in self.keys.as_slice() {
            if let Entry::Occupied(mut entry) = waiters_at_slots.entry(key.clone()) {
                entry.get_mut().remove(&self.waiter.number);
                if entry.get().is_empty() {
                    entry.remove();
                }
            }
        }
    }

    /// Whether this waiter may join the queues on the masters. Before [`leave_queues`](Self::leave_queues), it must be
    /// the first in all its local queues, and no earlier waiter of this process may be requesting a slot of the same
    /// semaphore. After `leave_queues`, always true.
    pub(crate) fn is_first(&self) -> bool {
        let queues_by_key = self.queues.queues_by_key();
        let waiters_at_slots = self.queues.waiters_at_slots();
        let is_first_in = |key: &Arc<[u8]>| {
            let earliest_at_slots = waiters_at_slots.get(key).and_then(BTreeSet::first);
            queues_by_key
                .get(key)
                .is_some_and(|queue| queue.is_front(&self.waiter))
                && earliest_at_slots.is_none_or(|earliest| *earliest > self.waiter.number)
        };
        self.queue_state == QueueState::Unqueued || self.keys.as_slice().iter().all(is_first_in)
    }

    /// Waits until [`is_first`](Self::is_first) is true. Also ends the wait if this process has released a slot of the
    /// semaphore since the last call of [`forget_wakes`](Self::forget_wakes).
    pub(crate) async fn wait_until_first(&self) {
        let waiter = &self.waiter;
        while !self.is_first() && waiter.woken_by.load(Ordering::Acquire) != WOKEN_BY_LOCAL_RELEASE
        {
            waiter.signal.notified().await;
        }
    }

    /// Records which slots of the semaphore other processes hold, as a bit mask.
    pub(crate) fn set_occupied_elsewhere(&self, occupied_elsewhere: u64) {
        self.waiter.set_occupied_elsewhere(occupied_elsewhere);
    }

    /// Records that no other process holds this slot, because this waiter has acquired it.
    pub(crate) fn clear_occupied_slot(&self, slot: u8) {
        self.set_occupied_elsewhere(self.waiter.occupied_elsewhere() & !(1 << slot));
    }

    /// Whether the waiter is in its queues.
    pub(crate) fn is_queued(&self) -> bool {
        self.queue_state == QueueState::Queued
    }

    pub(crate) fn is_front(&self) -> bool {
        if !self.is_queued() {
            return true;
        }
        let queues_by_key = self.queues.queues_by_key();
        let is_front_in = |key: &Arc<[u8]>| {
            queues_by_key
                .get(key)
                .is_some_and(|queue| queue.is_front(&self.waiter))
        };
        self.keys.as_slice().iter().all(is_front_in)
    }

    /// How many tasks of this process are ahead of this waiter: the holder, and earlier waiters.
    pub(crate) fn ahead(&self) -> u64 {
        let waiter = &self.waiter;
        let queues_by_key = self.queues.queues_by_key();
        let waiters_before = |queue: &LocalQueue| {
            if queue.is_front(waiter) {
                return 0;
            }
            let later_waiters = queue
                .later_waiters
                .iter()
                .flat_map(|later_waiters| later_waiters.iter());
            1 + later_waiters
                .take_while(|other| !Arc::ptr_eq(other, waiter))
                .count() as u64
        };
        let queues = self
            .keys
            .as_slice()
            .iter()
            .filter_map(|key| queues_by_key.get(key));
        queues.map(waiters_before).max().unwrap_or_default()
    }

    /// Waits until this waiter is the first in all its queues.
    pub(crate) async fn wait_for_front(&self) {
        while !self.is_front() {
            // `Notify` keeps a notification that comes between the check and this line.
            self.waiter.signal.notified().await;
        }
    }

    /// Makes this waiter, which must be the first in its queues, the holder of the lock. The holder keeps its place
    /// until [`LocalQueues::pass_on`], and is not woken any more.
    pub(crate) fn hold(self) -> Arc<LocalQueues> {
        let mut queues_by_key = self.queues.queues_by_key();
        for key in self.keys.as_slice() {
            if let Some(queue) = queues_by_key.get_mut(key) {
                queue.front = None;
            }
        }
        drop(queues_by_key);
        // The front of each queue is `None` now, so dropping this place notifies no waiter.
        self.queues.clone()
    }

    /// Records this waiter's last finding, for the waiters behind it.
    pub(crate) fn share_finding(&self, last_finding: Option<LastFinding>) {
        *self.waiter.last_finding() = last_finding;
    }

    /// Why the lock is not available; `None` if unknown. If this waiter is not the first in all its queues, returns the
    /// shared finding of one queue in which it is not the first. Otherwise returns its own last finding.
    pub(crate) fn shared_finding(&self) -> Option<LastFinding> {
        let queues_by_key = self.queues.queues_by_key();
        let mut queues = self
            .keys
            .as_slice()
            .iter()
            .filter_map(|key| queues_by_key.get(key));
        let other_queue = queues.find(|queue| !queue.is_front(&self.waiter));
        match other_queue.filter(|_| self.is_queued()) {
            Some(queue) => queue.shared_finding(),
            None => self.waiter.last_finding().clone(),
        }
    }

    /// Forgets all wake-ups received so far. Call this right before an attempt, which itself shows where the lock is
    /// free.
    pub(crate) fn forget_wakes(&self) {
        self.waiter.woken_by.store(0, Ordering::Release);
    }

    /// Waits for wake-ups from the masters, until `deadline` at the latest. After the first wake-up, the wait ends in
    /// two cases:
    ///
    /// - The masters that have sent a wake-up form a majority, together with the masters in `free`. On these, the lock
    ///   was free at the last attempt.
    /// - [`WAKE_UP_GRACE`] has passed since the first wake-up.
    ///
    /// Only wake-ups since the last call of [`forget_wakes`](Self::forget_wakes) count.
    pub(crate) async fn wait_for_wake_ups(
        &self,
        runtime: &dyn Runtime,
        free: MasterSet,
        quorum: Quorum,
        deadline: Instant,
    ) {
        let waiter = &self.waiter;
        let mut limit = deadline;
        let mut sleep = runtime.sleep_until(limit);
        loop {
            let woken = waiter.woken_by.load(Ordering::Acquire);
            if woken != 0 && quorum.is_met_by(MasterSet::from_bits(woken).or(free)) {
                return;
            }
            let now = runtime.now();
            if woken != 0 && now + WAKE_UP_GRACE < limit {
                limit = now + WAKE_UP_GRACE;
                sleep = runtime.sleep_until(limit);
            }
            if now >= limit {
                return;
            }
            let called = std::pin::pin!(waiter.signal.notified());
            futures::future::select(called, &mut sleep).await;
        }
    }
}

impl LocalPlace {
    /// Leaves each queue. If another waiter becomes the first of a queue, notifies that waiter.
    fn leave(&self) {
        let waiter = &self.waiter;
        for key in self.keys.as_slice() {
            let mut queues_by_key = self.queues.queues_by_key();
            let Entry::Occupied(mut entry) = queues_by_key.entry(key.clone()) else {
                continue;
            };
            let queue = entry.get_mut();
            if queue.is_front(waiter) {
                let next_waiter = queue.advance();
                if next_waiter.is_none() {
                    entry.remove();
                }
                drop(queues_by_key);
                if let Some(next_waiter) = next_waiter {
                    next_waiter.signal.notify_one();
                }
            } else if let Some(later_waiters) = &mut queue.later_waiters {
                later_waiters.retain(|other| !Arc::ptr_eq(other, waiter));
                if later_waiters.is_empty() {
                    queue.later_waiters = None;
                }
            }
        }
    }
}

impl Drop for LocalPlace {
    fn drop(&mut self) {
        match self.queue_state {
            QueueState::Queued => self.leave(),
            QueueState::Unqueued => self.leave_unqueued(),
            QueueState::AtSlots => {
                self.leave_slots();
                // A waiter behind this one may be the first now: notify the first waiter of each queue.
                let fronts = self
                    .keys
                    .as_slice()
                    .iter()
                    .filter_map(|key| self.queues.front_waiter(key));
                fronts.for_each(|front| front.signal.notify_one());
            }
        }
    }
}

impl LocalPlace {
    fn leave_unqueued(&self) {
        let mut unqueued = self.queues.unqueued();
        for key in self.keys.as_slice() {
            if let Entry::Occupied(mut entry) = unqueued.entry(key.clone()) {
                entry
                    .get_mut()
                    .retain(|other| !Arc::ptr_eq(other, &self.waiter));
                if entry.get().is_empty() {
                    entry.remove();
                }
            }
        }
    }
}
