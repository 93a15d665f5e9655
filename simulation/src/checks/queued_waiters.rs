//! The waiters that are queued for locks, as far as the requests of the masters show. A waiter counts as queued when a
//! majority of the masters that it uses has queued it. While masters are replaced, a waiter may use two sets of masters,
//! and then needs a majority of each set.

use std::collections::HashMap;
use std::sync::Arc;

use quorate_promises::Line;

use crate::change_plan::{Sets, is_majority};
use crate::scenario::Scenario;
use quorate::node::Ticket;

/// The waiters of the queues 0 to `QUEUES` - 1.
pub(super) struct QueuedWaiters<const QUEUES: usize> {
    /// The sets of masters with which each client starts. Later sets are not recorded: if a client's sets change, the
    /// library promises no order of waiters.
    sets_by_client: Vec<Sets>,
    has_changes: bool,
    client_by_waiter: HashMap<Arc<str>, usize>,
    /// The masters on which each waiter is queued (bit n is master n), by queue and waiter.
    queued_masters: HashMap<(usize, Arc<str>), u16>,
    /// The waiters that a majority has queued, by queue, each with the number of the event at which the majority was
    /// reached.
    lines: [Line<Arc<str>>; QUEUES],
}

impl<const QUEUES: usize> QueuedWaiters<QUEUES> {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let sets_by_client = 0..scenario.clients.len();
        let first_sets = |client| scenario.masters_at(scenario.first_step(client)).sets();
        Self {
            sets_by_client: sets_by_client.map(first_sets).collect(),
            has_changes: scenario.change.is_some(),
            client_by_waiter: HashMap::new(),
            queued_masters: HashMap::new(),
            lines: std::array::from_fn(|_| Line::default()),
        }
    }

    /// Records that a client begins an attempt. `ticket` is the attempt's ticket in the queue; `None` without ordered
    /// waiting.
    pub(super) fn record_attempt(&mut self, client: usize, ticket: Option<&Ticket>) {
        if let Some(ticket) = ticket.filter(|_| self.has_changes) {
            self.client_by_waiter.insert(ticket.waiter.clone(), client);
        }
    }

    /// Records that a master has queued a waiter.
    pub(super) fn enqueue(&mut self, event: u64, master: usize, queue: usize, waiter: &Arc<str>) {
        let client = self.client_by_waiter.get(waiter).copied().unwrap_or(0);
        let sets = self.sets_by_client[client];
        let key = (queue, waiter.clone());
        let masters = self.queued_masters.entry(key).or_default();
        let masters_before = *masters;
        *masters |= 1 << master;
        if !is_majority(masters_before, sets) && is_majority(*masters, sets) {
            self.lines[queue].stands(waiter.clone(), event);
        }
    }

    /// Records that a waiter has obtained the lock or has left the queue.
    pub(super) fn dequeue(&mut self, queue: usize, waiter: &Arc<str>) {
        self.queued_masters.remove(&(queue, waiter.clone()));
        self.lines[queue].leaves(waiter);
    }

    pub(super) fn line(&self, queue: usize) -> &Line<Arc<str>> {
        &self.lines[queue]
    }
}
