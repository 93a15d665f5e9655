//! Checks the restart guard: after a restart, a master gives no votes until `max_ttl` has passed.
//!
//! The clients enforce this rule when they connect. So only requests over connections that were made after the restart
//! are checked.

use super::{Check, Moment};
use crate::facts::{Fact, short};
use crate::happening::Happening;
use crate::scenario::Scenario;
use quorate::node::{Answer, Extended};

pub(crate) struct Guard {
    max_ttl: u64,
    restarted: Vec<Option<u64>>,
    judged: u64,
}

impl Guard {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        // Clocks may run up to 1 % fast, so the guard may end 1 % earlier in true time.
        let max_ttl = scenario.settings.max_ttl / 100 * 99;
        Self {
            max_ttl,
            restarted: vec![None; scenario.masters.len()],
            judged: 0,
        }
    }
}

impl Check for Guard {
    const RULE: &'static str = "restart guard";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            // Simulated time has skipped some days, so the restart guards of all masters have ended.
            Fact::Happened {
                what: Happening::Unused,
                ..
            } => self.restarted.fill(None),
            Fact::Restarted { master, .. } => self.restarted[*master] = Some(at.now),
            Fact::Applied {
                master,
                claim,
                answer,
                live: true,
                ..
            } if at.promises.guard => {
                let Some(restarted) = self.restarted[*master] else {
                    return Ok(());
                };
                self.judged += 1;
                let vote = match answer {
                    Ok(Answer::Granted { .. } | Answer::Confirmed) => true,
                    Ok(Answer::Extended(said)) => said
                        .iter()
                        .any(|said| matches!(said, Extended::Kept | Extended::Restored)),
                    _ => false,
                };
                if vote && at.now < restarted + self.max_ttl {
                    return Err(format!(
                        "master {master} voted for {} only {} ms after its restart, although the \
                         restart guard forbids this vote",
                        short(&claim.token().to_hex()),
                        (at.now - restarted) / 1_000_000
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn judged(&self) -> u64 {
        self.judged
    }
}
