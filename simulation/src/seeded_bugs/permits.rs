//! Seeded bugs in semaphores: a master that only counts the held permits, a master that picks the slot itself, and a
//! master without a queue.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use quorate::node::{Answer, Claim, ExtendItem, Fairness, Permit, QueueInfo, Request};

use super::Flaw;
use super::turn::{Outcome, Turn};
use crate::facts::Believer;
use crate::kind::Kind;
use crate::locker::{PERMITS, RESOURCES};

/// For each lock value: the slot that a faulty master has assigned to it. The client may have asked for another slot.
#[derive(Default)]
pub(super) struct SlotsTaken(HashMap<[u8; 32], Permit>);

/// Returns a claim like `claim`, but for the slot `permit`.
fn moved(claim: &Claim, permit: &Permit) -> Arc<Claim> {
    let same = Claim::new("", &permit.key(), claim.token(), true)
        .with_permit(permit.clone())
        .with_fairness(claim.fairness().clone());
    if claim.is_withdrawn() {
        same.withdraw();
    }
    Arc::new(same)
}

/// Returns all slots of the semaphore to which `permit` belongs.
fn slots(permit: &Permit) -> impl Iterator<Item = Permit> {
    let permit = permit.clone();
    (0..permit.permits()).map(move |slot| permit.at(slot))
}

/// For a seeded bug: the masters only count permits, and ignore slots. Returns the place that the checkers record for a
/// granted permit: the first slot of the semaphore that no client holds. Returns `place` if all slots are held, or if
/// the lock is not a permit.
pub(crate) fn counted_place(believers: &[Believer], kind: Kind, place: u8) -> u8 {
    let Kind::Permit(permits) = kind else {
        return place;
    };
    let free = |place: &u8| {
        let mut there = believers.iter().filter(|one| !one.over);
        !there.any(|one| one.resource == usize::from(*place))
    };
    let first = place - (place - RESOURCES as u8) % PERMITS as u8;
    (first..first + permits).find(free).unwrap_or(place)
}

impl SlotsTaken {
    /// Executes a request as a master with this flaw. Returns the reply; `None` if the flaw does not change the reply,
    /// so that the correct master must execute the request.
    pub(super) fn execute(&mut self, flaw: Flaw, turn: &mut Turn<'_>) -> Option<Outcome> {
        match (flaw, turn.request) {
            (
                Flaw::CountToK,
                Request::Acquire {
                    claim,
                    ttl,
                    proposal,
                },
            ) => self.counted(turn, claim, (*ttl, *proposal)),
            (Flaw::CountToK, request) => self.of_taken(turn, request),
            (
                Flaw::MasterPicksSlot,
                Request::Acquire {
                    claim,
                    ttl,
                    proposal,
                },
            ) => picked(turn, claim, (*ttl, *proposal)),
            (
                Flaw::NoSemaphoreLine,
                Request::Acquire {
                    claim,
                    ttl,
                    proposal,
                },
            ) => {
                let alone = claim.permit().cloned()?;
                let alone = Claim::new("", &alone.key(), claim.token(), true).with_permit(alone);
                let request = Request::Acquire {
                    claim: Arc::new(alone.with_fairness(Fairness::Fair(None))),
                    ttl: *ttl,
                    proposal: *proposal,
                };
                Some(turn.memory.apply(turn.now, &request))
            }
            _ => None,
        }
    }

    /// Grants a permit in any free slot of the semaphore. All slots of the semaphore share one fencing counter.
    fn counted(
        &mut self,
        turn: &mut Turn<'_>,
        claim: &Claim,
        (ttl, proposal): (Duration, u64),
    ) -> Option<Outcome> {
        let permit = claim.permit()?;
        let value = claim.token().to_hex();
        let free = |turn: &Turn<'_>, slot: &Permit| turn.holder(&slot.key()).is_none();
        let has = self.0.get(&value).filter(|slot| !free(turn, slot)).cloned();
        let next = has.or_else(|| slots(permit).find(|slot| free(turn, slot)));
        let slot = next.unwrap_or_else(|| permit.clone());
        let largest = slots(permit).map(|slot| turn.counter(&slot.key())).max();
        let request = Request::Acquire {
            claim: moved(claim, &slot),
            ttl,
            proposal,
        };
        let fresh = free(turn, &slot);
        let answer = turn.memory.apply(turn.now, &request);
        let Ok(Answer::Granted {
            counter: Some(counter),
        }) = answer
        else {
            return Some(answer);
        };
        let number = counter.max(largest.unwrap_or(0) + u64::from(fresh));
        for slot in slots(permit) {
            turn.set_counter(&slot.key(), number);
        }
        self.0.insert(value, slot);
        let counter = Some(number);
        Some(Ok(Answer::Granted { counter }))
    }

    /// Applies a request to the slot that this master has assigned to the lock value of the request.
    fn of_taken(&self, turn: &mut Turn<'_>, request: &Request) -> Option<Outcome> {
        let of = |claim: &Arc<Claim>| match self.0.get(&claim.token().to_hex()) {
            Some(slot) => moved(claim, slot),
            None => claim.clone(),
        };
        let request = match request {
            Request::Confirm { claim, token } => Request::Confirm {
                claim: of(claim),
                token: *token,
            },
            Request::Release { claim, leave } => Request::Release {
                claim: of(claim),
                leave: *leave,
            },
            Request::Extend { items } => {
                let item = |item: &ExtendItem| ExtendItem {
                    claim: of(&item.claim),
                    ..item.clone()
                };
                Request::Extend {
                    items: items.iter().map(item).collect(),
                }
            }
            _ => return None,
        };
        Some(turn.memory.apply(turn.now, &request))
    }
}

/// Refuses an acquire of a slot that is not the lowest free slot, and offers only the lowest free slot. Returns `None`
/// for other acquires, so that the correct master answers.
fn picked(turn: &mut Turn<'_>, claim: &Claim, (ttl, proposal): (Duration, u64)) -> Option<Outcome> {
    let permit = claim.permit()?;
    let free = |slot: &Permit| turn.holder(&slot.key()).is_none();
    let lowest = slots(permit).find(free)?;
    let mine = turn.holder(&permit.key()).as_deref() == Some(&claim.token().to_hex()[..]);
    if mine || lowest.slot() == permit.slot() {
        return None;
    }
    let claim = moved(claim, &lowest);
    let request = Request::Acquire {
        claim: claim.clone(),
        ttl,
        proposal,
    };
    let mut answer = turn.memory.apply(turn.now, &request);
    let line = match &mut answer {
        Ok(Answer::Refused {
            line: Some(line), ..
        }) => {
            line.free &= 1 << lowest.slot();
            return Some(answer);
        }
        Ok(Answer::Granted { .. }) => QueueInfo {
            free: 1 << lowest.slot(),
            ticket: claim.ticket().map_or(0, |ticket| ticket.number),
            ..QueueInfo::default()
        },
        _ => return Some(answer),
    };
    let leave = false;
    let back = Request::Release { claim, leave };
    let _released = turn.memory.apply(turn.now, &back);
    Some(Ok(Answer::Refused {
        ttl_left: Some(Duration::ZERO),
        line: Some(Box::new(line)),
    }))
}
