//! Checks the queue of a semaphore (docs/protocol.md, "Several resources, readers, owners, semaphores"):
//!
//! - On one master: only the first waiter in the queue gets a slot (one slot is one permit). If the slot that this
//!   waiter requests is free, the master grants it.
//! - On all masters, in true time: once a majority has queued a waiter, no task whose first attempt began later gets a
//!   permit earlier.

use std::collections::HashMap;
use std::sync::Arc;

use super::master_queue::MasterQueue;
use super::order::ticket;
use super::queued_waiters::QueuedWaiters;
use crate::check::{Check, Moment};
use crate::facts::{Believer, Call, Fact, Verb};
use crate::kind::Kind;
use crate::locker::{SEMAPHORES, semaphore_of_key, semaphore_of_place};
use crate::scenario::Scenario;
use quorate::node::{Answer, Ticket};

pub(crate) struct PermitQueue {
    applies: bool,
    /// The queue on each master, by semaphore, computed from the requests that the master has executed.
    queues: Vec<[MasterQueue; SEMAPHORES]>,
    /// The masters that have restarted (bit n is master n). After a restart, a master's queue may differ from `queues`.
    restarted_masters: u16,
    /// The waiters that are queued for each semaphore.
    queued_waiters: QueuedWaiters<SEMAPHORES>,
    /// For each task that asks for a permit: the number of the event at which its first attempt began, and its name in
    /// the queue.
    acquire_calls: HashMap<usize, (u64, Option<Arc<str>>)>,
    judged_cases: u64,
}

impl PermitQueue {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let masters = scenario.masters.len();
        let takes_permits = scenario.has_kind(|kind| matches!(kind, Kind::Permit(_)));
        Self {
            applies: takes_permits && scenario.settings.fair && scenario.settings.fencing,
            queues: (0..masters).map(|_| Default::default()).collect(),
            restarted_masters: 0,
            queued_waiters: QueuedWaiters::new(scenario),
            acquire_calls: HashMap::new(),
            judged_cases: 0,
        }
    }

    fn enqueue(
        &mut self,
        event: u64,
        (master, semaphore): (usize, usize),
        now_ms: u64,
        ticket: &Ticket,
    ) {
        let until_ms = now_ms + ticket.heartbeat.as_nanos().div_ceil(1_000_000) as u64;
        let rank = (ticket.number, ticket.waiter.clone());
        self.queues[master][semaphore].enqueue(rank, until_ms, now_ms);
        self.queued_waiters
            .enqueue(event, master, semaphore, &ticket.waiter);
    }

    /// Handles a master's reply to a client that asks for a slot.
    fn check_acquire(
        &mut self,
        moment: &Moment<'_>,
        semaphore: usize,
        fact: &Fact<'_>,
    ) -> Result<(), String> {
        let Fact::RequestExecuted {
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
        let is_granted = matches!(answer, Ok(Answer::Granted { .. }));
        let own_ticket = ticket(claim);
        // If the client already holds this slot, the grant only repeats an earlier grant, and the client is not queued
        // again.
        let is_repeated = is_granted && before.holder == Some(claim.token().to_hex());
        if let Some(ticket) = own_ticket.filter(|_| !is_repeated) {
            self.enqueue(moment.event, (*master, semaphore), *now_ms, ticket);
        }
        if is_repeated || !moment.promises.steady {
            return Ok(());
        }
        let rank = own_ticket.map(|ticket| (ticket.number, ticket.waiter.clone()));
        let mut ahead = self.queues[*master][semaphore].ahead_of(rank.as_ref(), *now_ms);
        let first = ahead.next();
        self.judged_cases += 1;
        match first {
            Some(first) if is_granted && before.holder != after.holder => Err(format!(
                "master {master} granted a permit of the semaphore r{semaphore}, although the waiter {first} is \
                 ahead in the queue"
            )),
            None if !is_granted
                && before.holder.is_none()
                && self.restarted_masters >> master & 1 == 0 =>
            {
                Err(format!(
                    "master {master} refused the first waiter of the semaphore r{semaphore}, although the slot \
                     r{resource} is free"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns an error if a client obtained a permit although another waiter had been queued on a majority before the
    /// client's first attempt began.
    fn check_obtained(&mut self, moment: &Moment<'_>, believer: &Believer) -> Result<(), String> {
        let Some((first_event, waiter)) = self.acquire_calls.remove(&believer.task) else {
            return Ok(());
        };
        let Some(semaphore) = semaphore_of_place(believer.resource) else {
            return Ok(());
        };
        if let Some(waiter) = &waiter {
            self.queued_waiters.dequeue(semaphore, waiter);
        }
        match self.queued_waiters.line(semaphore).passed(first_event) {
            Some(overtaken) if moment.promises.order => Err(format!(
                "client {} acquired a permit of r{semaphore} before the waiter {overtaken}, which was queued on a \
                 majority of masters before the client's first attempt",
                believer.client
            )),
            _ => Ok(()),
        }
    }
}

impl Check for PermitQueue {
    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !self.applies {
            return Ok(());
        }
        match fact {
            Fact::AttemptStarted {
                client,
                task,
                claim,
            } if claim.permit().is_some() => {
                self.queued_waiters.record_attempt(*client, ticket(claim));
                let attempt = self
                    .acquire_calls
                    .entry(*task)
                    .or_insert((moment.event, None));
                attempt.1 = ticket(claim).map(|ticket| ticket.waiter.clone());
            }
            Fact::RequestExecuted {
                verb: Verb::Acquire,
                resource,
                ..
            } => {
                if let Some(semaphore) = semaphore_of_place(*resource) {
                    return self.check_acquire(moment, semaphore, fact);
                }
            }
            Fact::WaiterQueued { master, claim } => {
                let semaphore = semaphore_of_key(claim.key());
                if let (Some(ticket), Some(semaphore)) = (ticket(claim), semaphore) {
                    let waiters = &mut self.queued_waiters;
                    waiters.enqueue(moment.event, *master, semaphore, &ticket.waiter);
                }
            }
            Fact::WaiterLeft { master, claim } => {
                let semaphore = semaphore_of_key(claim.key());
                if let (Some(ticket), Some(semaphore)) = (ticket(claim), semaphore) {
                    self.queues[*master][semaphore].dequeue(&ticket.waiter);
                    self.queued_waiters.dequeue(semaphore, &ticket.waiter);
                }
            }
            Fact::MasterRestarted { master, .. } => {
                self.queues[*master] = Default::default();
                self.restarted_masters |= 1 << master;
            }
            Fact::LockObtained { believer } => return self.check_obtained(moment, believer),
            Fact::CallReturned {
                task,
                call: Call::Acquire { .. },
                ..
            } => {
                self.acquire_calls.remove(task);
            }
            _ => {}
        }
        Ok(())
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases
    }
}
