//! Checks the fencing counters on each master:
//!
//! - Every grant to a new holder raises the counter.
//! - The counter never falls between restarts, unless its key has expired.
//! - After a grant, the master keeps the counter's key for at least a day, by the master's clock.
//!
//! The key counts as expired once the master's clock has shown the expiry time, even if the clock is set back later.

use crate::check::{Check, Moment};
use crate::facts::{Fact, Verb};
use crate::locker::PLACES;
use crate::scenario::Scenario;
use quorate::node::Answer;

/// The shortest time for which a counter is kept after a grant, in microseconds: one day.
const DAY_US: u64 = 86_400_000_000;

pub(crate) struct CounterCheck {
    has_fencing: bool,
    /// The last known fencing counter of each resource on each master, by master and resource.
    last_counters: Vec<[LastCounter; PLACES]>,
    judged_cases: u64,
}

/// The last known fencing counter of one resource on one master. All fields are zero after a restart of the master.
#[derive(Clone, Copy, Default)]
struct LastCounter {
    counter: u64,
    /// When the key of the counter expires, in microseconds on the master's clock.
    expires_us: u64,
    /// The largest reading of the master's clock since this check recorded `counter`, in microseconds.
    largest_reading_us: u64,
}

impl CounterCheck {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            has_fencing: scenario.settings.fencing,
            last_counters: vec![[LastCounter::default(); PLACES]; scenario.masters.len()],
            judged_cases: 0,
        }
    }
}

impl Check for CounterCheck {
    fn check_fact(&mut self, _: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            Fact::MasterRestarted { master, .. } => {
                self.last_counters[*master] = [LastCounter::default(); PLACES];
            }
            Fact::ClockJumps { master, reading_us } => {
                for last in &mut self.last_counters[*master] {
                    last.largest_reading_us = last.largest_reading_us.max(*reading_us);
                }
            }
            Fact::RequestExecuted {
                master,
                now_ms,
                resource,
                verb,
                answer,
                before,
                after,
                ..
            } if self.has_fencing => {
                let now_us = now_ms * 1_000;
                let current = LastCounter {
                    counter: after.counter,
                    expires_us: after.counter_expires_us,
                    largest_reading_us: now_us,
                };
                let last = std::mem::replace(&mut self.last_counters[*master][*resource], current);
                let has_expired = last.expires_us <= last.largest_reading_us.max(now_us);
                if after.counter < last.counter && !has_expired {
                    return Err(format!(
                        "the fencing counter of r{resource} on master {master} fell from {} to {} before the key of \
                         the counter expired",
                        last.counter, after.counter
                    ));
                }
                self.judged_cases += 1;
                let is_new_grant = *verb == Verb::Acquire
                    && matches!(answer, Ok(Answer::Granted { .. }))
                    && before.holder != after.holder;
                if is_new_grant && after.counter <= before.counter {
                    return Err(format!(
                        "master {master} granted r{resource} but did not raise the fencing counter, which is {}",
                        after.counter
                    ));
                }
                // A counter can be read as a time, which may be ahead of the master's clock.
                if is_new_grant && after.counter_expires_us < now_us.max(after.counter) + DAY_US {
                    return Err(format!(
                        "master {master} granted r{resource} but keeps the fencing counter {} for less than a day after \
                         the time that it shows",
                        after.counter
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
