//! Checks the restart guard: after a restart, a master gives no votes until `guard_nanos` has passed.
//!
//! The clients enforce this rule when they connect. So only requests over connections that were made after the restart
//! are checked.

use super::{Check, Moment};
use crate::facts::{Fact, short_hex};
use crate::happening::Happening;
use crate::scenario::Scenario;
use quorate::node::{Answer, Extended};

pub(crate) struct RestartGuard {
    guard_nanos: u64,
    restarted_at: Vec<Option<u64>>,
    judged_cases: u64,
}

impl RestartGuard {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        // Clocks may run up to 1 % fast, so the guard may end 1 % earlier in true time.
        let guard_nanos = scenario.settings.max_ttl / 100 * 99;
        Self {
            guard_nanos,
            restarted_at: vec![None; scenario.masters.len()],
            judged_cases: 0,
        }
    }
}

impl Check for RestartGuard {
    const RULE: &'static str = "restart guard";

    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            // Simulated time has skipped some days, so the restart guards of all masters have ended.
            Fact::Happened {
                happening: Happening::UnusedDays,
                ..
            } => self.restarted_at.fill(None),
            Fact::MasterRestarted { master, .. } => self.restarted_at[*master] = Some(moment.now),
            Fact::RequestExecuted {
                master,
                claim,
                answer,
                live: true,
                ..
            } if moment.promises.guard => {
                let Some(restarted_at) = self.restarted_at[*master] else {
                    return Ok(());
                };
                self.judged_cases += 1;
                let has_voted = match answer {
                    Ok(Answer::Granted { .. } | Answer::Confirmed) => true,
                    Ok(Answer::Extended(results)) => results
                        .iter()
                        .any(|result| matches!(result, Extended::Kept | Extended::Restored)),
                    _ => false,
                };
                if has_voted && moment.now < restarted_at + self.guard_nanos {
                    return Err(format!(
                        "master {master} voted for {} only {} ms after its restart, although the \
                         restart guard forbids this vote",
                        short_hex(&claim.token().to_hex()),
                        (moment.now - restarted_at) / 1_000_000
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases
    }
}
