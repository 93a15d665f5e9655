//! Checks that a lock with background renewal is not lost in a scenario without faults, however long it is held.

use super::{Check, Moment};
use crate::facts::{Fact, Why};
use crate::scenario::Scenario;

pub(crate) struct Kept {
    ttl: u64,
    judged: u64,
}

impl Kept {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            ttl: scenario.settings.ttl,
            judged: 0,
        }
    }
}

impl Check for Kept {
    const RULE: &'static str = "renewed locks stay";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        let Fact::Retired { believer, why } = fact else {
            return Ok(());
        };
        if !at.promises.calm || !believer.renewed {
            return Ok(());
        }
        // Count a hold as a judged case only if it was longer than the TTL, because a shorter hold needs no renewal.
        self.judged += u64::from(at.now > believer.obtained + self.ttl);
        if *why == Why::Lost {
            return Err(format!(
                "client {} lost r{} after {} ms, although the scenario has no faults",
                believer.client,
                believer.resource,
                (at.now - believer.obtained) / 1_000_000
            ));
        }
        Ok(())
    }

    fn judged(&self) -> u64 {
        self.judged
    }
}
