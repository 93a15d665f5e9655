//! Rule 4: on every master the counter rises with every grant and never falls between restarts. After days without use,
//! by the master's clock, it may be gone where that clock is beyond it.

use super::{Check, Moment};
use crate::facts::{Fact, Verb};
use crate::happening::Happening;
use crate::locker::PLACES;
use crate::scenario::Scenario;
use quorate::node::Answer;

pub(crate) struct Counters {
    fencing: bool,
    /// The largest counter since the last restart, per master and resource.
    last: Vec<[u64; PLACES]>,
    /// Which of them have not been looked at since the master's clock went on by days, per master and as bits.
    rested: Vec<u32>,
    judged: u64,
}

impl Counters {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            fencing: scenario.settings.fencing,
            last: vec![[0; PLACES]; scenario.masters.len()],
            rested: vec![0; scenario.masters.len()],
            judged: 0,
        }
    }
}

impl Check for Counters {
    const RULE: &'static str = "counters";

    fn see(&mut self, _: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            Fact::Restarted { master, .. } => self.last[*master] = [0; PLACES],
            Fact::Happened {
                what: Happening::Unused | Happening::Clock,
                ..
            } => self.rested.fill(u32::MAX),
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
                let last = &mut self.last[*master][*resource];
                let rested = self.rested[*master] >> resource & 1 == 1;
                self.rested[*master] &= !(1 << resource);
                let may_be_gone = rested && *last < now_ms * 1_000;
                if after.counter < *last && !may_be_gone {
                    return Err(format!(
                        "the counter of r{resource} on master {master} fell from {last} to {}",
                        after.counter
                    ));
                }
                *last = after.counter;
                self.judged += 1;
                let fresh = *verb == Verb::Acquire
                    && matches!(answer, Ok(Answer::Granted { .. }))
                    && before.holder != after.holder;
                if fresh && after.counter <= before.counter {
                    return Err(format!(
                        "master {master} granted r{resource} and left the counter at {}",
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
