//! Every call ends: by its own deadline and a stated bound, whatever the masters do.

use super::{Check, Moment};
use crate::clock::MS;
use crate::facts::Fact;
use crate::scenario::Scenario;

/// What the first request of a process waits for: a connection.
const CONNECT: u64 = 500 * MS;

/// One attempt is made in full, however short the wait: the front's of the local line, or its own with
/// an acquire, at most three rounds of confirmations, and the answer that tells why it was lost.
const ROUNDS: u64 = 6;

/// Timers, wake-ups and the last look of a wait.
const SLACK: u64 = 10 * MS;

pub(crate) struct Calls {
    /// Beyond its own deadline.
    bound: u64,
}

impl Calls {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let bound = CONNECT + ROUNDS * scenario.settings.node_timeout + SLACK;
        Self { bound }
    }
}

impl Check for Calls {
    const RULE: &'static str = "calls end";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        let Fact::Ended {
            client,
            what,
            began,
            wait,
        } = fact
        else {
            return Ok(());
        };
        // Who stood still meanwhile is late by its own doing.
        if !at.promises.punctual || at.awake_since[*client] > *began {
            return Ok(());
        }
        // Clocks of processes run apart from the true time by a little.
        let by_itself = wait + wait / 100;
        let late = (at.now - began).saturating_sub(by_itself);
        if late > self.bound {
            return Err(format!(
                "{what} of client {client} lasted {} ms, {} ms beyond its wait",
                (at.now - began) / MS,
                late / MS
            ));
        }
        Ok(())
    }
}
