//! Records which locks the tasks of one process hold without a place in a local queue, and which semaphore slots its
//! tasks are requesting. With these records, two tasks avoid requesting the same slot, or a slot that the process
//! already holds.
//!
//! The records are only hints: the masters grant the slots.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use crate::node::Permit;
use crate::sync::{Mutex, MutexGuard};

/// The locks that one process holds without a place in a local queue, and the slots that its tasks ask for.
#[derive(Default)]
pub(crate) struct OwnLocks(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    /// For each key, the number of locks that this process holds without a place in the local queue of the key.
    held: HashMap<Arc<[u8]>, u32>,
    /// For each slot, by its key, the number of tasks that ask for it.
    requested: HashMap<Arc<[u8]>, u32>,
}

fn decrement(counts: &mut HashMap<Arc<[u8]>, u32>, key: &[u8]) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl OwnLocks {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_held(&self, key: &[u8]) -> bool {
        self.counts().held.contains_key(key)
    }

    /// Records a lock on these keys. The record of a key lasts until [`lock_ended`](Self::lock_ended) is called for it.
    pub(super) fn hold<'a>(&self, keys: impl Iterator<Item = &'a Arc<[u8]>>) {
        let mut counts = self.counts();
        for key in keys {
            *counts.held.entry(key.clone()).or_default() += 1;
        }
    }

    /// Records that a lock recorded by [`hold`](Self::hold) has ended.
    pub(super) fn lock_ended(&self, key: &[u8]) {
        decrement(&mut self.counts().held, key);
    }

    /// Chooses the slot of a semaphore to ask for, and reserves it. Chooses the slot that is most likely free. The
    /// search begins at the slot number in `permit`, and continues with slot 0 after the last slot. Among equally
    /// likely slots, the first one found is chosen.
    ///
    /// - `occupied_elsewhere`: a bit mask of the slots that other processes are known to hold.
    /// - `ignores_requests`: whether to ignore the reservations of other tasks of this process.
    pub(super) fn reserve_slot(
        self: &Arc<Self>,
        permit: &Permit,
        occupied_elsewhere: u64,
        ignores_requests: bool,
    ) -> SlotReservation {
        let (first, permits) = (permit.slot(), permit.permits().max(1));
        let slots = (0..permits).map(|step| (first % permits + step) % permits);
        let mut counts = self.counts();
        let mut best_slot: Option<(SlotChance, u8, Arc<[u8]>)> = None;
        for slot in slots {
            let key = permit.at(slot).key();
            if counts.held.contains_key(&key) {
                continue;
            }
            let requested = counts.requested.contains_key(&key) && !ignores_requests;
            let chance = match (requested, occupied_elsewhere >> slot & 1 == 1) {
                (false, false) => SlotChance::Free,
                (false, true) => SlotChance::Elsewhere,
                (true, _) => SlotChance::Requested,
            };
            if best_slot.as_ref().is_none_or(|(known, ..)| *known < chance) {
                best_slot = Some((chance, slot, key));
            }
            if chance == SlotChance::Free {
                break;
            }
        }
        let (chance, slot, key) =
            best_slot.unwrap_or_else(|| (SlotChance::Held, first, permit.key()));
        *counts.requested.entry(key.clone()).or_default() += 1;
        SlotReservation {
            own_locks: self.clone(),
            key,
            permit: permit.at(slot),
            is_only_request: chance == SlotChance::Free,
        }
    }

    /// Bit masks of the slots of a semaphore: first the slots that this process holds, then the slots that its tasks
    /// other than `reservation` ask for.
    pub(super) fn slots(
        &self,
        permit: &Permit,
        reservation: Option<&SlotReservation>,
    ) -> (u64, u64) {
        let counts = self.counts();
        let (mut held, mut requested) = (0, 0);
        for slot in 0..permit.permits().min(64) {
            let key = permit.at(slot).key();
            let own_requests =
                u32::from(reservation.is_some_and(|reservation| reservation.key == key));
            let is_requested_by_others = counts
                .requested
                .get(&key)
                .is_some_and(|tasks| *tasks > own_requests);
            held |= u64::from(counts.held.contains_key(&key)) << slot;
            requested |= u64::from(is_requested_by_others) << slot;
        }
        (held, requested)
    }

    #[cfg(all(test, not(quorate_loom)))]
    pub(super) fn is_empty(&self) -> bool {
        let counts = self.counts();
        counts.held.is_empty() && counts.requested.is_empty()
    }
}

/// How likely the masters are to grant a slot, in ascending order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SlotChance {
    /// This process holds the slot. Chosen only if this process holds every slot of the semaphore.
    Held,
    /// Another task of this process is requesting the slot, and will probably get it.
    Requested,
    /// Another process held the slot when the masters were last asked.
    Elsewhere,
    Free,
}

/// The reservation of a slot that a task of this process asks for. Dropping this value ends the reservation.
pub(crate) struct SlotReservation {
    own_locks: Arc<OwnLocks>,
    key: Arc<[u8]>,
    /// The reserved slot, with its semaphore.
    pub(crate) permit: Permit,
    /// Whether the slot seemed free when it was reserved: no other task of this process was requesting it, and no other
    /// process was known to hold it.
    pub(crate) is_only_request: bool,
}

impl Drop for SlotReservation {
    fn drop(&mut self) {
        decrement(&mut self.own_locks.counts().requested, &self.key);
    }
}

#[cfg(all(test, not(quorate_loom)))]
mod tests {
    use super::*;

    fn api_permit(slot: u8) -> Permit {
        Permit::new(Arc::from(&b"api"[..]), slot, 4)
    }

    fn own_locks_with(slots: &[u8]) -> Arc<OwnLocks> {
        let own_locks = Arc::<OwnLocks>::default();
        let keys: Vec<_> = slots.iter().map(|slot| api_permit(*slot).key()).collect();
        own_locks.hold(keys.iter());
        own_locks
    }

    fn reserve(own_locks: &Arc<OwnLocks>, slot: u8, occupied_elsewhere: u64) -> SlotReservation {
        own_locks.reserve_slot(&api_permit(slot), occupied_elsewhere, false)
    }

    #[test]
    fn task_requests_the_first_slot_that_is_not_known_to_be_occupied() {
        let own_locks = own_locks_with(&[2]);
        let first_reservation = reserve(&own_locks, 2, 0);
        assert_eq!(
            (
                first_reservation.permit.slot(),
                first_reservation.is_only_request
            ),
            (3, true),
            "slot 3 must be asked for, because this process holds slot 2"
        );
        let second_reservation = reserve(&own_locks, 3, 0b0001);
        assert_eq!(
            (
                second_reservation.permit.slot(),
                second_reservation.is_only_request
            ),
            (1, true),
            "slot 1 must be asked for, because another task asks for slot 3 and another process holds slot 0"
        );
        drop(first_reservation);
        let first_reservation = reserve(&own_locks, 0, 0b0001);
        assert_eq!(
            (
                first_reservation.permit.slot(),
                first_reservation.is_only_request
            ),
            (3, true),
            "slot 3 must be asked for again after the first request for it was dropped"
        );
    }

    #[test]
    fn task_requests_the_slot_most_likely_to_become_free_if_none_is_free() {
        let own_locks = own_locks_with(&[0]);
        let first_reservation = reserve(&own_locks, 0, 0b1100);
        assert_eq!(
            (
                first_reservation.permit.slot(),
                first_reservation.is_only_request
            ),
            (1, true)
        );
        let second_reservation = reserve(&own_locks, 1, 0b1100);
        assert_eq!(
            (
                second_reservation.permit.slot(),
                second_reservation.is_only_request
            ),
            (2, false),
            "slot 2 must be asked for, because another process may have released it"
        );
        let third_reservation = reserve(&own_locks, 1, 0b1100);
        assert_eq!(third_reservation.permit.slot(), 3);
        let fourth = reserve(&own_locks, 3, 0b1100);
        assert_eq!(
            (fourth.permit.slot(), fourth.is_only_request),
            (3, false),
            "`ask` must return slot 3 although another task asks for it: no slot is unreserved"
        );
        drop(third_reservation);
        assert!(
            !reserve(&own_locks, 3, 0).is_only_request,
            "`alone` must be false if another task also asks for slot 3"
        );
        let all_held = own_locks_with(&[0, 1, 2, 3]);
        let without_free_slot = reserve(&all_held, 2, 0);
        assert_eq!(
            (
                without_free_slot.permit.slot(),
                without_free_slot.is_only_request
            ),
            (2, false),
            "if this process holds all slots, `ask` must return the slot that it was called with"
        );
    }

    #[test]
    fn first_waiter_requests_a_slot_even_if_another_task_requests_the_same_slot() {
        let own_locks = own_locks_with(&[0]);
        let _others = [reserve(&own_locks, 1, 0), reserve(&own_locks, 2, 0)];
        let passing = own_locks.reserve_slot(&api_permit(0), 0b1000, true);
        assert_eq!(passing.permit.slot(), 1);
        let passing = own_locks.reserve_slot(&api_permit(2), 0b1000, true);
        assert_eq!(passing.permit.slot(), 2);
    }

    #[test]
    fn own_request_of_a_task_is_left_out_of_the_requested_slots() {
        let own_locks = own_locks_with(&[1]);
        let own_reservation = reserve(&own_locks, 3, 0);
        let other_reservation = reserve(&own_locks, 2, 0);
        assert_eq!(
            own_locks.slots(&api_permit(0), Some(&own_reservation)),
            (0b0010, 0b0100)
        );
        assert_eq!(own_locks.slots(&api_permit(0), None), (0b0010, 0b1100));
        let twice = own_locks.reserve_slot(&api_permit(3), 0b0001, true);
        assert_eq!(
            own_locks.slots(&api_permit(0), Some(&own_reservation)),
            (0b0010, 0b1100),
            "{}",
            twice.permit.slot()
        );
        own_locks.lock_ended(&api_permit(1).key());
        drop((own_reservation, other_reservation, twice));
        assert_eq!(own_locks.slots(&api_permit(0), None), (0, 0));
        assert!(own_locks.is_empty());
    }

    #[test]
    fn requested_slot_is_always_a_valid_slot_of_the_semaphore() {
        let own_locks = Arc::<OwnLocks>::default();
        for (slot, permits) in [(0, 0), (63, 64), (7, 3)] {
            let permit = Permit::new(Arc::from(&b"api"[..]), slot, permits);
            let reservation = own_locks.reserve_slot(&permit, 0, false);
            assert!(
                reservation.is_only_request && reservation.permit.slot() < permits.max(1),
                "{slot} of {permits}"
            );
            drop(reservation);
        }
    }

    #[test]
    fn slots_above_the_largest_semaphore_are_left_out_of_the_slots_in_use() {
        let own_locks = Arc::<OwnLocks>::default();
        let too_large = Permit::new(Arc::from(&b"api"[..]), 63, 65);
        own_locks.hold([too_large.key(), too_large.at(64).key()].iter());
        assert_eq!(own_locks.slots(&too_large, None), (1 << 63, 0));
    }
}
