//! The checkers of the promises in docs/promises.md, one file for each rule.
//!
//! A checker receives facts as they happen, and returns an error if its rule is broken. A fact is,
//! for example, that a client has obtained a lock, or that a master has executed a request. After every event, a
//! checker may also check the state. The checkers do not see the internals of the library.

mod backing;
mod call_duration;
mod counters;
mod cover;
mod expiry_notice;
mod extensions;
mod force_release_notice;
mod foreign_keys;
mod groups;
mod guard;
mod healing;
mod kept;
mod leaked_keys;
mod lock_values;
mod master_queue;
mod notes;
mod order;
mod permit_queue;
mod queued_waiters;
mod renewed_locks;
mod risk_notice;
mod stays_released;
mod value_requests;

pub use call_duration::Lateness;
pub(crate) use healing::Healing;

use quorate_promises::{Exclusion, Idle, OwnerTokens, Permits, Refusals, Tokens, Values};

use self::kept::{Kept, Parts, Translator};
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
pub(crate) const STORE_RULES: [&str; 2] =
    ["released locks stay released", "restart guard of stores"];

macro_rules! checkers {
    ($($field:ident: $kind:ty, $rule:literal, $new:expr;)*) => {
        /// The names of all rules, in the order of their checkers.
        pub const RULES: [&str; [$($rule),*].len()] = [$($rule),*];

        /// The number of cases that each rule has judged, in the order of [`RULES`].
        pub type JudgedCases = [u64; RULES.len()];

        /// The checkers of all rules, and the first violation.
        pub(crate) struct Checkers {
            $($field: $kind,)*
            translator: Translator,
            checked_rules: CheckedRules,
            pub(crate) violation: Option<Violation>,
        }

        impl Checkers {
            pub(crate) fn new(scenario: &Scenario, checked_rules: CheckedRules) -> Self {
                Self {
                    $($field: ($new)(scenario),)*
                    translator: Translator::new(scenario),
                    checked_rules,
                    violation: None,
                }
            }

            pub(crate) fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) {
                let mut parts = Parts::default();
                let hold = self.translator.hold(moment, fact, &mut parts);
                let queues = kept::queues_of(fact);
                let event = Translator::event(fact, hold.as_ref(), &queues);
                $({
                    let mut result = self.$field.check_fact(moment, fact);
                    if let (Ok(()), Some(event)) = (&result, &event) {
                        result = self.$field.check_event(moment, event);
                    }
                    self.record_violation($rule, moment.now, result);
                })*
            }

            pub(crate) fn judged_cases(&self) -> JudgedCases {
                [$(self.$field.judged_cases()),*]
            }

            pub(crate) fn check_state(&mut self, moment: &Moment<'_>) {
                $({
                    let result = self.$field.check_state(moment);
                    self.record_violation($rule, moment.now, result);
                })*
            }
        }
    };
}

// Each line has the name of the field, the checker, the name of the rule, and the constructor of the checker. A line
// with `Kept` checks a promise of the package `quorate-promises`, whenever the scenario keeps the promise's assumptions.
checkers! {
    permits: Kept<Permits>, "permits", |_| Kept::new(Permits::default(), |kept| kept.exclusion);
    exclusion: Kept<Exclusion>, "exclusion", |_| Kept::new(Exclusion::default(), |kept| kept.exclusion);
    tokens: Kept<(Tokens, OwnerTokens)>, "tokens", |_| Kept::new(<_>::default(), |kept| kept.tokens);
    backing: backing::Backing, "backing", backing::Backing::new;
    counters: counters::CounterCheck, "counters", counters::CounterCheck::new;
    extensions: extensions::Extensions, "extensions", extensions::Extensions::new;
    lock_values: lock_values::LockValues, "values", lock_values::LockValues::new;
    groups: groups::Groups, "groups", groups::Groups::new;
    guard: guard::RestartGuard, "restart guard", guard::RestartGuard::new;
    expiry_notice: expiry_notice::ExpiryNotice, "expiry reported to holder", expiry_notice::ExpiryNotice::new;
    risk_notice: risk_notice::RiskNotice, "risk reported to holder", risk_notice::RiskNotice::new;
    order: order::Order, "first come, first served", order::Order::new;
    cover: cover::Cover, "cover", cover::Cover::new;
    call_duration: call_duration::CallDuration, "calls end", call_duration::CallDuration::new;
    leaked_keys: leaked_keys::LeakedKeys, "no leaked keys", leaked_keys::LeakedKeys::new;
    renewed_locks: renewed_locks::RenewedLocks, "renewed locks stay", renewed_locks::RenewedLocks::new;
    idle: Kept<Idle>, "no idle lock", |scenario| Kept::new(Idle::new(kept::idle_limits(scenario)), |kept| kept.order);
    force_release_notice: force_release_notice::ForceReleaseNotice, "holders learn of force-releases",
        force_release_notice::ForceReleaseNotice::new;
    notes: notes::NoteCheck, "terms and notes", notes::NoteCheck::new;
    value_requests: value_requests::ValueRequests, "register", value_requests::ValueRequests::new;
    values: Kept<Values>, "stock", |scenario| Kept::new(kept::values(scenario), |kept| kept.stock);
    permit_queue: permit_queue::PermitQueue, "queue of permits", permit_queue::PermitQueue::new;
    refusals: Kept<Refusals>, "refusals have a cause",
        |scenario| Kept::new(kept::refusals(scenario), |kept| kept.calm);
    foreign_keys: foreign_keys::ForeignKeys, "foreign keys untouched", foreign_keys::ForeignKeys::new;
    stays_released: stays_released::StaysReleased, "released locks stay released", stays_released::StaysReleased::new;
    store_guard: guard::StoreGuard, "restart guard of stores", guard::StoreGuard::new;
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
