//! Tests scenarios in which some or all masters are stores (databases or ZooKeeper). Also tests that the simulation
//! catches every seeded bug that concerns stores. A seeded bug is a version of the code that lacks one rule.
//!
//! The environment variable `QUORATE_SEEDS` overrides the number of seeds that the tests play.

use crate::support::{MS, STORES, is_caught, is_short, must_pass, quiet_store, sweep};
use quorate_simulation::{
    Coverage, Fault, FaultKind, Flaw, RULES, Refusal, RunOptions, RunRule, Scenario,
    ScenarioFamily, Step, StoreEvent, run,
};

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

/// In this seed, a client only observes an election before the store is set back and gets another identity. The library
/// has not learned the earlier identity then, so the simulation must not set the store back.
#[test]
fn store_is_not_set_back_if_a_client_has_only_received_wake_ups_from_it() {
    let result = run(&Scenario::draw_stores(10_036_800));
    assert_eq!(result.violation, None);
}

/// The client's last call begins at once after the refusal has ended. The client is not connected again at that time.
#[test]
fn client_calls_again_if_its_last_call_fails_because_of_an_earlier_refusal() {
    let mut scenario = Scenario::quiet(7, 1, 1);
    scenario.masters[0].store = Some(quiet_store(RunRule::Durable));
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

/// A scenario with one store and two clients that try to take a lock every few milliseconds. The event happens after
/// two seconds, and the connections are reset shortly before.
fn scenario_with_event(rule: RunRule, event: StoreEvent) -> Scenario {
    let mut scenario = Scenario::quiet(7, 1, 2);
    scenario.masters[0].store = Some(quiet_store(rule));
    for client in &mut scenario.clients {
        client.steps = vec![
            Step {
                think: 20 * MS,
                wait: 0,
                ..Step::plain()
            };
            120
        ];
    }
    let kinds = [
        (1_900, FaultKind::ResetConnections { master: 0 }),
        (
            2_000,
            FaultKind::StoreEvent {
                master: 0,
                event,
                down: 50 * MS,
                age: 500 * MS,
            },
        ),
    ];
    scenario.faults = kinds.map(|(at, kind)| Fault { at: at * MS, kind }).into();
    scenario
}

#[test]
fn votes_of_a_store_do_not_count_after_each_event_that_may_have_lost_locks() {
    type Count = fn(&Coverage) -> u64;
    let counted = RunRule::Counted;
    let events: [(RunRule, StoreEvent, Count); 7] = [
        (counted, StoreEvent::BackendCrash, |seen| {
            seen.backend_crashes
        }),
        (counted, StoreEvent::CleanRestart, |seen| {
            seen.clean_restarts
        }),
        (counted, StoreEvent::Promotion, |seen| seen.promotions),
        (counted, StoreEvent::OldCopy, |seen| seen.old_copies),
        (counted, StoreEvent::EmptiedTable, |seen| {
            seen.emptied_tables
        }),
        (counted, StoreEvent::SetBack, |seen| seen.machines_set_back),
        (RunRule::Numbered, StoreEvent::SetBack, |seen| {
            seen.restored_snapshots
        }),
    ];
    let rule_index = RULES
        .iter()
        .position(|rule| *rule == "restart guard of stores")
        .expect("the rule");
    for (rule, event, count) in events {
        let scenario = scenario_with_event(rule, event);
        let result = run(&scenario);
        assert_eq!(result.violation, None, "{event:?}");
        assert_eq!(count(&result.coverage), 1, "{event:?} must have an effect");
        let judged_cases = result.judged_cases[rule_index];
        assert!(judged_cases > 10, "{event:?}: {judged_cases} judged cases");
    }
}

/// In the scenario, client 0 uses a lock `used` times after the snapshot, and so remembers a version that is lost. After
/// the snapshot is restored, both clients connect again. When the restart guard has ended, client 1 makes some changes,
/// and then holds the same lock. If the record then has the version that client 0 remembers, client 0 may overwrite it.
fn scenario_with_repeated_version(used: u64, changes: u64, extends: bool) -> Scenario {
    let mut scenario = scenario_with_event(RunRule::Numbered, StoreEvent::SetBack);
    (scenario.settings.ttl, scenario.settings.max_ttl) = (1_000 * MS, 1_000 * MS);
    scenario.heal_at = 9_000 * MS;
    // Each session has a cache of its own.
    let store = scenario.masters[0].store.as_mut().expect("the store");
    store.sessions = 1;
    let step = |think: u64, resource: u8, hold: u64| Step {
        think: think * MS,
        resource,
        wait: 0,
        hold: hold * MS,
        renew: false,
        ..Step::plain()
    };
    let [client, holder] = &mut scenario.clients[..] else {
        unreachable!("the scenario has two clients")
    };
    client.steps = vec![step(1_600, 0, 1)];
    client.steps.extend((1..used).map(|_| step(1, 0, 1)));
    client.steps.extend([step(2_400, 2, 1), step(2_700, 0, 1)]);
    holder.steps = vec![step(1_850, 1, 1), step(2_200, 2, 1), step(2_000, 1, 1)];
    holder.steps.extend((0..changes).map(|_| step(1, 1, 1)));
    holder.steps.push(Step {
        extend: extends.then_some(1_000 * MS),
        ..step(1, 0, 900)
    });
    scenario
}

#[test]
fn client_overwrites_a_lock_if_versions_of_a_restored_store_lack_its_identity() {
    let is_broken = |flaw: Option<Flaw>| {
        let run_options = RunOptions {
            flaw,
            harmful_only: true,
            ..RunOptions::default()
        };
        let mut broken = 0;
        for used in 1..4 {
            for changes in 0..6 {
                for extends in [false, true] {
                    let scenario = scenario_with_repeated_version(used, changes, extends);
                    let result = run_options.run(&scenario);
                    assert_eq!(result.coverage.repaired_stores, 1);
                    broken += u32::from(result.violation.is_some());
                }
            }
        }
        broken
    };
    assert_eq!(is_broken(None), 0);
    assert!(is_broken(Some(Flaw::VersionsWithoutIdentity)) > 0);
}

/// For each seeded bug, a number n: at least one of the seeds from 0 to n - 1 must expose the bug.
const SEEDED_BUGS: [(Flaw, u64); 13] = [
    (Flaw::VersionsAgain, 200),
    (Flaw::SessionIsLease, 200),
    (Flaw::EarlyEnd, 500),
    (Flaw::Unsoiled, 2_000),
    (Flaw::StoreGuardOff, 1_000),
    (Flaw::NoSlack, 20_000),
    (Flaw::KeptSession, 50),
    (Flaw::NewRunTrusted, 500),
    (Flaw::OwnAgeAdded, 500),
    (Flaw::AgeFromServerDate, 500),
    (Flaw::OldCopyTrusted, 500),
    (Flaw::TableUnchecked, 500),
    (Flaw::SetBackAccepted, 500),
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
