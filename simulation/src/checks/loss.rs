//! Checks that a holder is notified of the loss as soon as the validity of its lock ends. The library sets a timer for
//! this notice, and does not wait for the next renewal.

use quorate_promises::LossNotice;

use super::{Check, Moment};
use crate::clock::MS;
use crate::facts::Fact;
use crate::scenario::Scenario;

/// The longest time from the end of the validity until the holder is notified, in nanoseconds. Pauses of the holder's
/// process do not count.
const SLACK: u64 = MS;

pub(crate) struct Loss {
    notice: LossNotice,
    retired: u64,
}

impl Loss {
    pub(crate) fn new(_: &Scenario) -> Self {
        Self {
            notice: LossNotice::new(SLACK),
            retired: 0,
        }
    }
}

impl Check for Loss {
    const RULE: &'static str = "expiry reported to holder";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if let Fact::Retired { .. } = fact {
            self.retired += u64::from(at.promises.punctual);
        }
        Ok(())
    }

    fn after(&mut self, at: &Moment<'_>) -> Result<(), String> {
        if !at.promises.punctual {
            return Ok(());
        }
        for believer in at.believers {
            let awake_since = at.awake_since[believer.client];
            if at.now <= believer.ends || at.now <= awake_since {
                continue;
            }
            let shows = believer.clock.read(at.now);
            // If the holder's process was paused, the allowed delay (`SLACK`) begins when the process resumes.
            let kept = believer
                .clock
                .read(awake_since)
                .saturating_sub(believer.until);
            if let Some(late) = self.notice.judge(believer.until, shows, kept) {
                return Err(format!(
                    "client {} was not notified that its lock on r{} expired {} us ago",
                    believer.client,
                    believer.resource,
                    late / 1_000
                ));
            }
        }
        Ok(())
    }

    fn judged(&self) -> u64 {
        self.retired
    }
}
