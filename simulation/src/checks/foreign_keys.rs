//! Checks that foreign keys stay untouched: if another program stores a value under the key of a lock, no client
//! overwrites or deletes this value.

use crate::check::{Check, Moment};
use crate::facts::Fact;
use crate::scenario::Scenario;

#[derive(Default)]
pub(crate) struct ForeignKeys {
    judged_cases: u64,
}

impl ForeignKeys {
    pub(crate) fn new(_: &Scenario) -> Self {
        Self::default()
    }
}

impl Check for ForeignKeys {
    fn check_fact(&mut self, _: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        let Fact::ForeignKeyChecked {
            master,
            resource,
            is_unchanged,
        } = fact
        else {
            return Ok(());
        };
        self.judged_cases += 1;
        if *is_unchanged {
            return Ok(());
        }
        Err(format!(
            "master {master} has lost the value that another program stored under the key of r{resource}"
        ))
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases
    }
}
