//! Tests scenarios in which the clocks of masters jump before, during and after restarts, and clients restore generation
//! markers. Also tests that the simulation catches every seeded bug in the age of a server run.
//!
//! The environment variable `QUORATE_SEEDS` overrides the number of seeds that the tests play.

use crate::support::{CLOCKS, is_caught, must_pass, sweep};
use quorate_simulation::{Flaw, Worlds};

#[test]
fn simulated_runs_of_default_seeds_keep_the_rules_while_clocks_of_restarted_masters_jump() {
    every_seed_passes(CLOCKS.short());
}

#[test]
#[ignore = "nightly"]
fn simulated_runs_of_nightly_seeds_keep_the_rules_while_clocks_of_restarted_masters_jump() {
    every_seed_passes(CLOCKS.all());
}

fn every_seed_passes(seeds: u64) {
    let summary = sweep(Worlds::Clocks, seeds);
    must_pass(&summary, " --clocks");
    let coverage = &summary.coverage;
    let events = [
        ("jumps of clocks", coverage.jumps),
        ("restarts without data", coverage.empty_restarts),
        ("restarts with data", coverage.full_restarts),
        ("markers restored by clients", coverage.given_again),
        ("age records raised", coverage.aged),
    ];
    let never: Vec<&str> = events
        .into_iter()
        .filter_map(|(what, count)| (count < seeds / 4).then_some(what))
        .collect();
    assert!(never.is_empty(), "these events are too rare: {never:?}");
    assert!(
        coverage.split < seeds / 2,
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
    assert_eq!(SEEDED_BUGS.map(|(flaw, _)| flaw), Flaw::OF_CLOCKS);
    // A build without optimizations is slow.
    let most = if cfg!(debug_assertions) { 20 } else { u64::MAX };
    for (flaw, within) in SEEDED_BUGS {
        assert_eq!(
            Flaw::by_name(flaw.name()),
            Some(flaw),
            "each seeded bug must have a name of its own"
        );
        let caught = within > most || is_caught(flaw, within);
        assert!(caught, "{flaw} must be caught within {within} seeds");
    }
}
