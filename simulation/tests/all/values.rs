//! Tests values under locks in hand-written scenarios, because randomly drawn scenarios rarely contain these cases.

use quorate_simulation::{
    Fault, FaultKind, Flaw, Kind, Play, Refusal, RunResult, Scenario, Step, ValueStep,
};

const MS: u64 = 1_000_000;

/// The resource with the once-per-period record.
const RECORD: u8 = 1;

fn step(kind: ValueStep) -> Step {
    Step {
        resource: RECORD,
        kind: Kind::Value(kind),
        wait: 5_000 * MS,
        ..Step::plain()
    }
}

fn at(ms: u64, kind: FaultKind) -> Fault {
    Fault { at: ms * MS, kind }
}

fn refuses(master: u8, from: u64, to: u64) -> Fault {
    let (how, lasts) = (Refusal::Busy, (to - from) * MS);
    at(from, FaultKind::Refuse { master, how, lasts })
}

/// A partition between one client and some masters (bit n is master n). It lasts from `from` to `to`, in milliseconds
/// since the beginning of the run. Messages that are sent in this time arrive right after its end.
fn cut_off(client: u8, masters: u16, from: u64, to: u64) -> Fault {
    let kind = FaultKind::Partition {
        clients: 1 << client,
        masters,
        to: true,
        from: true,
        lasts: (to - from) * MS,
    };
    at(from, kind)
}

/// A scenario in which client 0 creates a once-per-period record. `think` milliseconds after the start, client 1 takes
/// the lock of the record for `hold` milliseconds, without renewal. Client 1 reads the record, waits for half of
/// `hold`, and writes the record.
fn recorded(masters: usize, think: u64, hold: u64) -> Scenario {
    let mut scenario = Scenario::quiet(1, masters, 3);
    scenario.settings.node_timeout = 250 * MS;
    scenario.net.again = MS;
    scenario.clients[0].steps = vec![step(ValueStep::Create(0))];
    scenario.clients[1].steps = vec![Step {
        think: think * MS,
        hold: hold * MS,
        renew: false,
        ..step(ValueStep::Turn)
    }];
    scenario
}

/// Plays the scenario, and checks only the rules whose violation harms users.
fn play(scenario: &Scenario, flaw: Option<Flaw>) -> RunResult {
    let play = Play {
        flaw,
        harm: true,
        trace: true,
    };
    play.run(scenario)
}

/// Checks that the scenario breaks the rule `stock` with the seeded bug `flaw`, and breaks no rule without a bug. The
/// runs without a bug use the library and `SoundRegister`, a correct client without the library's code.
fn only_the_flaw_is_caught(scenario: &Scenario, flaw: Flaw) {
    for sound in [None, Some(Flaw::SoundRegister)] {
        let outcome = play(scenario, sound);
        let trace = outcome.trace.join("\n");
        assert_eq!(outcome.violation, None, "{sound:?}: {scenario}\n{trace}");
        let seen = outcome.coverage;
        assert_eq!((seen.due, seen.unknown), (1, 1), "{sound:?}\n{trace}");
    }
    let outcome = play(scenario, Some(flaw));
    let trace = outcome.trace.join("\n");
    let violation = outcome
        .violation
        .unwrap_or_else(|| panic!("the seeded bug {flaw} must be caught\n{trace}"));
    assert_eq!(violation.rule, "stock", "{violation}\n{trace}");
}

/// An extension can create the holder's lock key on a master that never granted the lock. It does not raise the fencing
/// counter there. The holder's read must raise it, so that the master rejects late writes of the previous holder.
#[test]
fn reading_a_value_makes_masters_reject_delayed_writes_of_the_previous_holder() {
    let mut scenario = recorded(3, 100, 200);
    scenario.clients[2].steps = vec![Step {
        think: 310 * MS,
        hold: 100 * MS,
        extend: Some(1_000 * MS),
        ..step(ValueStep::Turn)
    }];
    scenario.faults = vec![
        cut_off(1, 0b001, 300, 385),
        cut_off(1, 0b100, 300, 900),
        at(
            306,
            FaultKind::Break {
                resource: RECORD,
                missed: 0,
            },
        ),
        refuses(0, 307, 340),
        cut_off(2, 0b010, 358, 900),
    ];
    only_the_flaw_is_caught(&scenario, Flaw::ReadNoRaise);
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
    let mut scenario = recorded(5, 50, 300);
    scenario.clients[2].steps = vec![Step {
        think: 235 * MS,
        ..step(ValueStep::Once)
    }];
    let (master, down, age) = (4, 5 * MS, MS);
    scenario.faults = vec![
        refuses(0, 228, 260),
        refuses(1, 228, 260),
        at(
            230,
            FaultKind::Break {
                resource: RECORD,
                missed: 0,
            },
        ),
        at(280, FaultKind::Crash { master, down, age }),
    ];
    scenario
}

#[test]
fn value_write_counts_only_on_masters_from_which_the_client_read_the_value() {
    let mut scenario = one_master_forgets();
    scenario.faults.insert(0, cut_off(1, 0b11000, 195, 215));
    only_the_flaw_is_caught(&scenario, Flaw::WriteElsewhere);
}

#[test]
fn value_write_does_not_count_on_a_master_that_restarted_after_the_read() {
    let scenario = one_master_forgets();
    only_the_flaw_is_caught(&scenario, Flaw::LateRefill);
}

/// Without faults, a quota of 21 units is handed out two units at a time, until fewer than two are left.
#[test]
fn quota_refuses_a_request_for_more_units_than_are_left() {
    for seed in 0..10 {
        let mut scenario = Scenario::quiet(seed, 3, 4);
        let of = |kind| Step {
            resource: 0,
            think: 60 * MS,
            ..step(kind)
        };
        for client in &mut scenario.clients {
            client.steps = vec![of(ValueStep::Take(2)); 4];
            client.steps.push(of(ValueStep::Left));
        }
        let create = Step {
            think: MS,
            ..of(ValueStep::Create(21))
        };
        scenario.clients[0].steps.insert(0, create);
        let seen = play(&scenario, None);
        assert_eq!(seen.violation, None, "{scenario}");
        let seen = seen.coverage;
        // Sixteen calls take two of 21 units each: ten calls get two units, and six find too few left. Then each of the
        // four clients reads that one unit is left.
        assert_eq!(
            (seen.created, seen.taken, seen.units_left),
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
        let at = |think, kind| Step {
            think: think * MS,
            ..step(kind)
        };
        scenario.clients[0].steps = vec![
            at(1, ValueStep::Create(0)),
            at(500, ValueStep::Remove { record: true }),
            at(500, ValueStep::Create(0)),
        ];
        for client in &mut scenario.clients[1..] {
            client.steps = vec![at(400, ValueStep::AtLeast); 4];
            client.steps[3].think = 5 * MS;
        }
        // Clients 1 and 2 take their last two steps after the record was created again.
        for client in &mut scenario.clients[1..] {
            client.steps[2].think = 800 * MS;
        }
        let seen = play(&scenario, None);
        assert_eq!(
            seen.violation,
            None,
            "{scenario}\n{}",
            seen.trace.join("\n")
        );
        let seen = seen.coverage;
        assert_eq!((seen.created, seen.removed), (2, 1), "seed {seed}");
        // The work was done once before the removal, and once after the record was created again. Clients 1 and 2 each
        // made one call that found no record.
        assert_eq!(
            (seen.done_at_least, seen.values_lost),
            (2, 2),
            "seed {seed}"
        );
        assert_eq!((seen.done_before, seen.not_recorded), (4, 0), "seed {seed}");
    }
}

#[test]
fn seeded_bug_that_keeps_a_removed_value_on_masters_is_caught() {
    let mut scenario = Scenario::quiet(1, 3, 2);
    let at = |think, kind| Step {
        think: think * MS,
        ..step(kind)
    };
    let remove = ValueStep::Remove { record: true };
    scenario.clients[0].steps = vec![at(1, ValueStep::Create(0)), at(50, remove)];
    scenario.clients[1].steps = vec![at(300, ValueStep::AtLeast)];
    assert_eq!(play(&scenario, None).violation, None);
    let caught = play(&scenario, Some(Flaw::RemovedNowhere)).violation;
    let caught = caught.expect("the rule must catch a master that keeps a removed value");
    assert_eq!(caught.rule, "stock", "{caught}");
    assert!(caught.what.contains("after its removal"), "{caught}");
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
            resource: RECORD,
            ..Step::plain()
        },
    ];
    scenario.clients[1].steps = vec![Step {
        think: 700 * MS,
        ..step(ValueStep::Once)
    }];
    scenario.clients[2].steps = vec![Step {
        think: 1_400 * MS,
        ..step(ValueStep::Once)
    }];
    let jump = |ms, days: i64| {
        let by_us = days * DAY_US;
        at(ms, FaultKind::Jump { master: 2, by_us })
    };
    let by_us = 10 * DAY_US;
    scenario.faults = vec![
        jump(100, 30),
        refuses(1, 110, 500),
        jump(500, -30),
        at(600, FaultKind::Date { client: 1, by_us }),
    ];
    let outcome = play(&scenario, None);
    let trace = outcome.trace.join("\n");
    assert_eq!(outcome.violation, None, "{scenario}\n{trace}");
    let seen = outcome.coverage;
    assert_eq!(
        (seen.due, seen.done_before),
        (1, 0),
        "only the client with the right clock may do the work of its period\n{trace}"
    );
    assert!(trace.contains("fencing token 17925"), "{trace}");
}
