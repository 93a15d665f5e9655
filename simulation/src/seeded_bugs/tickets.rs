//! A seeded bug in locks on several resources: each resource has its own ticket. Two clients that want the same two
//! resources can then block each other, because each client is first in one of the two queues.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use quorate::node::{Answer, Claim, Fairness, QueueInfo, Request, Ticket};

use super::turn::{Outcome, Turn, ticket};

/// The size of one ticket, in bits. The faulty master packs the tickets of all resources into one number.
const BITS: u32 = 11;
/// The number of unused low bits in the packed number. A client can add a small number to the packed number without
/// changing a ticket.
const BELOW: u32 = 4;

/// The largest ticket of each queue, by lock key.
#[derive(Default)]
pub(super) struct Tickets(HashMap<Vec<u8>, u64>);

fn shift(index: usize) -> u32 {
    BELOW + BITS * index as u32
}

impl Tickets {
    fn largest(&self, key: &[u8]) -> u64 {
        self.0.get(key).copied().unwrap_or(0)
    }

    fn drawn(&mut self, key: &[u8], ticket: u64) {
        let largest = self.0.entry(key.to_vec()).or_default();
        *largest = (*largest).max(ticket);
    }

    /// Returns the largest ticket of each queue of the claim, packed into one number.
    fn packed(&self, claim: &Claim) -> u64 {
        let one = |(index, key): (usize, &Arc<[u8]>)| self.largest(key) << shift(index);
        claim.keys().enumerate().map(one).sum()
    }

    /// Records the ticket of an acquire of a single resource. Always returns `None`, so that the correct master
    /// answers.
    pub(super) fn alone(&mut self, claim: &Claim) -> Option<Outcome> {
        if let Some(ticket) = ticket(claim) {
            self.drawn(claim.key(), ticket.number);
        }
        None
    }

    /// Replies to an acquire of several resources. Each resource has a ticket of its own.
    pub(super) fn several(
        &mut self,
        turn: &mut Turn<'_>,
        claim: &Claim,
        (ttl, proposal): (Duration, u64),
    ) -> Outcome {
        let value = claim.token().to_hex();
        let mine = |key: &Arc<[u8]>| turn.holder(key).as_deref() == Some(&value[..]);
        let (Some(place), false) = (ticket(claim), claim.keys().all(mine)) else {
            let mut answer = turn.sound();
            if let Ok(Answer::Refused {
                line: Some(line), ..
            }) = &mut answer
            {
                line.ticket = self.packed(claim);
            }
            return answer;
        };
        let (mut taken, mut line, mut left) = (Vec::new(), QueueInfo::default(), None);
        for (index, key) in claim.keys().enumerate() {
            let number = (place.number >> shift(index) & ((1 << BITS) - 1)) + 1;
            self.drawn(key, number);
            let place = Ticket {
                number,
                ..place.clone()
            };
            let one = Claim::new("", key, claim.token(), true);
            let one = Arc::new(one.with_fairness(Fairness::Fair(Some(Box::new(place)))));
            let request = Request::Acquire {
                claim: one.clone(),
                ttl,
                proposal,
            };
            match turn.memory.apply(turn.now, &request)? {
                Answer::Refused {
                    ttl_left,
                    line: Some(there),
                } => {
                    line.ahead = line.ahead.max(there.ahead);
                    (left, line.holder) = (ttl_left, there.holder);
                }
                _ => taken.push(one),
            }
        }
        if taken.len() < claim.keys().count() {
            for claim in taken {
                let leave = false;
                turn.memory
                    .apply(turn.now, &Request::Release { claim, leave })?;
            }
            line.ticket = self.packed(claim);
            return Ok(Answer::Refused {
                ttl_left: left,
                line: Some(Box::new(line)),
            });
        }
        let number = claim.keys().map(|key| turn.counter(key)).max();
        for key in claim.keys() {
            turn.set_counter(key, number.unwrap_or(0));
        }
        Ok(Answer::Granted { counter: number })
    }
}
