//! Finds the masters that a waiter uses. A waiter counts as queued when a majority of these masters has queued it.
//! While masters are replaced, a waiter may use two sets of masters, and then needs a majority of each set.

use std::collections::HashMap;
use std::sync::Arc;

use crate::change_plan::Sets;
use crate::scenario::Scenario;
use quorate::node::Ticket;

/// The sets of masters of each waiter.
pub(super) struct LinesUp {
    /// The sets of masters with which each client starts. Later sets are not recorded: if a client's sets change, the
    /// library promises no order of waiters.
    clients: Vec<Sets>,
    changes: bool,
    waiters: HashMap<Arc<str>, usize>,
}

impl LinesUp {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let clients = 0..scenario.clients.len();
        let sets = |client| scenario.named(scenario.first_step(client)).sets();
        Self {
            clients: clients.map(sets).collect(),
            changes: scenario.change.is_some(),
            waiters: HashMap::new(),
        }
    }

    /// Records that a client begins an attempt. `place` is the attempt's ticket in the queue; `None` without ordered
    /// waiting.
    pub(super) fn begins(&mut self, client: usize, place: Option<&Ticket>) {
        if let Some(place) = place.filter(|_| self.changes) {
            self.waiters.insert(place.waiter.clone(), client);
        }
    }

    pub(super) fn sets(&self, waiter: &Arc<str>) -> Sets {
        let client = self.waiters.get(waiter).copied().unwrap_or(0);
        self.clients[client]
    }
}
