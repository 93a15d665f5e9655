//! Bugs that the simulation has found, kept as hand-written scenarios. The comment of each test describes the bug
//! before its fix.
//!
//! A seed would not preserve a bug: when the random generator changes, the seed gives a different scenario.

use quorate_simulation::{
    ChangePlan, Disk, Fault, FaultKind, Kind, RunOptions, RunResult, Scenario, Step, ValueStep,
};

const MS: u64 = 1_000_000;

fn run_and_check(scenario: &Scenario) -> RunResult {
    let result = RunOptions::default().run(scenario);
    if let Some(violation) = &result.violation {
        let run_options = RunOptions {
            trace: true,
            ..RunOptions::default()
        };
        let trace = run_options.run(scenario).trace.join("\n");
        panic!("{scenario}\n{trace}\n{violation}");
    }
    result
}

/// When a lease without renewal expired, the renewal task handled the expiry in an endless loop within one poll.
#[test]
fn renewal_task_does_not_loop_forever_after_an_unrenewed_lease_expired() {
    let mut scenario = Scenario::quiet(1, 3, 1);
    let unrenewed = Step {
        renew: false,
        hold: 2_000 * MS,
        ..Step::plain()
    };
    scenario.clients[0].steps = vec![unrenewed, Step::plain()];
    let result = run_and_check(&scenario);
    assert_eq!(result.coverage.lost_locks, 1);
    assert_eq!(result.coverage.acquired, 3);
}

/// A semaphore waiter asked for a slot and was refused. The refusal named a free slot. After its first few attempts,
/// the waiter did not ask for this free slot immediately, but waited for a wake-up or a timer.
#[test]
fn semaphore_waiter_immediately_requests_the_free_slot_named_in_a_refusal() {
    for seed in 0..40 {
        let mut scenario = Scenario::quiet(seed, 2, 3);
        let permit_step = |think, hold| Step {
            think: think * MS,
            hold: hold * MS,
            kind: Kind::Permit(2),
            ..Step::plain()
        };
        for (client, (think, hold)) in [(1, 900), (20, 50), (40, 10)].into_iter().enumerate() {
            scenario.clients[client].steps = vec![permit_step(think, hold)];
        }
        let result = run_and_check(&scenario);
        assert_eq!(result.coverage.permits, 6, "seed {seed}");
    }
}

/// The driver measured the connect timeout from the start of the process. It therefore refused a first request that
/// came later than `connect_timeout`, instead of waiting for the connection. Now the timeout begins with the first
/// request.
#[test]
fn connect_timeout_begins_with_the_first_request_instead_of_the_process_start() {
    let mut scenario = Scenario::quiet(1, 3, 1);
    scenario.clients[0].steps = vec![Step {
        think: 900 * MS,
        ..Step::plain()
    }];
    let result = run_and_check(&scenario);
    assert_eq!(result.coverage.no_quorum, 0);
}

/// A scenario with four masters, in which master 3 replaces master 2. `initial_number` and `goal` are the numbers in
/// the generation markers at the beginning and at the end. All clients stay at the step `step` of the replacement.
fn replacement_of_one_master(initial_number: Option<u64>, goal: u64, step: u8) -> Scenario {
    let mut scenario = Scenario::quiet(1, 4, 3);
    scenario.settings.max_ttl = scenario.settings.ttl;
    scenario.change = Some(ChangePlan {
        sets: vec![0b0111, 0b1011],
        initial_number,
        goal,
        operators: 1,
        longest_pause: 20 * MS,
        steps: vec![(step, step); 3],
        counters_ahead_us: None,
        stops_replaced: false,
    });
    scenario
}

fn crash(at: u64, master: u8, down: u64) -> Fault {
    let (down, age) = (down * MS, MS);
    let kind = FaultKind::Crash { master, down, age };
    Fault { at: at * MS, kind }
}

/// Masters 0 and 1 crash and lose their generation markers. Without these two markers, a majority of the new masters
/// (0, 1 and 3) would refuse all clients forever.
#[test]
fn operator_restores_a_generation_marker_lost_in_a_restart_after_the_last_fault() {
    let mut scenario = replacement_of_one_master(Some(2), 2, 2);
    let heal = scenario.heal_at / MS;
    scenario.faults = vec![crash(3_000, 0, 100), crash(heal - 20, 1, 100)];
    let result = run_and_check(&scenario);
    assert!(result.coverage.markers_written_by_hand > 0);
}

/// Masters were to be replaced twice. After the first replacement, a majority of the masters lost their generation
/// markers. The library's error asked for a repetition of the first replacement, but the simulated operator never
/// repeated it.
#[test]
fn operator_repeats_a_replacement_of_masters_after_the_loss_of_generation_markers() {
    let mut scenario = replacement_of_one_master(Some(4), 5, 3);
    let plan = scenario.change.as_mut().expect("masters must be replaced");
    plan.sets.push(0b0111);
    plan.longest_pause = 1_000 * MS;
    scenario.faults = vec![crash(400, 0, 30), crash(400, 3, 30)];
    let result = run_and_check(&scenario);
    assert!(result.coverage.failed_operator_steps > 0 && result.coverage.opened_masters > 0);
}

/// While a master's clock was 30 hours ahead, the master removed a fencing counter as expired. After the clock was
/// correct again, the master stored a smaller counter. The checker of the rule `counters` wrongly reported this.
#[test]
fn checker_accepts_a_fencing_counter_that_expired_during_a_clock_jump() {
    const HOUR_US: i64 = 3_600_000_000;
    let mut scenario = Scenario::quiet(1, 3, 3);
    for master in &mut scenario.masters {
        master.disk = Disk::Always;
    }
    let step = |think, kind| Step {
        think: think * MS,
        hold: 50 * MS,
        kind,
        ..Step::plain()
    };
    scenario.clients[0].wall_us = 5_000_000;
    scenario.clients[0].steps = vec![step(20, Kind::Exclusive)];
    scenario.clients[1].steps = vec![step(300, Kind::Observe)];
    scenario.clients[2].steps = vec![step(700, Kind::Exclusive)];
    let jump = |at, by_us| {
        let kind = FaultKind::ClockJump { master: 0, by_us };
        Fault { at: at * MS, kind }
    };
    scenario.faults = vec![jump(200, 30 * HOUR_US), jump(600, -30 * HOUR_US)];
    run_and_check(&scenario);
}

/// A client removed a value. Before its call returned, another client created the value again. The checker of stored
/// values (rule `stock`) wrongly assumed that the removal happened after the creation.
#[test]
fn checker_accepts_a_value_created_again_before_its_removal_call_returns() {
    let value = |think, verb| Step {
        think: think * MS,
        wait: 1_000 * MS,
        hold: 10 * MS,
        kind: Kind::Value(verb),
        ..Step::plain()
    };
    let mut late_removals = 0;
    for seed in 0..300 {
        let mut scenario = Scenario::quiet(seed, 3, 2);
        scenario.net.doze_ppm = 30_000;
        scenario.net.doze = 800 * MS;
        scenario.clients[0].steps = vec![value(100, ValueStep::Remove { record: true })];
        let creation = |think| value(think, ValueStep::Create(0));
        let at_least_once = value(1_000, ValueStep::AtLeastOnce);
        scenario.clients[1].steps = vec![creation(1), creation(150), at_least_once];
        run_and_check(&scenario);
        let run_options = RunOptions {
            trace: true,
            ..RunOptions::default()
        };
        let trace = run_options.run(&scenario).trace;
        let last_line_with = |text: &str| trace.iter().rposition(|line| line.contains(text));
        let created = last_line_with("client 1 gets Created");
        let removed = last_line_with("client 0 gets Removed");
        let is_after_creation =
            created.is_some_and(|created| removed.is_some_and(|removed| removed > created));
        late_removals += u64::from(is_after_creation);
    }
    assert!(
        late_removals > 0,
        "in some seed, a removal must return after the next creation"
    );
}

/// The simulated operator recognizes some errors of the library by their text. After one of these texts had been
/// rewritten, the operator no longer recognized the error. It then repeated a finished replacement of masters forever
/// (in 24 of 200,000 seeds).
#[test]
fn library_errors_contain_every_text_that_the_simulated_operator_searches_for() {
    let operator = include_str!("../../src/operator.rs");
    let library = [
        include_str!("../../../src/masters_change.rs"),
        include_str!("../../../src/masters_change/survey.rs"),
    ]
    .concat();
    let texts: Vec<&str> = operator
        .split("has_unmet_condition(&error, \"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert!(
        texts.len() >= 2,
        "the simulated operator must look for at least two error texts, not only for {texts:?}"
    );
    for text in texts {
        assert!(
            library.contains(text),
            "no error of the library contains {text:?}"
        );
    }
}
