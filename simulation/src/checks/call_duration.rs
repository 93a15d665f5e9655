//! Checks that every call of the library returns within its own timeout plus a fixed bound, even if no master answers.

use std::fmt;

use crate::check::{Check, Moment};
use crate::clock::MS;
use crate::facts::{Call, Fact};
use crate::scenario::Scenario;

/// How long one step of making a connection may take, in nanoseconds.
const CONNECT_STEP_NANOS: u64 = 500 * MS;

/// The number of steps of making a connection. A process's first requests wait for all steps.
const CONNECT_STEPS: u64 = 3;

/// The time limit of one attempt, in rounds. A round is one request to all masters.
///
/// An attempt has at most five rounds: one acquires the lock, three confirm it, and one asks why the attempt failed.
/// The sixth round is a margin.
const ATTEMPT_ROUNDS: u64 = 6;

/// The number of rounds of a call that reads and writes a lock-protected value: a read, a write and a release. The
/// rounds of the acquire are counted separately ([`ATTEMPT_ROUNDS`]).
const VALUE_ROUNDS: u64 = 3;

/// The extra time for timers and wake-ups, and for an attempt that begins just before the timeout, in nanoseconds.
const SLACK_NANOS: u64 = 10 * MS;

pub(crate) struct CallDuration {
    /// The longest time, in nanoseconds, by which a call may exceed its own timeout.
    allowed_delay: u64,
    /// The longest duration of a round (one request to all masters), in nanoseconds.
    round_nanos: u64,
    latest: Option<Lateness>,
    judged_cases: u64,
}

/// By how much a call exceeded its own timeout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lateness {
    /// The name of the call, e.g. "an acquire".
    pub call: &'static str,
    /// By how much the call exceeded its timeout, in nanoseconds.
    pub delay: u64,
    /// The longest time by which the call may exceed its timeout, in nanoseconds.
    pub allowed_delay: u64,
}

impl Lateness {
    /// The share of `allowed_delay` that `delay` takes, in thousandths.
    pub fn thousandths_of_allowed(&self) -> u64 {
        self.delay * 1_000 / self.allowed_delay
    }
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |nanos: u64| nanos as f64 / 1e6;
        write!(
            f,
            "{} ended {:.1} ms after its timeout ({:.1} % of the allowed delay of {:.1} ms)",
            self.call,
            ms(self.delay),
            self.thousandths_of_allowed() as f64 / 10.0,
            ms(self.allowed_delay)
        )
    }
}

impl CallDuration {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            round_nanos: scenario.slowest_answer() + SLACK_NANOS,
            allowed_delay: CONNECT_STEP_NANOS
                + ATTEMPT_ROUNDS * scenario.slowest_answer()
                + SLACK_NANOS,
            latest: None,
            judged_cases: 0,
        }
    }

    pub(crate) fn latest_call(&self) -> Option<Lateness> {
        self.latest.clone()
    }
}

impl Check for CallDuration {
    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        let Fact::CallReturned {
            client,
            call,
            began_at,
            first_request,
            ..
        } = fact
        else {
            return Ok(());
        };
        let wait = match call {
            Call::Acquire {
                wait: Some(wait), ..
            } => *wait,
            // An acquire without a time limit has no timeout that it could exceed.
            Call::Acquire { wait: None, .. } => return Ok(()),
            Call::Value { wait } => *wait + VALUE_ROUNDS * self.round_nanos,
            Call::Extend | Call::Downgrade | Call::Release => 0,
        };
        // Skip a call during which the client's process was paused, because the pause may have made the call late.
        if !moment.promises.punctual || moment.awake_since[*client] > *began_at {
            return Ok(());
        }
        self.judged_cases += 1;
        // The client measures its timeout on its own clock, which may run up to 1 % slow. So the timeout may last 1 %
        // longer in true time.
        let slow_clock_wait = wait + wait / 100;
        // The time for connecting does not count as lateness. A process connects at its first request, or when it
        // resumes if it was paused at that time.
        let resumed_at = moment.awake_since[*client];
        let connected_at = first_request.map_or(0, |first_request_at| {
            first_request_at.max(resumed_at) + (CONNECT_STEPS - 1) * CONNECT_STEP_NANOS
        });
        let delay = moment
            .now
            .saturating_sub((began_at + slow_clock_wait).max(connected_at));
        if self
            .latest
            .as_ref()
            .is_none_or(|latest| latest.delay < delay)
        {
            self.latest = Some(Lateness {
                call: call.name(),
                delay,
                allowed_delay: self.allowed_delay,
            });
        }
        if delay > self.allowed_delay {
            return Err(format!(
                "{} of client {client} took {} ms, {} ms longer than its timeout",
                call.name(),
                (moment.now - began_at) / MS,
                delay / MS
            ));
        }
        Ok(())
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases
    }
}
