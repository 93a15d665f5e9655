//! Checks the restart guard of stores (databases, ZooKeeper or etcd): while a store may have forgotten locks, no client
//! counts its votes.
//!
//! The clients enforce this rule when they begin a session. So only requests that a client sends after the event are
//! judged.

use super::guard::has_voted;
use crate::check::{Check, Moment};
use crate::facts::Fact;
use crate::happening::Happening;
use crate::scenario::Scenario;
use crate::store_plan::RunRule;

pub(crate) struct StoreGuard {
    guard_nanos: u64,
    stores: Vec<GuardedStore>,
    judged_cases: u64,
}

#[derive(Clone, Copy)]
struct GuardedStore {
    /// How clients notice that the store may have forgotten locks; `None` if the rule does not concern this master.
    rule: Option<RunRule>,
    /// The true time of the last event after which the store may have forgotten locks.
    event_at: u64,
    /// The true time until which the votes of the store must not count.
    silent_until: u64,
}

impl StoreGuard {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let is_guarded = |rule: &RunRule| match rule {
            RunRule::Durable => false,
            // A jump of the clock changes the uptime that the store reports.
            RunRule::Uptime => !scenario.has_jumps(),
            RunRule::Counted | RunRule::Numbered => !scenario.has_unnoticed_set_back(),
        };
        let stores = scenario.masters.iter().map(|plan| GuardedStore {
            rule: plan
                .store
                .map(|plan| plan.run)
                .filter(|rule| scenario.settings.guard && is_guarded(rule)),
            event_at: 0,
            silent_until: 0,
        });
        Self {
            // Clocks may run up to 1 % fast, so the guard may end 1 % earlier in true time.
            guard_nanos: scenario.settings.max_ttl / 100 * 99,
            stores: stores.collect(),
            judged_cases: 0,
        }
    }
}

impl Check for StoreGuard {
    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            // Simulated time has skipped some days, so the restart guards of all stores have ended.
            Fact::Happened {
                happening: Happening::UnusedDays,
                ..
            } => {
                for store in &mut self.stores {
                    store.silent_until = 0;
                }
            }
            Fact::StoreUnusable { master } => {
                let store = &mut self.stores[*master];
                (store.event_at, store.silent_until) = (moment.now, u64::MAX);
            }
            Fact::MasterRestarted { master, .. } => {
                let store = &mut self.stores[*master];
                // A restart of a store whose changes are numbered forgets nothing, unless the store was set back.
                if store.rule != Some(RunRule::Numbered) || store.silent_until == u64::MAX {
                    store.event_at = store.event_at.max(moment.now);
                    store.silent_until = moment.now + self.guard_nanos;
                }
            }
            Fact::StoreAnswered {
                master,
                sent_at,
                answer,
            } => {
                let store = self.stores[*master];
                if store.rule.is_none()
                    || *sent_at <= store.event_at
                    || moment.now >= store.silent_until
                {
                    return Ok(());
                }
                self.judged_cases += 1;
                if has_voted(answer) {
                    return Err(format!(
                        "the votes of store {master} count {} ms after an event after which it may have forgotten locks",
                        (moment.now - store.event_at) / 1_000_000
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases
    }
}
