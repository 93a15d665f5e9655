//! Tests locks on several resources, readers, owners and semaphores in hand-written scenarios, because randomly drawn
//! scenarios rarely contain these cases.

use crate::support::variants;
use quorate_simulation::{Kind, Scenario, Step, run};

const MS: u64 = 1_000_000;

/// A scenario with three masters whose clocks are so far apart that the masters' fencing counters always differ.
fn scenario_with_clocks_apart(seed: u64, clients: usize) -> Scenario {
    let mut scenario = Scenario::quiet(seed, 3, clients);
    scenario.masters[0].offset_us = 1_500_000;
    scenario.masters[1].offset_us = 2_500_000;
    scenario
}

#[test]
fn locks_of_all_kinds_on_one_resource_break_no_simulation_rule() {
    let kinds = [
        Kind::Exclusive,
        Kind::Several(0b11),
        Kind::Shared,
        Kind::Owner(0),
        Kind::Downgraded,
        Kind::OwnerOfProcess(0),
    ];
    for seed in 0..20 {
        let mut scenario = scenario_with_clocks_apart(seed, kinds.len());
        for (client, kind) in scenario.clients.iter_mut().zip(kinds) {
            client.steps = vec![Step::of_kind(kind); 6];
        }
        let result = run(&scenario);
        assert_eq!(result.violation, None, "seed {seed}: {scenario}");
        let coverage = result.coverage;
        // The six clients take seven locks each. One client also downgrades six of its locks, and each of these six
        // downgrades counts as one more acquired lock.
        assert_eq!(
            (coverage.acquired, coverage.downgraded),
            (7 * 6 + 6, 6),
            "seed {seed}"
        );
        assert_eq!(
            (coverage.holds_of_several, coverage.lost_locks),
            (7, 0),
            "seed {seed}"
        );
    }
}

/// Four clients take a lock for the same owner at the same time. Because the masters' fencing counters differ, their
/// attempts can collide. Each client then pauses for a random time before it retries, so most acquires succeed.
#[test]
fn twelve_of_sixteen_acquires_by_one_owner_succeed_despite_different_fencing_counters() {
    for seed in 0..40 {
        let mut scenario = scenario_with_clocks_apart(seed, 4);
        (scenario.net.delay, scenario.net.jitter) = (5 * MS, 8 * MS);
        scenario.settings.fair = seed % 2 == 0;
        scenario.settings.ttl = 300 * MS;
        for client in &mut scenario.clients {
            client.steps = vec![Step::of_kind(Kind::Owner(0)); 3];
        }
        let result = run(&scenario);
        assert_eq!(result.violation, None, "seed {seed}: {scenario}");
        // Each of the four clients tries to acquire four locks. At least twelve of these sixteen acquires must succeed.
        assert!(result.coverage.acquired >= 12, "seed {seed}");
    }
}

#[test]
fn library_breaks_no_rule_in_the_scenarios_for_seeded_bugs_of_lock_kinds() {
    let names = [
        "force-release-during-confirm",
        "three-clients-two-permits",
        "one-resource-or-both",
    ];
    for name in names {
        for scenario in variants(name) {
            assert_eq!(run(&scenario).violation, None, "{name}: {scenario}");
        }
    }
}

/// A master that offered only the lowest slot that is free on it would deny client 1 its permit.
#[test]
fn client_gets_a_permit_although_masters_disagree_about_the_free_slots() {
    for scenario in variants("slot-on-two-masters") {
        let coverage = run(&scenario).coverage;
        let failed = coverage.held_by_other + coverage.no_quorum;
        assert_eq!((coverage.acquired, failed), (4, 0), "{scenario}");
    }
}

/// A client locks two keys. Another program has stored a value that is not a string under one of them.
#[test]
fn lock_on_two_keys_does_not_overwrite_a_value_of_another_program() {
    for scenario in variants("value-of-another-program") {
        let result = run(&scenario);
        assert_eq!(result.violation, None);
        assert_eq!(result.coverage.foreign_keys, 1);
    }
}
