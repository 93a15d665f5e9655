//! The slots of a semaphore on a master in memory: does what `permit.lua` and `release_permit.lua` do on a server.

use std::time::Duration;

use super::master::{Master, granted_before};
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
        let (key, name) = (permit.key(), permit.line());
        let value = claim.token().to_hex();
        let held = self.text(now, &key)?.map(<[u8]>::to_vec);
        let counter = self.counter(now, &key)?;
        // A repeated request of the client that holds this slot gets the same number.
        if held.as_deref() == Some(&value[..]) {
            return granted_before(&key, counter);
        }
        // Join the queue, or refresh the place in it, before waiters without a heartbeat are removed.
        let ms = now / 1000;
        let me = claim.ticket().map(|ticket| &ticket.waiter);
        let line = self.line(ms, &name);
        if let Some(ticket) = claim.ticket() {
            line.keep_place(ticket, ms);
        }
        line.purge(ms);
        let head = line.before(None).next().cloned();
        let ahead = line.before(me).count() as u64;
        let largest = line.ticket;
        let lives = head.as_ref().and_then(|head| line.alive.get(head)).copied();
        self.sweep(&name);
        // Grant a free slot to the first waiter, or to anybody if the queue is empty.
        let first = head.as_ref().is_none_or(|head| Some(head) == me);
        if first && held.is_none() {
            let counter = self.raise_counter(now, &key, proposal, counter);
            self.set(now, &key, value.to_vec(), Some(ttl));
            let counter = Some(counter);
            return Ok(Answer::Granted { counter });
        }
        // The refusal shows the free slots, and when the first of the others may become free.
        let (mut free, mut left) = (0, None);
        for slot in 0..permit.permits() {
            let key = crate::keys::slot_key(permit.name(), slot);
            if !self.exists(now, &key) {
                free |= 1 << slot;
            } else if let Some(lives) = self.ttl_left(now, &key) {
                left = Some(left.map_or(lives, |left: Duration| left.min(lives)));
            }
        }
        // Behind other waiters, ask again when the heartbeat of the first of them is overdue.
        if !first {
            left = Some(Duration::from_millis(
                lives.unwrap_or(ms).saturating_sub(ms),
            ));
        }
        let line = QueueInfo {
            ahead,
            ticket: largest,
            holder: None,
            free,
            note: None,
        };
        Ok(Answer::Refused {
            ttl_left: Some(left.unwrap_or_default()),
            line: Some(Box::new(line)),
        })
    }

    pub(super) fn release_permit(
        &mut self,
        now: u64,
        claim: &Claim,
        permit: &Permit,
        leave: bool,
    ) -> Result<Answer, Fault> {
        let (key, name) = (permit.key(), permit.line());
        let mine = self.text(now, &key)? == Some(&claim.token().to_hex()[..]);
        if mine {
            if claim.is_noted() {
                self.drop_note(now, &key);
            }
            self.remove(&key);
        }
        let ms = now / 1000;
        let me = claim.ticket().map(|ticket| ticket.waiter.clone());
        let line = self.line(ms, &name);
        let left = leave && me.as_ref().is_some_and(|me| line.remove(me));
        if mine || left {
            line.purge(ms);
            let head = line.before(None).next().cloned();
            if let Some(head) = head.filter(|head| Some(head) != me.as_ref()) {
                self.publish(&head, &name);
            }
        }
        self.sweep(&name);
        Ok(Answer::Released(mine))
    }
}
