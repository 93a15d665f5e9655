//! Every call ends: by its own deadline and a stated bound, whatever the masters do.

use std::fmt;

use super::{Check, Moment};
use crate::clock::MS;
use crate::facts::{Call, Fact};
use crate::scenario::Scenario;

/// What the first request of a process waits for: a connection.
const CONNECT: u64 = 500 * MS;

/// One attempt is made in full, however short the wait: the front's of the local line, or its own with
/// an acquire, at most three rounds of confirmations, and the answer that tells why it was lost.
const ROUNDS: u64 = 6;

/// What a call about a value takes beyond its lock: a read, a write, a release.
const VALUE_ROUNDS: u64 = 3;

/// Timers, wake-ups and the last look of a wait.
const SLACK: u64 = 10 * MS;

pub(crate) struct Calls {
    /// Beyond its own deadline.
    bound: u64,
    /// What a round takes at the most.
    round: u64,
    worst: Option<Lateness>,
    judged: u64,
}

/// By how much a call outlasted its own deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lateness {
    /// Which call.
    pub call: &'static str,
    /// In nanoseconds.
    pub late: u64,
    /// The most that it may be, in nanoseconds.
    pub bound: u64,
}

impl Lateness {
    /// The part of the bound that was used, in thousandths.
    pub fn used(&self) -> u64 {
        self.late * 1_000 / self.bound
    }
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |nanos: u64| nanos as f64 / 1e6;
        write!(
            f,
            "{} that ended {:.1} ms after its own deadline, {:.1} % of the {:.1} ms that it may",
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
            ..
        } = fact
        else {
            return Ok(());
        };
        let wait = match call {
            Call::Acquire {
                wait: Some(wait), ..
            } => *wait,
            // As long as it takes: the healing says how long that is.
            Call::Acquire { wait: None, .. } => return Ok(()),
            Call::Value { wait } => *wait + VALUE_ROUNDS * self.round,
            Call::Extend | Call::Downgrade | Call::Release => 0,
        };
        // Who stood still meanwhile is late by its own doing.
        if !at.promises.punctual || at.awake_since[*client] > *began {
            return Ok(());
        }
        self.judged += 1;
        // Clocks of processes run apart from the true time by a little.
        let by_itself = wait + wait / 100;
        let late = (at.now - began).saturating_sub(by_itself);
        if self.worst.as_ref().is_none_or(|worst| worst.late < late) {
            self.worst = Some(Lateness {
                call: call.name(),
                late,
                bound: self.bound,
            });
        }
        if late > self.bound {
            return Err(format!(
                "{} of client {client} lasted {} ms, {} ms beyond its wait",
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
