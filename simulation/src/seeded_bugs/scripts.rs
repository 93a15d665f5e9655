//! Seeded bugs in the scripts for locks on several resources, locks of readers and owners, and semaphores.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use quorate::node::memory::Master;
use quorate::node::{Answer, Claim, Class, ExtendItem, Group, Mode, QueueInfo, Request};

use super::mget::execute_with_mget;
use super::permits::SlotsTaken;
use super::request_context::{Outcome, RequestContext, ticket_of};
use super::tickets::Tickets;
use crate::flaw::Flaw;

/// A fencing counter is roughly a time in microseconds. A master limits a proposed counter to at most this distance
/// from its own clock.
const COUNTER_SLACK_US: u64 = 1_000_000;

/// The state that a faulty master has in addition to its keys.
#[derive(Default)]
pub(crate) struct WrongScripts {
    /// The number of shared holds that the master has counted under each lock key.
    hold_counts: HashMap<Vec<u8>, i64>,
    /// The waiters that want several resources.
    waiters_for_several: HashSet<Arc<str>>,
    /// The slots of semaphores that the master has given to lock values.
    assigned_slots: SlotsTaken,
    /// The largest ticket that waiters have drawn for each resource.
    tickets: Tickets,
}

/// Returns the class of a shared claim (readers, or one owner); `None` for an exclusive claim.
fn class_of(claim: &Claim) -> Option<&Class> {
    match &claim.group()?.parts().first()?.mode {
        Mode::Class(class) => Some(class),
        Mode::Exclusive => None,
    }
}

/// Whether the claim is an exclusive claim on one resource.
fn is_plain(claim: &Claim) -> bool {
    claim.group().is_none() && claim.permit().is_none()
}

fn is_reader(claim: &Claim) -> bool {
    class_of(claim) == Some(&Class::Shared)
}

fn is_owned(claim: &Claim) -> bool {
    matches!(class_of(claim), Some(Class::Owner(_)))
}

fn replaces_own_lock(claim: &Claim) -> bool {
    claim.group().is_some_and(|group| group.instead().is_some())
}

fn is_several(claim: &Claim) -> bool {
    claim.group().is_some_and(|group| group.parts().len() > 1)
}

fn keys_of(claim: &Claim) -> Vec<Vec<u8>> {
    claim.keys().map(|key| key.to_vec()).collect()
}

/// Returns the same claim with the fencing token `token`.
fn with_token(claim: &Claim, token: u64) -> Arc<Claim> {
    let parts = claim
        .group()
        .map_or(Vec::new(), |group| group.parts().to_vec());
    let group = Group::new(parts);
    group.agreed(token);
    let renumbered_claim = Claim::new("", claim.key(), claim.token(), true).with_group(group);
    if claim.is_withdrawn() {
        renumbered_claim.withdraw();
    }
    Arc::new(renumbered_claim)
}

impl RequestContext<'_> {
    fn has_own_marker(&self, claim: &Claim) -> bool {
        class_of(claim).is_some_and(|class| self.holder(claim.key()) == Some(class.lock_value()))
    }

    fn is_member(&self, claim: &Claim) -> bool {
        let value = claim.token().to_hex();
        let members = self.memory.standing(claim.key());
        members.iter().any(|(member, _)| *member == value)
    }

    /// Returns the ids of the waiters that are ahead of the claim in the queue.
    fn waiters_ahead(&mut self, claim: &Claim) -> Vec<String> {
        let key: Arc<[u8]> = claim.key().into();
        let Ok(Answer::State(state)) = self.memory.apply(self.now, &Request::Status { key }) else {
            return Vec::new();
        };
        let own_id = ticket_of(claim).map(|ticket| ticket.waiter.to_string());
        let queued_ids = state.queue.into_iter().map(|waiter| waiter.id);
        queued_ids
            .take_while(|id| own_id.as_ref() != Some(id))
            .collect()
    }

    /// Grants one key exclusively, ignoring the queue.
    fn grant_exclusively(&mut self, claim: &Claim, ttl: Duration) -> Answer {
        let number = self.counter(claim.key()) + 1;
        self.set_counter(claim.key(), number);
        self.put_value(claim.key(), &claim.token().to_hex(), ttl);
        let counter = Some(number);
        Answer::Granted { counter }
    }

    /// After a grant, resets the key's fencing counter to `before` (its value before the grant), and returns a grant
    /// with this counter. If `answer` is no grant or `before` is zero, returns `answer` and changes nothing.
    fn reset_counter(&mut self, key: &[u8], before: u64, answer: Outcome) -> Outcome {
        if !matches!(answer, Ok(Answer::Granted { .. })) || before == 0 {
            return answer;
        }
        self.set_counter(key, before);
        let counter = Some(before);
        Ok(Answer::Granted { counter })
    }
}

impl WrongScripts {
    /// Executes a request as a master with this flaw. Returns the reply; `None` if the correct master must execute the
    /// request.
    pub(crate) fn execute(
        &mut self,
        flaw: Flaw,
        memory: &mut Master,
        now: u64,
        request: &Request,
    ) -> Option<Outcome> {
        let mut context = RequestContext {
            memory,
            now,
            request,
        };
        if flaw.is_of_permits() {
            return self.assigned_slots.execute(flaw, &mut context);
        }
        match request {
            Request::Acquire {
                claim,
                ttl,
                proposal,
            } => match flaw {
                Flaw::TicketPerResource if is_several(claim) => Some(self.tickets.acquire_several(
                    &mut context,
                    claim,
                    (*ttl, *proposal),
                )),
                Flaw::TicketPerResource => self.tickets.record_single(claim),
                Flaw::WrongTypeReadAsMissing if claim.group().is_some() => {
                    execute_with_mget(&mut context, &keys_of(claim))
                }
                _ => self.acquire(flaw, context, claim, (*ttl, *proposal)),
            },
            Request::Confirm { claim, token } => confirm(flaw, context, claim, *token),
            Request::Release { claim, .. } => self.release(flaw, context, claim),
            Request::Extend { items } => extend(flaw, context, items),
            _ => None,
        }
    }

    fn acquire(
        &mut self,
        flaw: Flaw,
        mut context: RequestContext<'_>,
        claim: &Claim,
        (ttl, proposal): (Duration, u64),
    ) -> Option<Outcome> {
        let key = claim.key();
        let (holder, counter) = (context.holder(key), context.counter(key));
        let is_granted = |answer: &Outcome| matches!(answer, Ok(Answer::Granted { .. }));
        if let Some(ticket) = ticket_of(claim).filter(|_| is_several(claim)) {
            self.waiters_for_several.insert(ticket.waiter.clone());
        }
        Some(match flaw {
            Flaw::CountedHolds if class_of(claim).is_some() => {
                let was_shared = context.has_own_marker(claim);
                let answer = context.execute_correctly();
                if is_granted(&answer) {
                    let count = self.hold_counts.entry(key.to_vec()).or_default();
                    *count = if was_shared { *count + 1 } else { 1 };
                }
                answer
            }
            Flaw::NewestExpiry if class_of(claim).is_some() => {
                let answer = context.execute_correctly();
                if let (true, Some(class)) = (is_granted(&answer), class_of(claim)) {
                    context.put_value(key, &class.lock_value(), ttl);
                }
                answer
            }
            Flaw::MarkerlessReaders if is_reader(claim) => {
                let answer = context.execute_correctly();
                if is_granted(&answer) {
                    context.delete_lock(key);
                }
                answer
            }
            Flaw::ReaderNoRaise
                if is_reader(claim) && !replaces_own_lock(claim) && holder.is_none() =>
            {
                let answer = context.execute_correctly();
                context.reset_counter(key, counter, answer)
            }
            Flaw::DowngradeNoRaise if replaces_own_lock(claim) => {
                let answer = context.execute_correctly();
                context.reset_counter(key, counter, answer)
            }
            Flaw::ReadersPassWriters if is_reader(claim) => {
                grant_past_writers(&mut context, claim, ttl, counter)
            }
            Flaw::WritersFirst | Flaw::SinglePassesMulti | Flaw::OwnerInLine => {
                return self.answer_with_wrong_queue(flaw, context, claim, (ttl, proposal));
            }
            _ => return answer_several_wrongly(flaw, context, claim, (ttl, proposal)),
        })
    }

    /// Answers an acquire as a master with a seeded bug in its queue. Returns `None` if the correct master must answer.
    fn answer_with_wrong_queue(
        &self,
        flaw: Flaw,
        mut context: RequestContext<'_>,
        claim: &Claim,
        (ttl, _): (Duration, u64),
    ) -> Option<Outcome> {
        let key = claim.key();
        let holder = context.holder(key);
        let is_refused = |answer: &Outcome| matches!(answer, Ok(Answer::Refused { .. }));
        Some(match flaw {
            Flaw::WritersFirst | Flaw::SinglePassesMulti if is_plain(claim) => {
                let answer = context.execute_correctly();
                let waiters_ahead = context.waiters_ahead(claim);
                let may_be_overtaken = |id: &String| match flaw {
                    Flaw::WritersFirst => id.ends_with(":r"),
                    _ => self.waiters_for_several.contains(&**id),
                };
                if is_refused(&answer)
                    && context.holder(key).is_none()
                    && waiters_ahead.iter().all(may_be_overtaken)
                {
                    return Some(Ok(context.grant_exclusively(claim, ttl)));
                }
                answer
            }
            Flaw::OwnerInLine
                if is_owned(claim)
                    && context.has_own_marker(claim)
                    && !context.is_member(claim) =>
            {
                let waiters_ahead = context.waiters_ahead(claim);
                if waiters_ahead.is_empty() {
                    return None;
                }
                let ahead = waiters_ahead.len() as u64;
                let queue = QueueInfo {
                    ahead,
                    ticket: ticket_of(claim).map_or(ahead, |ticket| ticket.number),
                    holder,
                    ..QueueInfo::default()
                };
                Ok(Answer::Refused {
                    ttl_left: Some(ttl),
                    line: Some(Box::new(queue)),
                })
            }
            _ => return None,
        })
    }

    fn release(
        &mut self,
        flaw: Flaw,
        mut context: RequestContext<'_>,
        claim: &Claim,
    ) -> Option<Outcome> {
        if flaw != Flaw::CountedHolds || !context.has_own_marker(claim) {
            return None;
        }
        let answer = context.execute_correctly();
        let key = claim.key();
        let count = self.hold_counts.entry(key.to_vec()).or_default();
        *count -= 1;
        if *count <= 0 && context.has_own_marker(claim) {
            context.delete_lock(key);
        }
        Some(answer)
    }
}

/// Answers an acquire of a reader as a master whose readers overtake waiting writers. `counter` is the fencing counter
/// of the lock.
fn grant_past_writers(
    context: &mut RequestContext<'_>,
    claim: &Claim,
    ttl: Duration,
    counter: u64,
) -> Outcome {
    let answer = context.execute_correctly();
    let is_refused = matches!(answer, Ok(Answer::Refused { .. }));
    let is_free = context.holder(claim.key()).is_none();
    if !is_refused || !(is_free || context.has_own_marker(claim)) {
        return answer;
    }
    let number = counter + u64::from(is_free);
    let claim = with_token(claim, number);
    let items = [ExtendItem::new(claim, ttl)].into();
    let _kept = context
        .memory
        .apply(context.now, &Request::Extend { items });
    let counter = Some(number);
    Ok(Answer::Granted { counter })
}

/// Answers an acquire as a master with a seeded bug in locks on several resources. Returns `None` if the correct master
/// must answer.
fn answer_several_wrongly(
    flaw: Flaw,
    mut context: RequestContext<'_>,
    claim: &Claim,
    (ttl, proposal): (Duration, u64),
) -> Option<Outcome> {
    let key = claim.key();
    let holder = context.holder(key);
    let is_refused = |answer: &Outcome| matches!(answer, Ok(Answer::Refused { .. }));
    let is_granted = |answer: &Outcome| matches!(answer, Ok(Answer::Granted { .. }));
    Some(match flaw {
        Flaw::MultiOwnCounter if is_several(claim) => {
            let previous_counters: Vec<_> = claim.keys().map(|key| context.counter(key)).collect();
            let value = claim.token().to_hex();
            let is_repeated = holder.as_deref() == Some(&value[..]);
            let answer = context.execute_correctly();
            if is_repeated || !is_granted(&answer) {
                return Some(answer);
            }
            let lowest = context.now.saturating_sub(COUNTER_SLACK_US);
            let clamped_proposal = proposal.clamp(lowest, context.now + COUNTER_SLACK_US);
            let mut largest = 0;
            for (key, previous) in claim.keys().zip(previous_counters) {
                let number = clamped_proposal.max(previous + 1);
                largest = largest.max(number);
                context.set_counter(key, number);
            }
            let counter = Some(largest);
            Ok(Answer::Granted { counter })
        }
        Flaw::PartialGrantCounts if is_several(claim) => {
            let answer = context.execute_correctly();
            let free_keys: Vec<_> = claim
                .keys()
                .filter(|key| context.holder(key).is_none())
                .collect();
            if !is_refused(&answer) || free_keys.is_empty() {
                return Some(answer);
            }
            let largest = claim.keys().map(|key| context.counter(key)).max();
            let number = largest.unwrap_or(0) + 1;
            for key in free_keys {
                context.set_counter(key, number);
                context.put_value(key, &claim.token().to_hex(), ttl);
            }
            let counter = Some(number);
            Ok(Answer::Granted { counter })
        }
        _ => return None,
    })
}

fn confirm(
    flaw: Flaw,
    mut context: RequestContext<'_>,
    claim: &Claim,
    token: u64,
) -> Option<Outcome> {
    Some(match flaw {
        Flaw::ReaderAtLeast if is_reader(claim) => match context.execute_correctly() {
            Ok(Answer::CounterAbove(_)) => Ok(Answer::Confirmed),
            answer => answer,
        },
        Flaw::OwnerWritesBack if is_owned(claim) => match context.execute_correctly() {
            Ok(Answer::NotAlone) => {
                let counter = context.counter(claim.key());
                if counter > token {
                    return Some(Ok(Answer::CounterAbove(counter)));
                }
                context.set_counter(claim.key(), token);
                Ok(Answer::Confirmed)
            }
            answer => answer,
        },
        Flaw::ConfirmAnyKey if is_several(claim) => match context.execute_correctly() {
            Ok(Answer::NotOurs) => {
                let value = claim.token().to_hex();
                let is_own = |key: &&Arc<[u8]>| context.holder(key).as_deref() == Some(&value[..]);
                let own_keys: Vec<_> = claim.keys().filter(is_own).collect();
                if own_keys.is_empty() || own_keys.iter().any(|key| context.counter(key) > token) {
                    return Some(Ok(Answer::NotOurs));
                }
                for key in own_keys {
                    context.set_counter(key, token);
                }
                Ok(Answer::Confirmed)
            }
            answer => answer,
        },
        _ => return None,
    })
}

fn extend(flaw: Flaw, mut context: RequestContext<'_>, items: &[ExtendItem]) -> Option<Outcome> {
    match flaw {
        Flaw::NewestExpiry => {
            let answer = context.execute_correctly();
            for item in items.iter().filter(|item| !item.claim.is_withdrawn()) {
                if let Some(class) =
                    class_of(&item.claim).filter(|_| context.has_own_marker(&item.claim))
                {
                    context.put_value(item.claim.key(), &class.lock_value(), item.ttl);
                }
            }
            Some(answer)
        }
        Flaw::KeepNoRaise => {
            let counters: Vec<u64> = items
                .iter()
                .map(|item: &ExtendItem| context.counter(item.claim.key()))
                .collect();
            let answer = context.execute_correctly();
            for (item, counter) in items.iter().zip(counters) {
                let number = item.claim.group().map_or(0, Group::number);
                if is_reader(&item.claim) && counter > number {
                    context.set_counter(item.claim.key(), counter);
                }
            }
            Some(answer)
        }
        Flaw::LateKeep | Flaw::OwnerAnyNumber => {
            let falsify = |item: &ExtendItem| {
                let claim = &item.claim;
                let is_falsified = match flaw {
                    Flaw::LateKeep => context.holder(claim.key()).is_none(),
                    _ => context.has_own_marker(claim),
                };
                let claim = if is_owned(claim) && is_falsified {
                    let counter = context.counter(claim.key());
                    let number = claim.group().map_or(0, Group::number);
                    with_token(claim, counter.max(number))
                } else {
                    claim.clone()
                };
                ExtendItem {
                    claim,
                    ..item.clone()
                }
            };
            let items = items.iter().map(falsify).collect();
            Some(
                context
                    .memory
                    .apply(context.now, &Request::Extend { items }),
            )
        }
        _ => None,
    }
}
