//! Seeded bugs in the scripts for locks on several resources, locks of readers and owners, and semaphores.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use quorate::node::memory::Master;
use quorate::node::{Answer, Claim, Class, ExtendItem, Group, Mode, QueueInfo, Request};

use super::Flaw;
use super::mget::read_as_free;
use super::permits::SlotsTaken;
use super::tickets::Tickets;
use super::turn::{Outcome, Turn, ticket};

/// A fencing counter is roughly a time in microseconds. A master limits a proposed counter to at most this distance
/// from its own clock.
const SLACK_US: u64 = 1_000_000;

/// The state that a faulty master has in addition to its keys.
#[derive(Default)]
pub(crate) struct WrongScripts {
    /// The number of shared holds that the master has counted under each lock key.
    counted: HashMap<Vec<u8>, i64>,
    /// The waiters that want several resources.
    several: HashSet<Arc<str>>,
    /// The slots of semaphores that the master has given to lock values.
    slots: SlotsTaken,
    /// The largest ticket that waiters have drawn for each resource.
    tickets: Tickets,
}

/// Returns the class of a shared claim (readers, or one owner); `None` for an exclusive claim.
fn class(claim: &Claim) -> Option<&Class> {
    match &claim.group()?.parts().first()?.mode {
        Mode::Class(class) => Some(class),
        Mode::Exclusive => None,
    }
}

/// Whether the claim is an exclusive claim on one resource.
fn is_plain(claim: &Claim) -> bool {
    claim.group().is_none() && claim.permit().is_none()
}

fn reads(claim: &Claim) -> bool {
    class(claim) == Some(&Class::Shared)
}

fn owned(claim: &Claim) -> bool {
    matches!(class(claim), Some(Class::Owner(_)))
}

fn instead(claim: &Claim) -> bool {
    claim.group().is_some_and(|group| group.instead().is_some())
}

fn is_several(claim: &Claim) -> bool {
    claim.group().is_some_and(|group| group.parts().len() > 1)
}

fn keys_of(claim: &Claim) -> Vec<Vec<u8>> {
    claim.keys().map(|key| key.to_vec()).collect()
}

/// Returns the same claim with the fencing token `number`.
fn renumbered(claim: &Claim, number: u64) -> Arc<Claim> {
    let parts = claim
        .group()
        .map_or(Vec::new(), |group| group.parts().to_vec());
    let group = Group::new(parts);
    group.agreed(number);
    let same = Claim::new("", claim.key(), claim.token(), true).with_group(group);
    if claim.is_withdrawn() {
        same.withdraw();
    }
    Arc::new(same)
}

impl Turn<'_> {
    fn shows(&self, claim: &Claim) -> bool {
        class(claim).is_some_and(|class| self.holder(claim.key()) == Some(class.marker()))
    }

    fn is_member(&self, claim: &Claim) -> bool {
        let value = claim.token().to_hex();
        let members = self.memory.standing(claim.key());
        members.iter().any(|(member, _)| *member == value)
    }

    /// Returns the ids of the waiters that are ahead of the claim in the queue.
    fn before(&mut self, claim: &Claim) -> Vec<String> {
        let key: Arc<[u8]> = claim.key().into();
        let Ok(Answer::State(state)) = self.memory.apply(self.now, &Request::Look { key }) else {
            return Vec::new();
        };
        let me = ticket(claim).map(|ticket| ticket.waiter.to_string());
        let ids = state.queue.into_iter().map(|waiter| waiter.id);
        ids.take_while(|id| me.as_ref() != Some(id)).collect()
    }

    /// Grants one key exclusively, ignoring the queue.
    fn take(&mut self, claim: &Claim, ttl: Duration) -> Answer {
        let number = self.counter(claim.key()) + 1;
        self.set_counter(claim.key(), number);
        self.put(claim.key(), &claim.token().to_hex(), ttl);
        let counter = Some(number);
        Answer::Granted { counter }
    }

    /// After a grant, resets the key's fencing counter to `before` (its value before the grant), and returns a grant
    /// with this counter. If `answer` is no grant or `before` is zero, returns `answer` and changes nothing.
    fn unraised(&mut self, key: &[u8], before: u64, answer: Outcome) -> Outcome {
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
        let mut turn = Turn {
            memory,
            now,
            request,
        };
        if flaw.is_of_permits() {
            return self.slots.execute(flaw, &mut turn);
        }
        match request {
            Request::Acquire {
                claim,
                ttl,
                proposal,
            } => match flaw {
                Flaw::TicketPerResource if is_several(claim) => {
                    let said = self.tickets.several(&mut turn, claim, (*ttl, *proposal));
                    Some(said)
                }
                Flaw::TicketPerResource => self.tickets.alone(claim),
                Flaw::MgetWrongtype if claim.group().is_some() => {
                    read_as_free(&mut turn, &keys_of(claim))
                }
                _ => self.acquire(flaw, turn, claim, (*ttl, *proposal)),
            },
            Request::Confirm { claim, token } => confirm(flaw, turn, claim, *token),
            Request::Release { claim, .. } => self.release(flaw, turn, claim),
            Request::Extend { items } => extend(flaw, turn, items),
            _ => None,
        }
    }

    fn acquire(
        &mut self,
        flaw: Flaw,
        mut turn: Turn<'_>,
        claim: &Claim,
        (ttl, proposal): (Duration, u64),
    ) -> Option<Outcome> {
        let key = claim.key();
        let (holder, counter) = (turn.holder(key), turn.counter(key));
        let refused = |answer: &Outcome| matches!(answer, Ok(Answer::Refused { .. }));
        let granted = |answer: &Outcome| matches!(answer, Ok(Answer::Granted { .. }));
        if let Some(ticket) = ticket(claim).filter(|_| is_several(claim)) {
            self.several.insert(ticket.waiter.clone());
        }
        Some(match flaw {
            Flaw::CountedHolds if class(claim).is_some() => {
                let stood = turn.shows(claim);
                let answer = turn.sound();
                if granted(&answer) {
                    let counted = self.counted.entry(key.to_vec()).or_default();
                    *counted = if stood { *counted + 1 } else { 1 };
                }
                answer
            }
            Flaw::NewestExpiry if class(claim).is_some() => {
                let answer = turn.sound();
                if let (true, Some(class)) = (granted(&answer), class(claim)) {
                    turn.put(key, &class.marker(), ttl);
                }
                answer
            }
            Flaw::MarkerlessReaders if reads(claim) => {
                let answer = turn.sound();
                if granted(&answer) {
                    turn.free(key);
                }
                answer
            }
            Flaw::ReaderNoRaise if reads(claim) && !instead(claim) && holder.is_none() => {
                let answer = turn.sound();
                turn.unraised(key, counter, answer)
            }
            Flaw::DowngradeNoRaise if instead(claim) => {
                let answer = turn.sound();
                turn.unraised(key, counter, answer)
            }
            Flaw::ReadersPassWriters if reads(claim) => {
                let answer = turn.sound();
                let free = turn.holder(key).is_none();
                if !refused(&answer) || !(free || turn.shows(claim)) {
                    return Some(answer);
                }
                let number = counter + u64::from(free);
                let claim = renumbered(claim, number);
                let items = [ExtendItem {
                    claim,
                    ttl,
                    note: false,
                }]
                .into();
                let _kept = turn.memory.apply(turn.now, &Request::Extend { items });
                let counter = Some(number);
                Ok(Answer::Granted { counter })
            }
            Flaw::WritersFirst | Flaw::SinglePassesMulti | Flaw::OwnerInLine => {
                return self.in_line(flaw, turn, claim, (ttl, proposal));
            }
            _ => return of_several(flaw, turn, claim, (ttl, proposal)),
        })
    }

    /// Answers an acquire as a master with a seeded bug in its queue. Returns `None` if the correct master must answer.
    fn in_line(
        &self,
        flaw: Flaw,
        mut turn: Turn<'_>,
        claim: &Claim,
        (ttl, _): (Duration, u64),
    ) -> Option<Outcome> {
        let key = claim.key();
        let holder = turn.holder(key);
        let refused = |answer: &Outcome| matches!(answer, Ok(Answer::Refused { .. }));
        Some(match flaw {
            Flaw::WritersFirst | Flaw::SinglePassesMulti if is_plain(claim) => {
                let answer = turn.sound();
                let before = turn.before(claim);
                let passes = |id: &String| match flaw {
                    Flaw::WritersFirst => id.ends_with(":r"),
                    _ => self.several.contains(&**id),
                };
                if refused(&answer) && turn.holder(key).is_none() && before.iter().all(passes) {
                    return Some(Ok(turn.take(claim, ttl)));
                }
                answer
            }
            Flaw::OwnerInLine if owned(claim) && turn.shows(claim) && !turn.is_member(claim) => {
                let before = turn.before(claim);
                if before.is_empty() {
                    return None;
                }
                let ahead = before.len() as u64;
                let line = QueueInfo {
                    ahead,
                    ticket: ticket(claim).map_or(ahead, |ticket| ticket.number),
                    holder,
                    ..QueueInfo::default()
                };
                Ok(Answer::Refused {
                    ttl_left: Some(ttl),
                    line: Some(Box::new(line)),
                })
            }
            _ => return None,
        })
    }

    fn release(&mut self, flaw: Flaw, mut turn: Turn<'_>, claim: &Claim) -> Option<Outcome> {
        if flaw != Flaw::CountedHolds || !turn.shows(claim) {
            return None;
        }
        let answer = turn.sound();
        let key = claim.key();
        let counted = self.counted.entry(key.to_vec()).or_default();
        *counted -= 1;
        if *counted <= 0 && turn.shows(claim) {
            turn.free(key);
        }
        Some(answer)
    }
}

/// Answers an acquire as a master with a seeded bug in locks on several resources. Returns `None` if the correct master
/// must answer.
fn of_several(
    flaw: Flaw,
    mut turn: Turn<'_>,
    claim: &Claim,
    (ttl, proposal): (Duration, u64),
) -> Option<Outcome> {
    let key = claim.key();
    let holder = turn.holder(key);
    let refused = |answer: &Outcome| matches!(answer, Ok(Answer::Refused { .. }));
    let granted = |answer: &Outcome| matches!(answer, Ok(Answer::Granted { .. }));
    Some(match flaw {
        Flaw::MultiOwnCounter if is_several(claim) => {
            let stood: Vec<_> = claim.keys().map(|key| turn.counter(key)).collect();
            let value = claim.token().to_hex();
            let again = holder.as_deref() == Some(&value[..]);
            let answer = turn.sound();
            if again || !granted(&answer) {
                return Some(answer);
            }
            let lowest = turn.now.saturating_sub(SLACK_US);
            let clamped = proposal.clamp(lowest, turn.now + SLACK_US);
            let mut largest = 0;
            for (key, stood) in claim.keys().zip(stood) {
                let number = clamped.max(stood + 1);
                largest = largest.max(number);
                turn.set_counter(key, number);
            }
            let counter = Some(largest);
            Ok(Answer::Granted { counter })
        }
        Flaw::PartialGrantCounts if is_several(claim) => {
            let answer = turn.sound();
            let free = claim.keys().filter(|key| turn.holder(key).is_none());
            let free: Vec<_> = free.collect();
            if !refused(&answer) || free.is_empty() {
                return Some(answer);
            }
            let largest = claim.keys().map(|key| turn.counter(key)).max();
            let number = largest.unwrap_or(0) + 1;
            for key in free {
                turn.set_counter(key, number);
                turn.put(key, &claim.token().to_hex(), ttl);
            }
            let counter = Some(number);
            Ok(Answer::Granted { counter })
        }
        _ => return None,
    })
}

fn confirm(flaw: Flaw, mut turn: Turn<'_>, claim: &Claim, token: u64) -> Option<Outcome> {
    Some(match flaw {
        Flaw::ReaderAtLeast if reads(claim) => match turn.sound() {
            Ok(Answer::CounterAbove(_)) => Ok(Answer::Confirmed),
            answer => answer,
        },
        Flaw::OwnerWritesBack if owned(claim) => match turn.sound() {
            Ok(Answer::NotAlone) => {
                let counter = turn.counter(claim.key());
                if counter > token {
                    return Some(Ok(Answer::CounterAbove(counter)));
                }
                turn.set_counter(claim.key(), token);
                Ok(Answer::Confirmed)
            }
            answer => answer,
        },
        Flaw::ConfirmAnyKey if is_several(claim) => match turn.sound() {
            Ok(Answer::NotOurs) => {
                let value = claim.token().to_hex();
                let ours = |key: &&Arc<[u8]>| turn.holder(key).as_deref() == Some(&value[..]);
                let ours: Vec<_> = claim.keys().filter(ours).collect();
                if ours.is_empty() || ours.iter().any(|key| turn.counter(key) > token) {
                    return Some(Ok(Answer::NotOurs));
                }
                for key in ours {
                    turn.set_counter(key, token);
                }
                Ok(Answer::Confirmed)
            }
            answer => answer,
        },
        _ => return None,
    })
}

fn extend(flaw: Flaw, mut turn: Turn<'_>, items: &[ExtendItem]) -> Option<Outcome> {
    match flaw {
        Flaw::NewestExpiry => {
            let answer = turn.sound();
            for item in items.iter().filter(|item| !item.claim.is_withdrawn()) {
                if let Some(class) = class(&item.claim).filter(|_| turn.shows(&item.claim)) {
                    turn.put(item.claim.key(), &class.marker(), item.ttl);
                }
            }
            Some(answer)
        }
        Flaw::KeepNoRaise => {
            let stood = |item: &ExtendItem| turn.counter(item.claim.key());
            let stood: Vec<u64> = items.iter().map(stood).collect();
            let answer = turn.sound();
            for (item, stood) in items.iter().zip(stood) {
                let number = item.claim.group().map_or(0, Group::number);
                if reads(&item.claim) && stood > number {
                    turn.set_counter(item.claim.key(), stood);
                }
            }
            Some(answer)
        }
        Flaw::LateKeep | Flaw::OwnerAnyNumber => {
            let wrong = |item: &ExtendItem| {
                let claim = &item.claim;
                let stands = match flaw {
                    Flaw::LateKeep => turn.holder(claim.key()).is_none(),
                    _ => turn.shows(claim),
                };
                let claim = if owned(claim) && stands {
                    let counter = turn.counter(claim.key());
                    let number = claim.group().map_or(0, Group::number);
                    renumbered(claim, counter.max(number))
                } else {
                    claim.clone()
                };
                let (ttl, note) = (item.ttl, item.note);
                ExtendItem { claim, ttl, note }
            };
            let items = items.iter().map(wrong).collect();
            let said = turn.memory.apply(turn.now, &Request::Extend { items });
            Some(said)
        }
        _ => None,
    }
}
