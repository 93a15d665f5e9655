//! Tests scenarios in which some or all masters are stores (databases or ZooKeeper).
//!
//! The environment variable `QUORATE_SEEDS` overrides the number of seeds that the tests play.

use crate::support::{MS, STORES, must_pass, sweep, variants};
use quorate_simulation::{
    Coverage, Fault, FaultKind, RULES, Refusal, RunOptions, RunRule, Scenario, ScenarioFamily,
    Step, StoreEvent, StorePlan, run,
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
    scenario.masters[0].store = Some(StorePlan::quiet(RunRule::Durable));
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
    scenario.masters[0].store = Some(StorePlan::quiet(rule));
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

/// The versions of a store contain the identity that it got after the restore, so no client overwrites the lock.
#[test]
fn client_overwrites_no_lock_after_its_store_was_restored_from_a_snapshot() {
    for scenario in variants("version-repeats-after-a-restore") {
        let result = run(&scenario);
        assert_eq!(result.violation, None, "{scenario}");
        assert_eq!(result.coverage.repaired_stores, 1);
    }
}

/// The identity of a restored store is new, so a client does not trust a quota that was stored under the old identity.
#[test]
fn client_finds_a_quota_lost_after_its_only_store_was_restored_from_a_snapshot() {
    for scenario in variants("quota-of-a-restored-store") {
        let result = run(&scenario);
        assert_eq!(result.violation, None, "{scenario}");
        let coverage = result.coverage;
        let counts = (
            coverage.repaired_stores,
            coverage.units_taken,
            coverage.values_lost,
        );
        assert_eq!(counts, (1, 1, 2), "{scenario}");
    }
}
