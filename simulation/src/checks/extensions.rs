//! Checks that a client does not extend its validity after the validity has ended, or after another client has acquired
//! the lock. Also checks that no extension shortens the time for which a master keeps the lock key.

use super::{Check, Moment};
use crate::facts::{Believer, Fact, Verb};
use crate::kind::Scope;
use crate::locker::PLACES;
use crate::process::LONGEST_READING;
use crate::scenario::Scenario;

pub(crate) struct Extensions {
    /// The last hold that was obtained on each resource.
    last: [Option<Last>; PLACES],
    /// The longest TTL of any lock.
    longest: u64,
    judged: u64,
}

/// A hold that was obtained.
#[derive(Clone, Copy)]
struct Last {
    /// The number of the event at which the hold was obtained.
    event: u64,
    /// The earliest true time at which the client can have sent the first request of the attempt.
    sent: u64,
    /// The true time at which the hold was obtained.
    at: u64,
    client: usize,
    scope: Scope,
    fencing: Option<u64>,
}

impl Last {
    /// Whether this hold is certainly later than the hold `mine`. A force-released client may report a lock only after a
    /// later client has reported its lock, because the answers to the earlier client were late. The fencing tokens show
    /// the right order. Without tokens, this hold is later if its attempt began after `mine` was obtained.
    fn is_later_than(&self, mine: &Believer) -> bool {
        match self.fencing.zip(mine.fencing) {
            Some((last, mine)) => last >= mine,
            None => self.sent > mine.obtained,
        }
    }
}

impl Extensions {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let steps = scenario.clients.iter().flat_map(|client| &client.steps);
        let extended = steps.filter_map(|step| step.extend).max();
        Self {
            last: [None; PLACES],
            longest: scenario.settings.ttl.max(extended.unwrap_or(0)),
            judged: 0,
        }
    }

    /// The earliest true time at which the client can have sent the request that gave its hold the present validity.
    fn earliest_start(&self, believer: &Believer) -> u64 {
        let began = believer.until.saturating_sub(self.longest);
        believer.clock.when(began).unwrap_or(0)
    }
}

impl Check for Extensions {
    const RULE: &'static str = "extensions";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            Fact::Obtained { believer } => {
                let sent = self.earliest_start(believer);
                for resource in believer.scope.resources() {
                    self.last[resource] = Some(Last {
                        event: at.event,
                        sent,
                        at: at.now,
                        client: believer.client,
                        scope: believer.scope,
                        fencing: believer.fencing,
                    });
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
                let later = last.filter(|last| {
                    last.event > believer.since && !last.scope.is_compatible_with(mine)
                });
                let sent = self.earliest_start(believer);
                let mut later = later.filter(|last| {
                    at.promises.exclusion
                        || at.promises.no_return && sent > last.at && last.is_later_than(believer)
                });
                if let Some(Last { client, .. }) = later.next() {
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
