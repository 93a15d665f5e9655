//! The masters of which a waiter needs a majority.

use std::collections::HashMap;
use std::sync::Arc;

use crate::change_plan::Sets;
use crate::scenario::Scenario;
use quorate::node::Ticket;

/// The sets of masters by the name of a waiter, if clients have different masters.
pub(super) struct LinesUp {
    /// The sets of each client at its first step. Order is not promised in scenarios whose clients change their step.
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

    /// A client begins an attempt, perhaps with a place in the queue.
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
