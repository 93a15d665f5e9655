//! Checks "first come, first served" with two rules:
//!
//! - On one master: the master grants no client the lock while another live waiter is ahead in this master's queue.
//! - On all masters, in true time: once a majority has queued a waiter, no task whose first attempt began later gets
//!   the lock earlier. This second rule is checked only in scenarios without faults.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use quorate_promises::Line;

use super::groups::{class_on, shows};
use super::lines_up::LinesUp;
use super::queue::Queue;
use super::{Check, Moment};
use crate::change_plan::is_majority;
use crate::facts::{Believer, Call, Fact, Verb};
use crate::kind::Class;
use crate::locker::{RESOURCES, resource_of, semaphore_of, semaphore_of_key};
use crate::scenario::Scenario;
use quorate::node::{Answer, Claim, Class as NodeClass, Fairness, Ticket};

pub(crate) struct Order {
    fair: bool,
    lines_up: LinesUp,
    /// The queue on each master, by resource, computed from the requests that the master has executed.
    queues: Vec<[Queue; RESOURCES]>,
    /// The masters on which each waiter is queued (bit n is master n), by resource and waiter.
    stands: HashMap<(usize, Arc<str>), u16>,
    /// The waiters that a majority has queued, by resource, each with the number of the event at which the
    /// majority was reached. Waiters for a reader's lock are in `readers` instead.
    lines: [Line<Arc<str>>; RESOURCES],
    /// The waiters for a reader's lock that are queued on a majority, by resource. Other readers may overtake them.
    readers: [Line<Arc<str>>; RESOURCES],
    /// The shared holds that a master has granted, by master, resource and lock value. If a master grants one of these
    /// holds again, the second grant is only a repetition.
    granted: HashSet<(usize, usize, [u8; 32])>,
    /// The current acquire call of each task.
    tasks: HashMap<usize, Attempts>,
    judged: u64,
}

/// The attempts of one acquire call.
struct Attempts {
    /// The number of the event at which the call's first attempt began.
    first: u64,
    waiter: Option<Arc<str>>,
    /// Whether the call replaces a lock that its task already holds, e.g. by a downgrade. Such a call does not wait for
    /// other clients.
    instead: bool,
}

impl Order {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let masters = scenario.masters.len();
        Self {
            fair: scenario.settings.fair && scenario.settings.fencing,
            lines_up: LinesUp::new(scenario),
            queues: (0..masters).map(|_| Default::default()).collect(),
            stands: HashMap::new(),
            lines: Default::default(),
            readers: Default::default(),
            granted: HashSet::new(),
            tasks: HashMap::new(),
            judged: 0,
        }
    }

    fn stand(
        &mut self,
        event: u64,
        (master, resource): (usize, usize),
        now_ms: u64,
        place: &Ticket,
        reads: bool,
    ) {
        let rank = (place.number, named(place, reads));
        let until_ms = now_ms + place.heartbeat.as_nanos().div_ceil(1_000_000) as u64;
        self.queues[master][resource].stand(rank, until_ms, now_ms);
        self.stands_on(event, (master, resource), place, reads);
    }

    /// Records that a waiter is queued on this master. When a majority has queued the waiter, adds the waiter to
    /// `lines` or `readers`.
    fn stands_on(
        &mut self,
        event: u64,
        (master, resource): (usize, usize),
        place: &Ticket,
        reads: bool,
    ) {
        let standing = (resource, place.waiter.clone());
        let masters = self.stands.entry(standing).or_default();
        let before = *masters;
        *masters |= 1 << master;
        let sets = self.lines_up.sets(&place.waiter);
        if !is_majority(before, sets) && is_majority(*masters, sets) {
            let lines = if reads {
                &mut self.readers
            } else {
                &mut self.lines
            };
            lines[resource].stands(place.waiter.clone(), event);
        }
    }

    fn leave(&mut self, resource: usize, waiter: &Arc<str>) {
        self.stands.remove(&(resource, waiter.clone()));
        self.lines[resource].leaves(waiter);
        self.readers[resource].leaves(waiter);
    }

    /// Returns an error if a client obtained the lock although another waiter had been queued on a majority before the
    /// client's first attempt began.
    fn obtained(&mut self, at: &Moment<'_>, believer: &Believer) -> Result<(), String> {
        let Some(attempts) = self.tasks.remove(&believer.task) else {
            return Ok(());
        };
        // Semaphores have queues of their own, which `permit_line.rs` checks.
        if semaphore_of(believer.resource).is_some() {
            return Ok(());
        }
        if let Some(waiter) = &attempts.waiter {
            for resource in believer.scope.resources() {
                self.leave(resource, waiter);
            }
        }
        // An owner that already holds the lock may overtake every waiter. So may a client that replaces its own lock
        // (e.g. downgrades it).
        let passes = matches!(believer.scope.class, Some(Class::Owner(_))) || attempts.instead;
        if !at.promises.order || passes {
            return Ok(());
        }
        for resource in believer.scope.resources() {
            let line = &self.lines[resource];
            self.judged += u64::from(line.first().is_some());
            let passed = line.passed(attempts.first);
            let readers = self.readers[resource].passed(attempts.first);
            let passed = passed.or(readers.filter(|_| believer.scope.class.is_none()));
            if let Some(passed) = passed {
                return Err(format!(
                    "client {} acquired r{resource} before the waiter {passed}, which was queued on a majority of \
                     masters before the client's first attempt",
                    believer.client
                ));
            }
        }
        Ok(())
    }

    /// Handles a master's reply to a client that asks for a lock.
    fn asked(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        let Fact::Applied {
            master,
            now_ms,
            resource,
            claim,
            answer,
            before,
            after,
            ..
        } = fact
        else {
            return Ok(());
        };

        // While the value of another program is under the lock key, the master answers with an error and queues no
        // client.
        if answer.is_err() {
            return Ok(());
        }
        let here = (*master, *resource);
        let class = class_on(claim, *resource);
        let reads = class == Some(&NodeClass::Shared);
        let place = place(claim);
        let granted = matches!(answer, Ok(Answer::Granted { .. }));
        if instead(claim) {
            // The client's new lock replaces its own old lock. The master then removes the client from the queue.
            if let Some(place) = place.filter(|_| granted) {
                self.queues[*master][*resource].leave(&place.waiter);
            }
            return Ok(());
        }
        let value = claim.token().to_hex();
        // A master does not queue a client again when it repeats an earlier grant.
        let again = granted
            && match class {
                None => claim.group().is_some() && before.holder == Some(value),
                Some(_) => !self.granted.insert((*master, *resource, value)),
            };
        if let Some(place) = place.filter(|_| !again) {
            self.stand(at.event, here, *now_ms, place, reads);
        }
        let fresh = match class {
            None => before.holder != after.holder,
            // Check all grants to readers except repeated ones. Check only the first grant to an owner, because an
            // owner that already holds the lock may overtake waiters.
            Some(NodeClass::Shared) => !again,
            Some(class) => !again && !shows(before.holder, class),
        };
        let fresh = fresh && granted && at.promises.steady;
        if fresh {
            return self.grant(here, *now_ms, place, reads);
        }
        Ok(())
    }

    /// Returns an error if a master granted a lock while another client was ahead in this master's queue.
    fn grant(
        &self,
        (master, resource): (usize, usize),
        now_ms: u64,
        place: Option<&Ticket>,
        reads: bool,
    ) -> Result<(), String> {
        let rank = place.map(|place| (place.number, named(place, reads)));
        let mut before = self.queues[master][resource].before(rank.as_ref(), now_ms);
        // A reader need not wait for other readers, so readers that are ahead of it in the queue are ignored.
        match before.find(|id| !(reads && id.ends_with(READER))) {
            None => Ok(()),
            Some(first) => Err(format!(
                "master {master} granted r{resource}, although the waiter {first} is ahead in the master's queue"
            )),
        }
    }
}

/// The suffix of the name under which a waiter for a reader's lock is queued.
const READER: &str = ":r";

/// Returns the name under which a waiter is queued.
fn named(place: &Ticket, reads: bool) -> Arc<str> {
    if reads {
        format!("{}{READER}", place.waiter).into()
    } else {
        place.waiter.clone()
    }
}

/// Whether the claim replaces a lock that the same client already holds.
fn instead(claim: &Claim) -> bool {
    claim.group().is_some_and(|group| group.instead().is_some())
}

pub(super) fn place(claim: &Claim) -> Option<&Ticket> {
    match claim.fairness() {
        Fairness::Fair(place) => place.as_deref(),
        Fairness::Unordered => None,
    }
}

impl Check for Order {
    const RULE: &'static str = "first come, first served";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !self.fair {
            return Ok(());
        }
        match fact {
            Fact::Started {
                client,
                task,
                claim,
            } => {
                self.lines_up.begins(*client, place(claim));
                let attempts = self.tasks.entry(*task).or_insert(Attempts {
                    first: at.event,
                    waiter: None,
                    instead: instead(claim),
                });
                attempts.waiter = place(claim).map(|place| place.waiter.clone());
            }
            Fact::Applied {
                verb: Verb::Acquire,
                resource,
                ..
            } if *resource < RESOURCES => return self.asked(at, fact),
            Fact::Stood { master, claim } if semaphore_of_key(claim.key()).is_none() => {
                for key in claim.keys().filter(|_| !instead(claim)) {
                    let resource = resource_of(key);
                    let reads = class_on(claim, resource) == Some(&NodeClass::Shared);
                    if let Some(place) = place(claim) {
                        self.stands_on(at.event, (*master, resource), place, reads);
                    }
                }
            }
            // An extension may restore a lost shared hold. Count this hold as granted.
            Fact::Applied {
                master,
                resource,
                claim,
                verb: Verb::Extend,
                members,
                ..
            } if !members.is_empty() => {
                let value = claim.token().to_hex();
                if members.iter().any(|member| member.value == value) {
                    self.granted.insert((*master, *resource, value));
                }
            }
            Fact::Left { master, claim } if semaphore_of_key(claim.key()).is_none() => {
                if let Some(place) = place(claim) {
                    for key in claim.keys() {
                        let resource = resource_of(key);
                        let reads = class_on(claim, resource) == Some(&NodeClass::Shared);
                        let name = named(place, reads);
                        self.queues[*master][resource].leave(&name);
                        self.leave(resource, &place.waiter);
                    }
                }
            }
            Fact::Restarted { master, .. } => self.queues[*master] = Default::default(),
            Fact::Obtained { believer } => return self.obtained(at, believer),
            Fact::Returned {
                task,
                call: Call::Acquire { .. } | Call::Downgrade | Call::Value { .. },
                ..
            } => {
                self.tasks.remove(task);
            }
            _ => {}
        }
        Ok(())
    }

    fn judged(&self) -> u64 {
        self.judged
    }
}
