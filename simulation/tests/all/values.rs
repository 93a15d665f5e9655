//! Tests values under locks in hand-written scenarios, because randomly drawn scenarios rarely contain these cases.

use crate::support::variants;
use quorate_simulation::{
    CheckedRules, Fault, FaultKind, RunOptions, RunResult, Scenario, Step, ValueStep,
};

const MS: u64 = 1_000_000;

/// Plays the scenario, and checks only the rules whose violation harms users.
fn play(scenario: &Scenario) -> RunResult {
    let run_options = RunOptions {
        checked_rules: CheckedRules::Harmful,
        trace: true,
        ..RunOptions::default()
    };
    run_options.run(scenario)
}

/// In each of these scenarios, one client does the work of the period, and the write of another client must not count.
#[test]
fn library_writes_a_record_only_once_in_the_scenarios_for_seeded_bugs_of_values() {
    let names = [
        "late-write-to-an-extended-key",
        "one-master-forgets",
        "one-master-forgets-after-a-partition",
    ];
    for name in names {
        for scenario in variants(name) {
            let result = play(&scenario);
            let trace = result.trace.join("\n");
            assert_eq!(result.violation, None, "{name}: {scenario}\n{trace}");
            let coverage = result.coverage;
            let counts = (coverage.once_jobs_done, coverage.unknown_writes);
            assert_eq!(counts, (1, 1), "{name}\n{trace}");
        }
    }
}

#[test]
fn library_breaks_no_rule_after_a_record_was_removed() {
    for scenario in variants("removed-record") {
        assert_eq!(play(&scenario).violation, None);
    }
}

/// Without faults, a quota of 21 units is handed out two units at a time, until fewer than two are left.
#[test]
fn quota_refuses_a_request_for_more_units_than_are_left() {
    for seed in 0..10 {
        let mut scenario = Scenario::quiet(seed, 3, 4);
        let value_step = |kind| Step {
            resource: 0,
            think: 60 * MS,
            ..Step::of_record(kind)
        };
        for client in &mut scenario.clients {
            client.steps = vec![value_step(ValueStep::Take(2)); 4];
            client.steps.push(value_step(ValueStep::ReadRemaining));
        }
        let create = Step {
            think: MS,
            ..value_step(ValueStep::Create(21))
        };
        scenario.clients[0].steps.insert(0, create);
        let result = play(&scenario);
        assert_eq!(result.violation, None, "{scenario}");
        let coverage = result.coverage;
        // Sixteen calls take two of 21 units each: ten calls get two units, and six find too few left. Then each of the
        // four clients reads that one unit is left.
        assert_eq!(
            (
                coverage.values_created,
                coverage.units_taken,
                coverage.units_left
            ),
            (1, 20, 6 + 4),
            "seed {seed}"
        );
    }
}

/// Without faults, `at_least_once` does the work of a period once. After client 0 has removed the record, the other
/// clients find no record until client 0 creates it again.
#[test]
fn removed_record_of_a_once_job_stays_missing_until_a_client_creates_it_again() {
    for seed in 0..10 {
        let mut scenario = Scenario::quiet(seed, 3, 3);
        let step_after = |think, kind| Step {
            think: think * MS,
            ..Step::of_record(kind)
        };
        scenario.clients[0].steps = vec![
            step_after(1, ValueStep::Create(0)),
            step_after(500, ValueStep::Remove { record: true }),
            step_after(500, ValueStep::Create(0)),
        ];
        for client in &mut scenario.clients[1..] {
            client.steps = vec![step_after(400, ValueStep::AtLeastOnce); 4];
            client.steps[3].think = 5 * MS;
        }
        // Clients 1 and 2 take their last two steps after the record was created again.
        for client in &mut scenario.clients[1..] {
            client.steps[2].think = 800 * MS;
        }
        let result = play(&scenario);
        assert_eq!(
            result.violation,
            None,
            "{scenario}\n{}",
            result.trace.join("\n")
        );
        let coverage = result.coverage;
        assert_eq!(
            (coverage.values_created, coverage.values_removed),
            (2, 1),
            "seed {seed}"
        );
        // The work was done once before the removal, and once after the record was created again. Clients 1 and 2 each
        // made one call that found no record.
        assert_eq!(
            (coverage.jobs_done_then_recorded, coverage.values_lost),
            (2, 2),
            "seed {seed}"
        );
        assert_eq!(
            (coverage.jobs_skipped, coverage.jobs_not_recorded),
            (4, 0),
            "seed {seed}"
        );
    }
}

/// The clock of one master is ahead while another master refuses requests. So the fencing token of the lock is a month
/// ahead, and stays ahead after the clock is corrected. The check whether a period has begun must not use the token.
#[test]
fn period_of_a_client_with_a_fast_clock_is_refused_although_the_fencing_token_is_ahead() {
    const DAY_US: i64 = 86_400_000_000;
    let mut scenario = Scenario::quiet(1, 3, 3);
    scenario.clients[0].steps = vec![
        Step::of_record(ValueStep::Create(0)),
        Step {
            think: 200 * MS,
            resource: Step::RECORD_RESOURCE,
            ..Step::plain()
        },
    ];
    scenario.clients[1].steps = vec![Step {
        think: 700 * MS,
        ..Step::of_record(ValueStep::AtMostOnce)
    }];
    scenario.clients[2].steps = vec![Step {
        think: 1_400 * MS,
        ..Step::of_record(ValueStep::AtMostOnce)
    }];
    let jump = |ms, days: i64| {
        let by_us = days * DAY_US;
        Fault::at_ms(ms, FaultKind::ClockJump { master: 2, by_us })
    };
    let by_us = 10 * DAY_US;
    scenario.faults = vec![
        jump(100, 30),
        Fault::busy(1, 110, 500),
        jump(500, -30),
        Fault::at_ms(600, FaultKind::WallClockJump { client: 1, by_us }),
    ];
    let result = play(&scenario);
    let trace = result.trace.join("\n");
    assert_eq!(result.violation, None, "{scenario}\n{trace}");
    let coverage = result.coverage;
    assert_eq!(
        (coverage.once_jobs_done, coverage.jobs_skipped),
        (1, 0),
        "only the client with the right clock may do the work of its period\n{trace}"
    );
    assert!(trace.contains("fencing token 17925"), "{trace}");
}
