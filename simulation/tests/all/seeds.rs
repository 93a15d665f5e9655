//! Plays a fixed number of seeds under `cargo test`. Also tests the seeded bugs, and that a seed always gives the same
//! run.
//!
//! The environment variable `QUORATE_SEEDS` overrides the number of seeds that the tests play.

use crate::support::{REDIS, is_caught, is_short, must_pass, sweep, threads};
use quorate_simulation::{Flaw, RULES, RunOptions, Scenario, ScenarioFamily, first_caught, run};

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

/// For each seeded bug, a number n: at least one of the seeds from 0 to n - 1 must expose the bug.
const SEEDED_BUGS: [(Flaw, u64); 62] = [
    (Flaw::HalfQuorum, 20),
    (Flaw::ReachableQuorum, 20),
    (Flaw::ValidityAfterReplies, 1_000),
    (Flaw::NoDrift, 20_000),
    (Flaw::ReusedValue, 20),
    (Flaw::LargestCounter, 50),
    (Flaw::LateExtension, 5_000),
    (Flaw::ExtensionAfterReplies, 200),
    (Flaw::LossAtTick, 20),
    (Flaw::NoRiskNotice, 200),
    (Flaw::RiskNoticeAtLoss, 200),
    (Flaw::RiskMarginUncapped, 200),
    (Flaw::UnconditionalDelete, 20),
    (Flaw::ConfirmAtLeast, 5_000),
    (Flaw::ShorteningExtend, 50),
    (Flaw::GuardOff, 100),
    (Flaw::UptimeAhead, 5_000),
    (Flaw::NoFixedDrift, 5_000),
    (Flaw::ClockAfterSend, 2_000),
    (Flaw::DropsWithoutRelease, 200),
    (Flaw::ReleasesMajority, 200),
    (Flaw::RenewsOnlyFirst, 200),
    (Flaw::LossAtDeadline, 500),
    (Flaw::OverstaysWait, 50),
    (Flaw::NobodyWoken, 200),
    (Flaw::TicketNotRaised, 500),
    (Flaw::CountedHolds, 200),
    (Flaw::NewestExpiry, 200),
    (Flaw::MarkerlessReaders, 200),
    (Flaw::ReaderNoRaise, 200),
    (Flaw::ReaderAtLeast, 5_000),
    (Flaw::KeepNoRaise, 500),
    (Flaw::LateKeep, 1_000),
    (Flaw::DowngradeNoRaise, 200),
    (Flaw::DowngradeWritesOn, 200),
    (Flaw::ReadersPassWriters, 200),
    (Flaw::WritersFirst, 200),
    (Flaw::SinglePassesMulti, 1_000),
    (Flaw::MultiOwnCounter, 1_000),
    (Flaw::PartialGrantCounts, 200),
    (Flaw::OwnerInLine, 200),
    (Flaw::OwnerWritesBack, 1_000),
    (Flaw::OwnerAnyNumber, 1_000),
    (Flaw::LocalCountAnswers, 5_000),
    (Flaw::BlindWrite, 1_000),
    (Flaw::ReadNoRaise, 500),
    (Flaw::SmallerNumberRead, 10_000),
    (Flaw::MissingIsInitial, 5_000),
    (Flaw::NoRunStamp, 10_000),
    (Flaw::RemovedNowhere, 2_000),
    (Flaw::NoteOfAnybody, 1_000),
    (Flaw::NoteLeft, 2_000),
    (Flaw::NoteOfLast, 2_000),
    (Flaw::TermOfOne, 2_000),
    (Flaw::TicketPerResource, 2_000),
    (Flaw::WrongTypeReadAsMissing, 2_000),
    (Flaw::CountToK, 200),
    (Flaw::MasterPicksSlot, 200),
    (Flaw::NoSemaphoreLine, 200),
    (Flaw::CounterForADay, 500),
    (Flaw::CounterKeepsExpiry, 500),
    (Flaw::BreakWhereHeld, 5_000),
];

#[test]
fn each_common_seeded_bug_is_caught_within_its_limit_of_seeds() {
    assert_eq!(SEEDED_BUGS.map(|(flaw, _)| flaw), Flaw::REDIS_BUGS);
    all_are_caught(REDIS.short_tier(), is_short);
}

#[test]
#[ignore = "nightly"]
fn each_rare_seeded_bug_is_caught_within_its_limit_of_seeds() {
    all_are_caught(REDIS.all(), |seed_limit| !is_short(seed_limit));
}

fn all_are_caught(seeds: u64, is_played: impl Fn(u64) -> bool) {
    for (flaw, seed_limit) in SEEDED_BUGS
        .into_iter()
        .filter(|(_, seed_limit)| is_played(*seed_limit))
    {
        let seed_limit = seed_limit.min(seeds);
        // A build without optimizations plays too few seeds for some bugs. It need not catch these bugs.
        let is_left = cfg!(debug_assertions) && seed_limit == seeds;
        let caught = is_caught(flaw, seed_limit);
        assert!(
            caught || is_left,
            "{flaw} must be caught within {seed_limit} seeds"
        );
    }
}

/// Some seeded bugs replace the library by a small client. Checks that the small clients break no rule when they
/// contain no bug.
fn sound_ones_pass(seeds: u64) {
    let caught = first_caught(Flaw::Sound, false, seeds / 10, threads());
    assert_eq!(caught, None);
    let caught = first_caught(Flaw::SoundRegister, false, seeds, threads());
    assert_eq!(caught, None);
}

#[test]
fn simulated_clients_without_a_seeded_bug_break_no_rule_with_the_default_seeds() {
    sound_ones_pass(REDIS.short_tier());
}

#[test]
#[ignore = "nightly"]
fn simulated_clients_without_a_seeded_bug_break_no_rule_with_the_nightly_seeds() {
    sound_ones_pass(REDIS.all());
}

/// A client whose lock was force-released reports this lock only after the next client has reported its own, because
/// the answers were late. Without fencing tokens, a checker must not take the order of the reports for the order of the
/// locks.
#[test]
fn late_report_of_a_force_released_lock_without_a_token_is_no_violation() {
    let run_options = RunOptions::default();
    assert_eq!(run_options.run(&Scenario::draw(5_296)).violation, None);
}
