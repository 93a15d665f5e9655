//! Checks that after the faults have ended, every live waiter gets its lock within [`Scenario::bound`].

use super::Violation;
use crate::clock::BEGIN;
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
            deadline: BEGIN + scenario.heal_at + scenario.bound(),
        }
    }

    /// Called at the deadline. `waiting` are the clients that have not obtained their last lock. Returns a violation if
    /// there are such clients, otherwise `None`. `bound` is the time from the end of the faults to the deadline, in
    /// nanoseconds.
    pub(crate) fn overdue(&self, waiting: &[usize], bound: u64) -> Option<Violation> {
        (!waiting.is_empty()).then(|| Violation {
            rule: Self::RULE,
            what: format!(
                "clients {waiting:?} still have no lock {} ms after all faults have ended",
                bound / 1_000_000
            ),
            at: self.deadline - BEGIN,
        })
    }
}
