//! Which masters make a majority for who waits in line.

use std::collections::HashMap;
use std::sync::Arc;

use crate::change_plan::Sets;
use crate::scenario::Scenario;
use quorate::node::Ticket;

/// By the name of a waiter, where not all clients have the same masters.
pub(super) struct LinesUp {
    /// Of each client, at the step at which it begins: who is told others is in no world with a promise of order.
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

    /// A client begins an attempt, perhaps from a place in line.
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
