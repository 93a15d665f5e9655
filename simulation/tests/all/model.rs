//! Compares the code with the model (`model/`): every event of a recorded history must be a step that the rules of the
//! model allow. Also tests that the model refuses the histories of seeded bugs.

use crate::operations;
use crate::support::MODEL;
use quorate_model::{Accepted, Refusal, Replay};
use quorate_simulation::{Disk, FaultKind, Flaw, Kind, RunOptions, Scenario};

/// The scenario of a seed without everything that the model does not have: locks of other kinds, force-releases, keys
/// of other programs, jumps of clocks, and days without use.
fn scenario_of_redis(seed: u64) -> Scenario {
    let mut scenario = Scenario::draw(seed);
    keep_modelled(&mut scenario);
    scenario
}

/// The scenario of a seed in which masters are replaced. The model has no restart that loses data during a change.
fn scenario_of_changes(seed: u64) -> Scenario {
    let mut scenario = Scenario::draw_changes(seed);
    keep_modelled(&mut scenario);
    for master in &mut scenario.masters {
        master.disk = Disk::Always;
    }
    scenario
}

fn keep_modelled(scenario: &mut Scenario) {
    for step in scenario
        .clients
        .iter_mut()
        .flat_map(|client| &mut client.steps)
    {
        step.kind = Kind::Exclusive;
    }
    let is_modelled = |fault: FaultKind| {
        !matches!(
            fault,
            FaultKind::ForceRelease { .. }
                | FaultKind::ForeignKey { .. }
                | FaultKind::ClockJump { .. }
                | FaultKind::UnusedDays { .. }
        )
    };
    scenario.faults.retain(|fault| is_modelled(fault.kind));
}

/// Plays a scenario, and checks its history against the model.
fn check(scenario: &Scenario, flaw: Option<Flaw>) -> Result<Accepted, Refusal> {
    let run_options = RunOptions {
        flaw,
        history: true,
        ..RunOptions::default()
    };
    let history = run_options.run(scenario).history;
    let settings = scenario.model_settings();
    operations::keep(&settings, &history, flaw);
    Replay::check(settings, &history)
}

/// Checks the histories of the seeds from 0 to `seeds - 1`. Returns how many events the model has accepted.
fn accepted_events(draw: fn(u64) -> Scenario, seeds: u64, flaw: Option<Flaw>) -> Accepted {
    let mut accepted = Accepted::default();
    let mut refusals = Vec::new();
    for seed in 0..seeds {
        match check(&draw(seed), flaw) {
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
    let accepted = accepted_events(scenario_of_redis, seeds, None);
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
    let accepted = accepted_events(scenario_of_changes, seeds, None);
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

/// Some seeded bugs are variants of a small client. Without a bug, its histories must be accepted as well: otherwise the
/// refusals below could have another reason than the bug.
#[test]
fn model_accepts_the_histories_of_the_small_client_without_a_seeded_bug() {
    let accepted = accepted_events(scenario_of_redis, 60, Some(Flaw::Sound));
    assert_above([("obtained", accepted.obtained, 300)]);
}

/// For each seeded bug: the rule by which the model refuses one of the first histories.
const REFUSED: [(Flaw, &str); 13] = [
    (Flaw::HalfQuorum, "majority"),
    (Flaw::ReachableQuorum, "majority"),
    (Flaw::ValidityAfterReplies, "validity"),
    (Flaw::NoDrift, "validity"),
    (Flaw::NoFixedDrift, "validity"),
    (Flaw::ClockAfterSend, "validity"),
    (Flaw::ReusedValue, "one value per attempt"),
    (Flaw::UnconditionalDelete, "release"),
    (Flaw::LargestCounter, "fencing tokens"),
    (Flaw::ConfirmAtLeast, "fencing tokens"),
    (Flaw::ExtensionAfterReplies, "renewal"),
    (Flaw::ShorteningExtend, "renewal"),
    (Flaw::GuardOff, "restart guard"),
];

/// As [`REFUSED`], for seeded bugs in the replacement of masters.
const REFUSED_CHANGES: [(Flaw, &str); 15] = [
    (Flaw::JointUnion, "majority"),
    (Flaw::JointOldOnly, "majority"),
    (Flaw::JointNextOnly, "majority"),
    (Flaw::FenceOneSet, "fencing tokens"),
    (Flaw::ConfirmAtLeastJoint, "fencing tokens"),
    (Flaw::MarkersIgnored, "replacing masters"),
    (Flaw::LeftoverLock, "replacing masters"),
    (Flaw::CloseMinority, "replacing masters"),
    (Flaw::OpenWithoutWait, "replacing masters"),
    (Flaw::ClosingOpens, "replacing masters"),
    (Flaw::MarkWithoutKill, "replacing masters"),
    (Flaw::ReplaceDeadAtOnce, "replacing masters"),
    (Flaw::DeadComesBack, "replacing masters"),
    (Flaw::NoCarry, "replacing masters"),
    (Flaw::CarryBeforeClose, "replacing masters"),
];

/// The largest number of seeds that the model needs to refuse a seeded bug.
const SEEDS_OF_BUGS: u64 = 100;

fn all_are_refused(draw: fn(u64) -> Scenario, bugs: &[(Flaw, &str)]) {
    let mut missed = Vec::new();
    for (flaw, rule) in bugs {
        let mut refusals = (0..SEEDS_OF_BUGS)
            .filter_map(|seed| Some((seed, check(&draw(seed), Some(*flaw)).err()?)));
        match refusals.next() {
            Some((seed, refusal)) => {
                println!("{flaw:<24} seed {seed:>3}  {refusal}");
                if refusal.rule != *rule {
                    missed.push(format!("{flaw}: {} instead of {rule}", refusal.rule));
                }
            }
            None => missed.push(format!("{flaw}: not refused")),
        }
    }
    assert_eq!(missed, Vec::<String>::new());
}

#[test]
fn model_refuses_a_history_of_each_seeded_bug_in_its_rules() {
    all_are_refused(scenario_of_redis, &REFUSED);
}

#[test]
fn model_refuses_a_history_of_each_seeded_bug_in_the_replacement_of_masters() {
    all_are_refused(scenario_of_changes, &REFUSED_CHANGES);
}
