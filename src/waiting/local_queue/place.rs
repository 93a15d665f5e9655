//! A waiter's place in the queues of its keys: how a waiter enters, waits, is woken and leaves.

use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use super::LocalQueues;
use super::queue::{EVERYWHERE, LocalQueue, LocalWaiter};
use crate::node::Permit;
use crate::protocol::instant::Instant;
use crate::protocol::quorum::{MasterSet, Quorum};
use crate::rounds::wanted::Wanted;
use crate::runtime::Runtime;
use crate::sync::{AtomicU64, Mutex, Notify, Ordering};
use crate::waiting::last_finding::LastFinding;
use crate::waiting::own::SlotReservation;

/// How long a waiter that was woken by one master waits for the wake-ups of the other masters. A release reaches all
/// masters within about one round trip.
const GRACE: Duration = Duration::from_millis(2);

/// A waiter's place in the local queues of all keys of a lock. Dropping the place notifies the next waiter in each
/// queue, unless the waiter at this place has become the holder.
pub(crate) struct LocalPlace {
    queues: Arc<LocalQueues>,
    keys: Keys,
    pub(super) turn: Arc<LocalWaiter>,
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
    fn of(wanted: &Wanted) -> Self {
        if wanted.keys().count() == 1 {
            return Self::One(wanted.key().clone());
        }
        Self::Several(wanted.keys().cloned().collect())
    }

    fn all(&self) -> &[Arc<[u8]>] {
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
        passes: bool,
    ) -> SlotReservation {
        let elsewhere = place.map_or(0, |place| place.turn.elsewhere());
        self.own.reserve_slot(permit, elsewhere, passes)
    }

    /// Adds a waiter at the end of the queue of each key. All queues are entered under one mutex, so that two waiters
    /// for several keys cannot wait for each other.
    pub(crate) fn enter(self: &Arc<Self>, wanted: &Wanted) -> LocalPlace {
        let mut map = self.map();
        // Draw the arrival number under the mutex, so that arrival numbers follow the order of entry.
        let place = self.place(wanted);
        for key in place.keys.all() {
            match map.entry(key.clone()) {
                Entry::Vacant(queue) => {
                    queue.insert(LocalQueue::of(&place.turn));
                }
                Entry::Occupied(mut queue) => {
                    let behind = queue.get_mut().behind.get_or_insert_default();
                    behind.push_back(place.turn.clone());
                }
            }
        }
        drop(map);
        place
    }

    fn place(self: &Arc<Self>, wanted: &Wanted) -> LocalPlace {
        LocalPlace {
            queues: self.clone(),
            keys: Keys::of(wanted),
            turn: Arc::new(LocalWaiter {
                number: self.came.fetch_add(1, Ordering::Relaxed),
                wants_several: wanted.keys().count() > 1,
                woken: AtomicU64::new(0),
                called: Notify::new(),
                last_finding: Mutex::default(),
                elsewhere: AtomicU64::new(0),
            }),
            queue_state: QueueState::Queued,
        }
    }

    /// Returns a place outside of the local queues, for a waiter that may ask the masters immediately. The wake-ups of
    /// the masters still reach the waiter.
    pub(crate) fn place_unqueued(self: &Arc<Self>, wanted: &Wanted) -> LocalPlace {
        let mut place = self.place(wanted);
        place.leave_queues();
        place
    }

    /// Enters the local queues for a `try_acquire`, which does not wait. Returns a place if all queues are empty.
    ///
    /// Otherwise, the first queue that is not empty decides:
    ///
    /// - One entry (a holder or a waiter): returns `Ok(None)`. The caller then asks the masters without a place.
    /// - Several entries: returns the [`shared_finding`](LocalQueue::shared_finding) of the queue as an error, because a
    ///   waiter would be ahead of the caller. Returns `Ok(None)` if the queue has no shared finding yet.
    pub(crate) fn enter_if_free(
        self: &Arc<Self>,
        wanted: &Wanted,
    ) -> Result<Option<LocalPlace>, LastFinding> {
        for key in wanted.keys() {
            match self.map().get(key) {
                None => {}
                Some(queue) if queue.behind.is_none() => return Ok(None),
                Some(queue) => return queue.shared_finding().map_or(Ok(None), Err),
            }
        }
        // Another waiter may have entered since the check above. Then this place is not the first in its queue, and
        // `try_acquire` must not wait.
        let place = self.enter(wanted);
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
        let mut unqueued = self.queues.unqueued();
        for key in self.keys.all() {
            unqueued
                .entry(key.clone())
                .or_default()
                .push(self.turn.clone());
        }
        drop(unqueued);
        self.leave();
        self.queue_state = QueueState::Unqueued;
    }

    /// Leaves the queue while the waiter asks for a slot, so that the next waiter may ask for another slot.
    pub(crate) fn step_aside(&mut self) {
        if self.queue_state != QueueState::Queued {
            return;
        }
        let number = self.turn.number;
        let mut aside = self.queues.aside();
        for key in self.keys.all() {
            aside.entry(key.clone()).or_default().insert(number);
        }
        drop(aside);
        self.leave();
        self.queue_state = QueueState::AtSlots;
    }

    /// Returns to the queue, in front of all waiters that arrived later. If the first waiter of the queue arrived
    /// later, it now waits behind this waiter.
    pub(crate) fn step_back(&mut self) {
        if self.queue_state != QueueState::AtSlots {
            return;
        }
        self.queue_state = QueueState::Queued;
        let mut map = self.queues.map();
        for key in self.keys.all() {
            match map.entry(key.clone()) {
                Entry::Vacant(queue) => {
                    queue.insert(LocalQueue::of(&self.turn));
                }
                Entry::Occupied(mut queue) => queue.get_mut().insert(&self.turn),
            }
        }
        self.leave_slots();
    }

    fn leave_slots(&self) {
        let mut aside = self.queues.aside();
        for key in self.keys.all() {
            if let Entry::Occupied(mut entry) = aside.entry(key.clone()) {
                entry.get_mut().remove(&self.turn.number);
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
        let map = self.queues.map();
        let aside = self.queues.aside();
        let first = |key: &Arc<[u8]>| {
            let others = aside.get(key).and_then(BTreeSet::first);
            map.get(key).is_some_and(|queue| queue.is_front(&self.turn))
                && others.is_none_or(|other| *other > self.turn.number)
        };
        self.queue_state == QueueState::Unqueued || self.keys.all().iter().all(first)
    }

    /// Waits until [`is_first`](Self::is_first) is true. Also ends the wait if this process has released a slot of the
    /// semaphore since the last call of [`forget_wakes`](Self::forget_wakes).
    pub(crate) async fn first(&self) {
        let turn = &self.turn;
        while !self.is_first() && turn.woken.load(Ordering::Acquire) != EVERYWHERE {
            turn.called.notified().await;
        }
    }

    /// Records which slots of the semaphore other processes hold, as a bit mask.
    pub(crate) fn learn(&self, elsewhere: u64) {
        self.turn.learn(elsewhere);
    }

    /// Records that no other process holds this slot, because this waiter has acquired it.
    pub(crate) fn got(&self, slot: u8) {
        self.learn(self.turn.elsewhere() & !(1 << slot));
    }

    /// Whether the waiter is in its queues.
    pub(crate) fn is_queued(&self) -> bool {
        self.queue_state == QueueState::Queued
    }

    pub(crate) fn is_front(&self) -> bool {
        if !self.is_queued() {
            return true;
        }
        let map = self.queues.map();
        let front = |key: &Arc<[u8]>| map.get(key).is_some_and(|queue| queue.is_front(&self.turn));
        self.keys.all().iter().all(front)
    }

    /// How many tasks of this process are ahead of this waiter: the holder, and earlier waiters.
    pub(crate) fn ahead(&self) -> u64 {
        let turn = &self.turn;
        let map = self.queues.map();
        let before = |queue: &LocalQueue| {
            if queue.is_front(turn) {
                return 0;
            }
            let behind = queue.behind.iter().flat_map(|behind| behind.iter());
            1 + behind.take_while(|other| !Arc::ptr_eq(other, turn)).count() as u64
        };
        let queues = self.keys.all().iter().filter_map(|key| map.get(key));
        queues.map(before).max().unwrap_or_default()
    }

    /// Waits until this waiter is the first in all its queues.
    pub(crate) async fn front(&self) {
        while !self.is_front() {
            // `Notify` keeps a notification that comes between the check and this line.
            self.turn.called.notified().await;
        }
    }

    /// Makes this waiter, which must be the first in its queues, the holder of the lock. The holder keeps its place
    /// until [`LocalQueues::pass_on`], and is not woken any more.
    pub(crate) fn hold(self) -> Arc<LocalQueues> {
        let mut map = self.queues.map();
        for key in self.keys.all() {
            if let Some(queue) = map.get_mut(key) {
                queue.front = None;
            }
        }
        drop(map);
        // The front of each queue is `None` now, so dropping this place notifies no waiter.
        self.queues.clone()
    }

    /// Records this waiter's last finding, for the waiters behind it.
    pub(crate) fn share_finding(&self, last_finding: Option<LastFinding>) {
        *self.turn.last_finding() = last_finding;
    }

    /// Why the lock is not available; `None` if unknown. If this waiter is not the first in all its queues, returns the
    /// shared finding of one queue in which it is not the first. Otherwise returns its own last finding.
    pub(crate) fn shared_finding(&self) -> Option<LastFinding> {
        let map = self.queues.map();
        let mut queues = self.keys.all().iter().filter_map(|key| map.get(key));
        let other = queues.find(|queue| !queue.is_front(&self.turn));
        match other.filter(|_| self.is_queued()) {
            Some(queue) => queue.shared_finding(),
            None => self.turn.last_finding().clone(),
        }
    }

    /// Forgets all wake-ups received so far. Call this right before an attempt, which itself shows where the lock is
    /// free.
    pub(crate) fn forget_wakes(&self) {
        self.turn.woken.store(0, Ordering::Release);
    }

    /// Waits for wake-ups from the masters, until `at` at the latest. After the first wake-up, the wait ends in two
    /// cases:
    ///
    /// - The masters that have sent a wake-up form a majority, together with the masters in `free`. On these, the lock
    ///   was free at the last attempt.
    /// - [`GRACE`] has passed since the first wake-up.
    ///
    /// Only wake-ups since the last call of [`forget_wakes`](Self::forget_wakes) count.
    pub(crate) async fn woken(
        &self,
        runtime: &dyn Runtime,
        free: MasterSet,
        quorum: Quorum,
        at: Instant,
    ) {
        let turn = &self.turn;
        let mut limit = at;
        let mut sleep = runtime.sleep_until(limit);
        loop {
            let woken = turn.woken.load(Ordering::Acquire);
            if woken != 0 && quorum.is_met_by(MasterSet::of_bits(woken).or(free)) {
                return;
            }
            let now = runtime.now();
            if woken != 0 && now + GRACE < limit {
                limit = now + GRACE;
                sleep = runtime.sleep_until(limit);
            }
            if now >= limit {
                return;
            }
            let called = std::pin::pin!(turn.called.notified());
            futures::future::select(called, &mut sleep).await;
        }
    }
}

impl LocalPlace {
    /// Leaves each queue. If another waiter becomes the first of a queue, notifies that waiter.
    fn leave(&self) {
        let turn = &self.turn;
        for key in self.keys.all() {
            let mut map = self.queues.map();
            let Entry::Occupied(mut entry) = map.entry(key.clone()) else {
                continue;
            };
            let queue = entry.get_mut();
            if queue.is_front(turn) {
                let next = queue.advance();
                if next.is_none() {
                    entry.remove();
                }
                drop(map);
                if let Some(next) = next {
                    next.called.notify_one();
                }
            } else if let Some(behind) = &mut queue.behind {
                behind.retain(|other| !Arc::ptr_eq(other, turn));
                if behind.is_empty() {
                    queue.behind = None;
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
                    .all()
                    .iter()
                    .filter_map(|key| self.queues.front(key));
                fronts.for_each(|front| front.called.notify_one());
            }
        }
    }
}

impl LocalPlace {
    fn leave_unqueued(&self) {
        let mut unqueued = self.queues.unqueued();
        for key in self.keys.all() {
            if let Entry::Occupied(mut entry) = unqueued.entry(key.clone()) {
                entry
                    .get_mut()
                    .retain(|other| !Arc::ptr_eq(other, &self.turn));
                if entry.get().is_empty() {
                    entry.remove();
                }
            }
        }
    }
}
