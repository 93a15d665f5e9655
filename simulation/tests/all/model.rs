//! Compares the code with the model (`model/`): every event of a recorded history must be a step that the rules of the
//! model allow. `scripts/seeded-bugs` tests that the model refuses the histories of seeded bugs.

use crate::operations;
use crate::support::MODEL;
use quorate_model::{Accepted, Refusal, Replay};
use quorate_simulation::{RunOptions, Scenario};

/// Plays a scenario, and checks its history against the model.
fn check(scenario: &Scenario) -> Result<Accepted, Refusal> {
    let run_options = RunOptions {
        history: true,
        ..RunOptions::default()
    };
    let history = run_options.run(scenario).history;
    let settings = scenario.model_settings();
    operations::keep(&settings, &history);
    Replay::check(settings, &history)
}

/// Checks the histories of the seeds from 0 to `seeds - 1`. Returns how many events the model has accepted.
fn accepted_events(draw: fn(u64) -> Scenario, seeds: u64) -> Accepted {
    let mut accepted = Accepted::default();
    let mut refusals = Vec::new();
    for seed in 0..seeds {
        match check(&draw(seed)) {
            Ok(counts) => accepted.add(counts),
            Err(refusal) => refusals.push(format!("seed {seed}: {refusal}")),
        }
    }
    println!("{seeds} histories: {accepted:#?}");
    assert!(
        refusals.is_empty(),
        "the model refuses {}",
        refusals.join("\n")
    );
    accepted
}

fn model_accepts_redis_histories(seeds: u64) {
    let accepted = accepted_events(Scenario::draw_modelled, seeds);
    // About half of the numbers that the histories of these seeds have.
    let floors = [
        ("granted", accepted.granted, 100),
        ("refused", accepted.refused, 300),
        ("confirmed", accepted.confirmed, 8),
        ("extensions", accepted.extensions, 20),
        ("released", accepted.released, 100),
        ("obtained", accepted.obtained, 12),
        ("obtained_by_confirm", accepted.obtained_by_confirm, 1),
        ("extended", accepted.extended, 3),
    ];
    assert_above(floors.map(|(name, count, per_seed)| (name, count, per_seed * seeds)));
    // These events do not happen in the few seeds of a build without optimizations.
    let rare = [
        ("restored", accepted.restored, seeds / 3),
        ("restarts", accepted.restarts, seeds / 2),
        ("forgotten", accepted.forgotten, seeds / 20),
        ("votes_after_restart", accepted.votes_after_restart, seeds),
    ];
    if seeds >= 300 {
        assert_above(rare);
    }
}

fn model_accepts_histories_of_changes(seeds: u64) {
    let accepted = accepted_events(Scenario::draw_modelled_changes, seeds);
    let floors = [
        ("obtained", accepted.obtained, 7 * seeds),
        ("obtained_from_both", accepted.obtained_from_both, 3 * seeds),
        ("extended", accepted.extended, 8 * seeds),
        ("markers", accepted.markers, 4 * seeds),
        ("opened", accepted.opened, seeds),
        ("raised", accepted.raised, 10 * seeds),
    ];
    assert_above(floors);
}

fn assert_above<const N: usize>(floors: [(&str, u64, u64); N]) {
    for (name, count, floor) in floors {
        assert!(
            count > floor,
            "the model accepted {count} events \"{name}\", which is not above {floor}"
        );
    }
}

#[test]
fn model_accepts_the_histories_of_the_default_seeds() {
    model_accepts_redis_histories(MODEL.short_tier());
}

#[test]
#[ignore = "nightly"]
fn model_accepts_the_histories_of_the_nightly_seeds() {
    model_accepts_redis_histories(MODEL.all());
}

#[test]
fn model_accepts_the_histories_of_the_default_seeds_while_masters_are_replaced() {
    model_accepts_histories_of_changes(MODEL.short_tier());
}

#[test]
#[ignore = "nightly"]
fn model_accepts_the_histories_of_the_nightly_seeds_while_masters_are_replaced() {
    model_accepts_histories_of_changes(MODEL.all());
}
