//! The trait of all checkers, the moment that they read, and a broken rule. The checkers are in `checks/`.

use std::fmt;

use quorate_promises::Event;

use crate::facts::{Believer, Fact};
use crate::scenario::Promises;

/// A rule that was broken, with the state or event that broke it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The name of the broken rule.
    pub rule: &'static str,
    /// The state or event that broke the rule, as a text.
    pub description: String,
    /// When the rule was broken, in nanoseconds of simulated time.
    pub at_nanos: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} at {:.3} ms: {}",
            self.rule,
            self.at_nanos as f64 / 1e6,
            self.description
        )
    }
}

/// The rules whose violation harms users directly. A violation of any other rule is an early warning.
pub const HARMFUL_RULES: [&str; 9] = [
    "exclusion",
    "permits",
    "foreign keys untouched",
    "tokens",
    "stock",
    "expiry reported to holder",
    "calls end",
    "healing",
    "time goes on",
];

/// The rules of which a run reports violations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckedRules {
    /// All rules.
    #[default]
    All,
    /// Only the rules whose violation harms users ([`HARMFUL_RULES`]).
    Harmful,
    /// Only the rule with this name.
    Only(&'static str),
}

impl CheckedRules {
    /// Whether a violation of `rule` is reported.
    pub(crate) fn includes(self, rule: &str) -> bool {
        match self {
            Self::All => true,
            Self::Harmful => HARMFUL_RULES.contains(&rule),
            Self::Only(name) => name == rule,
        }
    }
}

/// The time of an event and the state of the clients, which every checker may read.
pub(crate) struct Moment<'a> {
    /// The true time of the event, in nanoseconds.
    pub(crate) now: u64,
    /// The number of the current event.
    pub(crate) event: u64,
    pub(crate) believers: &'a [Believer],
    /// For each client, the true time at which its process last resumed from a pause. If the process is paused now, the
    /// time at which it will resume.
    pub(crate) awake_since: &'a [u64],
    pub(crate) promises: Promises,
}

/// The checker of one rule.
pub(crate) trait Check {
    /// Receives a fact, and returns an error if the fact breaks the rule.
    fn check_fact(&mut self, _moment: &Moment<'_>, _fact: &Fact<'_>) -> Result<(), String> {
        Ok(())
    }

    /// Receives a fact in the words of the promises, if it is an event of their histories (see `checks/kept.rs`).
    /// Returns an error if the event breaks the rule.
    fn check_event(&mut self, _moment: &Moment<'_>, _event: &Event<'_>) -> Result<(), String> {
        Ok(())
    }

    /// Checks the state after an event, and returns an error if the rule is broken.
    fn check_state(&mut self, _moment: &Moment<'_>) -> Result<(), String> {
        Ok(())
    }

    /// The number of cases that the checker has judged. A case is a situation in which the rule could have been broken.
    /// A rule without cases has tested nothing.
    fn judged_cases(&self) -> u64;
}

/// A map whose keys are the lock values of attempts. These values are random, so a simple hasher is enough.
pub(crate) type ByValue<T> =
    std::collections::HashMap<[u8; 32], T, std::hash::BuildHasherDefault<FirstBytes>>;

/// A hasher for lock values. It uses only the first eight bytes written to it.
#[derive(Default)]
pub(crate) struct FirstBytes(u64);

impl std::hash::Hasher for FirstBytes {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(head) = bytes.last_chunk::<8>().filter(|_| bytes.len() >= 16) {
            // The lock value is hexadecimal text with only four random bits per byte; the multiplication spreads these
            // bits.
            self.0 = u64::from_le_bytes(*head).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
    }

    fn write_usize(&mut self, _: usize) {}
}
