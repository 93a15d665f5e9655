//! Checks the queue of a semaphore (docs/protocol.md, "Several resources, readers, owners, semaphores"):
//!
//! - On one master: only the first waiter in the queue gets a slot (one slot is one permit). If the slot that this
//!   waiter requests is free, the master grants it.
//! - On all masters, in true time: once a majority has queued a waiter, no task whose first attempt began later gets a
//!   permit earlier.

use std::collections::HashMap;
use std::sync::Arc;

use quorate_promises::Line;

use super::lines_up::LinesUp;
use super::order::place;
use super::queue::Queue;
use super::{Check, Moment};
use crate::change_plan::is_majority;
use crate::facts::{Believer, Call, Fact, Verb};
use crate::kind::Kind;
use crate::locker::{SEMAPHORES, semaphore_of, semaphore_of_key};
use crate::scenario::Scenario;
use quorate::node::{Answer, Ticket};

pub(crate) struct PermitLine {
    on: bool,
    lines_up: LinesUp,
    /// The queue on each master, by semaphore, computed from the requests that the master has executed.
    queues: Vec<[Queue; SEMAPHORES]>,
    /// The masters that have restarted (bit n is master n). After a restart, a master's queue may differ from `queues`.
    restarted: u16,
    /// The masters on which each waiter is queued (bit n is master n), by semaphore and waiter.
    stands: HashMap<(usize, Arc<str>), u16>,
    /// The waiters that a majority has queued, by semaphore, each with the number of the event at which the
    /// majority was reached.
    lines: [Line<Arc<str>>; SEMAPHORES],
    /// For each task that asks for a permit: the number of the event at which its first attempt began, and its name in
    /// the queue.
    tasks: HashMap<usize, (u64, Option<Arc<str>>)>,
    judged: u64,
}

impl PermitLine {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let masters = scenario.masters.len();
        let takes = scenario.takes(|kind| matches!(kind, Kind::Permit(_)));
        Self {
            on: takes && scenario.settings.fair && scenario.settings.fencing,
            lines_up: LinesUp::new(scenario),
            queues: (0..masters).map(|_| Default::default()).collect(),
            restarted: 0,
            stands: HashMap::new(),
            lines: Default::default(),
            tasks: HashMap::new(),
            judged: 0,
        }
    }

    fn stand(&mut self, event: u64, (master, line): (usize, usize), now_ms: u64, place: &Ticket) {
        let until_ms = now_ms + place.heartbeat.as_nanos().div_ceil(1_000_000) as u64;
        let rank = (place.number, place.waiter.clone());
        self.queues[master][line].stand(rank, until_ms, now_ms);
        self.stands_on(event, (master, line), place);
    }

    /// Records that a waiter is queued on this master. When a majority has queued the waiter, adds the waiter to
    /// `lines`.
    fn stands_on(&mut self, event: u64, (master, line): (usize, usize), place: &Ticket) {
        let masters = self.stands.entry((line, place.waiter.clone())).or_default();
        let before = *masters;
        *masters |= 1 << master;
        let sets = self.lines_up.sets(&place.waiter);
        if !is_majority(before, sets) && is_majority(*masters, sets) {
            self.lines[line].stands(place.waiter.clone(), event);
        }
    }

    fn leave(&mut self, line: usize, waiter: &Arc<str>) {
        self.stands.remove(&(line, waiter.clone()));
        self.lines[line].leaves(waiter);
    }

    /// Handles a master's reply to a client that asks for a slot.
    fn asked(&mut self, at: &Moment<'_>, line: usize, fact: &Fact<'_>) -> Result<(), String> {
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
        let granted = matches!(answer, Ok(Answer::Granted { .. }));
        let place = place(claim);
        // If the client already holds this slot, the grant only repeats an earlier grant, and the client is not queued
        // again.
        let again = granted && before.holder == Some(claim.token().to_hex());
        if let Some(place) = place.filter(|_| !again) {
            self.stand(at.event, (*master, line), *now_ms, place);
        }
        if again || !at.promises.steady {
            return Ok(());
        }
        let rank = place.map(|place| (place.number, place.waiter.clone()));
        let mut ahead = self.queues[*master][line].before(rank.as_ref(), *now_ms);
        let first = ahead.next();
        self.judged += 1;
        match first {
            Some(first) if granted && before.holder != after.holder => Err(format!(
                "master {master} granted a permit of the semaphore r{line}, although the waiter {first} is ahead in \
                 the queue"
            )),
            None if !granted && before.holder.is_none() && self.restarted >> master & 1 == 0 => {
                Err(format!(
                    "master {master} refused the first waiter of the semaphore r{line}, although the slot r{resource} \
                     is free"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns an error if a client obtained a permit although another waiter had been queued on a majority before the
    /// client's first attempt began.
    fn obtained(&mut self, at: &Moment<'_>, believer: &Believer) -> Result<(), String> {
        let Some((began, waiter)) = self.tasks.remove(&believer.task) else {
            return Ok(());
        };
        let Some(line) = semaphore_of(believer.resource) else {
            return Ok(());
        };
        if let Some(waiter) = &waiter {
            self.leave(line, waiter);
        }
        match self.lines[line].passed(began) {
            Some(passed) if at.promises.order => Err(format!(
                "client {} acquired a permit of r{line} before the waiter {passed}, which was queued on a majority \
                 of masters before the client's first attempt",
                believer.client
            )),
            _ => Ok(()),
        }
    }
}

impl Check for PermitLine {
    const RULE: &'static str = "queue of permits";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !self.on {
            return Ok(());
        }
        match fact {
            Fact::Started {
                client,
                task,
                claim,
            } if claim.permit().is_some() => {
                self.lines_up.begins(*client, place(claim));
                let attempt = self.tasks.entry(*task).or_insert((at.event, None));
                attempt.1 = place(claim).map(|place| place.waiter.clone());
            }
            Fact::Applied {
                verb: Verb::Acquire,
                resource,
                ..
            } => {
                if let Some(line) = semaphore_of(*resource) {
                    return self.asked(at, line, fact);
                }
            }
            Fact::Stood { master, claim } => {
                let line = semaphore_of_key(claim.key());
                if let (Some(place), Some(line)) = (place(claim), line) {
                    self.stands_on(at.event, (*master, line), place);
                }
            }
            Fact::Left { master, claim } => {
                let line = semaphore_of_key(claim.key());
                if let (Some(place), Some(line)) = (place(claim), line) {
                    self.queues[*master][line].leave(&place.waiter);
                    self.leave(line, &place.waiter);
                }
            }
            Fact::Restarted { master, .. } => {
                self.queues[*master] = Default::default();
                self.restarted |= 1 << master;
            }
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
