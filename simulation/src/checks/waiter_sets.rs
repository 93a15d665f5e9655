//! Finds the masters that a waiter uses. A waiter counts as queued when a majority of these masters has queued it.
//! While masters are replaced, a waiter may use two sets of masters, and then needs a majority of each set.

use std::collections::HashMap;
use std::sync::Arc;

use crate::change_plan::Sets;
use crate::scenario::Scenario;
use quorate::node::Ticket;

/// The sets of masters of each waiter.
pub(super) struct WaiterSets {
    /// The sets of masters with which each client starts. Later sets are not recorded: if a client's sets change, the
    /// library promises no order of waiters.
    sets_by_client: Vec<Sets>,
    has_changes: bool,
    client_by_waiter: HashMap<Arc<str>, usize>,
}

impl WaiterSets {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let sets_by_client = 0..scenario.clients.len();
        let first_sets = |client| scenario.masters_at(scenario.first_step(client)).sets();
        Self {
            sets_by_client: sets_by_client.map(first_sets).collect(),
            has_changes: scenario.change.is_some(),
            client_by_waiter: HashMap::new(),
        }
    }

    /// Records that a client begins an attempt. `ticket` is the attempt's ticket in the queue; `None` without ordered
    /// waiting.
    pub(super) fn record_attempt(&mut self, client: usize, ticket: Option<&Ticket>) {
        if let Some(ticket) = ticket.filter(|_| self.has_changes) {
            self.client_by_waiter.insert(ticket.waiter.clone(), client);
        }
    }

    pub(super) fn sets(&self, waiter: &Arc<str>) -> Sets {
        let client = self.client_by_waiter.get(waiter).copied().unwrap_or(0);
        self.sets_by_client[client]
    }
}
