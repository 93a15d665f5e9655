//! Checks that every live waiter gets its lock in time after the faults have ended: within [`Scenario::bound`].

use super::Violation;
use crate::clock::BEGIN;
use crate::scenario::Scenario;

pub(crate) struct Healing {
    /// The true time, in nanoseconds, by which every client must have its last lock.
    pub(crate) deadline: u64,
}

impl Healing {
    pub(crate) const RULE: &'static str = "healing";

    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            deadline: BEGIN + scenario.heal_at + scenario.bound(),
        }
    }

    /// Returns a violation if `waiting`, the clients that still have no last lock at the deadline, is not empty.
    /// `bound` is the time from the end of the faults to the deadline, in nanoseconds.
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
