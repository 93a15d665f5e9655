//! Rule 8: once the faults have ended, every live waiter gets its lock within the bound of the scenario
//! ([`Scenario::bound`]).

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

    /// Returns a violation if any client is still waiting at the deadline.
    pub(crate) fn overdue(&self, waiting: &[usize], bound: u64) -> Option<Violation> {
        (!waiting.is_empty()).then(|| Violation {
            rule: Self::RULE,
            what: format!(
                "clients {waiting:?} still have no lock {} ms after all faults healed",
                bound / 1_000_000
            ),
            at: self.deadline - BEGIN,
        })
    }
}
