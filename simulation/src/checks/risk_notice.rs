//! Checks the notice that a held lock may be lost soon (`LockGuard::at_risk`):
//!
//! - The notice comes as soon as no more than the margin of the validity is left. So a renewed lock whose validity runs
//!   out is never lost without a notice before, unless the holder's process was paused.
//! - The notice never comes earlier, and only once for each end of the validity.
//! - Without faults, all renewals are answered in time, and a renewed lock gets no notice.

use std::collections::HashMap;
use std::time::Duration;

use quorate::Drift;

use crate::check::{Check, Moment};
use crate::clock::MS;
use crate::facts::{Believer, EndReason, Fact};
use crate::scenario::Scenario;

/// The longest time from the moment at which the lock begins to be at risk until the notice, in nanoseconds. Pauses of
/// the holder's process do not count.
const SLACK_NANOS: u64 = MS;

pub(crate) struct RiskNotice {
    /// The shortest and the longest TTL of any lock, in nanoseconds.
    ttls: [u64; 2],
    /// The longest time that a client may wait for the reply of one master, in nanoseconds.
    longest_node_timeout: u64,
    /// The watched locks, by the id of their hold.
    watched: HashMap<u64, Watched>,
    judged_cases: u64,
}

#[derive(Default)]
struct Watched {
    /// The end of the validity in the last notice, in nanoseconds on the client's clock; zero without a notice.
    noticed_end: u64,
    /// The true time of the last extension of the validity; zero without an extension.
    extended_at: u64,
    /// The true time at which the guard showed that the lock is no longer held; `None` while the lock is held.
    ended_at: Option<u64>,
}

/// How much validity is left, in nanoseconds, when the watched lock begins to be at risk. If the lock is renewed, the
/// margin counts at most as three quarters of the validity that is left when a renewal is due, and leaves a node timeout
/// for the answers (docs/protocol.md, "Loss").
fn risk_threshold(believer: &Believer, ttl: u64, node_timeout: u64) -> u64 {
    let margin = believer.risk_margin.unwrap_or(0);
    if !believer.is_renewed {
        return margin;
    }
    let drift = Drift::default().of(Duration::from_nanos(ttl));
    let left_when_due = ttl.saturating_sub(drift.as_nanos() as u64 + ttl / 3);
    let time_for_answer = node_timeout.min(ttl / 4).max(left_when_due / 4);
    margin.min(left_when_due.saturating_sub(time_for_answer))
}

impl RiskNotice {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let ttl = scenario.settings.ttl;
        let steps = scenario.clients.iter().flat_map(|client| &client.steps);
        let extensions = steps.filter_map(|step| step.extend);
        let ttls = extensions.fold([ttl; 2], |[shortest, longest], extension| {
            [shortest.min(extension), longest.max(extension)]
        });
        Self {
            ttls,
            longest_node_timeout: scenario.slowest_answer(),
            watched: HashMap::new(),
            judged_cases: 0,
        }
    }

    /// For how long the holder's process has been running while its lock was at risk without a notice, in nanoseconds.
    fn delay_of_notice(&self, moment: &Moment<'_>, believer: &Believer) -> u64 {
        if believer.risk_margin.is_none() {
            return 0;
        }
        let [shortest_ttl, _] = self.ttls;
        let threshold = risk_threshold(believer, shortest_ttl, self.longest_node_timeout);
        let at_risk_from = believer.valid_until.saturating_sub(threshold);
        let client_now = believer.clock.read(moment.now);
        if client_now <= at_risk_from + SLACK_NANOS {
            return 0;
        }
        let watched = self.watched.get(&believer.id);
        if watched.is_some_and(|watched| watched.noticed_end >= believer.valid_until) {
            return 0;
        }
        let extended_at = watched.map_or(0, |watched| watched.extended_at);
        let could_notify_at = moment.awake_since[believer.client]
            .max(believer.obtained_at)
            .max(extended_at);
        let begin = at_risk_from.max(believer.clock.read(could_notify_at));
        let ended_at = watched.and_then(|watched| watched.ended_at);
        let guard_end = ended_at.map_or(client_now, |ended_at| believer.clock.read(ended_at));
        let end = client_now.min(guard_end).min(believer.valid_until);
        end.saturating_sub(begin)
    }

    fn check_delay(&self, moment: &Moment<'_>, believer: &Believer) -> Result<(), String> {
        let delay = self.delay_of_notice(moment, believer);
        if !moment.promises.punctual || delay <= SLACK_NANOS {
            return Ok(());
        }
        Err(format!(
            "client {} was not notified that its lock on r{} is at risk, for {} us",
            believer.client,
            believer.resource,
            delay / 1_000
        ))
    }

    /// Checks a notice about the end `valid_until` of the validity.
    fn check_notice(
        &mut self,
        moment: &Moment<'_>,
        believer: &Believer,
        valid_until: u64,
    ) -> Result<(), String> {
        self.judged_cases += 1;
        let late = self.check_delay(moment, believer);
        let watched = self.watched.entry(believer.id).or_default();
        let noticed_end = std::mem::replace(&mut watched.noticed_end, valid_until);
        late?;
        let (client, resource) = (believer.client, believer.resource);
        if noticed_end == valid_until {
            return Err(format!(
                "client {client} was notified twice that its lock on r{resource} is at risk"
            ));
        }
        let remaining = valid_until.saturating_sub(believer.clock.read(moment.now));
        let [_, longest_ttl] = self.ttls;
        let threshold = risk_threshold(believer, longest_ttl, 0);
        if remaining > threshold {
            return Err(format!(
                "client {client} was notified that its lock on r{resource} is at risk {} us too early",
                (remaining - threshold) / 1_000
            ));
        }
        if moment.promises.calm && believer.is_renewed {
            return Err(format!(
                "client {client} was notified that its lock on r{resource} is at risk, although the scenario has no \
                 faults"
            ));
        }
        Ok(())
    }

    /// Checks a watched lock that has been lost, if its validity has run out.
    fn check_loss(&mut self, moment: &Moment<'_>, believer: &Believer) -> Result<(), String> {
        if believer.clock.read(moment.now) < believer.valid_until {
            return Ok(());
        }
        let late = self.check_delay(moment, believer);
        let watched = self.watched.get(&believer.id);
        let has_notice = watched.is_some_and(|watched| watched.noticed_end == believer.valid_until);
        self.judged_cases += u64::from(has_notice || late.is_err());
        late
    }
}

impl Check for RiskNotice {
    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            Fact::RiskNoticed {
                believer,
                valid_until,
            } => return self.check_notice(moment, believer, *valid_until),
            Fact::ValidityExtended { believer, .. } if believer.risk_margin.is_some() => {
                self.watched.entry(believer.id).or_default().extended_at = moment.now;
            }
            Fact::GuardEnded { believer } if believer.risk_margin.is_some() => {
                self.watched.entry(believer.id).or_default().ended_at = Some(moment.now);
            }
            Fact::BeliefEnded { believer, reason } if believer.risk_margin.is_some() => {
                let result = match reason {
                    EndReason::Lost => self.check_loss(moment, believer),
                    _ => Ok(()),
                };
                self.watched.remove(&believer.id);
                return result;
            }
            _ => {}
        }
        Ok(())
    }

    fn check_state(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        let mut believers = moment.believers.iter();
        believers.try_for_each(|believer| self.check_delay(moment, believer))
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases
    }
}
