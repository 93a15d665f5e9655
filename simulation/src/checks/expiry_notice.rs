//! Checks that a holder is notified of the loss as soon as the validity of its lock ends. The library sets a timer for
//! this notice, and does not wait for the next renewal.

use quorate_promises::LossNotice;

use crate::check::{Check, Moment};
use crate::clock::MS;
use crate::facts::Fact;
use crate::scenario::Scenario;

/// The longest time from the end of the validity until the holder is notified, in nanoseconds. Pauses of the holder's
/// process do not count.
const SLACK_NANOS: u64 = MS;

pub(crate) struct ExpiryNotice {
    notice: LossNotice,
    ended_beliefs: u64,
}

impl ExpiryNotice {
    pub(crate) fn new(_: &Scenario) -> Self {
        Self {
            notice: LossNotice::new(SLACK_NANOS),
            ended_beliefs: 0,
        }
    }
}

impl Check for ExpiryNotice {
    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if let Fact::BeliefEnded { .. } = fact {
            self.ended_beliefs += u64::from(moment.promises.punctual);
        }
        Ok(())
    }

    fn check_state(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        if !moment.promises.punctual {
            return Ok(());
        }
        for believer in moment.believers {
            let awake_since = moment.awake_since[believer.client];
            if moment.now <= believer.ends_at || moment.now <= awake_since {
                continue;
            }
            let client_now = believer.clock.read(moment.now);
            // If the holder's process was paused, the allowed delay (`SLACK_NANOS`) begins when the process resumes.
            let resume_reading = believer
                .clock
                .read(awake_since)
                .saturating_sub(believer.valid_until);
            if let Some(delay) = self
                .notice
                .judge(believer.valid_until, client_now, resume_reading)
            {
                return Err(format!(
                    "client {} was not notified that its lock on r{} expired {} us ago",
                    believer.client,
                    believer.resource,
                    delay / 1_000
                ));
            }
        }
        Ok(())
    }

    fn judged_cases(&self) -> u64 {
        self.ended_beliefs
    }
}
