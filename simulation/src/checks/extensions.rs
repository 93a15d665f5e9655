//! Rule 5: no extension counts after the old validity or over another holder, and none lowers
//! the time that a master keeps the key.

use super::{Check, Moment};
use crate::facts::{Fact, Verb};
use crate::locker::RESOURCES;
use crate::scenario::Scenario;

pub(crate) struct Extensions {
    /// Per resource: event and client of the last obtain.
    last: [(u64, usize); RESOURCES],
    judged: u64,
}

impl Extensions {
    pub(crate) fn new(_: &Scenario) -> Self {
        Self {
            last: [(0, 0); RESOURCES],
            judged: 0,
        }
    }
}

impl Check for Extensions {
    const RULE: &'static str = "extensions";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            Fact::Obtained { believer } => {
                self.last[believer.resource] = (at.event, believer.client);
            }
            Fact::Prolonged { believer, old } => {
                self.judged += 1;
                let now = believer.clock.read(at.now);
                if now >= *old {
                    return Err(format!(
                        "client {} prolonged r{} {} us after its validity had ended",
                        believer.client,
                        believer.resource,
                        (now - old) / 1_000
                    ));
                }
                let (when, client) = self.last[believer.resource];
                if at.promises.exclusion && when > believer.since {
                    return Err(format!(
                        "client {} prolonged r{} although client {client} obtained it meanwhile",
                        believer.client, believer.resource
                    ));
                }
            }
            Fact::Applied {
                master,
                resource,
                verb: Verb::Extend,
                before,
                after,
                ..
            } => {
                let same = before.holder.is_some() && before.holder == after.holder;
                if same && after.expires < before.expires {
                    return Err(format!(
                        "an extension lowered the expiry of r{resource} on master {master} by {} us",
                        before.expires - after.expires
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
