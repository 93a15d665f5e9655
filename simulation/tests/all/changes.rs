//! Tests scenarios in which masters are replaced while clients take locks. Also tests that the simulation catches every
//! seeded bug (a version of the code that lacks one rule) that concerns the replacement of masters.
//!
//! The environment variable `QUORATE_SEEDS` overrides the number of seeds that the tests play.

use crate::support::{CHANGES, is_caught, is_short, must_pass, sweep};
use quorate_simulation::{
    ChangePlan, Fault, FaultKind, Flaw, Kind, Play, Scenario, Step, ValueStep, Worlds,
};

#[test]
fn simulated_runs_of_default_seeds_keep_the_rules_while_masters_are_replaced() {
    every_seed_passes(CHANGES.short());
}

#[test]
#[ignore = "nightly"]
fn simulated_runs_of_nightly_seeds_keep_the_rules_while_masters_are_replaced() {
    every_seed_passes(CHANGES.all());
}

fn every_seed_passes(seeds: u64) {
    let summary = sweep(Worlds::Changes, seeds);
    must_pass(&summary, " --changes");
    // Even the few seeds of a build without optimizations must contain every stage of a replacement. Clients must also
    // acquire locks on both sets of masters together, and on the new masters alone.
    let coverage = &summary.coverage;
    let walked = coverage.closed.min(coverage.opened).min(coverage.finished);
    let held = coverage.joint.min(coverage.later);
    assert!(
        walked.min(held) > 0,
        "masters must be closed, opened and finished while clients acquire locks: {coverage}"
    );
    let once = seeds >= 3_000;
    let never = [
        ("runs in which a majority lost its markers", coverage.split),
        ("markers restored by clients", coverage.given_again),
        ("markers restored by the administrator", coverage.mended),
        ("operator commands without an answer", coverage.unanswered),
        ("fencing counters raised by the operator", coverage.carried),
        (
            "votes refused by a generation marker",
            coverage.refused_by_mark,
        ),
    ];
    let never = never.map(|(what, count)| (count == 0).then_some(what));
    let never: Vec<&str> = never.into_iter().flatten().collect();
    assert!(
        !once || never.is_empty(),
        "every event must happen in some seed, but these never did: {never:?}"
    );
}

#[test]
fn same_seed_gives_the_same_simulation_run_while_masters_are_replaced() {
    let play = Play {
        trace: true,
        ..Play::default()
    };
    for seed in 0..5 {
        let scenario = Scenario::draw_changes(seed);
        assert_eq!(play.run(&scenario), play.run(&scenario), "seed {seed}");
    }
}

const MS: u64 = 1_000_000;

/// Two operators execute the same replacement. The first operator opens the new masters, and a client takes units from
/// a quota there. The second operator must not overwrite this quota with an older copy from the old masters.
#[test]
fn second_operator_never_overwrites_a_stored_value_with_an_older_one() {
    let of = |think, verb| Step {
        think: think * MS,
        wait: 200 * MS,
        kind: Kind::Value(verb),
        ..Step::plain()
    };
    let mut taken = 0;
    for seed in 0..60 {
        let mut scenario = Scenario::quiet(seed, 6, 5);
        scenario.settings.max_ttl = scenario.settings.ttl;
        scenario.clients[2].steps = vec![of(1, ValueStep::Create(40))];
        for client in 3..5 {
            let mut steps = vec![of(10, ValueStep::Take(1)); 60];
            steps[0].think = 1_000 * MS;
            scenario.clients[client].steps = steps;
        }
        scenario.change = Some(ChangePlan {
            sets: vec![0b00_0111, 0b11_1000],
            begins: None,
            goal: 2,
            operators: 2,
            pause: 30 * MS,
            steps: vec![(1, 1), (1, 1), (0, 2), (2, 2), (2, 2)],
            ahead: None,
            retires: false,
        });
        let outcome = Play::default().run(&scenario);
        assert_eq!(outcome.violation, None, "{scenario}");
        taken += outcome.coverage.taken;
    }
    assert!(
        taken > 500,
        "clients must take more than 500 units in all runs together: {taken}"
    );
}

/// In this test, the clocks of the new masters are an hour slow for some time, so these masters could grant smaller
/// fencing tokens than the old masters. The operator must not open them during this time.
#[test]
fn operator_opens_new_masters_only_after_their_clocks_are_correct() {
    let hour_us = 3_600_000_000;
    let mut waited = 0;
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
            kind: FaultKind::Jump { master, by_us },
        };
        for master in 3..6 {
            scenario.faults.push(jump(6_000, master, -hour_us));
            scenario.faults.push(jump(50_000, master, hour_us));
        }
        scenario.faults.sort_by_key(|fault| fault.at);
        scenario.change = Some(ChangePlan {
            sets: vec![0b00_0111, 0b11_1000],
            begins: None,
            goal: 2,
            operators: 1,
            pause: 12_000 * MS,
            steps: vec![(1, 1), (0, 2), (2, 2)],
            ahead: None,
            retires: false,
        });
        let outcome = Play::default().run(&scenario);
        assert_eq!(outcome.violation, None, "{scenario}");
        waited += outcome.coverage.not_yet;
    }
    assert!(
        waited > 20,
        "more than 20 steps of operators must fail in all runs together: {waited}"
    );
}

/// For each seeded bug, a number n: at least one of the seeds from 0 to n - 1 must expose the bug.
const SEEDED_BUGS: [(Flaw, u64); 23] = [
    (Flaw::JointUnion, 10),
    (Flaw::JointOldOnly, 10),
    (Flaw::JointNextOnly, 10),
    (Flaw::NextBesideOld, 50),
    (Flaw::LeftoverLock, 1_000),
    (Flaw::FenceOneSet, 20),
    (Flaw::ConfirmAtLeastJoint, 4_000),
    (Flaw::NoCarry, 4_000),
    (Flaw::CarryBeforeClose, 4_000),
    (Flaw::CarryMinority, 6_000),
    (Flaw::TicketOneSet, 2_000),
    (Flaw::CloseMinority, 2_000),
    (Flaw::OpenWithoutWait, 1_000),
    (Flaw::ClosingOpens, 1_000),
    (Flaw::ExtendUnrefused, 3_000),
    (Flaw::MarkWithoutKill, 3_000),
    (Flaw::MarkLostOnRestart, 20_000),
    (Flaw::ReplaceDeadAtOnce, 500),
    (Flaw::DeadComesBack, 1_000),
    (Flaw::WarmSpare, 20),
    (Flaw::ValuesLeftBehind, 6_000),
    (Flaw::CarryOneShown, 10_000),
    (Flaw::CarryWithoutLock, 2_000),
];

#[test]
fn each_seeded_bug_in_a_change_of_masters_is_caught_within_its_seed_limit() {
    assert_eq!(SEEDED_BUGS.map(|(flaw, _)| flaw), Flaw::OF_CHANGES);
    for flaw in Flaw::OF_CHANGES {
        assert_eq!(
            Flaw::by_name(flaw.name()),
            Some(flaw),
            "each seeded bug must have a name of its own"
        );
    }
    // A build without optimizations is slow, so it tries to catch only the bugs that need few seeds.
    let most = if cfg!(debug_assertions) { 20 } else { u64::MAX };
    all_are_caught(|within| is_short(within) && within <= most);
}

#[test]
#[ignore = "nightly"]
fn rare_seeded_bug_in_a_change_of_masters_is_caught_within_its_seed_limit() {
    all_are_caught(|within| !is_short(within) && !cfg!(debug_assertions));
}

fn all_are_caught(is_played: impl Fn(u64) -> bool) {
    for (flaw, within) in SEEDED_BUGS
        .into_iter()
        .filter(|(_, within)| is_played(*within))
    {
        let caught = is_caught(flaw, within);
        assert!(caught, "{flaw} must be caught within {within} seeds");
    }
}
