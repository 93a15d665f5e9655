//! Seeded bugs in semaphores: a master that only counts the held permits, a master that picks the slot itself, and a
//! master without a queue.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use quorate::node::{Answer, Claim, ExtendItem, Fairness, Permit, QueueInfo, Request};

use super::request_context::{Outcome, RequestContext};
use crate::facts::Believer;
use crate::flaw::Flaw;
use crate::kind::Kind;
use crate::locker::{PERMITS, RESOURCES};

/// For each lock value: the slot that a faulty master has assigned to it. The client may have asked for another slot.
#[derive(Default)]
pub(super) struct SlotsTaken(HashMap<[u8; 32], Permit>);

/// Returns a claim like `claim`, but for the slot `permit`.
fn with_slot(claim: &Claim, permit: &Permit) -> Arc<Claim> {
    let moved_claim = Claim::new("", &permit.key(), claim.token(), true)
        .with_permit(permit.clone())
        .with_fairness(claim.fairness().clone());
    if claim.is_withdrawn() {
        moved_claim.withdraw();
    }
    Arc::new(moved_claim)
}

/// Returns all slots of the semaphore to which `permit` belongs.
fn all_slots(permit: &Permit) -> impl Iterator<Item = Permit> {
    let permit = permit.clone();
    (0..permit.permits()).map(move |slot| permit.at(slot))
}

/// For a seeded bug: the masters only count permits, and ignore slots. Returns the place that the checkers record for a
/// granted permit: the first slot of the semaphore that no client holds. Returns `place` if all slots are held, or if
/// the lock is not a permit.
pub(crate) fn place_of_counted_permit(believers: &[Believer], kind: Kind, place: u8) -> u8 {
    let Kind::Permit(permits) = kind else {
        return place;
    };
    let is_free = |place: &u8| {
        let mut live_holds = believers.iter().filter(|believer| !believer.is_over);
        !live_holds.any(|believer| believer.resource == usize::from(*place))
    };
    let first = place - (place - RESOURCES as u8) % PERMITS as u8;
    (first..first + permits).find(is_free).unwrap_or(place)
}

impl SlotsTaken {
    /// Executes a request as a master with this flaw. Returns the reply; `None` if the flaw does not change the reply,
    /// so that the correct master must execute the request.
    pub(super) fn execute(
        &mut self,
        flaw: Flaw,
        context: &mut RequestContext<'_>,
    ) -> Option<Outcome> {
        match (flaw, context.request) {
            (
                Flaw::CountToK,
                Request::Acquire {
                    claim,
                    ttl,
                    proposal,
                },
            ) => self.grant_any_slot(context, claim, (*ttl, *proposal)),
            (Flaw::CountToK, request) => self.apply_to_assigned_slot(context, request),
            (
                Flaw::MasterPicksSlot,
                Request::Acquire {
                    claim,
                    ttl,
                    proposal,
                },
            ) => refuse_other_slots(context, claim, (*ttl, *proposal)),
            (
                Flaw::NoSemaphoreLine,
                Request::Acquire {
                    claim,
                    ttl,
                    proposal,
                },
            ) => {
                let permit = claim.permit().cloned()?;
                let unqueued_claim =
                    Claim::new("", &permit.key(), claim.token(), true).with_permit(permit);
                let request = Request::Acquire {
                    claim: Arc::new(unqueued_claim.with_fairness(Fairness::Fair(None))),
                    ttl: *ttl,
                    proposal: *proposal,
                };
                Some(context.memory.apply(context.now, &request))
            }
            _ => None,
        }
    }

    /// Grants a permit in any free slot of the semaphore. All slots of the semaphore share one fencing counter.
    fn grant_any_slot(
        &mut self,
        context: &mut RequestContext<'_>,
        claim: &Claim,
        (ttl, proposal): (Duration, u64),
    ) -> Option<Outcome> {
        let permit = claim.permit()?;
        let value = claim.token().to_hex();
        let is_free =
            |context: &RequestContext<'_>, slot: &Permit| context.holder(&slot.key()).is_none();
        let held_slot = self
            .0
            .get(&value)
            .filter(|slot| !is_free(context, slot))
            .cloned();
        let free_or_held_slot =
            held_slot.or_else(|| all_slots(permit).find(|slot| is_free(context, slot)));
        let slot = free_or_held_slot.unwrap_or_else(|| permit.clone());
        let largest_counter = all_slots(permit)
            .map(|slot| context.counter(&slot.key()))
            .max();
        let request = Request::Acquire {
            claim: with_slot(claim, &slot),
            ttl,
            proposal,
        };
        let is_new = is_free(context, &slot);
        let answer = context.memory.apply(context.now, &request);
        let Ok(Answer::Granted {
            counter: Some(counter),
        }) = answer
        else {
            return Some(answer);
        };
        let new_counter = counter.max(largest_counter.unwrap_or(0) + u64::from(is_new));
        for slot in all_slots(permit) {
            context.set_counter(&slot.key(), new_counter);
        }
        self.0.insert(value, slot);
        let counter = Some(new_counter);
        Some(Ok(Answer::Granted { counter }))
    }

    /// Applies a request to the slot that this master has assigned to the lock value of the request.
    fn apply_to_assigned_slot(
        &self,
        context: &mut RequestContext<'_>,
        request: &Request,
    ) -> Option<Outcome> {
        let on_assigned_slot = |claim: &Arc<Claim>| match self.0.get(&claim.token().to_hex()) {
            Some(slot) => with_slot(claim, slot),
            None => claim.clone(),
        };
        let request = match request {
            Request::Confirm { claim, token } => Request::Confirm {
                claim: on_assigned_slot(claim),
                token: *token,
            },
            Request::Release { claim, leave } => Request::Release {
                claim: on_assigned_slot(claim),
                leave: *leave,
            },
            Request::Extend { items } => {
                let move_item = |move_item: &ExtendItem| ExtendItem {
                    claim: on_assigned_slot(&move_item.claim),
                    ..move_item.clone()
                };
                Request::Extend {
                    items: items.iter().map(move_item).collect(),
                }
            }
            _ => return None,
        };
        Some(context.memory.apply(context.now, &request))
    }
}

/// Refuses an acquire of a slot that is not the lowest free slot, and offers only the lowest free slot. Returns `None`
/// for other acquires, so that the correct master answers.
fn refuse_other_slots(
    context: &mut RequestContext<'_>,
    claim: &Claim,
    (ttl, proposal): (Duration, u64),
) -> Option<Outcome> {
    let permit = claim.permit()?;
    let is_free = |slot: &Permit| context.holder(&slot.key()).is_none();
    let lowest_slot = all_slots(permit).find(is_free)?;
    let is_own = context.holder(&permit.key()).as_deref() == Some(&claim.token().to_hex()[..]);
    if is_own || lowest_slot.slot() == permit.slot() {
        return None;
    }
    let claim = with_slot(claim, &lowest_slot);
    let request = Request::Acquire {
        claim: claim.clone(),
        ttl,
        proposal,
    };
    let mut answer = context.memory.apply(context.now, &request);
    let queue = match &mut answer {
        Ok(Answer::Refused {
            line: Some(queue), ..
        }) => {
            queue.free &= 1 << lowest_slot.slot();
            return Some(answer);
        }
        Ok(Answer::Granted { .. }) => QueueInfo {
            free: 1 << lowest_slot.slot(),
            ticket: claim.ticket().map_or(0, |ticket| ticket.number),
            ..QueueInfo::default()
        },
        _ => return Some(answer),
    };
    let leave = false;
    let release = Request::Release { claim, leave };
    let _released = context.memory.apply(context.now, &release);
    Some(Ok(Answer::Refused {
        ttl_left: Some(Duration::ZERO),
        line: Some(Box::new(queue)),
    }))
}
