//! The checkers of the promises in docs/promises.md, one file for each rule.
//!
//! A checker receives facts as they happen, and returns an error if its rule is broken. A fact is,
//! for example, that a client has obtained a lock, or that a master has executed a request. After every event, a
//! checker may also check the state. The checkers do not see the internals of the library.

mod backing;
mod call_duration;
mod counters;
mod cover;
mod exclusion;
mod expiry_notice;
mod extensions;
mod force_release_notice;
mod foreign_keys;
mod groups;
mod guard;
mod healing;
mod idle_lock;
mod idle_permit;
mod leaked_keys;
mod lock_values;
mod master_queue;
mod notes;
mod order;
mod permit_queue;
mod permits;
mod renewed_locks;
mod risk_notice;
mod shared_tokens;
mod stays_released;
mod tokens;
mod value_requests;
mod value_results;
mod waiter_sets;

use std::fmt;

pub use call_duration::Lateness;
pub(crate) use healing::Healing;

use crate::facts::{Believer, Fact};
use crate::scenario::{Promises, Scenario};

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

/// The names of the rules that are checked only on stores (databases, ZooKeeper or etcd).
pub(crate) const STORE_RULES: [&str; 2] = [
    <stays_released::StaysReleased as Check>::RULE,
    <guard::StoreGuard as Check>::RULE,
];

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
    fn check_fact(&mut self, _moment: &Moment<'_>, _fact: &Fact<'_>) -> Result<(), String> {
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

macro_rules! checkers {
    ($($field:ident: $kind:ty,)*) => {
        /// The names of all rules, in the order of their checkers.
        pub const RULES: [&str; [$(stringify!($field)),*].len()] = [$(<$kind as Check>::RULE),*];

        /// The number of cases that each rule has judged, in the order of [`RULES`].
        pub type JudgedCases = [u64; RULES.len()];

        /// The checkers of all rules, and the first violation.
        pub(crate) struct Checkers {
            $($field: $kind,)*
            harmful_only: bool,
            pub(crate) violation: Option<Violation>,
        }

        impl Checkers {
            pub(crate) fn new(scenario: &Scenario, harmful_only: bool) -> Self {
                Self { $($field: <$kind>::new(scenario),)* harmful_only, violation: None }
            }

            pub(crate) fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) {
                $({
                    let result = self.$field.check_fact(moment, fact);
                    self.record_violation(<$kind as Check>::RULE, moment.now, result);
                })*
            }

            pub(crate) fn judged_cases(&self) -> JudgedCases {
                [$(self.$field.judged_cases()),*]
            }

            pub(crate) fn check_state(&mut self, moment: &Moment<'_>) {
                $({
                    let result = self.$field.check_state(moment);
                    self.record_violation(<$kind as Check>::RULE, moment.now, result);
                })*
            }
        }
    };
}

checkers! {
    permits: permits::Permits,
    exclusion: exclusion::Exclusion,
    tokens: tokens::TokenCheck,
    backing: backing::Backing,
    counters: counters::CounterCheck,
    extensions: extensions::Extensions,
    lock_values: lock_values::LockValues,
    groups: groups::Groups,
    guard: guard::RestartGuard,
    expiry_notice: expiry_notice::ExpiryNotice,
    risk_notice: risk_notice::RiskNotice,
    order: order::Order,
    cover: cover::Cover,
    call_duration: call_duration::CallDuration,
    leaked_keys: leaked_keys::LeakedKeys,
    renewed_locks: renewed_locks::RenewedLocks,
    idle_lock: idle_lock::IdleLock,
    force_release_notice: force_release_notice::ForceReleaseNotice,
    notes: notes::NoteCheck,
    value_requests: value_requests::ValueRequests,
    value_results: value_results::ValueResults,
    permit_queue: permit_queue::PermitQueue,
    idle_permit: idle_permit::IdlePermit,
    foreign_keys: foreign_keys::ForeignKeys,
    stays_released: stays_released::StaysReleased,
    store_guard: guard::StoreGuard,
}

impl Checkers {
    /// The call that returned the latest after its timeout; `None` if the rule "calls end" has judged no call.
    pub(crate) fn latest_call(&self) -> Option<Lateness> {
        self.call_duration.latest_call()
    }

    /// Records a violation of the rule "time goes on": tasks were polled `polls` times without any progress of
    /// simulated time, so they are probably in an endless loop.
    pub(crate) fn record_endless_loop(&mut self, now: u64, polls: usize) {
        let description =
            format!("tasks were polled {polls} times, but the simulated time did not advance");
        self.record_violation("time goes on", now, Err(description));
    }

    /// If `result` is an error, records it as a violation of the rule `rule`. Keeps only the first violation
    /// of a run.
    fn record_violation(&mut self, rule: &'static str, now: u64, result: Result<(), String>) {
        if let (Err(description), None) = (result, &self.violation) {
            if self.harmful_only && !HARMFUL_RULES.contains(&rule) {
                return;
            }
            let at_nanos = now - crate::clock::RUN_START;
            self.violation = Some(Violation {
                rule,
                description,
                at_nanos,
            });
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
