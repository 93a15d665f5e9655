//! Checks the fencing counters on each master:
//!
//! - Every grant to a new holder raises the counter.
//! - The counter never falls between restarts, unless its key has expired.
//! - After a grant, the master keeps the counter's key for at least a day, by the master's clock.
//!
//! The key counts as expired once the master's clock has shown the expiry time, even if the clock is set back later.

use super::{Check, Moment};
use crate::facts::{Fact, Verb};
use crate::locker::PLACES;
use crate::scenario::Scenario;
use quorate::node::Answer;

/// The shortest time for which a counter is kept after a grant, in microseconds: one day.
const DAY_US: u64 = 86_400_000_000;

pub(crate) struct Counters {
    fencing: bool,
    /// The last known fencing counter of each resource on each master, by master and resource.
    last: Vec<[Last; PLACES]>,
    judged: u64,
}

/// The last known fencing counter of one resource on one master. All fields are zero after a restart of the master.
#[derive(Clone, Copy, Default)]
struct Last {
    counter: u64,
    /// When the key of the counter expires, in microseconds on the master's clock.
    expires: u64,
    /// The largest reading of the master's clock since this check recorded `counter`, in microseconds.
    shown_us: u64,
}

impl Counters {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            fencing: scenario.settings.fencing,
            last: vec![[Last::default(); PLACES]; scenario.masters.len()],
            judged: 0,
        }
    }
}

impl Check for Counters {
    const RULE: &'static str = "counters";

    fn see(&mut self, _: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            Fact::Restarted { master, .. } => self.last[*master] = [Last::default(); PLACES],
            Fact::ClockJumps { master, shown_us } => {
                for last in &mut self.last[*master] {
                    last.shown_us = last.shown_us.max(*shown_us);
                }
            }
            Fact::Applied {
                master,
                now_ms,
                resource,
                verb,
                answer,
                before,
                after,
                ..
            } if self.fencing => {
                let now_us = now_ms * 1_000;
                let next = Last {
                    counter: after.counter,
                    expires: after.counter_expires,
                    shown_us: now_us,
                };
                let last = std::mem::replace(&mut self.last[*master][*resource], next);
                let has_expired = last.expires <= last.shown_us.max(now_us);
                if after.counter < last.counter && !has_expired {
                    return Err(format!(
                        "the fencing counter of r{resource} on master {master} fell from {} to {} before the key of \
                         the counter expired",
                        last.counter, after.counter
                    ));
                }
                self.judged += 1;
                let fresh = *verb == Verb::Acquire
                    && matches!(answer, Ok(Answer::Granted { .. }))
                    && before.holder != after.holder;
                if fresh && after.counter <= before.counter {
                    return Err(format!(
                        "master {master} granted r{resource} but did not raise the fencing counter, which is {}",
                        after.counter
                    ));
                }
                if fresh && after.counter_expires < now_us + DAY_US {
                    return Err(format!(
                        "master {master} granted r{resource} but keeps the fencing counter {} for less than a day",
                        after.counter
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
