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

pub use call_duration::Lateness;
pub(crate) use healing::Healing;

use crate::check::{Check, CheckedRules, Moment, Violation};
use crate::facts::Fact;
use crate::scenario::Scenario;

/// The rules that have no checker, because the run itself checks them.
pub(crate) const RULES_OF_THE_RUN: [&str; 3] = [Healing::RULE, TIME_GOES_ON, SOMETHING_HAPPENS];

/// The rule that simulated time goes on: no task is polled in an endless loop.
pub(crate) const TIME_GOES_ON: &str = "time goes on";

/// The rule that some client acquires a lock in each run.
pub(crate) const SOMETHING_HAPPENS: &str = "something happens";

/// Returns the rule with this name; `None` if there is none.
pub fn rule_by_name(name: &str) -> Option<&'static str> {
    let mut rules = RULES.into_iter().chain(RULES_OF_THE_RUN);
    rules.find(|rule| *rule == name)
}

/// The names of the rules that are checked only on stores (databases, ZooKeeper or etcd).
pub(crate) const STORE_RULES: [&str; 2] = [
    <stays_released::StaysReleased as Check>::RULE,
    <guard::StoreGuard as Check>::RULE,
];

macro_rules! checkers {
    ($($field:ident: $kind:ty,)*) => {
        /// The names of all rules, in the order of their checkers.
        pub const RULES: [&str; [$(stringify!($field)),*].len()] = [$(<$kind as Check>::RULE),*];

        /// The number of cases that each rule has judged, in the order of [`RULES`].
        pub type JudgedCases = [u64; RULES.len()];

        /// The checkers of all rules, and the first violation.
        pub(crate) struct Checkers {
            $($field: $kind,)*
            checked_rules: CheckedRules,
            pub(crate) violation: Option<Violation>,
        }

        impl Checkers {
            pub(crate) fn new(scenario: &Scenario, checked_rules: CheckedRules) -> Self {
                Self { $($field: <$kind>::new(scenario),)* checked_rules, violation: None }
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
        self.record_violation(TIME_GOES_ON, now, Err(description));
    }

    /// If `result` is an error, records it as a violation of the rule `rule`. Keeps only the first violation
    /// of a run.
    fn record_violation(&mut self, rule: &'static str, now: u64, result: Result<(), String>) {
        if let (Err(description), None) = (result, &self.violation) {
            if !self.checked_rules.includes(rule) {
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
