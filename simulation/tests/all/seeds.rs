//! Plays a fixed number of seeds under `cargo test`. Also tests that a seed always gives the same run.
//!
//! The environment variable `QUORATE_SEEDS` overrides the number of seeds that the tests play.

use crate::support::{REDIS, must_pass, sweep};
use quorate_simulation::{RULES, RunOptions, Scenario, ScenarioFamily, run};

#[test]
fn simulation_with_redis_masters_breaks_no_rule_with_the_default_seeds() {
    every_seed_passes(REDIS.short_tier());
}

#[test]
#[ignore = "nightly"]
fn simulation_with_redis_masters_breaks_no_rule_with_the_nightly_seeds() {
    every_seed_passes(REDIS.all());
}

fn every_seed_passes(seeds: u64) {
    let summary = sweep(ScenarioFamily::Redis, seeds);
    for (rule, judged_cases) in RULES.into_iter().zip(summary.judged_cases) {
        println!("{rule}: {judged_cases} cases");
    }
    println!(
        "the call that came closest to its time limit: {:?}",
        summary.latest_call
    );
    println!("{seeds} seeds took {:.1} s", summary.elapsed.as_secs_f64());
    must_pass(&summary, "");
    // In a build without optimizations the test plays few seeds. Even these must contain a case for every rule.
    assert_eq!(
        summary.idle_rules(),
        Vec::<&str>::new(),
        "each rule must have judged some case"
    );
    if seeds >= 2_000 {
        assert_eq!(
            summary.coverage.events_that_never_happened(),
            Vec::<&str>::new(),
            "every event must happen in some seed"
        );
    }
}

#[test]
fn same_seed_gives_the_same_simulation_run() {
    for seed in 0..20 {
        let scenario = Scenario::draw(seed);
        let run_options = RunOptions {
            trace: true,
            ..RunOptions::default()
        };
        assert_eq!(
            run_options.run(&scenario),
            run_options.run(&scenario),
            "seed {seed}"
        );
    }
}

#[test]
fn simulation_run_has_the_same_coverage_with_and_without_a_trace() {
    for seed in 0..20 {
        let scenario = Scenario::draw(seed);
        let traced = RunOptions {
            trace: true,
            ..RunOptions::default()
        };
        assert_eq!(
            run(&scenario).coverage,
            traced.run(&scenario).coverage,
            "seed {seed}"
        );
    }
}

/// A client whose lock was force-released reports this lock only after the next client has reported its own, because
/// the answers were late. Without fencing tokens, a checker must not take the order of the reports for the order of the
/// locks.
#[test]
fn late_report_of_a_force_released_lock_without_a_token_is_no_violation() {
    let run_options = RunOptions::default();
    assert_eq!(run_options.run(&Scenario::draw(5_296)).violation, None);
}
