//! Checks that after the faults have ended, every live waiter gets its lock within [`Scenario::healing_bound`].

use crate::check::Violation;
use crate::clock::RUN_START;
use crate::scenario::Scenario;

pub(crate) struct Healing {
    /// The true time, in nanoseconds, by which every client must have obtained the last lock for which it asks in this
    /// run.
    pub(crate) deadline: u64,
}

impl Healing {
    pub(crate) const RULE: &'static str = "healing";

    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            deadline: RUN_START + scenario.heal_at + scenario.healing_bound(),
        }
    }

    /// Called at the deadline. `waiting_clients` are the clients that have not obtained their last lock. Returns a
    /// violation if there are such clients, otherwise `None`. `allowed_nanos` is the time from the end of the faults to
    /// the deadline, in nanoseconds.
    pub(crate) fn violation(
        &self,
        waiting_clients: &[usize],
        allowed_nanos: u64,
    ) -> Option<Violation> {
        (!waiting_clients.is_empty()).then(|| Violation {
            rule: Self::RULE,
            description: format!(
                "clients {waiting_clients:?} still have no lock {} ms after all faults have ended",
                allowed_nanos / 1_000_000
            ),
            at_nanos: self.deadline - RUN_START,
        })
    }
}
