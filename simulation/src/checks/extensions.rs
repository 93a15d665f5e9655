//! Checks that a client does not extend its validity after the validity has ended, or after another client has acquired
//! the lock. Also checks that no extension shortens the time for which a master keeps the lock key.

use crate::check::{Check, Moment};
use crate::clock::LONGEST_READING;
use crate::facts::{Believer, Fact, Verb};
use crate::kind::Scope;
use crate::locker::PLACES;
use crate::scenario::Scenario;

pub(crate) struct Extensions {
    /// The last hold that was obtained on each resource.
    last_holds: [Option<LastHold>; PLACES],
    /// The longest TTL of any lock.
    longest_ttl: u64,
    judged_cases: u64,
}

/// A hold that was obtained.
#[derive(Clone, Copy)]
struct LastHold {
    /// The number of the event at which the hold was obtained.
    event: u64,
    /// The earliest true time at which the client can have sent the first request of the attempt.
    earliest_request_at: u64,
    /// The true time at which the hold was obtained.
    obtained_at: u64,
    client: usize,
    scope: Scope,
    fencing_token: Option<u64>,
}

impl LastHold {
    /// Whether this hold is certainly later than the hold `older`. A force-released client may report a lock only after
    /// a later client has reported its lock, because the answers to the earlier client were late. The fencing tokens
    /// show the right order. Without tokens, this hold is later if its attempt began after `older` was obtained.
    fn is_later_than(&self, older: &Believer) -> bool {
        match self.fencing_token.zip(older.fencing_token) {
            Some((last, older)) => last >= older,
            None => self.earliest_request_at > older.obtained_at,
        }
    }
}

impl Extensions {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let steps = scenario.clients.iter().flat_map(|client| &client.steps);
        let longest_extension = steps.filter_map(|step| step.extend).max();
        Self {
            last_holds: [None; PLACES],
            longest_ttl: scenario.settings.ttl.max(longest_extension.unwrap_or(0)),
            judged_cases: 0,
        }
    }

    /// The earliest true time at which the client can have sent the request that gave its hold the present validity.
    fn earliest_start(&self, believer: &Believer) -> u64 {
        let began_at = believer.valid_until.saturating_sub(self.longest_ttl);
        believer.clock.time_of_reading(began_at).unwrap_or(0)
    }
}

impl Check for Extensions {
    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            Fact::LockObtained { believer } => {
                let earliest_request_at = self.earliest_start(believer);
                for resource in believer.scope.resources() {
                    self.last_holds[resource] = Some(LastHold {
                        event: moment.event,
                        earliest_request_at,
                        obtained_at: moment.now,
                        client: believer.client,
                        scope: believer.scope,
                        fencing_token: believer.fencing_token,
                    });
                }
            }
            Fact::ValidityExtended { believer, old_end } => {
                self.judged_cases += 1;
                let now = believer.clock.read(moment.now);
                // The client reads its clock a few more times after it has checked the validity. Each reading takes up
                // to `LONGEST_READING`.
                if now >= *old_end + 4 * LONGEST_READING {
                    return Err(format!(
                        "client {} extended the lock on r{} {} us after its validity ended",
                        believer.client,
                        believer.resource,
                        (now - old_end) / 1_000
                    ));
                }
                let scope = believer.scope;
                let last_holds = scope
                    .resources()
                    .filter_map(|resource| self.last_holds[resource]);
                let incompatible_holds = last_holds.filter(|last| {
                    last.event > believer.obtained_event && !last.scope.is_compatible_with(scope)
                });
                let earliest_request_at = self.earliest_start(believer);
                let mut later_holds = incompatible_holds.filter(|last| {
                    moment.promises.exclusion
                        || moment.promises.no_return
                            && earliest_request_at > last.obtained_at
                            && last.is_later_than(believer)
                });
                if let Some(LastHold { client, .. }) = later_holds.next() {
                    return Err(format!(
                        "client {} extended its old lock on r{} after client {client} had acquired r{}",
                        believer.client, believer.resource, believer.resource
                    ));
                }
            }
            Fact::RequestExecuted {
                master,
                resource,
                verb: Verb::Extend,
                before,
                after,
                ..
            } => {
                let is_same_holder = before.holder.is_some() && before.holder == after.holder;
                if is_same_holder && after.expires_us < before.expires_us {
                    return Err(format!(
                        "an extension shortened the expiry of r{resource} on master {master} by {} us",
                        before.expires_us - after.expires_us
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
