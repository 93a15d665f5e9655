//! Tests scenarios in which the clocks of masters jump before, during and after restarts, and clients restore
//! generation markers.
//!
//! The environment variable `QUORATE_SEEDS` overrides the number of seeds that the tests play.

use crate::support::{CLOCKS, must_pass, sweep};
use quorate_simulation::ScenarioFamily;

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
