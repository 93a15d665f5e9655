//! Tests scenarios in which some or all masters are stores (databases or ZooKeeper). Also tests that the simulation
//! catches every seeded bug that concerns stores. A seeded bug is a version of the code that lacks one rule.
//!
//! The environment variable `QUORATE_SEEDS` overrides the number of seeds that the tests play.

use crate::support::{STORES, is_caught, is_short, must_pass, sweep};
use quorate_simulation::{
    Fault, FaultKind, Flaw, Refusal, RunOptions, Scenario, ScenarioFamily, Step, StorePlan, run,
};

/// One millisecond in nanoseconds.
const MS: u64 = 1_000_000;

#[test]
fn simulation_with_databases_or_zookeeper_breaks_no_rule_with_the_default_seeds() {
    every_seed_passes(STORES.short_tier());
}

#[test]
#[ignore = "nightly"]
fn simulation_with_databases_or_zookeeper_breaks_no_rule_with_the_nightly_seeds() {
    every_seed_passes(STORES.all());
}

fn every_seed_passes(seeds: u64) {
    let summary = sweep(ScenarioFamily::Stores, seeds);
    must_pass(&summary, " --stores");
    if seeds >= 2_000 {
        assert_eq!(
            summary.idle_rules(),
            Vec::<&str>::new(),
            "each rule must have judged some case"
        );
        let missing = summary.coverage.events_that_never_happened();
        assert_eq!(
            missing,
            Vec::<&str>::new(),
            "every event must happen in some seed"
        );
    }
}

#[test]
fn same_seed_gives_the_same_simulation_run_with_databases_or_zookeeper() {
    let run_options = RunOptions {
        trace: true,
        ..RunOptions::default()
    };
    for seed in 0..20 {
        let scenario = Scenario::draw_stores(seed);
        assert_eq!(
            run_options.run(&scenario),
            run_options.run(&scenario),
            "seed {seed}"
        );
    }
}

/// The client's last call begins at once after the refusal has ended. The client is not connected again at that time.
#[test]
fn client_calls_again_if_its_last_call_fails_because_of_an_earlier_refusal() {
    let mut scenario = Scenario::quiet(7, 1, 1);
    scenario.masters[0].store = Some(StorePlan {
        clocked: true,
        timeout: 50 * MS,
        sessions: 1,
        commits_per_request: 1,
        sends_wakes: true,
        durable: true,
        wakes_name_no_lock: false,
        lagging_reads_ppm: 0,
        disturbed_wakes_ppm: 0,
        delayed_commits_ppm: 0,
        longest_commit_delay: MS,
    });
    scenario.clients[0].steps = vec![Step {
        think: scenario.heal_at - 2 * MS,
        ..Step::plain()
    }];
    let kind = FaultKind::Refuse {
        master: 0,
        how: Refusal::Denied,
        lasts: scenario.heal_at,
    };
    scenario.faults = vec![Fault { at: 0, kind }];
    let result = run(&scenario);
    assert_eq!(result.violation, None);
    let coverage = result.coverage;
    assert_eq!((coverage.no_quorum, coverage.waited_after_healing), (1, 1));
}

/// For each seeded bug, a number n: at least one of the seeds from 0 to n - 1 must expose the bug.
const SEEDED_BUGS: [(Flaw, u64); 7] = [
    (Flaw::VersionsAgain, 200),
    (Flaw::SessionIsLease, 200),
    (Flaw::EarlyEnd, 500),
    (Flaw::Unsoiled, 2_000),
    (Flaw::StoreGuardOff, 1_000),
    (Flaw::NoSlack, 20_000),
    (Flaw::KeptSession, 50),
];

#[test]
fn each_common_seeded_bug_with_databases_or_zookeeper_is_caught_within_its_seed_limit() {
    assert_eq!(SEEDED_BUGS.map(|(flaw, _)| flaw), Flaw::STORE_BUGS);
    for flaw in Flaw::REDIS_BUGS.into_iter().chain(Flaw::STORE_BUGS) {
        assert_eq!(
            Flaw::by_name(flaw.name()),
            Some(flaw),
            "each seeded bug must have a name of its own"
        );
    }
    all_are_caught(is_short);
}

#[test]
#[ignore = "nightly"]
fn each_rare_seeded_bug_with_databases_or_zookeeper_is_caught_within_its_seed_limit() {
    all_are_caught(|seed_limit| !is_short(seed_limit));
}

fn all_are_caught(is_played: impl Fn(u64) -> bool) {
    // A build without optimizations plays too few seeds to catch the bugs.
    if cfg!(debug_assertions) {
        return;
    }
    for (flaw, seed_limit) in SEEDED_BUGS
        .into_iter()
        .filter(|(_, seed_limit)| is_played(*seed_limit))
    {
        let caught = is_caught(flaw, seed_limit);
        assert!(caught, "{flaw} must be caught within {seed_limit} seeds");
    }
}

/// `scripts/package` searches the released command for this text, to show that the command contains no seeded bugs.
#[test]
fn program_with_seeded_bugs_contains_the_text_that_the_package_check_searches_for() {
    let program = std::env::current_exe()
        .and_then(std::fs::read)
        .expect("this program");
    let check = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/package");
    let check = std::fs::read_to_string(check).expect("the script");
    let (_, text) = check.split_once("grep -q ").expect("a search");
    let text = text.split_whitespace().next().expect("a text").as_bytes();
    assert_eq!(text, [b"quorate-seeded", &b"-bugs"[..]].concat());
    assert!(program.windows(text.len()).any(|part| part == text));
}
