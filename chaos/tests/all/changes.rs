//! Tests of runs in which masters are replaced under load. Some check hand-written histories. In the others, an
//! operator replaces the masters of a real run, with or without mistakes.

use std::path::Path;

use crate::support::history_builder::{HistoryBuilder, MS, obtained, wait};
use crate::support::{Run, kind, text};
use quorate_chaos::changes::MasterChanges;
use quorate_chaos::checks::Verdict;
use quorate_chaos::claim::Claim;
use quorate_chaos::event::Event;
use quorate_chaos::operator_tasks::STEPS;
use quorate_chaos::scenario::{Scenario, Workload};

impl HistoryBuilder {
    /// Adds all [`STEPS`] of replacing the masters, except the step `omitted_step`. Each step lasts one second: for
    /// example, the step `close` lasts from 2 s to 3 s.
    fn with_steps(self, omitted_step: &str) -> Self {
        let steps = STEPS
            .iter()
            .enumerate()
            .filter(|(_, step)| **step != omitted_step);
        steps.fold(self, |history, (index, step)| {
            let since = index as u64 * 1_000;
            let step_event = Event::Step {
                change: 0,
                step: (*step).to_owned(),
                since: since * MS,
                succeeded: true,
                output: String::new(),
            };
            history.at(since + 1_000, "chaos", step_event)
        })
    }

    fn with_kill(self, at: u64) -> Self {
        self.fault("kill", "m2", at, at + 100)
    }

    /// Adds a lock that the client `who` obtains and releases. The times are `requested_at` (the request), `granted_at`
    /// (the grant) and `released_at` (the release), in milliseconds.
    fn with_waited_hold(
        self,
        who: &str,
        op: u64,
        [requested_at, granted_at, released_at]: [u64; 3],
    ) -> Self {
        let until = Some((granted_at + 1_000) * MS);
        let release = Event::Release { op, until };
        self.at(requested_at, who, wait(op))
            .at(granted_at, who, obtained(op, Some(granted_at), until))
            .at(released_at, who, release)
    }

    fn with_refusal(self, who: &str, at: u64) -> Self {
        let why = "other_masters".to_owned();
        self.at(at, who, Event::Missed { op: 9, why })
    }

    fn change_verdict(self) -> (Verdict, usize) {
        let changes = MasterChanges::one_by_one(3, 1);
        let scenario = Scenario {
            masters: changes.servers(),
            changes: Some(changes),
            clients: 2,
            faults: vec![kind("kill")],
            workloads: vec![Workload::File],
            ..Scenario::default()
        };
        self.checker_verdict("changes", &scenario)
    }
}

#[test]
fn run_is_valid_only_if_every_step_of_the_change_of_masters_happened() {
    let history = HistoryBuilder::default;
    assert_eq!(
        history().with_steps("").with_kill(3_500).change_verdict(),
        (Verdict::Valid, 0)
    );
    for step in STEPS {
        let verdict = history().with_steps(step).with_kill(3_500).change_verdict();
        assert_eq!(verdict.0, Verdict::Invalid, "{step}");
    }
    let early_kill = history().with_steps("").with_kill(2_500).change_verdict();
    assert_eq!(early_kill, (Verdict::Unknown, 0));
}

#[test]
fn refusal_of_a_client_with_a_current_list_of_masters_is_reported() {
    let verdict_with = |add_refusal: &dyn Fn(HistoryBuilder) -> HistoryBuilder| {
        let add_restart = |verdict_with: HistoryBuilder, who, ms, step| {
            verdict_with.at(ms, who, Event::Sent { step })
        };
        let verdict_with = HistoryBuilder::default().with_steps("").with_kill(3_500);
        let verdict_with = verdict_with.at(1, "c1", Event::Ready { pid: 1 });
        let verdict_with = add_restart(
            add_restart(verdict_with, "c1.2", 1_500, 1),
            "c1.3",
            4_500,
            2,
        );
        add_refusal(verdict_with).change_verdict()
    };
    // A master may refuse clients with only the old masters from the step `close` on (at 2 s). From the step `finish`
    // on (at 5 s), it may also refuse clients with both sets of masters.
    assert_eq!(
        verdict_with(&|verdict_with| verdict_with.with_refusal("c1", 2_500)),
        (Verdict::Valid, 0)
    );
    assert_eq!(
        verdict_with(&|verdict_with| verdict_with.with_refusal("c1", 1_500)),
        (Verdict::Invalid, 1)
    );
    assert_eq!(
        verdict_with(&|verdict_with| verdict_with.with_refusal("c1.2", 5_500)),
        (Verdict::Valid, 0)
    );
    assert_eq!(
        verdict_with(&|verdict_with| verdict_with.with_refusal("c1.2", 4_500)),
        (Verdict::Invalid, 1)
    );
    assert_eq!(
        verdict_with(&|verdict_with| verdict_with.with_refusal("c1.3", 6_500)),
        (Verdict::Invalid, 1)
    );
}

#[test]
fn lock_that_stays_free_too_long_while_a_client_waits_is_reported() {
    let history = |requested_at: u64| {
        let history = HistoryBuilder::default().with_steps("").with_kill(3_500);
        let history = history.with_waited_hold("c1", 1, [100, 110, 200]);
        history
            .with_waited_hold("c2", 1, [requested_at, 4_000, 4_100])
            .change_verdict()
    };
    assert_eq!(history(150), (Verdict::Invalid, 1));
    assert_eq!(
        history(3_900),
        (Verdict::Valid, 0),
        "a lock that was free only while no client wanted it must not be reported"
    );
}

/// Returns true if the program `quorate` was built. Otherwise prints that the test did not run.
fn is_command_built() -> bool {
    let program_path = Path::new(env!("CARGO_BIN_EXE_quorate-chaos")).with_file_name("quorate");
    let is_found = std::env::var_os("QUORATE_CLI").is_some() || program_path.is_file();
    if !is_found {
        eprintln!("NOT RUN: build the command first (cargo build -p quorate-cli)");
    }
    is_found
}

#[test]
#[ignore = "nightly"]
fn lock_keeps_its_promises_while_one_master_is_replaced_and_masters_are_killed() {
    if !is_command_built() {
        return;
    }
    let run = Run::of(
        "replaced",
        "--seed 41 --masters 3 --replace-masters 1 --clients 3 --workload file,register,handover,transfer,prizes --faults kill",
    );
    run.must_be_valid();
    assert!(run.landed_count(kind("kill")) > 0, "{}", text(&run.output));
    let changes_text = std::fs::read_to_string(run.out.join("changes.txt"))
        .expect("the run must write changes.txt");
    for step in STEPS {
        assert!(changes_text.contains(step), "{step}:\n{changes_text}");
    }
    let page =
        std::fs::read_to_string(run.out.join("timeline.html")).expect("the page must be readable");
    assert!(
        page.contains("\"name\":\"open\""),
        "timeline.html must contain the step open"
    );
}

#[test]
#[ignore = "nightly"]
fn replacing_a_master_under_load_loses_no_quota_and_no_job_record() {
    if !is_command_built() {
        return;
    }
    let run = Run::of(
        "carried",
        "--seed 43 --masters 3 --replace-masters 1 --clients 3 --workload prizes --faults none",
    );
    run.must_be_valid();
    let changes_text = std::fs::read_to_string(run.out.join("changes.txt"))
        .expect("the run must write changes.txt");
    assert!(changes_text.contains("open"), "{changes_text}");
}

#[test]
fn quota_lost_in_a_change_of_masters_is_reported_unless_the_run_has_faults() {
    let verdict = |faults: &[&str]| {
        let changes = MasterChanges::one_by_one(3, 1);
        let scenario = Scenario {
            masters: changes.servers(),
            changes: Some(changes),
            faults: faults.iter().map(|name| kind(name)).collect(),
            workloads: vec![Workload::Prizes],
            ..Scenario::default()
        };
        let created = Event::Created {
            quota: "prizes-1".into(),
            pieces: 10,
        };
        let wait = |op| Event::Wait {
            op,
            resource: "prizes-1".into(),
            further_resources: Vec::new(),
            claim: Claim::Alone,
            continued_hold: None,
        };
        let answered = |op, answer: &str, left| Event::Answered {
            op,
            answer: answer.to_owned(),
            left,
        };
        let history = HistoryBuilder::default().at(1, "c1", created);
        let history = history
            .at(10, "c1", wait(1))
            .at(11, "c1", answered(1, "taken", Some(9)));
        let history = history
            .at(20, "c1", wait(2))
            .at(21, "c1", answered(2, "lost", None));
        history.checker_verdict("prizes", &scenario)
    };
    assert_eq!(verdict(&[]), (Verdict::Invalid, 1));
    assert_eq!(verdict(&["kill"]), (Verdict::Valid, 0));
}

#[test]
#[ignore = "nightly"]
fn operator_that_skips_a_step_of_a_change_is_caught_by_a_checker() {
    if !is_command_built() {
        return;
    }
    for operator in ["no-joint-step", "opens-by-hand"] {
        let run = Run::of(
            operator,
            &format!(
                "--seed 42 --masters 3 --replace-at-once --operator {operator} --clients 4 --faults none \
                 --workload file,register,handover"
            ),
        );
        for checker in ["exclusion", "effects"] {
            let finding = run
                .summary
                .findings
                .of_checker(checker)
                .expect("the checker must have run");
            assert_eq!(
                finding.verdict,
                Verdict::Invalid,
                "the checker {checker} did not catch {operator}:\n{}",
                text(&run.output)
            );
        }
        assert_eq!(run.output.status.code(), Some(1));
    }
}
