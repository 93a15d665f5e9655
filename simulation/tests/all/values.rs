//! Tests values under locks in hand-written scenarios, because randomly drawn scenarios rarely contain these cases.

use quorate_simulation::{
    Fault, FaultKind, Flaw, Kind, Refusal, RunOptions, RunResult, Scenario, Step, ValueStep,
};

const MS: u64 = 1_000_000;

/// The resource with the once-per-period record.
const RECORD_RESOURCE: u8 = 1;

fn step(kind: ValueStep) -> Step {
    Step {
        resource: RECORD_RESOURCE,
        kind: Kind::Value(kind),
        wait: 5_000 * MS,
        ..Step::plain()
    }
}

fn fault_at(ms: u64, kind: FaultKind) -> Fault {
    Fault { at: ms * MS, kind }
}

fn refusal(master: u8, from: u64, to: u64) -> Fault {
    let (how, lasts) = (Refusal::Busy, (to - from) * MS);
    fault_at(from, FaultKind::Refuse { master, how, lasts })
}

/// A partition between one client and some masters (bit n is master n). It lasts from `from` to `to`, in milliseconds
/// since the beginning of the run. Messages that are sent in this time arrive right after its end.
fn partition_of_client(client: u8, masters: u16, from: u64, to: u64) -> Fault {
    let kind = FaultKind::Partition {
        clients: 1 << client,
        masters,
        to: true,
        from: true,
        lasts: (to - from) * MS,
    };
    fault_at(from, kind)
}

/// A scenario in which client 0 creates a once-per-period record. `think` milliseconds after the start, client 1 takes
/// the lock of the record for `hold` milliseconds, without renewal. Client 1 reads the record, waits for half of
/// `hold`, and writes the record.
fn scenario_with_record(masters: usize, think: u64, hold: u64) -> Scenario {
    let mut scenario = Scenario::quiet(1, masters, 3);
    scenario.settings.node_timeout = 250 * MS;
    scenario.net.again = MS;
    scenario.clients[0].steps = vec![step(ValueStep::Create(0))];
    scenario.clients[1].steps = vec![Step {
        think: think * MS,
        hold: hold * MS,
        renew: false,
        ..step(ValueStep::SeparateCalls)
    }];
    scenario
}

/// Plays the scenario, and checks only the rules whose violation harms users.
fn run_with_flaw(scenario: &Scenario, flaw: Option<Flaw>) -> RunResult {
    let run_options = RunOptions {
        flaw,
        harmful_only: true,
        trace: true,
        ..RunOptions::default()
    };
    run_options.run(scenario)
}

/// Checks that the scenario breaks the rule `stock` with the seeded bug `flaw`, and breaks no rule without a bug. The
/// runs without a bug use the library and `SoundRegister`, a correct client without the library's code.
fn assert_only_flaw_is_caught(scenario: &Scenario, flaw: Flaw) {
    for sound in [None, Some(Flaw::SoundRegister)] {
        let result = run_with_flaw(scenario, sound);
        let trace = result.trace.join("\n");
        assert_eq!(result.violation, None, "{sound:?}: {scenario}\n{trace}");
        let coverage = result.coverage;
        assert_eq!(
            (coverage.once_jobs_done, coverage.unknown_writes),
            (1, 1),
            "{sound:?}\n{trace}"
        );
    }
    let result = run_with_flaw(scenario, Some(flaw));
    let trace = result.trace.join("\n");
    let violation = result
        .violation
        .unwrap_or_else(|| panic!("the seeded bug {flaw} must be caught\n{trace}"));
    assert_eq!(violation.rule, "stock", "{violation}\n{trace}");
}

/// An extension can create the holder's lock key on a master that never granted the lock. It does not raise the fencing
/// counter there. The holder's read must raise it, so that the master rejects late writes of the previous holder.
#[test]
fn reading_a_value_makes_masters_reject_delayed_writes_of_the_previous_holder() {
    let mut scenario = scenario_with_record(3, 100, 200);
    scenario.clients[2].steps = vec![Step {
        think: 310 * MS,
        hold: 100 * MS,
        extend: Some(1_000 * MS),
        ..step(ValueStep::SeparateCalls)
    }];
    scenario.faults = vec![
        partition_of_client(1, 0b001, 300, 385),
        partition_of_client(1, 0b100, 300, 900),
        fault_at(
            306,
            FaultKind::ForceRelease {
                resource: RECORD_RESOURCE,
                missed: 0,
            },
        ),
        refusal(0, 307, 340),
        partition_of_client(2, 0b010, 358, 900),
    ];
    assert_only_flaw_is_caught(&scenario, Flaw::ReadNoRaise);
}

/// A scenario in which clients 1 and 2 have the same `once` job. These events happen in order:
///
/// - The lock is force-released while client 1 still believes that it holds the lock.
/// - Three of five masters grant the lock to client 2, which does the work and records the period as done.
/// - One of these three masters loses its memory.
///
/// Now three of the five masters do not store the record of client 2: this master, and the two that did not grant the
/// lock to client 2. These three are a majority, so they could accept a record of client 1 for the same period.
fn one_master_forgets() -> Scenario {
    let mut scenario = scenario_with_record(5, 50, 300);
    scenario.clients[2].steps = vec![Step {
        think: 235 * MS,
        ..step(ValueStep::AtMostOnce)
    }];
    let (master, down, age) = (4, 5 * MS, MS);
    scenario.faults = vec![
        refusal(0, 228, 260),
        refusal(1, 228, 260),
        fault_at(
            230,
            FaultKind::ForceRelease {
                resource: RECORD_RESOURCE,
                missed: 0,
            },
        ),
        fault_at(280, FaultKind::Crash { master, down, age }),
    ];
    scenario
}

#[test]
fn value_write_counts_only_on_masters_from_which_the_client_read_the_value() {
    let mut scenario = one_master_forgets();
    scenario
        .faults
        .insert(0, partition_of_client(1, 0b11000, 195, 215));
    assert_only_flaw_is_caught(&scenario, Flaw::WriteElsewhere);
}

#[test]
fn value_write_does_not_count_on_a_master_that_restarted_after_the_read() {
    let scenario = one_master_forgets();
    assert_only_flaw_is_caught(&scenario, Flaw::LateRefill);
}

/// Without faults, a quota of 21 units is handed out two units at a time, until fewer than two are left.
#[test]
fn quota_refuses_a_request_for_more_units_than_are_left() {
    for seed in 0..10 {
        let mut scenario = Scenario::quiet(seed, 3, 4);
        let value_step = |kind| Step {
            resource: 0,
            think: 60 * MS,
            ..step(kind)
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
        let result = run_with_flaw(&scenario, None);
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
            ..step(kind)
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
        let result = run_with_flaw(&scenario, None);
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

#[test]
fn seeded_bug_that_keeps_a_removed_value_on_masters_is_caught() {
    let mut scenario = Scenario::quiet(1, 3, 2);
    let step_after = |think, kind| Step {
        think: think * MS,
        ..step(kind)
    };
    let remove = ValueStep::Remove { record: true };
    scenario.clients[0].steps = vec![step_after(1, ValueStep::Create(0)), step_after(50, remove)];
    scenario.clients[1].steps = vec![step_after(300, ValueStep::AtLeastOnce)];
    assert_eq!(run_with_flaw(&scenario, None).violation, None);
    let caught = run_with_flaw(&scenario, Some(Flaw::RemovedNowhere)).violation;
    let violation = caught.expect("the rule must catch a master that keeps a removed value");
    assert_eq!(violation.rule, "stock", "{violation}");
    assert!(
        violation.description.contains("after its removal"),
        "{violation}"
    );
}

/// The clock of one master is ahead while another master refuses requests. So the fencing token of the lock is a month
/// ahead, and stays ahead after the clock is corrected. The check whether a period has begun must not use the token.
#[test]
fn period_of_a_client_with_a_fast_clock_is_refused_although_the_fencing_token_is_ahead() {
    const DAY_US: i64 = 86_400_000_000;
    let mut scenario = Scenario::quiet(1, 3, 3);
    scenario.clients[0].steps = vec![
        step(ValueStep::Create(0)),
        Step {
            think: 200 * MS,
            resource: RECORD_RESOURCE,
            ..Step::plain()
        },
    ];
    scenario.clients[1].steps = vec![Step {
        think: 700 * MS,
        ..step(ValueStep::AtMostOnce)
    }];
    scenario.clients[2].steps = vec![Step {
        think: 1_400 * MS,
        ..step(ValueStep::AtMostOnce)
    }];
    let jump = |ms, days: i64| {
        let by_us = days * DAY_US;
        fault_at(ms, FaultKind::ClockJump { master: 2, by_us })
    };
    let by_us = 10 * DAY_US;
    scenario.faults = vec![
        jump(100, 30),
        refusal(1, 110, 500),
        jump(500, -30),
        fault_at(600, FaultKind::WallClockJump { client: 1, by_us }),
    ];
    let result = run_with_flaw(&scenario, None);
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
