//! The checkers of the promises in docs/promises.md, one file for each rule.
//!
//! A checker receives facts as they happen, and returns an error if its rule is broken. A fact is,
//! for example, that a client has obtained a lock, or that a master has executed a request. After every event, a
//! checker may also check the state. The checkers do not see the internals of the library.

mod backing;
mod calls;
mod counters;
mod cover;
mod exclusion;
mod extensions;
mod foreign_keys;
mod gone;
mod groups;
mod guard;
mod healing;
mod idle;
mod idle_permit;
mod kept;
mod leaked_keys;
mod lines_up;
mod loss;
mod notes;
mod numbers;
mod order;
mod permit_line;
mod permits;
mod prompt;
mod queue;
mod register;
mod stock;
mod tokens;
mod values;

use std::fmt;

pub use calls::Lateness;
pub(crate) use healing::Healing;

use crate::facts::{Believer, Fact};
use crate::scenario::{Promises, Scenario};

/// A rule that was broken, with the state or event that broke it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The name of the broken rule.
    pub rule: &'static str,
    /// The state or event that broke the rule, as a text.
    pub what: String,
    /// When the rule was broken, in nanoseconds of simulated time.
    pub at: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} at {:.3} ms: {}",
            self.rule,
            self.at as f64 / 1e6,
            self.what
        )
    }
}

/// The rules whose violation harms users directly. A violation of any other rule is an early warning.
pub const HARM: [&str; 9] = [
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

/// The name of the rule that is checked only on stores (databases or ZooKeeper).
pub(crate) const OF_STORES: &str = <gone::Gone as Check>::RULE;

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
    /// The name of the rule in reports of violations.
    const RULE: &'static str;

    /// Receives a fact, and returns an error if the fact breaks the rule.
    fn see(&mut self, _at: &Moment<'_>, _fact: &Fact<'_>) -> Result<(), String> {
        Ok(())
    }

    /// Checks the state after an event, and returns an error if the rule is broken.
    fn after(&mut self, _at: &Moment<'_>) -> Result<(), String> {
        Ok(())
    }

    /// The number of cases that the checker has judged. A case is a situation in which the rule could have been broken.
    /// A rule without cases has tested nothing.
    fn judged(&self) -> u64;
}

macro_rules! checkers {
    ($($field:ident: $kind:ty,)*) => {
        /// The names of all rules, in the order of their checkers.
        pub const RULES: [&str; [$(stringify!($field)),*].len()] = [$(<$kind as Check>::RULE),*];

        /// The number of cases that each rule has judged, in the order of [`RULES`].
        pub type Judged = [u64; RULES.len()];

        /// The checkers of all rules, and the first violation.
        pub(crate) struct Checkers {
            $($field: $kind,)*
            harm: bool,
            pub(crate) violation: Option<Violation>,
        }

        impl Checkers {
            pub(crate) fn new(scenario: &Scenario, harm: bool) -> Self {
                Self { $($field: <$kind>::new(scenario),)* harm, violation: None }
            }

            pub(crate) fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) {
                $({
                    let said = self.$field.see(at, fact);
                    self.note(<$kind as Check>::RULE, at.now, said);
                })*
            }

            pub(crate) fn judged(&self) -> Judged {
                [$(self.$field.judged()),*]
            }

            pub(crate) fn after(&mut self, at: &Moment<'_>) {
                $({
                    let said = self.$field.after(at);
                    self.note(<$kind as Check>::RULE, at.now, said);
                })*
            }
        }
    };
}

checkers! {
    permits: permits::Permits,
    exclusion: exclusion::Exclusion,
    tokens: tokens::Tokens,
    backing: backing::Backing,
    counters: counters::Counters,
    extensions: extensions::Extensions,
    values: values::Values,
    groups: groups::Groups,
    guard: guard::Guard,
    loss: loss::Loss,
    order: order::Order,
    cover: cover::Cover,
    calls: calls::Calls,
    leaked_keys: leaked_keys::LeakedKeys,
    kept: kept::Kept,
    idle: idle::Idle,
    prompt: prompt::Prompt,
    notes: notes::Notes,
    register: register::Register,
    stock: stock::Stock,
    permit_line: permit_line::PermitLine,
    idle_permit: idle_permit::IdlePermit,
    foreign_keys: foreign_keys::ForeignKeys,
    gone: gone::Gone,
}

impl Checkers {
    /// The call that returned the latest after its timeout; `None` if the rule "calls end" has judged no call.
    pub(crate) fn worst(&self) -> Option<Lateness> {
        self.calls.worst()
    }

    /// Records a violation of the rule "time goes on": tasks were polled `polls` times without any progress of
    /// simulated time, so they are probably in an endless loop.
    pub(crate) fn busy(&mut self, now: u64, polls: usize) {
        let what =
            format!("tasks were polled {polls} times, but the simulated time did not advance");
        self.note("time goes on", now, Err(what));
    }

    /// If the result `said` is an error, records it as a violation of the rule `rule`. Keeps only the first violation
    /// of a run.
    fn note(&mut self, rule: &'static str, now: u64, said: Result<(), String>) {
        if let (Err(what), None) = (said, &self.violation) {
            if self.harm && !HARM.contains(&rule) {
                return;
            }
            let at = now - crate::clock::BEGIN;
            self.violation = Some(Violation { rule, what, at });
        }
    }
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
