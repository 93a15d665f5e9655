//! A seeded bug in locks on several resources: each resource has its own ticket. Two clients that want the same two
//! resources can then block each other, because each client is first in one of the two queues.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use quorate::node::{Answer, Claim, Fairness, QueueInfo, Request, Ticket};

use super::request_context::{Outcome, RequestContext, ticket_of};

/// The size of one ticket, in bits. The faulty master packs the tickets of all resources into one number.
const TICKET_BITS: u32 = 11;
/// The number of unused low bits in the packed number. A client can add a small number to the packed number without
/// changing a ticket.
const UNUSED_LOW_BITS: u32 = 4;

/// The largest ticket of each queue, by lock key.
#[derive(Default)]
pub(super) struct Tickets(HashMap<Vec<u8>, u64>);

fn bit_offset(index: usize) -> u32 {
    UNUSED_LOW_BITS + TICKET_BITS * index as u32
}

impl Tickets {
    fn largest_ticket(&self, key: &[u8]) -> u64 {
        self.0.get(key).copied().unwrap_or(0)
    }

    fn record_ticket(&mut self, key: &[u8], ticket: u64) {
        let largest = self.0.entry(key.to_vec()).or_default();
        *largest = (*largest).max(ticket);
    }

    /// Returns the largest ticket of each queue of the claim, packed into one number.
    fn pack_tickets(&self, claim: &Claim) -> u64 {
        let shifted_ticket =
            |(index, key): (usize, &Arc<[u8]>)| self.largest_ticket(key) << bit_offset(index);
        claim.keys().enumerate().map(shifted_ticket).sum()
    }

    /// Records the ticket of an acquire of a single resource. Always returns `None`, so that the correct master
    /// answers.
    pub(super) fn record_single(&mut self, claim: &Claim) -> Option<Outcome> {
        if let Some(ticket) = ticket_of(claim) {
            self.record_ticket(claim.key(), ticket.number);
        }
        None
    }

    /// Replies to an acquire of several resources. Each resource has a ticket of its own.
    pub(super) fn acquire_several(
        &mut self,
        context: &mut RequestContext<'_>,
        claim: &Claim,
        (ttl, proposal): (Duration, u64),
    ) -> Outcome {
        let value = claim.token().to_hex();
        let is_own = |key: &Arc<[u8]>| context.holder(key).as_deref() == Some(&value[..]);
        let (Some(queue_ticket), false) = (ticket_of(claim), claim.keys().all(is_own)) else {
            let mut answer = context.execute_correctly();
            if let Ok(Answer::Refused {
                line: Some(queue), ..
            }) = &mut answer
            {
                queue.ticket = self.pack_tickets(claim);
            }
            return answer;
        };
        let (mut granted_claims, mut queue, mut refused_ttl_left) =
            (Vec::new(), QueueInfo::default(), None);
        for (index, key) in claim.keys().enumerate() {
            let number = (queue_ticket.number >> bit_offset(index) & ((1 << TICKET_BITS) - 1)) + 1;
            self.record_ticket(key, number);
            let part_ticket = Ticket {
                number,
                ..queue_ticket.clone()
            };
            let unqueued_claim = Claim::new("", key, claim.token(), true);
            let single_claim =
                Arc::new(unqueued_claim.with_fairness(Fairness::Fair(Some(Box::new(part_ticket)))));
            let request = Request::Acquire {
                claim: single_claim.clone(),
                ttl,
                proposal,
            };
            match context.memory.apply(context.now, &request)? {
                Answer::Refused {
                    ttl_left,
                    line: Some(part),
                } => {
                    queue.ahead = queue.ahead.max(part.ahead);
                    (refused_ttl_left, queue.holder) = (ttl_left, part.holder);
                }
                _ => granted_claims.push(single_claim),
            }
        }
        if granted_claims.len() < claim.keys().count() {
            for claim in granted_claims {
                let leave = false;
                context
                    .memory
                    .apply(context.now, &Request::Release { claim, leave })?;
            }
            queue.ticket = self.pack_tickets(claim);
            return Ok(Answer::Refused {
                ttl_left: refused_ttl_left,
                line: Some(Box::new(queue)),
            });
        }
        let number = claim.keys().map(|key| context.counter(key)).max();
        for key in claim.keys() {
            context.set_counter(key, number.unwrap_or(0));
        }
        Ok(Answer::Granted { counter: number })
    }
}
