//! Tests locks on several resources, readers, owners and semaphores in hand-written scenarios, because randomly drawn
//! scenarios rarely contain these cases.

use quorate_simulation::{
    Fault, FaultKind, Flaw, Kind, Refusal, RunOptions, RunResult, Scenario, Step, Violation,
};

const MS: u64 = 1_000_000;

/// A scenario with three masters whose clocks are so far apart that the masters' fencing counters always differ.
fn scenario_with_clocks_apart(seed: u64, clients: usize) -> Scenario {
    let mut scenario = Scenario::quiet(seed, 3, clients);
    scenario.masters[0].offset_us = 1_500_000;
    scenario.masters[1].offset_us = 2_500_000;
    scenario
}

fn step(kind: Kind) -> Step {
    let first = Step::plain();
    Step { kind, ..first }
}

fn run_with_flaw(scenario: &Scenario, flaw: Option<Flaw>) -> RunResult {
    let run_options = RunOptions {
        flaw,
        ..RunOptions::default()
    };
    run_options.run(scenario)
}

/// A client takes one lock on two resources, and one of the resources is force-released. Each scenario force-releases
/// it 0.1 ms later than the scenario before. So in some of the scenarios, the force-release happens while masters
/// confirm the fencing token.
fn scenarios_with_one_force_release() -> impl Iterator<Item = Scenario> {
    (0..400).map(|tenth| {
        let mut scenario = scenario_with_clocks_apart(tenth, 1);
        scenario.clients[0].steps = vec![step(Kind::Several(0b11))];
        let kind = FaultKind::ForceRelease {
            resource: 1,
            missed: 0,
        };
        let at = tenth * MS / 10;
        scenario.faults = vec![Fault { at, kind }];
        scenario
    })
}

#[test]
fn seeded_bug_that_confirms_the_token_on_only_one_resource_is_caught() {
    let caught = |flaw| {
        let violation = |scenario: Scenario| run_with_flaw(&scenario, flaw).violation;
        scenarios_with_one_force_release().find_map(violation)
    };
    assert_eq!(
        caught(None),
        None,
        "the library without a seeded bug must break no rule"
    );
    assert!(caught(Some(Flaw::ConfirmAnyKey)).is_some());
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
            client.steps = vec![step(kind); 6];
        }
        let result = run_with_flaw(&scenario, None);
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
            client.steps = vec![step(Kind::Owner(0)); 3];
        }
        let result = run_with_flaw(&scenario, None);
        assert_eq!(result.violation, None, "seed {seed}: {scenario}");
        // Each of the four clients tries to acquire four locks. At least twelve of these sixteen acquires must succeed.
        assert!(result.coverage.acquired >= 12, "seed {seed}");
    }
}

/// Plays a scenario with a seeded bug, and checks only the rules whose violation harms users.
fn run_harmful_rules_only(scenario: &Scenario, flaw: Option<Flaw>) -> RunResult {
    let run_options = RunOptions {
        flaw,
        harmful_only: true,
        ..RunOptions::default()
    };
    run_options.run(scenario)
}

/// Plays 40 scenarios with a seeded bug, and checks only the rules whose violation harms users. Returns the first
/// violation of `rule`; `None` if no run breaks this rule.
fn find_violation(
    scenario_of_seed: impl Fn(u64) -> Scenario,
    flaw: Option<Flaw>,
    rule: &str,
) -> Option<Violation> {
    let violation = |seed| run_harmful_rules_only(&scenario_of_seed(seed), flaw).violation;
    let mut broken = (0..40).filter_map(violation);
    broken.find(|violation| violation.rule == rule)
}

/// Three clients acquire a semaphore with two permits at the same moment.
fn three_clients_with_two_permits(seed: u64) -> Scenario {
    let mut scenario = Scenario::quiet(seed, 3, 3);
    (scenario.net.delay, scenario.net.jitter) = (MS, 4 * MS);
    for client in &mut scenario.clients {
        client.steps = vec![step(Kind::Permit(2)); 4];
    }
    scenario
}

#[test]
fn seeded_bug_that_counts_permits_instead_of_assigning_slots_exceeds_the_permit_limit() {
    for seed in 0..20 {
        assert_eq!(
            run_with_flaw(&three_clients_with_two_permits(seed), None).violation,
            None,
            "seed {seed}"
        );
    }
    let three = find_violation(
        three_clients_with_two_permits,
        Some(Flaw::CountToK),
        "permits",
    );
    assert!(three.is_some());
}

/// Client 0 holds a permit on masters 0 and 2 only, because master 1 refuses requests for the first 50 ms. Then master
/// 2 crashes. So of the two remaining masters, only master 0 reports the client's slot as taken.
fn scenario_with_slot_on_two_masters(seed: u64) -> Scenario {
    let mut scenario = Scenario::quiet(seed, 3, 2);
    let permit_step = |think, wait, hold| Step {
        think: think * MS,
        wait: wait * MS,
        hold: hold * MS,
        renew: false,
        ..step(Kind::Permit(2))
    };
    scenario.clients[0].steps = vec![permit_step(5, 0, 900)];
    scenario.clients[1].steps = vec![permit_step(150, 500, 10)];
    let (master, how, lasts) = (1, Refusal::Busy, 50 * MS);
    let kind = FaultKind::Refuse { master, how, lasts };
    scenario.faults.push(Fault { at: 0, kind });
    let (master, down, age) = (2, 3_000 * MS, MS);
    let kind = FaultKind::Crash { master, down, age };
    let at = 100 * MS;
    scenario.faults.push(Fault { at, kind });
    scenario
}

#[test]
fn seeded_bug_that_lets_masters_pick_the_slot_denies_a_free_permit() {
    for seed in 0..20 {
        let scenario = scenario_with_slot_on_two_masters(seed);
        let locks_and_failures = |flaw| {
            let coverage = run_harmful_rules_only(&scenario, flaw).coverage;
            (
                coverage.acquired,
                coverage.held_by_other + coverage.no_quorum,
            )
        };
        assert_eq!(locks_and_failures(None), (4, 0), "seed {seed}");
        assert_eq!(
            locks_and_failures(Some(Flaw::MasterPicksSlot)),
            (3, 1),
            "seed {seed}"
        );
    }
}

/// Each client locks one of two resources in some steps, and both resources in the other steps. The clients name the
/// two resources in different orders.
fn one_or_both(seed: u64) -> Scenario {
    let mut scenario = Scenario::quiet(seed, 3, 8);
    (scenario.net.delay, scenario.net.jitter) = (MS, 8 * MS);
    for (index, client) in scenario.clients.iter_mut().enumerate() {
        let step_on = |kind, resource| Step {
            resource,
            ..step(kind)
        };
        let (first, both_resources) = (index as u8 % 2, Kind::Several(0b11));
        let one_resource = step_on(Kind::Exclusive, first);
        client.steps = vec![
            one_resource,
            step_on(both_resources, first),
            step_on(both_resources, 1 - first),
        ];
        client.steps.rotate_left(index % 3);
        client.steps.push(step_on(both_resources, first));
    }
    scenario
}

#[test]
fn seeded_bug_that_gives_each_resource_a_separate_queue_ticket_causes_a_deadlock() {
    for seed in 0..20 {
        assert_eq!(
            run_with_flaw(&one_or_both(seed), None).violation,
            None,
            "seed {seed}"
        );
    }
    let stuck = find_violation(one_or_both, Some(Flaw::TicketPerResource), "healing");
    assert!(stuck.is_some());
}

/// A client locks two keys. Another program has stored a value that is not a string under one of them. `MGET` reports
/// such a key as missing, so the seeded bug overwrites the value.
#[test]
fn seeded_bug_that_reads_all_keys_with_mget_overwrites_a_value_of_another_program() {
    let mut scenario = Scenario::quiet(1, 3, 1);
    scenario.clients[0].steps = vec![step(Kind::Several(0b11)); 3];
    let (master, resource, lasts) = (0, 1, 1_000 * MS);
    let kind = FaultKind::ForeignKey {
        master,
        resource,
        lasts,
    };
    scenario.faults = vec![Fault { at: 0, kind }];
    let library = run_harmful_rules_only(&scenario, None);
    assert_eq!(library.violation, None);
    assert_eq!(library.coverage.foreign_keys, 1);
    let over = run_harmful_rules_only(&scenario, Some(Flaw::WrongTypeReadAsMissing)).violation;
    assert_eq!(
        over.map(|violation| violation.rule),
        Some("foreign keys untouched")
    );
}
