//! The slots of a semaphore within one acquire: which slot to ask for next, and what the masters' answers show about
//! the other slots.

use super::acquire_loop::AcquireLoop;
use crate::limit::Limit;
use crate::outcome::Failure;
use crate::protocol::permits::{NextSlot, occupied_slots};
use crate::rounds::attempt::FailedAttempt;
use crate::rounds::lock_target::LockTarget;
use crate::waiting::local_queue::place::LocalPlace;

/// How many slots of a semaphore an acquire tries in a row before it waits for a wake-up. A `try_acquire` ends after
/// this number of slots.
const MAX_SLOTS: u32 = 3;

impl AcquireLoop<'_> {
    /// Returns true if the masters show another slot of the semaphore as free, and sets `target` to that slot. The
    /// acquire then asks for it without waiting. At most [`MAX_SLOTS`] slots are tried after each wake-up, or
    /// within a `try_acquire`.
    pub(super) async fn choose_another_slot(
        &mut self,
        failed: &FailedAttempt,
        slots_in_a_row: &mut u32,
        is_queued: bool,
    ) -> bool {
        let Some(reservation) = &self.reservation else {
            return false;
        };
        let slots_tried = std::mem::take(slots_in_a_row) + 1;
        let may_try_another = slots_tried < MAX_SLOTS && (self.tries_once || !self.is_over());
        if !may_try_another || failed.failure != Some(Failure::Contention) {
            return false;
        }
        let coordinator = &self.core.coordinator;
        let mut limit = Limit::new(&*coordinator.runtime, coordinator.answers_due_at());
        let permit = &reservation.permit;
        let (held, others) = self.core.local_queues.own_slots(permit, Some(reservation));
        // A queued waiter avoids only held slots, and may ask for a slot that another local waiter asks for.
        let occupied = if is_queued { held } else { held | others };
        let next_slot = failed
            .round
            .wait_until(|answers| answers.next_slot(permit, occupied));
        let Some(NextSlot::Ask(slot)) = limit.wait(next_slot).await else {
            return false;
        };
        limit.wait(failed.releases.completed()).await;
        self.target = LockTarget::slot(permit.at(slot));
        *slots_in_a_row = slots_tried;
        true
    }

    /// Chooses the semaphore slot to ask for: if possible, a slot that no other task of this process holds or asks for.
    /// If there is such a slot, this waiter leaves the local queue, so that the next local waiter can ask for another
    /// slot.
    ///
    /// A waiter that is queued on the masters stays in the local queue.
    pub(super) fn choose_slot(&mut self, place: Option<&mut LocalPlace>, is_queued: bool) {
        let Some(permit) = self.target.shape().permit() else {
            return;
        };
        // Free the reservation of the slot that this waiter asked for last.
        self.reservation = None;
        let reservation = self
            .core
            .local_queues
            .reserve_slot(permit, place.as_deref(), is_queued);
        if let (Some(place), true) = (place, reservation.is_only_request && !is_queued) {
            place.leave_for_slot();
        }
        if reservation.permit != *permit {
            self.target = LockTarget::slot(reservation.permit.clone());
        }
        self.reservation = Some(reservation);
    }

    /// Records which slots other processes hold, according to the masters' answers.
    pub(super) fn share_occupied_slots(&self, place: &LocalPlace, failed: &FailedAttempt) {
        let Some(reservation) = &self.reservation else {
            return;
        };
        if let Some(free) = failed.round.answers().free_slots() {
            let (held, others) = self
                .core
                .local_queues
                .own_slots(&reservation.permit, Some(reservation));
            let permits = reservation.permit.permits();
            place.set_occupied_elsewhere(occupied_slots(permits, free, held | others));
        }
    }

    /// Returns a waiter to the local queue after it has asked for a slot without success.
    ///
    /// If the waiter is then the first in the local queue, returns true: the waiter can queue on the masters. Otherwise
    /// waits until the waiter is the first, and returns false: a slot may be free by then, so the waiter must ask
    /// again.
    pub(super) async fn is_still_first(&mut self, place: &mut LocalPlace) -> bool {
        if self.reservation.is_none() {
            return true;
        }
        place.return_to_queue();
        let was_first = place.is_first();
        if !was_first {
            self.reservation = None;
            self.deadline_limit().wait(place.wait_until_first()).await;
        }
        was_first
    }
}

#[cfg(test)]
mod tests;
