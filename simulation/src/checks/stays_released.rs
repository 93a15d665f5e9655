//! Checks that a released lock stays released. After a store (a database or ZooKeeper) has reported the release to a
//! client, it must not store the lock value again.

use crate::check::{Check, Moment};
use crate::facts::{Fact, short_hex};
use crate::scenario::Scenario;

pub(crate) struct StaysReleased {
    judged_cases: u64,
}

impl StaysReleased {
    pub(crate) fn new(_: &Scenario) -> Self {
        Self { judged_cases: 0 }
    }
}

impl Check for StaysReleased {
    fn check_fact(&mut self, _: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            Fact::ReleaseReported => self.judged_cases += 1,
            Fact::ReleasedValueWritten { master, value } => {
                return Err(format!(
                    "master {master} stores the lock value {} again after it reported the release of this value",
                    short_hex(&value[..])
                ));
            }
            _ => {}
        }
        Ok(())
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases
    }
}
