//! Checks "first come, first served" with two rules:
//!
//! - On one master: the master grants no client the lock while another live waiter is ahead in this master's queue.
//! - On all masters, in true time: once a majority has queued a waiter, no task whose first attempt began later gets
//!   the lock earlier. This second rule is checked only in scenarios without faults.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::groups::{class_on, has_marker_of};
use super::master_queue::MasterQueue;
use super::queued_waiters::QueuedWaiters;
use crate::check::{Check, Moment};
use crate::facts::{Believer, Call, Fact, Verb};
use crate::kind::Class;
use crate::locker::{RESOURCES, place_of_key, semaphore_of_key, semaphore_of_place};
use crate::scenario::Scenario;
use quorate::node::{Answer, Claim, Class as NodeClass, Fairness, Ticket};

pub(crate) struct Order {
    is_fair: bool,
    /// The queue on each master, by resource, computed from the requests that the master has executed.
    queues: Vec<[MasterQueue; RESOURCES]>,
    /// The waiters that are queued for each resource. The waiters for a reader's lock have queues of their own, after all
    /// others (see `queue_of`), because other readers may overtake them.
    queued_waiters: QueuedWaiters<{ 2 * RESOURCES }>,
    /// The shared holds that a master has granted, by master, resource and lock value. If a master grants one of these
    /// holds again, the second grant is only a repetition.
    granted_holds: HashSet<(usize, usize, [u8; 32])>,
    /// The current acquire call of each task.
    acquire_calls: HashMap<usize, AcquireCall>,
    judged_cases: u64,
}

/// The attempts of one acquire call.
struct AcquireCall {
    /// The number of the event at which the call's first attempt began.
    first_event: u64,
    waiter: Option<Arc<str>>,
    /// Whether the call replaces a lock that its task already holds, e.g. by a downgrade. Such a call does not wait for
    /// other clients.
    replaces_own_lock: bool,
}

impl Order {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let masters = scenario.masters.len();
        Self {
            is_fair: scenario.settings.fair && scenario.settings.fencing,
            queues: (0..masters).map(|_| Default::default()).collect(),
            queued_waiters: QueuedWaiters::new(scenario),
            granted_holds: HashSet::new(),
            acquire_calls: HashMap::new(),
            judged_cases: 0,
        }
    }

    fn enqueue(
        &mut self,
        event: u64,
        (master, resource): (usize, usize),
        now_ms: u64,
        ticket: &Ticket,
        is_reader: bool,
    ) {
        let rank = (ticket.number, queue_name(ticket, is_reader));
        let until_ms = now_ms + ticket.heartbeat.as_nanos().div_ceil(1_000_000) as u64;
        self.queues[master][resource].enqueue(rank, until_ms, now_ms);
        let queue = queue_of(resource, is_reader);
        self.queued_waiters
            .enqueue(event, master, queue, &ticket.waiter);
    }

    /// Records that a master has put the waiter of a claim into the queue of each of its resources.
    fn record_waiter(&mut self, event: u64, master: usize, claim: &Claim) {
        for key in claim.keys().filter(|_| !replaces_own_lock(claim)) {
            let resource = place_of_key(key);
            let is_reader = class_on(claim, resource) == Some(&NodeClass::Shared);
            if let Some(ticket) = ticket(claim) {
                let queue = queue_of(resource, is_reader);
                let waiters = &mut self.queued_waiters;
                waiters.enqueue(event, master, queue, &ticket.waiter);
            }
        }
    }

    fn dequeue(&mut self, resource: usize, waiter: &Arc<str>) {
        for is_reader in [false, true] {
            let queue = queue_of(resource, is_reader);
            self.queued_waiters.dequeue(queue, waiter);
        }
    }

    /// Returns an error if a client obtained the lock although another waiter had been queued on a majority before the
    /// client's first attempt began.
    fn check_obtained(&mut self, moment: &Moment<'_>, believer: &Believer) -> Result<(), String> {
        let Some(call) = self.acquire_calls.remove(&believer.task) else {
            return Ok(());
        };
        // Semaphores have queues of their own, which `permit_queue.rs` checks.
        if semaphore_of_place(believer.resource).is_some() {
            return Ok(());
        }
        if let Some(waiter) = &call.waiter {
            for resource in believer.scope.resources() {
                self.dequeue(resource, waiter);
            }
        }
        // An owner that already holds the lock may overtake every waiter. So may a client that replaces its own lock
        // (e.g. downgrades it).
        let may_overtake =
            matches!(believer.scope.class, Some(Class::Owner(_))) || call.replaces_own_lock;
        if !moment.promises.order || may_overtake {
            return Ok(());
        }
        for resource in believer.scope.resources() {
            let waiters = self.queued_waiters.line(queue_of(resource, false));
            let readers = self.queued_waiters.line(queue_of(resource, true));
            self.judged_cases += u64::from(waiters.first().is_some());
            let overtaken_waiter = waiters.passed(call.first_event);
            let overtaken_reader = readers.passed(call.first_event);
            let overtaken =
                overtaken_waiter.or(overtaken_reader.filter(|_| believer.scope.class.is_none()));
            if let Some(overtaken) = overtaken {
                return Err(format!(
                    "client {} acquired r{resource} before the waiter {overtaken}, which was queued on a majority of \
                     masters before the client's first attempt",
                    believer.client
                ));
            }
        }
        Ok(())
    }

    /// Handles a master's reply to a client that asks for a lock.
    fn check_acquire(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
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

        // While the value of another program is under the lock key, the master answers with an error and queues no
        // client.
        if answer.is_err() {
            return Ok(());
        }
        let key = (*master, *resource);
        let class = class_on(claim, *resource);
        let is_reader = class == Some(&NodeClass::Shared);
        let own_ticket = ticket(claim);
        let is_granted = matches!(answer, Ok(Answer::Granted { .. }));
        if replaces_own_lock(claim) {
            // The client's new lock replaces its own old lock. The master then removes the client from the queue.
            if let Some(ticket) = own_ticket.filter(|_| is_granted) {
                self.queues[*master][*resource].dequeue(&ticket.waiter);
            }
            return Ok(());
        }
        let value = claim.token().to_hex();
        // A master does not queue a client again when it repeats an earlier grant.
        let is_repeated = is_granted
            && match class {
                None => claim.group().is_some() && before.holder == Some(value),
                Some(_) => !self.granted_holds.insert((*master, *resource, value)),
            };
        if let Some(ticket) = own_ticket.filter(|_| !is_repeated) {
            self.enqueue(moment.event, key, *now_ms, ticket, is_reader);
        }
        let is_new_hold = match class {
            None => before.holder != after.holder,
            // Check all grants to readers except repeated ones. Check only the first grant to an owner, because an
            // owner that already holds the lock may overtake waiters.
            Some(NodeClass::Shared) => !is_repeated,
            Some(class) => !is_repeated && !has_marker_of(before.holder, class),
        };
        if is_new_hold && is_granted && moment.promises.steady {
            return self.check_grant(key, *now_ms, own_ticket, is_reader);
        }
        Ok(())
    }

    /// Returns an error if a master granted a lock while another client was ahead in this master's queue.
    fn check_grant(
        &self,
        (master, resource): (usize, usize),
        now_ms: u64,
        ticket: Option<&Ticket>,
        is_reader: bool,
    ) -> Result<(), String> {
        let rank = ticket.map(|ticket| (ticket.number, queue_name(ticket, is_reader)));
        let mut waiters_ahead = self.queues[master][resource].ahead_of(rank.as_ref(), now_ms);
        // A reader need not wait for other readers, so readers that are ahead of it in the queue are ignored.
        match waiters_ahead.find(|id| !(is_reader && id.ends_with(READER))) {
            None => Ok(()),
            Some(first) => Err(format!(
                "master {master} granted r{resource}, although the waiter {first} is ahead in the master's queue"
            )),
        }
    }
}

/// The queue of a resource in `Order::queued_waiters`.
fn queue_of(resource: usize, is_reader: bool) -> usize {
    resource + if is_reader { RESOURCES } else { 0 }
}

/// The suffix of the name under which a waiter for a reader's lock is queued.
const READER: &str = ":r";

/// Returns the name under which a waiter is queued.
fn queue_name(ticket: &Ticket, is_reader: bool) -> Arc<str> {
    if is_reader {
        format!("{}{READER}", ticket.waiter).into()
    } else {
        ticket.waiter.clone()
    }
}

/// Whether the claim replaces a lock that the same client already holds.
fn replaces_own_lock(claim: &Claim) -> bool {
    claim.group().is_some_and(|group| group.instead().is_some())
}

pub(super) fn ticket(claim: &Claim) -> Option<&Ticket> {
    match claim.fairness() {
        Fairness::Fair(ticket) => ticket.as_deref(),
        Fairness::Unordered => None,
    }
}

impl Check for Order {
    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !self.is_fair {
            return Ok(());
        }
        match fact {
            Fact::AttemptStarted {
                client,
                task,
                claim,
            } => {
                self.queued_waiters.record_attempt(*client, ticket(claim));
                let call = self.acquire_calls.entry(*task).or_insert(AcquireCall {
                    first_event: moment.event,
                    waiter: None,
                    replaces_own_lock: replaces_own_lock(claim),
                });
                call.waiter = ticket(claim).map(|ticket| ticket.waiter.clone());
            }
            Fact::RequestExecuted {
                verb: Verb::Acquire,
                resource,
                ..
            } if *resource < RESOURCES => return self.check_acquire(moment, fact),
            Fact::WaiterQueued { master, claim } if semaphore_of_key(claim.key()).is_none() => {
                self.record_waiter(moment.event, *master, claim);
            }
            // An extension may restore a lost shared hold. Count this hold as granted.
            Fact::RequestExecuted {
                master,
                resource,
                claim,
                verb: Verb::Extend,
                members,
                ..
            } if !members.is_empty() => {
                let value = claim.token().to_hex();
                if members.iter().any(|member| member.value == value) {
                    self.granted_holds.insert((*master, *resource, value));
                }
            }
            Fact::WaiterLeft { master, claim } if semaphore_of_key(claim.key()).is_none() => {
                if let Some(ticket) = ticket(claim) {
                    for key in claim.keys() {
                        let resource = place_of_key(key);
                        let is_reader = class_on(claim, resource) == Some(&NodeClass::Shared);
                        let name = queue_name(ticket, is_reader);
                        self.queues[*master][resource].dequeue(&name);
                        self.dequeue(resource, &ticket.waiter);
                    }
                }
            }
            Fact::MasterRestarted { master, .. } => self.queues[*master] = Default::default(),
            Fact::LockObtained { believer } => return self.check_obtained(moment, believer),
            Fact::CallReturned {
                task,
                call: Call::Acquire { .. } | Call::Downgrade | Call::Value { .. },
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
