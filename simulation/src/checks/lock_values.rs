//! Checks that a release removes a lock key only if the key contains the lock value of the released lock. Also checks
//! that no two attempts use the same lock value.

use std::sync::Arc;

use crate::check::{ByValue, Check, Moment};
use crate::facts::{Fact, Verb, short_hex};
use crate::scenario::Scenario;
use quorate::node::Claim;

pub(crate) struct LockValues {
    /// For each lock value: the first attempt that used this value.
    attempts: ByValue<Arc<Claim>>,
    judged_cases: u64,
}

impl LockValues {
    pub(crate) fn new(_: &Scenario) -> Self {
        Self {
            attempts: ByValue::default(),
            judged_cases: 0,
        }
    }
}

impl Check for LockValues {
    fn check_fact(&mut self, _: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            Fact::AttemptStarted { client, claim, .. } => {
                self.judged_cases += 1;
                let hex = claim.token().to_hex();
                let first_claim = self.attempts.entry(hex).or_insert_with(|| (*claim).clone());
                if !Arc::ptr_eq(first_claim, claim) {
                    return Err(format!(
                        "client {client} uses the lock value {} for a second attempt",
                        short_hex(&hex)
                    ));
                }
            }
            Fact::RequestExecuted {
                master,
                resource,
                claim,
                verb: Verb::Release,
                before,
                after,
                ..
            } if claim.group().is_none() => {
                let removed_value = before.holder.filter(|_| before.holder != after.holder);
                if let Some(removed) = removed_value.filter(|held| *held != claim.token().to_hex())
                {
                    return Err(format!(
                        "the release of the lock value {} removed a different lock value, {}, from the key of \
                         r{resource} on master {master}",
                        short_hex(&claim.token().to_hex()),
                        short_hex(&removed)
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
