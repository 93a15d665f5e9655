//! Checks that a released lock stays released. After a store (a database or ZooKeeper) has reported the release to a
//! client, it must not store the lock value again.

use super::{Check, Moment};
use crate::facts::{Fact, short};
use crate::scenario::Scenario;

pub(crate) struct Gone {
    judged: u64,
}

impl Gone {
    pub(crate) fn new(_: &Scenario) -> Self {
        Self { judged: 0 }
    }
}

impl Check for Gone {
    const RULE: &'static str = "released locks stay released";

    fn see(&mut self, _: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            Fact::Released => self.judged += 1,
            Fact::WrittenAgain { master, value } => {
                return Err(format!(
                    "master {master} stores the lock value {} again after it reported the release of this value",
                    short(&value[..])
                ));
            }
            _ => {}
        }
        Ok(())
    }

    fn judged(&self) -> u64 {
        self.judged
    }
}
