//! Tests scenarios with stores without a clock in which every client process takes one step, and most processes try
//! only once to take a lock. Holders and waiters die, leaders of the stores change, and clocks are wrong.
//!
//! The environment variable `QUORATE_SEEDS` overrides the number of seeds that the tests play.

use crate::support::{MS, TRIES, must_pass, sweep};
use quorate_simulation::{
    Fault, FaultKind, RunRule, Scenario, ScenarioFamily, Step, StoreEvent, StorePlan, run,
};

#[test]
fn simulation_of_short_processes_breaks_no_rule_with_the_default_seeds() {
    every_seed_passes(TRIES.short_tier());
}

#[test]
#[ignore = "nightly"]
fn simulation_of_short_processes_breaks_no_rule_with_the_nightly_seeds() {
    every_seed_passes(TRIES.all());
}

fn every_seed_passes(seeds: u64) {
    let summary = sweep(ScenarioFamily::Tries, seeds);
    must_pass(&summary, " --tries");
    let coverage = &summary.coverage;
    assert!(coverage.ended_processes > 0 && coverage.elections > 0);
}

/// Each process must add to the age of the run, even if the guard ends just before its next use of the session.
#[test]
fn short_processes_add_up_the_age_of_a_run_until_the_votes_count() {
    let mut scenario = Scenario::quiet(7, 1, 1);
    (scenario.one_step_per_process, scenario.heal_at) = (true, 1_000 * MS);
    (scenario.settings.ttl, scenario.settings.max_ttl) = (500 * MS, 3_200 * MS);
    scenario.masters[0].store = Some(StorePlan::quiet(RunRule::Counted));
    scenario.clients[0].steps = vec![Step {
        wait: 0,
        ..Step::plain()
    }];
    let kind = FaultKind::StoreEvent {
        master: 0,
        event: StoreEvent::BackendCrash,
        down: 50 * MS,
        age: MS,
    };
    scenario.faults = vec![Fault { at: 500 * MS, kind }];
    let result = run(&scenario);
    assert_eq!(result.violation, None);
    assert!(result.coverage.begun_runs == 1 && result.coverage.raised_ages > 10);
}
