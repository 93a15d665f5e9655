//! Checks that a release removes a lock key only if the key contains the lock value of the released lock. Also checks
//! that no two attempts use the same lock value.

use std::sync::Arc;

use super::{ByValue, Check, Moment};
use crate::facts::{Fact, Verb, short};
use crate::scenario::Scenario;
use quorate::node::Claim;

pub(crate) struct Values {
    /// For each lock value: the first attempt that used this value.
    attempts: ByValue<Arc<Claim>>,
    judged: u64,
}

impl Values {
    pub(crate) fn new(_: &Scenario) -> Self {
        Self {
            attempts: ByValue::default(),
            judged: 0,
        }
    }
}

impl Check for Values {
    const RULE: &'static str = "values";

    fn see(&mut self, _: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            Fact::Started { client, claim, .. } => {
                self.judged += 1;
                let hex = claim.token().to_hex();
                let first = self.attempts.entry(hex).or_insert_with(|| (*claim).clone());
                if !Arc::ptr_eq(first, claim) {
                    return Err(format!(
                        "client {client} uses the lock value {} for a second attempt",
                        short(&hex)
                    ));
                }
            }
            Fact::Applied {
                master,
                resource,
                claim,
                verb: Verb::Release,
                before,
                after,
                ..
            } if claim.group().is_none() => {
                let stood = before.holder.filter(|_| before.holder != after.holder);
                if let Some(other) = stood.filter(|held| *held != claim.token().to_hex()) {
                    return Err(format!(
                        "the release of the lock value {} removed a different lock value, {}, from the key of \
                         r{resource} on master {master}",
                        short(&claim.token().to_hex()),
                        short(&other)
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
