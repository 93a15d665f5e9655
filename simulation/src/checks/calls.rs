//! Checks that every call of the library returns within its own timeout plus a fixed bound, even if no master answers.

use std::fmt;

use super::{Check, Moment};
use crate::clock::MS;
use crate::facts::{Call, Fact};
use crate::scenario::Scenario;

/// How long one step of making a connection may take, in nanoseconds.
const CONNECT: u64 = 500 * MS;

/// The number of steps of making a connection. A process's first requests wait for all steps.
const CONNECT_STEPS: u64 = 3;

/// The time limit of one attempt, in rounds. A round is one request to all masters.
///
/// An attempt has at most five rounds: one acquires the lock, three confirm it, and one asks why the attempt failed.
/// The sixth round is a margin.
const ROUNDS: u64 = 6;

/// The number of rounds of a call that reads and writes a lock-protected value: a read, a write and a release. The
/// rounds of the acquire are counted separately ([`ROUNDS`]).
const VALUE_ROUNDS: u64 = 3;

/// The extra time for timers and wake-ups, and for an attempt that begins just before the timeout, in nanoseconds.
const SLACK: u64 = 10 * MS;

pub(crate) struct Calls {
    /// The longest time, in nanoseconds, by which a call may exceed its own timeout.
    bound: u64,
    /// The longest duration of a round (one request to all masters), in nanoseconds.
    round: u64,
    worst: Option<Lateness>,
    judged: u64,
}

/// By how much a call exceeded its own timeout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lateness {
    /// The name of the call, e.g. "an acquire".
    pub call: &'static str,
    /// By how much the call exceeded its timeout, in nanoseconds.
    pub late: u64,
    /// The longest time by which the call may exceed its timeout, in nanoseconds.
    pub bound: u64,
}

impl Lateness {
    /// The share of `bound` that `late` takes, in thousandths.
    pub fn used(&self) -> u64 {
        self.late * 1_000 / self.bound
    }
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |nanos: u64| nanos as f64 / 1e6;
        write!(
            f,
            "{} ended {:.1} ms after its timeout ({:.1} % of the allowed delay of {:.1} ms)",
            self.call,
            ms(self.late),
            self.used() as f64 / 10.0,
            ms(self.bound)
        )
    }
}

impl Calls {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            round: scenario.slowest() + SLACK,
            bound: CONNECT + ROUNDS * scenario.slowest() + SLACK,
            worst: None,
            judged: 0,
        }
    }

    pub(crate) fn worst(&self) -> Option<Lateness> {
        self.worst.clone()
    }
}

impl Check for Calls {
    const RULE: &'static str = "calls end";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        let Fact::Returned {
            client,
            call,
            began,
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
            Call::Value { wait } => *wait + VALUE_ROUNDS * self.round,
            Call::Extend | Call::Downgrade | Call::Release => 0,
        };
        // Skip a call during which the client's process was paused, because the pause may have made the call late.
        if !at.promises.punctual || at.awake_since[*client] > *began {
            return Ok(());
        }
        self.judged += 1;
        // The client measures its timeout on its own clock, which may run up to 1 % slow. So the timeout may last 1 %
        // longer in true time.
        let by_itself = wait + wait / 100;
        // The time for connecting does not count as lateness. A process connects at its first request, or when it
        // resumes if it was paused at that time.
        let resumed = at.awake_since[*client];
        let connected = first_request.map_or(0, |first| {
            first.max(resumed) + (CONNECT_STEPS - 1) * CONNECT
        });
        let late = at.now.saturating_sub((began + by_itself).max(connected));
        if self.worst.as_ref().is_none_or(|worst| worst.late < late) {
            self.worst = Some(Lateness {
                call: call.name(),
                late,
                bound: self.bound,
            });
        }
        if late > self.bound {
            return Err(format!(
                "{} of client {client} took {} ms, {} ms longer than its timeout",
                call.name(),
                (at.now - began) / MS,
                late / MS
            ));
        }
        Ok(())
    }

    fn judged(&self) -> u64 {
        self.judged
    }
}
