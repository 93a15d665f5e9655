//! Checks that a client does not extend its validity after the validity has ended, or after another client has acquired
//! the lock. Also checks that no extension shortens the time for which a master keeps the lock key.

use super::{Check, Moment};
use crate::facts::{Fact, Verb};
use crate::kind::Scope;
use crate::locker::PLACES;
use crate::process::LONGEST_READING;
use crate::scenario::Scenario;

pub(crate) struct Extensions {
    /// The last hold that was obtained on each resource: the number of the event at which it was obtained, the client,
    /// and the hold's scope (resources and class).
    last: [Option<(u64, usize, Scope)>; PLACES],
    judged: u64,
}

impl Extensions {
    pub(crate) fn new(_: &Scenario) -> Self {
        Self {
            last: [None; PLACES],
            judged: 0,
        }
    }
}

impl Check for Extensions {
    const RULE: &'static str = "extensions";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            Fact::Obtained { believer } => {
                for resource in believer.scope.resources() {
                    let obtained = (at.event, believer.client, believer.scope);
                    self.last[resource] = Some(obtained);
                }
            }
            Fact::Extended { believer, old } => {
                self.judged += 1;
                let now = believer.clock.read(at.now);
                // The client reads its clock a few more times after it has checked the validity. Each reading takes up
                // to `LONGEST_READING`.
                if now >= *old + 4 * LONGEST_READING {
                    return Err(format!(
                        "client {} extended the lock on r{} {} us after its validity ended",
                        believer.client,
                        believer.resource,
                        (now - old) / 1_000
                    ));
                }
                let mine = believer.scope;
                let last = mine.resources().filter_map(|resource| self.last[resource]);
                let mut later =
                    last.filter(|(when, _, other)| *when > believer.since && !other.beside(mine));
                if let Some((_, client, _)) = later.next().filter(|_| at.promises.exclusion) {
                    return Err(format!(
                        "client {} extended its old lock on r{} after client {client} had acquired r{}",
                        believer.client, believer.resource, believer.resource
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
                        "an extension shortened the expiry of r{resource} on master {master} by {} us",
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
