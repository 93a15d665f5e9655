//! Checks that a lock with background renewal is not lost in a scenario without faults, however long it is held.

use crate::check::{Check, Moment};
use crate::facts::{EndReason, Fact};
use crate::scenario::Scenario;

pub(crate) struct RenewedLocks {
    ttl: u64,
    judged_cases: u64,
}

impl RenewedLocks {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            ttl: scenario.settings.ttl,
            judged_cases: 0,
        }
    }
}

impl Check for RenewedLocks {
    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        let Fact::BeliefEnded { believer, reason } = fact else {
            return Ok(());
        };
        if !moment.promises.calm || !believer.is_renewed {
            return Ok(());
        }
        // Count a hold as a judged case only if it was longer than the TTL, because a shorter hold needs no renewal.
        self.judged_cases += u64::from(moment.now > believer.obtained_at + self.ttl);
        if *reason == EndReason::Lost {
            return Err(format!(
                "client {} lost r{} after {} ms, although the scenario has no faults",
                believer.client,
                believer.resource,
                (moment.now - believer.obtained_at) / 1_000_000
            ));
        }
        Ok(())
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases
    }
}
