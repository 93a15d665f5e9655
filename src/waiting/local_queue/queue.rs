//! The queue of one resource in this process, and the waiters in it.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use crate::sync::{AtomicU64, Mutex, MutexGuard, Notify, Ordering};
use crate::waiting::last_finding::LastFinding;

/// The local queue of one resource.
pub(super) struct LocalQueue {
    /// The first waiter of the queue, which may ask the masters. `None` while a task of this process holds the lock:
    /// this holder then has the first place.
    pub(super) front: Option<Arc<LocalWaiter>>,
    #[expect(
        clippy::box_collection,
        reason = "most queues have no second waiter, and this field then takes only one word of memory"
    )]
    pub(super) later_waiters: Option<Box<VecDeque<Arc<LocalWaiter>>>>,
}

impl LocalQueue {
    pub(super) fn new(front: &Arc<LocalWaiter>) -> Self {
        Self {
            front: Some(front.clone()),
            later_waiters: None,
        }
    }

    /// Inserts a waiter in the order of arrival. A holder of the lock stays ahead of all waiters.
    pub(super) fn insert(&mut self, waiter: &Arc<LocalWaiter>) {
        let later_waiters = self.later_waiters.get_or_insert_default();
        match &mut self.front {
            Some(front) if front.number > waiter.number => {
                later_waiters.push_front(std::mem::replace(front, waiter.clone()));
            }
            _ => {
                let index = later_waiters.partition_point(|other| other.number < waiter.number);
                later_waiters.insert(index, waiter.clone());
            }
        }
    }

    pub(super) fn is_front(&self, waiter: &Arc<LocalWaiter>) -> bool {
        self.front
            .as_ref()
            .is_some_and(|front| Arc::ptr_eq(front, waiter))
    }

    /// The reason why the lock is not available: [`LastFinding::HELD_HERE`] while a task of this process holds the
    /// lock, otherwise the result of the first waiter's last attempt. `None` if the first waiter has no result yet.
    ///
    /// If the first waiter waits for several resources, `names_holder` is false in the result: the holder may hold one
    /// of the other resources.
    pub(super) fn shared_finding(&self) -> Option<LastFinding> {
        let Some(front) = &self.front else {
            return Some(LastFinding::HELD_HERE);
        };
        let mut last_finding = front.last_finding().clone()?;
        last_finding.names_holder &= !front.wants_several;
        Some(last_finding)
    }

    /// Makes the next waiter the first, and returns it; `None` if there is no next waiter. The next waiter gets a copy
    /// of the [`shared_finding`](Self::shared_finding).
    pub(super) fn advance(&mut self) -> Option<Arc<LocalWaiter>> {
        let later_waiters = self.later_waiters.as_mut()?;
        let next_waiter = later_waiters.pop_front()?;
        if later_waiters.is_empty() {
            self.later_waiters = None;
        }
        *next_waiter.last_finding() = self.shared_finding();
        if let Some(front) = &self.front {
            next_waiter.set_occupied_elsewhere(front.occupied_elsewhere());
        }
        self.front = Some(next_waiter.clone());
        Some(next_waiter)
    }
}

/// One waiter in a queue.
pub(super) struct LocalWaiter {
    /// The order of arrival: a waiter that arrived earlier has a smaller number.
    pub(super) number: u64,
    /// Whether this waiter waits for several resources.
    pub(super) wants_several: bool,
    /// A bit mask of the masters that have sent this waiter a wake-up since its last attempt.
    pub(super) woken_by: AtomicU64,
    /// Wakes the task of this waiter when the waiter becomes the first in its queue, or when a master sends a wake-up.
    pub(super) signal: Notify,
    /// The reason why the lock is not available: from this waiter's last attempt, or copied from the previous first
    /// waiter. `None` if unknown.
    pub(super) last_finding: Mutex<Option<LastFinding>>,
    /// The slots of a semaphore that other processes held, as a bit mask, according to the masters' last known answers.
    pub(super) occupied_elsewhere: AtomicU64,
}

/// The value of `woken_by` with all bits set. It is stored when this process releases a slot of the semaphore: the
/// waiter then asks the masters at once, as if all had sent a wake-up.
pub(super) const WOKEN_BY_LOCAL_RELEASE: u64 = u64::MAX;

impl LocalWaiter {
    pub(super) fn occupied_elsewhere(&self) -> u64 {
        self.occupied_elsewhere.load(Ordering::Acquire)
    }

    pub(super) fn set_occupied_elsewhere(&self, occupied_elsewhere: u64) {
        self.occupied_elsewhere
            .store(occupied_elsewhere, Ordering::Release);
    }

    /// Lock order: the mutex of `last_finding` is locked after the mutex of the map of queues, never before.
    pub(super) fn last_finding(&self) -> MutexGuard<'_, Option<LastFinding>> {
        self.last_finding
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
