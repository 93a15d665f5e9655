//! The slots of a semaphore on a master in memory: does what `permit.lua` and `release_permit.lua` do on a server.

use std::time::Duration;

use super::master::{Master, grant_again};
use crate::node::{Answer, Claim, Fault, Permit, QueueInfo};

impl Master {
    pub(super) fn permit(
        &mut self,
        now: u64,
        claim: &Claim,
        permit: &Permit,
        ttl: Duration,
        proposal: u64,
    ) -> Result<Answer, Fault> {
        let (key, queue_name) = (permit.key(), permit.line());
        let value = claim.token().to_hex();
        let slot_value = self.text(now, &key)?.map(<[u8]>::to_vec);
        let counter = self.counter(now, &key)?;
        // A repeated request of the client that holds this slot gets the same number.
        if slot_value.as_deref() == Some(&value[..]) {
            return grant_again(&key, counter);
        }
        // Join the queue, or refresh the place in it, before waiters without a heartbeat are removed.
        let ms = now / 1000;
        let own_id = claim.ticket().map(|ticket| &ticket.waiter);
        let queue = self.queue_of(ms, &queue_name);
        if let Some(ticket) = claim.ticket() {
            queue.keep_place(ticket, ms);
        }
        queue.purge(ms);
        let front_id = queue.waiters_before(None).next().cloned();
        let ahead = queue.waiters_before(own_id).count() as u64;
        let largest_ticket = queue.ticket;
        let head_expires = front_id
            .as_ref()
            .and_then(|front| queue.alive.get(front))
            .copied();
        self.drop_empty_queue(&queue_name);
        // Grant a free slot to the first waiter, or to anybody if the queue is empty.
        let is_first = front_id.as_ref().is_none_or(|front| Some(front) == own_id);
        if is_first && slot_value.is_none() {
            let counter = self.raise_counter(now, &key, proposal, counter);
            self.set(now, &key, value.to_vec(), Some(ttl));
            let counter = Some(counter);
            return Ok(Answer::Granted { counter });
        }
        // The refusal shows the free slots, and when the first of the others may become free.
        let (mut free_slots, mut ttl_left) = (0, None);
        for slot in 0..permit.permits() {
            let key = crate::keys::slot_key(permit.name(), slot);
            if !self.exists(now, &key) {
                free_slots |= 1 << slot;
            } else if let Some(slot_ttl) = self.ttl_left(now, &key) {
                ttl_left =
                    Some(ttl_left.map_or(slot_ttl, |ttl_left: Duration| ttl_left.min(slot_ttl)));
            }
        }
        // Behind other waiters, ask again when the heartbeat of the first of them is overdue.
        if !is_first {
            ttl_left = Some(Duration::from_millis(
                head_expires.unwrap_or(ms).saturating_sub(ms),
            ));
        }
        let queue_info = QueueInfo {
            ahead,
            ticket: largest_ticket,
            holder: None,
            free: free_slots,
            note: None,
        };
        Ok(Answer::Refused {
            ttl_left: Some(ttl_left.unwrap_or_default()),
            line: Some(Box::new(queue_info)),
        })
    }

    pub(super) fn release_permit(
        &mut self,
        now: u64,
        claim: &Claim,
        permit: &Permit,
        leave: bool,
    ) -> Result<Answer, Fault> {
        let (key, queue_name) = (permit.key(), permit.line());
        let was_held = self.text(now, &key)? == Some(&claim.token().to_hex()[..]);
        if was_held {
            if claim.is_noted() {
                self.drop_note(now, &key);
            }
            self.remove(&key);
        }
        let ms = now / 1000;
        let own_id = claim.ticket().map(|ticket| ticket.waiter.clone());
        let queue = self.queue_of(ms, &queue_name);
        let has_left = leave && own_id.as_ref().is_some_and(|own_id| queue.remove(own_id));
        if was_held || has_left {
            queue.purge(ms);
            let first_waiter = queue.waiters_before(None).next().cloned();
            if let Some(first_waiter) =
                first_waiter.filter(|waiter| Some(waiter) != own_id.as_ref())
            {
                self.publish(&first_waiter, &queue_name);
            }
        }
        self.drop_empty_queue(&queue_name);
        Ok(Answer::Released(was_held))
    }
}
