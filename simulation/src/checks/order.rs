//! Rule 8: first come, first served.
//!
//! On every master: no grant while a live waiter stands before. Over all, on true time: once a waiter is in
//! line on a majority, no task whose first attempt began later has the lock before it. The second is
//! promised where nothing keeps waiters from showing signs of life.

use std::collections::HashMap;
use std::sync::Arc;

use quorate_promises::Line;

use super::{Check, Moment};
use crate::facts::{Believer, Call, Fact, Verb};
use crate::locker::{RESOURCES, resource_of};
use crate::scenario::Scenario;
use quorate::node::{Answer, Claim, Fairness, Ticket};

pub(crate) struct Order {
    fair: bool,
    quorum: u32,
    /// The line on each master, per resource, as the messages make it.
    queues: Vec<[Vec<Standing>; RESOURCES]>,
    /// On which masters each waiter stands.
    stands: HashMap<Arc<str>, u16>,
    /// Those who stand on a majority, since which event.
    lines: [Line<Arc<str>>; RESOURCES],
    /// What each task is at.
    tasks: HashMap<usize, Attempts>,
    judged: u64,
}

struct Standing {
    rank: (u64, Arc<str>),
    /// On the master's clock.
    until_ms: u64,
}

/// The attempts of one acquire.
struct Attempts {
    /// The event with which the first of them began.
    first: u64,
    waiter: Option<Arc<str>>,
}

impl Order {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let masters = scenario.masters.len();
        Self {
            fair: scenario.settings.fair && scenario.settings.fencing,
            quorum: masters as u32 / 2 + 1,
            queues: (0..masters).map(|_| Default::default()).collect(),
            stands: HashMap::new(),
            lines: Default::default(),
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
    ) {
        let rank = (place.number, place.waiter.clone());
        let until_ms = now_ms + place.heartbeat.as_nanos().div_ceil(1_000_000) as u64;
        let queue = &mut self.queues[master][resource];
        // The dead are purged: a clock that jumps back does not bring them to life.
        queue.retain(|one| one.until_ms > now_ms || one.rank == rank);
        match queue.iter_mut().find(|one| one.rank == rank) {
            Some(one) => one.until_ms = until_ms,
            None => queue.push(Standing { rank, until_ms }),
        }
        let masters = self.stands.entry(place.waiter.clone()).or_default();
        let before = masters.count_ones();
        *masters |= 1 << master;
        if before < self.quorum && masters.count_ones() >= self.quorum {
            self.lines[resource].stands(place.waiter.clone(), event);
        }
    }

    fn leave(&mut self, resource: usize, waiter: &Arc<str>) {
        self.stands.remove(waiter);
        self.lines[resource].leaves(waiter);
    }

    /// Whether somebody has a lock over the head of another who stood in line before it came.
    fn obtained(&mut self, at: &Moment<'_>, believer: &Believer) -> Result<(), String> {
        let Some(attempts) = self.tasks.remove(&believer.task) else {
            return Ok(());
        };
        let resource = believer.resource;
        if let Some(waiter) = &attempts.waiter {
            self.leave(resource, waiter);
        }
        if !at.promises.order {
            return Ok(());
        }
        let line = &self.lines[resource];
        self.judged += u64::from(line.first().is_some());
        match line.passed(attempts.first) {
            None => Ok(()),
            Some(passed) => Err(format!(
                "client {} has r{resource} before {passed}, who stood in line on a majority when it began",
                believer.client
            )),
        }
    }

    /// Whether a master granted a lock over the head of somebody in its line.
    fn grant(
        &self,
        (master, resource): (usize, usize),
        now_ms: u64,
        place: Option<&Ticket>,
    ) -> Result<(), String> {
        let rank = place.map(|place| (place.number, place.waiter.clone()));
        let before = |one: &&Standing| {
            one.until_ms > now_ms && rank.as_ref().is_none_or(|rank| one.rank < *rank)
        };
        match self.queues[master][resource].iter().find(before) {
            None => Ok(()),
            Some(first) => Err(format!(
                "master {master} granted r{resource} although {} stands before",
                first.rank.1
            )),
        }
    }
}

fn place(claim: &Claim) -> Option<&Ticket> {
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
            Fact::Started { task, claim, .. } => {
                let attempts = self.tasks.entry(*task).or_insert(Attempts {
                    first: at.event,
                    waiter: None,
                });
                attempts.waiter = place(claim).map(|place| place.waiter.clone());
            }
            Fact::Applied {
                master,
                now_ms,
                resource,
                claim,
                verb: Verb::Acquire,
                answer,
                before,
                after,
                ..
            } => {
                let (place, here) = (place(claim), (*master, *resource));
                if let Some(place) = place {
                    self.stand(at.event, here, *now_ms, place);
                }
                let granted = matches!(answer, Ok(Answer::Granted { .. }));
                if granted && before.holder != after.holder && at.promises.steady {
                    return self.grant(here, *now_ms, place);
                }
            }
            Fact::Left { master, claim } => {
                if let Some(place) = place(claim) {
                    let resource = resource_of(claim.key());
                    let queue = &mut self.queues[*master][resource];
                    queue.retain(|one| one.rank.1 != place.waiter);
                    self.leave(resource, &place.waiter);
                }
            }
            Fact::Restarted { master, .. } => self.queues[*master] = Default::default(),
            Fact::Obtained { believer } => return self.obtained(at, believer),
            Fact::Returned {
                task,
                call: Call::Acquire { .. },
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
