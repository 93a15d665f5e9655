//! Tests scenarios in which the clocks of masters jump before, during and after restarts, and clients restore
//! generation markers. Also tests that the simulation catches every seeded bug in the age of a server run.
//!
//! The environment variable `QUORATE_SEEDS` overrides the number of seeds that the tests play.

use crate::support::{CLOCKS, is_caught, must_pass, sweep};
use quorate_simulation::{Flaw, ScenarioFamily};

#[test]
fn simulated_runs_of_default_seeds_keep_the_rules_while_clocks_of_restarted_masters_jump() {
    every_seed_passes(CLOCKS.short_tier());
}

#[test]
#[ignore = "nightly"]
fn simulated_runs_of_nightly_seeds_keep_the_rules_while_clocks_of_restarted_masters_jump() {
    every_seed_passes(CLOCKS.all());
}

fn every_seed_passes(seeds: u64) {
    let summary = sweep(ScenarioFamily::Clocks, seeds);
    must_pass(&summary, " --clocks");
    let coverage = &summary.coverage;
    let events = [
        ("jumps of clocks", coverage.jumps),
        ("restarts without data", coverage.empty_restarts),
        ("restarts with data", coverage.full_restarts),
        ("markers restored by clients", coverage.restored_markers),
        ("age records raised", coverage.written_age_records),
    ];
    let rare_events: Vec<&str> = events
        .into_iter()
        .filter_map(|(event, count)| (count < seeds / 4).then_some(event))
        .collect();
    assert!(
        rare_events.is_empty(),
        "these events are too rare: {rare_events:?}"
    );
    assert!(
        coverage.lost_marker_majorities < seeds / 2,
        "in most seeds, a majority must keep its markers, because otherwise exclusion is not checked: {coverage}"
    );
}

/// For each seeded bug, a number n: at least one of the seeds from 0 to n - 1 must expose the bug.
const SEEDED_BUGS: [(Flaw, u64); 3] = [
    (Flaw::AgeFromUptime, 20),
    (Flaw::AgeOfEarlierRun, 20),
    (Flaw::RestoredMarkerIsOld, 900),
];

#[test]
fn each_seeded_bug_in_the_age_of_a_server_run_is_caught_within_its_seed_limit() {
    assert_eq!(SEEDED_BUGS.map(|(flaw, _)| flaw), Flaw::CLOCK_BUGS);
    // A build without optimizations is slow.
    let largest_limit = if cfg!(debug_assertions) { 20 } else { u64::MAX };
    for (flaw, seed_limit) in SEEDED_BUGS {
        assert_eq!(
            Flaw::by_name(flaw.name()),
            Some(flaw),
            "each seeded bug must have a name of its own"
        );
        let caught = seed_limit > largest_limit || is_caught(flaw, seed_limit);
        assert!(caught, "{flaw} must be caught within {seed_limit} seeds");
    }
}
