//! Rule 1: at most one believer in `[obtained, min(release sent, validity end, loss told)]`.

use super::{Check, Moment};
use crate::scenario::Scenario;

pub(crate) struct Exclusion;

impl Exclusion {
    pub(crate) fn new(_: &Scenario) -> Self {
        Self
    }
}

impl Check for Exclusion {
    const RULE: &'static str = "exclusion";

    fn after(&mut self, at: &Moment<'_>) -> Result<(), String> {
        if at.believers.len() < 2 || !at.promises.exclusion {
            return Ok(());
        }
        for (index, one) in at.believers.iter().enumerate() {
            for other in &at.believers[index + 1..] {
                if one.resource == other.resource && one.believes(at.now) && other.believes(at.now)
                {
                    return Err(format!(
                        "clients {} and {} both believe to hold r{} (tokens {:?} and {:?})",
                        one.client, other.client, one.resource, one.fencing, other.fencing
                    ));
                }
            }
        }
        Ok(())
    }
}
