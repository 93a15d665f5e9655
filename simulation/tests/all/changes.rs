//! Tests scenarios in which masters are replaced while clients take locks.
//!
//! The environment variable `QUORATE_SEEDS` overrides the number of seeds that the tests play.

use crate::support::{CHANGES, must_pass, sweep};
use quorate_simulation::{
    ChangePlan, Fault, FaultKind, Kind, RunOptions, Scenario, ScenarioFamily, Step, ValueStep,
};

#[test]
fn simulated_runs_of_default_seeds_keep_the_rules_while_masters_are_replaced() {
    every_seed_passes(CHANGES.short_tier());
}

#[test]
#[ignore = "nightly"]
fn simulated_runs_of_nightly_seeds_keep_the_rules_while_masters_are_replaced() {
    every_seed_passes(CHANGES.all());
}

fn every_seed_passes(seeds: u64) {
    let summary = sweep(ScenarioFamily::Changes, seeds);
    must_pass(&summary, " --changes");
    // Even the few seeds of a build without optimizations must contain every stage of a replacement. Clients must also
    // acquire locks on both sets of masters together, and on the new masters alone.
    let coverage = &summary.coverage;
    let change_steps = coverage
        .closed_masters
        .min(coverage.opened_masters)
        .min(coverage.finish_markers);
    let holds_while_changing = coverage.joint_holds.min(coverage.holds_after_replacement);
    assert!(
        change_steps.min(holds_while_changing) > 0,
        "masters must be closed, opened and finished while clients acquire locks: {coverage}"
    );
    let has_enough_seeds = seeds >= 3_000;
    let missing_events = [
        (
            "runs in which a majority lost its markers",
            coverage.lost_marker_majorities,
        ),
        ("markers restored by clients", coverage.restored_markers),
        (
            "markers restored by the administrator",
            coverage.markers_written_by_hand,
        ),
        (
            "operator commands without an answer",
            coverage.unanswered_commands,
        ),
        (
            "fencing counters raised by the operator",
            coverage.carried_counters,
        ),
        (
            "votes refused by a generation marker",
            coverage.refused_by_mark,
        ),
    ];
    let missing_events = missing_events.map(|(event, count)| (count == 0).then_some(event));
    let missing_events: Vec<&str> = missing_events.into_iter().flatten().collect();
    assert!(
        !has_enough_seeds || missing_events.is_empty(),
        "every event must happen in some seed, but these never did: {missing_events:?}"
    );
}

#[test]
fn same_seed_gives_the_same_simulation_run_while_masters_are_replaced() {
    let run_options = RunOptions {
        trace: true,
        ..RunOptions::default()
    };
    for seed in 0..5 {
        let scenario = Scenario::draw_changes(seed);
        assert_eq!(
            run_options.run(&scenario),
            run_options.run(&scenario),
            "seed {seed}"
        );
    }
}

const MS: u64 = 1_000_000;

/// Two operators execute the same replacement. The first operator opens the new masters, and a client takes units from
/// a quota there. The second operator must not overwrite this quota with an older copy from the old masters.
#[test]
fn second_operator_never_overwrites_a_stored_value_with_an_older_one() {
    let value_step = |think, verb| Step {
        think: think * MS,
        wait: 200 * MS,
        kind: Kind::Value(verb),
        ..Step::plain()
    };
    let mut units_taken = 0;
    for seed in 0..60 {
        let mut scenario = Scenario::quiet(seed, 6, 5);
        scenario.settings.max_ttl = scenario.settings.ttl;
        scenario.clients[2].steps = vec![value_step(1, ValueStep::Create(40))];
        for client in 3..5 {
            let mut steps = vec![value_step(10, ValueStep::Take(1)); 60];
            steps[0].think = 1_000 * MS;
            scenario.clients[client].steps = steps;
        }
        scenario.change = Some(ChangePlan {
            sets: vec![0b00_0111, 0b11_1000],
            initial_number: None,
            goal: 2,
            operators: 2,
            longest_pause: 30 * MS,
            steps: vec![(1, 1), (1, 1), (0, 2), (2, 2), (2, 2)],
            counters_ahead_us: None,
            stops_replaced: false,
        });
        let result = RunOptions::default().run(&scenario);
        assert_eq!(result.violation, None, "{scenario}");
        units_taken += result.coverage.units_taken;
    }
    assert!(
        units_taken > 500,
        "clients must take more than 500 units in all runs together: {units_taken}"
    );
}

/// In this test, the clocks of the new masters are an hour slow for some time, so these masters could grant smaller
/// fencing tokens than the old masters. The operator must not open them during this time.
#[test]
fn operator_opens_new_masters_only_after_their_clocks_are_correct() {
    let hour_us = 3_600_000_000;
    let mut failed_steps = 0;
    for seed in 0..40 {
        let mut scenario = Scenario::quiet(seed, 6, 3);
        scenario.heal_at = 60_000 * MS;
        scenario.clients[1].steps = vec![Step::plain()];
        let step = Step {
            think: 1_000 * MS,
            wait: 200 * MS,
            ..Step::plain()
        };
        scenario.clients[2].steps = vec![step; 80];
        let jump = |at: u64, master, by_us| Fault {
            at: at * MS,
            kind: FaultKind::ClockJump { master, by_us },
        };
        for master in 3..6 {
            scenario.faults.push(jump(6_000, master, -hour_us));
            scenario.faults.push(jump(50_000, master, hour_us));
        }
        scenario.faults.sort_by_key(|fault| fault.at);
        scenario.change = Some(ChangePlan {
            sets: vec![0b00_0111, 0b11_1000],
            initial_number: None,
            goal: 2,
            operators: 1,
            longest_pause: 12_000 * MS,
            steps: vec![(1, 1), (0, 2), (2, 2)],
            counters_ahead_us: None,
            stops_replaced: false,
        });
        let result = RunOptions::default().run(&scenario);
        assert_eq!(result.violation, None, "{scenario}");
        failed_steps += result.coverage.failed_operator_steps;
    }
    assert!(
        failed_steps > 20,
        "more than 20 steps of operators must fail in all runs together: {failed_steps}"
    );
}
