//! Rule 1, the holder's side: a holder is told at the end of its validity, by a timer of its own
//! and not at the next renewal.

use super::{Check, Moment};
use crate::clock::MS;
use crate::scenario::Scenario;

/// What the way from the timer to the holder may take where nobody is paused.
const SLACK: u64 = MS;

pub(crate) struct Loss;

impl Loss {
    pub(crate) fn new(_: &Scenario) -> Self {
        Self
    }
}

impl Check for Loss {
    const RULE: &'static str = "loss told in time";

    fn after(&mut self, at: &Moment<'_>) -> Result<(), String> {
        if !at.promises.punctual {
            return Ok(());
        }
        for believer in at.believers {
            let awake = at.now.saturating_sub(at.awake_since[believer.client]);
            let late = believer.clock.read(at.now).saturating_sub(believer.until);
            if late > SLACK && awake > SLACK {
                return Err(format!(
                    "client {} has not been told {} us after the end of its validity on r{}",
                    believer.client,
                    late / 1_000,
                    believer.resource
                ));
            }
        }
        Ok(())
    }
}
