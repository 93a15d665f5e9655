//! Tests of `quorate quota` and `quorate once` on real masters.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{
    self, RunOutput, occupy_lock, output_of, quorate_command, quorate_on, quorate_run,
    start_masters, unique_marker, wait_for_output, wait_until, wait_until_held,
};
use nix::sys::signal::Signal;
use quorate_testbed::{Fault, Masters, Proxy, Way};

/// A command that runs `quorate` with these arguments, and with timeouts that are long enough for a busy machine.
fn command_with(masters: &Masters, words: &[&str]) -> Command {
    let mut command = quorate_on(masters);
    command
        .env("QUORATE_NODE_TIMEOUT", "500ms")
        .env("QUORATE_CONNECT_TIMEOUT", "2s")
        .args(words);
    command
}

fn output_with(masters: &Masters, args: &[&str]) -> RunOutput {
    output_of(&mut command_with(masters, args))
}

/// Checks that no master has the lock key `name`.
fn assert_tidy(masters: &Masters, name: &str) {
    for master in masters {
        let key = master.command(&["EXISTS", name]).expect("a reply");
        assert_eq!(key.int(), Some(0), "the lock of {name} must be released");
    }
}

#[test]
fn quota_can_be_created_taken_read_and_dropped() {
    let masters = start_masters(3);
    let missing_run = output_with(&masters, &["quota", "take", "prizes"]);
    assert_eq!(
        (missing_run.code, &*missing_run.stdout),
        (Some(64), ""),
        "{missing_run:?}"
    );
    assert!(
        missing_run.stderr.contains("quorate quota create prizes N"),
        "{missing_run:?}"
    );
    let exit_0_with_stdout = |out: &str| (Some(0), out.to_owned());
    let code_and_stdout = |output: RunOutput| (output.code, output.stdout);
    assert_eq!(
        code_and_stdout(output_with(&masters, &["quota", "create", "prizes", "3"])),
        exit_0_with_stdout("3\n")
    );
    assert_eq!(
        code_and_stdout(output_with(&masters, &["quota", "take", "prizes"])),
        exit_0_with_stdout("2\n")
    );
    assert_eq!(
        code_and_stdout(output_with(&masters, &["quota", "left", "prizes"])),
        exit_0_with_stdout("2\n")
    );
    let sold_out = output_with(&masters, &["quota", "take", "prizes", "3"]);
    assert_eq!(
        (sold_out.code, &*sold_out.stdout),
        (Some(1), "2\n"),
        "{sold_out:?}"
    );
    assert!(
        sold_out
            .stderr
            .contains("asked for 3 units, 2 left; nothing was taken"),
        "{sold_out:?}"
    );
    let json = output_with(&masters, &["quota", "take", "--json", "prizes", "2"]);
    let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(
        json,
        serde_json::json!({ "quota": "prizes", "taken": 2, "left": 0 })
    );
    let second_create_run = output_with(&masters, &["quota", "create", "prizes", "3"]);
    assert_eq!(second_create_run.code, Some(64), "{second_create_run:?}");
    assert!(
        second_create_run.stderr.contains("it exists already"),
        "{second_create_run:?}"
    );
    let unsure_run = output_with(&masters, &["quota", "drop", "prizes"]);
    assert_eq!(unsure_run.code, Some(64), "{unsure_run:?}");
    assert_eq!(
        code_and_stdout(output_with(&masters, &["quota", "drop", "prizes", "--yes"])),
        exit_0_with_stdout("")
    );
    assert_eq!(
        output_with(&masters, &["quota", "left", "prizes"]).code,
        Some(64)
    );
    assert_tidy(&masters, "prizes");
}

#[test]
fn quota_needs_all_masters_at_creation_and_data_on_a_majority_afterwards() {
    let masters = start_masters(3);
    masters[1].kill().expect("killed");
    let unreachable_run = output_with(&masters, &["quota", "create", "prizes", "3"]);
    assert_eq!(
        (unreachable_run.code, &*unreachable_run.stdout),
        (Some(69), ""),
        "{unreachable_run:?}"
    );
    let name = masters[1].addr().to_string();
    assert!(
        unreachable_run.stderr.contains(&name),
        "{unreachable_run:?}"
    );
    masters[1].restart().expect("restarted");
    assert_eq!(
        output_with(&masters, &["quota", "create", "prizes", "3"]).code,
        Some(0)
    );
    for master in masters.iter().take(2) {
        master.restart_empty().expect("restarted");
    }
    let lost_run = output_with(&masters, &["quota", "take", "prizes"]);
    assert_eq!(
        (lost_run.code, &*lost_run.stdout),
        (Some(69), ""),
        "{lost_run:?}"
    );
    assert!(lost_run.stderr.contains("is lost"), "{lost_run:?}");
    let dropped_run = output_with(&masters, &["quota", "drop", "prizes", "--yes"]);
    assert_eq!(dropped_run.code, Some(0), "{dropped_run:?}");
    assert_eq!(
        output_with(&masters, &["quota", "create", "prizes", "2"]).code,
        Some(0)
    );
}

#[test]
fn signal_ends_a_waiting_quota_or_once_command_and_leaves_no_queue_entry() {
    let masters = start_masters(3);
    let somebody = |args: &[&str]| {
        for master in &masters {
            master.command(args).expect("a reply");
        }
    };
    somebody(&["SET", "r", "somebody else", "PX", "600000"]);
    for args in [
        &["quota", "take", "--wait", "forever", "r"][..],
        &["once", "--create", "r"],
    ] {
        let mut waiting_command = command_with(&masters, args);
        let piped_command = waiting_command
            .stderr(Stdio::piped())
            .stdout(Stdio::piped());
        let waiting_child = piped_command.spawn().expect("starts");
        wait_until_held(&masters, "quorate:queue:r");
        common::send_signal(&waiting_child, "TERM");
        let waiting_output = wait_for_output(waiting_child);
        assert_eq!(waiting_output.died_of, Some(15), "{waiting_output:?}");
        assert!(
            waiting_output.stderr.contains("no lock is held"),
            "{waiting_output:?}"
        );
        for master in &masters {
            let queue_exists = master.command(&["EXISTS", "quorate:queue:r"]);
            assert_eq!(queue_exists.expect("a reply").int(), Some(0), "{args:?}");
        }
    }
    somebody(&["DEL", "r"]);
    assert_eq!(
        output_with(&masters, &["quota", "create", "r", "1"]).code,
        Some(0)
    );
}

/// A period of `quorate once` that does not end during a test.
const LONG: &str = "3650d";

#[test]
fn quorate_once_on_several_machines_runs_its_command_once_per_period() {
    let masters = start_masters(3);
    let missing_run = output_with(
        &masters,
        &["once", "--per", LONG, "nightly", "--", "echo", "ran"],
    );
    assert_eq!(
        (missing_run.code, &*missing_run.stdout),
        (Some(64), ""),
        "{missing_run:?}"
    );
    assert!(
        missing_run.stderr.contains("quorate once --create nightly"),
        "{missing_run:?}"
    );
    let created_run = output_with(&masters, &["once", "--create", "nightly"]);
    assert_eq!(created_run.code, Some(0), "{created_run:?}");
    let start_once = |_| {
        let words = ["once", "--per", LONG, "nightly", "--", "echo", "ran"];
        let mut command = command_with(&masters, &words);
        command.stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        command.spawn().expect("starts")
    };
    let once_children: Vec<_> = (0..6).map(start_once).collect();
    let outputs: Vec<RunOutput> = once_children.into_iter().map(wait_for_output).collect();
    assert!(
        outputs.iter().all(|output| output.code == Some(0)),
        "{outputs:?}"
    );
    let all_stdout: String = outputs.iter().map(|output| &*output.stdout).collect();
    assert_eq!(all_stdout, "ran\n", "{outputs:?}");
    let others = outputs.iter().filter(|output| {
        output
            .stderr
            .contains("already started in this period (at most once per period)")
    });
    assert_eq!(others.count(), 5, "{outputs:?}");
    assert_tidy(&masters, "nightly");
}

/// With `--quiet`, no line says whether this machine ran the command, so only the exit code can.
#[test]
fn option_done_exit_code_distinguishes_a_period_that_was_done_from_a_run() {
    let masters = start_masters(3);
    let created_run = output_with(&masters, &["once", "--create", "job"]);
    assert_eq!(created_run.code, Some(0), "{created_run:?}");
    let dir = tempfile::tempdir().expect("a directory");
    let metrics_file = dir.path().join("job.prom");
    let once_command = |options: &[&str]| {
        let mut words = vec!["once", "--quiet", "--per", LONG];
        words.extend(options);
        words.extend(["job", "--", "echo", "ran"]);
        let mut command = command_with(&masters, &words);
        command.env("QUORATE_METRICS_FILE", &metrics_file);
        command
    };
    let first_run = output_of(&mut once_command(&["--done-exit-code", "3"]));
    assert_eq!(
        (first_run.code, &*first_run.stdout),
        (Some(0), "ran\n"),
        "{first_run:?}"
    );
    for (options, variable, code) in [
        (&["--done-exit-code", "3"][..], None, 3),
        (&[][..], Some("4"), 4),
        (&[][..], None, 0),
    ] {
        let mut again_run = once_command(options);
        again_run.envs(variable.map(|code| ("QUORATE_DONE_EXIT_CODE", code)));
        let again_run = output_of(&mut again_run);
        assert_eq!(
            (again_run.code, &*again_run.stdout, &*again_run.stderr),
            (Some(code), "", ""),
            "{options:?} {variable:?}"
        );
        let metrics = std::fs::read_to_string(&metrics_file).expect("metrics");
        let not_due = r#"quorate_run_outcome{resource="job",outcome="not_due"} 1"#;
        assert!(metrics.contains(not_due), "{metrics}");
    }
}

#[test]
fn quorate_once_repeats_a_failed_command_only_with_the_option_at_least() {
    let masters = start_masters(3);
    for (name, at_least) in [("most", false), ("least", true)] {
        assert_eq!(
            output_with(&masters, &["once", "--create", name]).code,
            Some(0)
        );
        let run_once = |command: &[&str]| {
            let mut words = vec!["once", "--per", LONG];
            words.extend(at_least.then_some("--at-least"));
            words.extend([name, "--"]);
            words.extend(command);
            output_with(&masters, &words)
        };
        assert_eq!(run_once(&["sh", "-c", "exit 7"]).code, Some(7));
        let again_run = run_once(&["echo", "ran"]);
        assert_eq!(again_run.code, Some(0), "{again_run:?}");
        assert_eq!(
            again_run.stdout,
            if at_least { "ran\n" } else { "" },
            "{again_run:?}"
        );
        assert_eq!(run_once(&["echo", "ran"]).stdout, "");
    }
}

#[test]
fn quorate_once_reports_a_failed_command_and_its_next_run_even_with_the_option_quiet() {
    let masters = start_masters(3);
    assert_eq!(
        output_with(&masters, &["once", "--create", "r"]).code,
        Some(0)
    );
    let run_once = |more: &[&str], line: &str| {
        let words = &["once", "-q", "--per", "day"][..];
        let words = [words, more, &["r", "--shell", line]].concat();
        output_with(&masters, &words)
    };
    let failed_run = run_once(&["--at-least"], "exit 7");
    assert_eq!(failed_run.code, Some(7), "{failed_run:?}");
    assert_eq!(failed_run.stderr.lines().count(), 1, "{failed_run:?}");
    let expected_text =
        "'r' failed with exit code 7; the next call in this period runs it again (--at-least)";
    assert!(failed_run.stderr.contains(expected_text), "{failed_run:?}");
    let failed_run = run_once(&[], "exit 3");
    assert_eq!(failed_run.code, Some(3), "{failed_run:?}");
    assert_eq!(failed_run.stderr.lines().count(), 1, "{failed_run:?}");
    let expected_text = "'r' failed with exit code 3; it does not run again before ";
    assert!(failed_run.stderr.contains(expected_text), "{failed_run:?}");
    let expected_text = "T00:00:00Z (UTC); to run it by hand: quorate run r -- COMMAND";
    assert!(failed_run.stderr.contains(expected_text), "{failed_run:?}");
    assert_eq!(
        output_with(&masters, &["once", "--create", "s"]).code,
        Some(0)
    );
    let output = output_with(&masters, &["once", "-q", "--per", "day", "s", "--", "true"]);
    assert_eq!((output.code, &*output.stderr), (Some(0), ""), "{output:?}");
}

#[test]
fn error_about_a_lost_record_contains_the_commands_that_create_it_again() {
    let masters = start_masters(3);
    let values = [
        (
            ["once", "--create", "report"],
            ["once", "--status", "report"],
            "record",
        ),
        (
            ["quota", "create", "prizes"],
            ["quota", "left", "prizes"],
            "quota",
        ),
    ];
    for (create, _, what) in values {
        let units = (what == "quota").then_some("3");
        let words: Vec<&str> = create.into_iter().chain(units).collect();
        assert_eq!(output_with(&masters, &words).code, Some(0));
    }
    for master in masters.iter().take(2) {
        master.restart_empty().expect("restarted");
    }
    let [record, quota] = values.map(|(_, read, _)| output_with(&masters, &read));
    assert_eq!(record.code, Some(69), "{record:?}");
    let expected_text = "the record 'report' is lost, because too few masters have it: find out whether the job ran; then run \
                quorate once --drop report --yes, and quorate once --create report";
    assert!(record.stderr.contains(expected_text), "{record:?}");
    let expected_text = "the quota 'prizes' is lost, because too few masters have it: run quorate quota drop prizes --yes, and \
                quorate quota create prizes N with the units that are left";
    assert!(quota.stderr.contains(expected_text), "{quota:?}");
    let again_run = output_with(&masters, &["once", "--drop", "report", "--yes"]);
    assert_eq!(again_run.code, Some(0), "{again_run:?}");
    assert_eq!(
        output_with(&masters, &["once", "--create", "report"]).code,
        Some(0)
    );
    let second_create_run = output_with(&masters, &["once", "--create", "report"]);
    assert_eq!(second_create_run.code, Some(64), "{second_create_run:?}");
    let expected_text = "the record 'report' was not created: it exists already";
    assert!(
        second_create_run.stderr.contains(expected_text),
        "{second_create_run:?}"
    );
}

#[test]
fn quorate_once_does_not_run_its_command_if_the_period_ended_during_the_wait() {
    let masters = start_masters(3);
    assert_eq!(
        output_with(&masters, &["once", "--create", "r"]).code,
        Some(0)
    );
    let period = Duration::from_secs(6);
    let now = || {
        std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .expect("a time after 1970")
    };
    let into = |now: Duration| now.as_millis() % period.as_millis();
    // Wait until a period begins, so that both calls of `quorate once` are made in the same period.
    while into(now()) > 1_000 {
        std::thread::sleep(Duration::from_millis(50));
    }
    let (checked_at, since) = (now(), into(now()) as u64);
    let next_period_at = checked_at + period.saturating_sub(Duration::from_millis(since));
    let start_once = |line: &str| {
        let words = ["once", "--per", "6s", "r", "--shell", line];
        let mut command = command_with(&masters, &words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("starts")
    };
    let first = start_once("echo ran; sleep 7");
    wait_until_held(&masters, "r");
    let second = start_once("echo ran");
    wait_until_held(&masters, "quorate:queue:r");
    assert!(
        now() < next_period_at,
        "this machine is too slow for this test"
    );
    let outputs = [wait_for_output(first), wait_for_output(second)];
    assert_eq!(
        (&*outputs[0].stdout, &*outputs[1].stdout),
        ("ran\n", ""),
        "{outputs:?}"
    );
    let third_run = wait_for_output(start_once("echo ran"));
    assert_eq!(
        third_run.stdout, "ran\n",
        "the command must run again in the next period: {third_run:?} {outputs:?}"
    );
}

#[test]
fn quorate_once_status_shows_when_and_where_the_command_ran_and_its_outcome() {
    let masters = start_masters(3);
    let code = |args: &[&str]| output_with(&masters, args).code;
    assert_eq!(code(&["once", "--status", "r"]), Some(64));
    assert_eq!(code(&["once", "--create", "r"]), Some(0));
    let status = || {
        let output = output_with(
            &masters,
            &["once", "--status", "--json", "--per", LONG, "r"],
        );
        assert_eq!(output.code, Some(0), "{output:?}");
        serde_json::from_str::<serde_json::Value>(&output.stdout).expect("JSON")
    };
    let start_once = |more: &[&str], line: &str| {
        let words = [&["once", "--per", LONG][..], more, &["r", "--shell", line]].concat();
        let mut command = command_with(&masters, &words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped()).spawn().expect("starts")
    };
    let never_run_status = status();
    assert_eq!(
        (&never_run_status["state"], &never_run_status["done"]),
        (&"never".into(), &false.into()),
        "{never_run_status}"
    );
    let failed_run = wait_for_output(start_once(&["--at-least"], "exit 7"));
    assert_eq!(failed_run.code, Some(7), "{failed_run:?}");
    let failed_status = status();
    assert_eq!(
        (&failed_status["state"], &failed_status["done"]),
        (&"failed".into(), &false.into()),
        "{failed_status}"
    );
    assert_eq!(failed_status["run"]["exit_code"], 7, "{failed_status}");
    let mut child = start_once(&[], "read line; exit 3");
    wait_until_held(&masters, "quorate:note:r");
    let held_status = status();
    assert_eq!(held_status["state"], "held", "{held_status}");
    let pid = format!("pid {},", child.id());
    assert!(
        held_status["holder"]
            .as_str()
            .is_some_and(|holder| holder.contains(&pid)),
        "{held_status} {pid}"
    );
    assert_eq!(held_status["run"]["pid"], child.id(), "{held_status}");
    assert!(held_status["run"]["began"].is_string(), "{held_status}");
    drop(child.stdin.take());
    let pid = child.id();
    assert_eq!(wait_for_output(child).code, Some(3));
    let ended = status();
    assert_eq!(
        (&ended["state"], &ended["done"]),
        (&"failed".into(), &true.into()),
        "{ended}"
    );
    assert_eq!(ended["run"]["pid"], pid, "{ended}");
    for time in [
        &ended["run"]["began"],
        &ended["run"]["ended"],
        &ended["period"],
    ] {
        assert!(
            time.as_str().is_some_and(|time| time.ends_with('Z')),
            "{ended}"
        );
    }
    assert_tidy(&masters, "r");
}

#[test]
fn quorate_once_status_prints_the_exit_code_and_process_of_the_last_run() {
    let masters = start_masters(3);
    assert_eq!(
        output_with(&masters, &["once", "--create", "r"]).code,
        Some(0)
    );
    let status_run = output_with(&masters, &["once", "--status", "r"]);
    assert_eq!(status_run.stdout, "has never run\n", "{status_run:?}");
    let words = ["once", "--per", LONG, "r", "--shell", "exit 3"];
    let runs = command_with(&masters, &words).spawn().expect("starts");
    let pid = runs.id();
    assert_eq!(wait_for_output(runs).code, Some(3));
    let text = output_with(&masters, &["once", "--status", "r"]);
    assert!(
        text.stdout
            .starts_with("the last run that ended had exit code 3\non "),
        "{text:?}"
    );
    assert!(text.stdout.contains(&format!("pid {pid}")), "{text:?}");
}

#[test]
fn quorate_once_status_shows_the_last_completed_run_after_a_crashed_run() {
    let masters = start_masters(3);
    assert_eq!(
        output_with(&masters, &["once", "--create", "r"]).code,
        Some(0)
    );
    let start_once = |line: &str| {
        let words = ["once", "--per", LONG, "--at-least", "r", "--shell", line];
        let mut command = command_with(&masters, &words);
        command.env("QUORATE_TTL", "2s").stdin(Stdio::piped());
        command.spawn().expect("starts")
    };
    assert_eq!(wait_for_output(start_once("exit 7")).code, Some(7));
    let crashes = start_once("read line");
    wait_until_held(&masters, "quorate:note:r");
    common::send_signal(&crashes, "KILL");
    wait_for_output(crashes);
    wait_until("the lock has expired", || {
        let output = output_with(&masters, &["once", "--status", "r"]);
        assert_eq!(output.code, Some(0), "{output:?}");
        let shows_last_run = output
            .stdout
            .starts_with("the last run that ended had exit code 7\n");
        let shows_running = output.stdout.contains("running");
        assert!(shows_last_run || shows_running, "{output:?}");
        shows_last_run
    });
}

#[test]
fn quorate_once_warns_if_the_success_of_its_command_cannot_be_recorded() {
    let masters = start_masters(3);
    assert_eq!(
        output_with(&masters, &["once", "--create", "r"]).code,
        Some(0)
    );
    let words = ["once", "--per", LONG, "r", "--shell", "read line"];
    let mut once_command = command_with(&masters, &words);
    let piped_command = once_command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut once_child = piped_command.spawn().expect("starts");
    wait_until_held(&masters, "quorate:note:r");
    let mut next_command = quorate_run(&masters, &["r"], &["cat"]);
    let mut next_child = next_command.stdin(Stdio::piped()).spawn().expect("starts");
    wait_until_held(&masters, "quorate:queue:r");
    let stdin = once_child.stdin.take();
    std::io::Write::write_all(&mut stdin.expect("piped"), b"line\n").expect("written");
    let output = wait_for_output(once_child);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(
        output.stderr.contains("warning: ")
            && output.stderr.contains("could not record this exit code"),
        "{output:?}"
    );
    drop(next_child.stdin.take());
    assert_eq!(wait_for_output(next_child).code, Some(0));
    let once_status = output_with(&masters, &["once", "--status", "r"]);
    assert!(
        once_status
            .stdout
            .starts_with("the end of the last run was not recorded"),
        "{once_status:?}"
    );
}

#[test]
fn quorate_once_status_restores_a_lost_record_without_joining_the_queue() {
    let masters = start_masters(3);
    assert_eq!(
        output_with(&masters, &["once", "--create", "r"]).code,
        Some(0)
    );
    let lost = &masters[0];
    lost.command(&["DEL", "quorate:value:r"]).expect("a reply");
    let output = output_with(&masters, &["once", "--status", "r"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    // `--status` reads the record, and must restore it on the master that has lost it.
    let value = lost.command(&["EXISTS", "quorate:value:r"]);
    assert_eq!(value.expect("a reply").int(), Some(1));
    occupy_lock(&masters);
    let commands = |master: &quorate_testbed::Server| {
        let stats = master.command(&["INFO", "commandstats"]).expect("a reply");
        let stats = format!("{stats:?}");
        let (_, added) = stats.split_once("cmdstat_zadd:").unwrap_or_default();
        added.split(',').next().unwrap_or_default().to_owned()
    };
    let before: Vec<_> = masters.iter().map(commands).collect();
    let output = output_with(&masters, &["once", "--status", "r"]);
    assert!(output.stdout.contains("is running"), "{output:?}");
    let after: Vec<_> = masters.iter().map(commands).collect();
    assert_eq!(
        before, after,
        "quorate once --status must not join the queue of the lock"
    );
}

#[test]
fn quorate_once_refuses_the_option_yes_without_the_option_drop() {
    let output =
        output_of(quorate_command().args(["once", "--yes", "--per", "1h", "r", "--", "true"]));
    assert_eq!(output.code, Some(64), "{output:?}");
    assert!(
        output.stderr.contains("'--yes' cannot be used with"),
        "{output:?}"
    );
}

#[test]
fn quorate_once_drops_a_record_only_with_the_option_yes() {
    let masters = start_masters(3);
    assert_eq!(
        output_with(&masters, &["once", "--create", "r"]).code,
        Some(0)
    );
    let unsure_run = output_with(&masters, &["once", "--drop", "r"]);
    assert_eq!(unsure_run.code, Some(64), "{unsure_run:?}");
    assert!(unsure_run.stderr.contains("--yes"), "{unsure_run:?}");
    assert_eq!(
        output_with(&masters, &["once", "--status", "r"]).code,
        Some(0)
    );
    for (name, words) in [
        ("r", "dropped"),
        ("r", "nothing to drop"),
        ("other", "nothing to drop"),
    ] {
        let dropped_run = output_with(&masters, &["once", "--drop", "--yes", name]);
        assert_eq!(dropped_run.code, Some(0), "{dropped_run:?}");
        assert!(dropped_run.stderr.contains(words), "{dropped_run:?}");
    }
    let quota = output_with(&masters, &["quota", "drop", "prizes", "--yes"]);
    assert_eq!(quota.code, Some(0), "{quota:?}");
    assert!(quota.stderr.contains("nothing to drop"), "{quota:?}");
}

#[test]
fn quorate_once_leaves_the_period_unused_if_its_command_cannot_be_started() {
    let masters = start_masters(3);
    assert_eq!(
        output_with(&masters, &["once", "--create", "r"]).code,
        Some(0)
    );
    let run_once = |command: &[&str]| {
        let words = ["once", "--per", LONG, "r", "--"];
        output_with(&masters, &[&words, command].concat())
    };
    let dir = tempfile::tempdir().expect("a directory");
    let script = dir.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").expect("written");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, executable)
        .expect("the test must be able to make the script executable");
    for (command, code, why) in [
        ("no-such-command", 127, "command not found"),
        ("/etc/passwd", 126, "denied"),
        (script.to_str().expect("text"), 127, "command not found"),
    ] {
        let output = run_once(&[command]);
        assert_eq!(output.code, Some(code), "{output:?}");
        assert!(
            output.stderr.contains(command) && output.stderr.contains(why),
            "{output:?}"
        );
        assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
        assert_tidy(&masters, "r");
    }
    assert_eq!(run_once(&["echo", "ran"]).stdout, "ran\n");
    assert_eq!(run_once(&["echo", "ran"]).stdout, "");
}

/// The length of the longest argument list, in bytes, with which `quorate once` can be started for the command
/// `echo WORDS`. Its own arguments are `once --per PERIOD NAME -- echo WORDS`.
fn longest_words(masters: &Masters) -> usize {
    let (mut fits, mut too_long) = (0, 16 << 20);
    while too_long - fits > 16 {
        let length = usize::midpoint(fits, too_long);
        // No record has the name `p`, so each call that can be started ends with 64.
        let mut once = once_with_long_words(masters, "p", length);
        match once.stderr(Stdio::null()).stdout(Stdio::null()).status() {
            Ok(_) => fits = length,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ArgumentListTooLong);
                too_long = length;
            }
        }
    }
    fits
}

fn once_with_long_words(masters: &Masters, name: &str, length: usize) -> Command {
    // The kernel limits a single argument to 128 KiB.
    let chunk = 100_000;
    let mut once = command_with(masters, &["once", "--per", LONG, name, "--", "echo"]);
    // A long path of the binary must not take more space than the variables that `quorate` adds.
    once.arg0("quorate");
    once.args(std::iter::repeat_n("x".repeat(chunk), length / chunk));
    once.arg("x".repeat(length % chunk));
    once
}

#[test]
fn quorate_once_leaves_the_period_unused_if_this_machine_cannot_prepare_the_command() {
    let masters = start_masters(3);
    assert_eq!(
        output_with(&masters, &["once", "--create", "r"]).code,
        Some(0)
    );
    let no_folder = output_of(
        command_with(&masters, &["once", "--per", LONG, "--output-on-failure"])
            .args(["r", "--", "echo", "ran"])
            .env("TMPDIR", "/no/such/folder"),
    );
    // Without the variables that `quorate` adds for the command, the arguments just fit.
    let length = longest_words(&masters);
    let too_long = output_of(&mut once_with_long_words(&masters, "r", length));
    for (output, code, why) in [
        (no_folder, 70, "--output-on-failure"),
        (too_long, 126, "Argument list too long"),
    ] {
        assert_eq!(
            (output.code, &*output.stdout),
            (Some(code), ""),
            "{output:?}"
        );
        let unused = "nothing is recorded, so the next call in this period runs the command";
        assert!(
            output.stderr.contains(why) && output.stderr.contains(unused),
            "{output:?}"
        );
        assert_tidy(&masters, "r");
    }
    let words = ["once", "--per", LONG, "r", "--", "echo", "ran"];
    let next_run = output_with(&masters, &words);
    assert_eq!(
        (next_run.code, &*next_run.stdout),
        (Some(0), "ran\n"),
        "{next_run:?}"
    );
}

/// `quorate once` checks the interpreter of a script, but not the interpreter of this interpreter. So the period is
/// recorded before the execution fails.
#[test]
fn quorate_once_reports_a_used_period_if_the_kernel_cannot_execute_the_file() {
    let masters = start_masters(3);
    assert_eq!(
        output_with(&masters, &["once", "--create", "r"]).code,
        Some(0)
    );
    let dir = tempfile::tempdir().expect("a directory");
    let [file, interpreter] = ["job", "interpreter"].map(|name| dir.path().join(name));
    let executable: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    for (path, text) in [
        (&file, format!("#!{}\n", interpreter.display())),
        (&interpreter, "#!/no/such/interpreter\n".to_owned()),
    ] {
        std::fs::write(path, text).expect("written");
        std::fs::set_permissions(path, executable.clone())
            .expect("the test must be able to make the file executable");
    }
    let run_once = |command: &str| {
        let words = ["once", "-q", "--per", "day", "r", "--", command];
        output_with(&masters, &words)
    };
    let file = file.to_str().expect("text");
    let output = run_once(file);
    assert_eq!(output.code, Some(127), "{output:?}");
    for text in [
        "'r' failed with exit code 127; it does not run again before ",
        "to run it by hand: quorate run r -- COMMAND",
    ] {
        assert!(output.stderr.contains(text), "{output:?}");
    }
    assert_tidy(&masters, "r");
}

#[test]
fn quorate_once_that_loses_its_lock_reports_when_the_command_runs_again() {
    let masters = start_masters(3);
    assert_eq!(
        output_with(&masters, &["once", "--create", "r"]).code,
        Some(0)
    );
    for (more, expected_text) in [
        (
            &["--at-least"][..],
            "; the next call in this period runs it again (--at-least)",
        ),
        (&[], "; to run it by hand: quorate run r -- COMMAND"),
    ] {
        let words = ["once", "-q", "--per", "day", "--max-hold", "1s"];
        let words = [&words, more, &["r", "--", "sleep", "60"]].concat();
        let output = output_with(&masters, &words);
        assert_eq!(output.code, Some(74), "{output:?}");
        assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
        assert!(output.stderr.contains("--max-hold 1s"), "{output:?}");
        assert!(output.stderr.contains(expected_text), "{output:?}");
        let says_end = output.stderr.contains("it does not run again before ");
        assert_eq!(says_end, more.is_empty(), "{output:?}");
    }
}

#[test]
fn quorate_once_warns_even_with_quiet_if_a_call_with_other_options_has_used_the_period() {
    let masters = start_masters(3);
    assert_eq!(
        output_with(&masters, &["once", "--create", "r"]).code,
        Some(0)
    );
    let start_once = |options: &[&str]| {
        let words = [&["once"], options, &["r", "--", "echo", "ran"]].concat();
        output_with(&masters, &words)
    };
    assert_eq!(start_once(&["--per", LONG]).stdout, "ran\n");
    let done = start_once(&["--per", LONG]);
    for text in [
        "already started in this period (at most once per period); the last run began 2",
        " (pid ",
        "; the next period begins in ",
        "T00:00:00Z (UTC)\n",
    ] {
        assert!(done.stderr.contains(text), "{done:?}");
    }
    let silent = start_once(&["-q", "--per", LONG]);
    assert_eq!((silent.code, &*silent.stderr), (Some(0), ""), "{silent:?}");

    // No period of ten years begins at the begin of a period of 7 minutes that is running now.
    assert_eq!(start_once(&["--per", "7m"]).stdout, "ran\n");
    let done = start_once(&["-q", "--per", LONG]);
    assert_eq!((done.code, &*done.stdout), (Some(0), ""), "{done:?}");
    assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
    let warning = "no period with this --per, --at and --tz begins then";
    assert!(done.stderr.contains(warning), "{done:?}");
}

#[test]
fn quorate_once_terminated_before_its_record_is_written_leaves_the_period_unused() {
    let masters = start_masters(3);
    assert_eq!(
        output_with(&masters, &["once", "--create", "r"]).code,
        Some(0)
    );
    let proxies: Vec<_> = masters
        .iter()
        .map(|master| Proxy::start(master.addr()).expect("a proxy"))
        .collect();
    let urls: Vec<_> = masters
        .iter()
        .zip(&proxies)
        .map(|(master, proxy)| master.url_at(proxy.addr()))
        .collect();
    for more in [&[][..], &["--at-least"]] {
        let before = quorate_run(&masters, &["r"], &["cat"])
            .stdin(Stdio::piped())
            .spawn();
        let before = before.expect("starts");
        wait_until_held(&masters, "quorate:note:r");
        let words = [&["once", "--per", LONG], more, &["r", "--", "echo", "ran"]].concat();
        let mut once = command_with(&masters, &words);
        let once = once.stderr(Stdio::piped()).stdout(Stdio::piped());
        let once = once
            .env("QUORATE_MASTERS", urls.join(","))
            .env("QUORATE_NODE_TIMEOUT", "5s")
            .env("QUORATE_TTL", "25s");
        let once = once.spawn().expect("starts");
        wait_until_held(&masters, "quorate:queue:r");
        // Send SIGTERM after `once` has acquired the lock, but before it has read the once-per-period record. The note
        // on the masters shows that `once` has the lock. The delayed replies postpone the read.
        let slow = Fault::latency(Way::ToClient, Duration::from_secs(1));
        let slow: Vec<_> = proxies.iter().map(|proxy| slow.inject(proxy)).collect();
        assert_eq!(wait_for_output(before).code, Some(0));
        wait_until_held(&masters, "quorate:note:r");
        common::send_signal(&once, "TERM");
        drop(slow);
        let once = wait_for_output(once);
        assert_eq!((once.died_of, &*once.stdout), (Some(15), ""), "{once:?}");
        assert!(once.stderr.contains("nothing is recorded"), "{once:?}");
        assert_tidy(&masters, "r");
    }
    let next_run = output_with(&masters, &["once", "--per", LONG, "r", "--", "echo", "ran"]);
    assert_eq!(
        (next_run.code, &*next_run.stdout),
        (Some(0), "ran\n"),
        "{next_run:?}"
    );
}

/// The pids of the processes of `quorate` that wait to become a command with `marker` in its arguments.
fn waiting_starters(marker: &str) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").expect("/proc must be readable");
    let pids = processes.flatten().filter_map(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let is_starter = line.starts_with("quorate\0__exec\0") && line.contains(marker);
        is_starter.then(|| entry.file_name().to_str()?.parse().ok())?
    });
    pids.collect()
}

/// Tools such as `cpulimit` send SIGCONT to processes of others.
#[test]
fn quorate_once_does_not_start_its_command_at_a_foreign_sigcont() {
    let masters = start_masters(3);
    assert_eq!(
        output_with(&masters, &["once", "--create", "r"]).code,
        Some(0)
    );
    let proxies: Vec<_> = masters
        .iter()
        .map(|master| Proxy::start(master.addr()).expect("a proxy"))
        .collect();
    let urls: Vec<_> = masters
        .iter()
        .zip(&proxies)
        .map(|(master, proxy)| master.url_at(proxy.addr()))
        .collect();
    // The period is recorded at least 400 ms after the command was prepared.
    let slow = Fault::latency(Way::ToClient, Duration::from_millis(400));
    let _slow: Vec<_> = proxies.iter().map(|proxy| slow.inject(proxy)).collect();
    let marker = unique_marker();
    let mut once = command_with(
        &masters,
        &["once", "--per", LONG, "r", "--", "echo", &marker],
    );
    let once = once.stderr(Stdio::piped()).stdout(Stdio::piped());
    let once = once
        .env("QUORATE_MASTERS", urls.join(","))
        .env("QUORATE_NODE_TIMEOUT", "2s")
        .env("QUORATE_CONNECT_TIMEOUT", "10s")
        .env("QUORATE_TTL", "25s");
    let once = once.spawn().expect("starts");
    wait_until("the command is prepared", || {
        !waiting_starters(&marker).is_empty()
    });
    // From now on, no request reaches a master, so the period cannot be recorded.
    let held = Fault::Hold(Way::Both);
    let _held: Vec<_> = proxies.iter().map(|proxy| held.inject(proxy)).collect();
    let until = std::time::Instant::now() + Duration::from_secs(1);
    let mut signals = 0;
    while std::time::Instant::now() < until {
        for pid in waiting_starters(&marker) {
            let pid = nix::unistd::Pid::from_raw(pid);
            signals += u32::from(nix::sys::signal::kill(pid, Signal::SIGCONT).is_ok());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let once = wait_for_output(once);
    assert!(signals > 0);
    assert_eq!(once.stdout, "", "{once:?}");
    assert_ne!(once.code, Some(0), "{once:?}");
    assert!(waiting_starters(&marker).is_empty());
}

#[test]
fn quorate_once_with_the_option_try_exits_with_75_while_the_lock_is_held() {
    let masters = start_masters(3);
    assert_eq!(
        output_with(&masters, &["once", "--create", "r"]).code,
        Some(0)
    );
    let holder = quorate_run(&masters, &["r"], &["sleep", &unique_marker()])
        .spawn()
        .expect("starts");
    wait_until_held(&masters, "r");
    let tried_run = output_with(
        &masters,
        &["once", "--try", "--per", LONG, "r", "--", "echo", "ran"],
    );
    assert_eq!(
        (tried_run.code, &*tried_run.stdout),
        (Some(75), ""),
        "{tried_run:?}"
    );
    common::send_signal(&holder, "TERM");
    wait_for_output(holder);
}

#[test]
fn wrong_usage_of_quota_and_once_is_reported_in_one_line_and_writes_nothing() {
    let masters = start_masters(3);
    for (words, culprit) in [
        (&["once", "nightly", "--", "true"][..], "--per"),
        (
            &["once", "--per", "0s", "nightly", "--", "true"],
            "at least 1ms",
        ),
        (
            &["once", "--per", "1month", "nightly", "--", "true"],
            "use --per month",
        ),
        (
            &[
                "once", "--per", "day", "--at", "25:00", "nightly", "--", "true",
            ],
            "03:00",
        ),
        (
            &[
                "once", "--per", "day", "--tz", "Mars", "nightly", "--", "true",
            ],
            "Europe/Berlin",
        ),
        (
            &[
                "once", "--per", "24h", "--tz", "UTC", "nightly", "--", "true",
            ],
            "--per day",
        ),
        (&["once", "--create", "--status", "nightly"], "--status"),
        (&["once", "--per", "1h", "nightly"], "COMMAND"),
        (&["once", "--create", "--drop", "nightly"], "--create"),
        (&["once", "--create", "nightly", "--", "true"], "--create"),
        (&["quota", "create", "prizes"], "<N>"),
        (&["quota", "create", "prizes", "0"], "at least 1 unit"),
        (&["quota", "create", "prizes", "-1"], "-1"),
        (&["quota", "take", "prizes", "0"], "at least 1 unit"),
        (&["quota", "take", "prizes", "many"], "many"),
        (&["quota", "take", ""], "empty"),
        (&["quota", "take", "quorate:x"], "reserved"),
    ] {
        let output = output_with(&masters, words);
        assert_eq!(
            (output.code, &*output.stdout),
            (Some(64), ""),
            "{words:?}: {output:?}"
        );
        assert!(output.stderr.contains(culprit), "{words:?}: {output:?}");
        assert_eq!(
            output.stderr.trim_end().lines().count(),
            1,
            "{words:?}: {output:?}"
        );
    }
    for master in &masters {
        let size = master.command(&["DBSIZE"]).expect("a reply");
        assert_eq!(size.int(), Some(0));
    }
}

#[test]
fn quorate_once_immediately_refuses_options_for_other_kinds_of_locks() {
    let masters = start_masters(3);
    assert_eq!(
        output_with(&masters, &["once", "--create", "r"]).code,
        Some(0)
    );
    for master in &masters {
        let held = master.command(&["SET", "r", "somebody else", "PX", "600000"]);
        held.expect("a reply");
    }
    for kind in [
        &["--shared"][..],
        &["--also", "s"],
        &["--permits", "2"],
        &["--owner", "me"],
        &["--reenter"],
    ] {
        let begin = ["once", "--wait", "100ms", "--per", LONG];
        let output = output_with(&masters, &[&begin, kind, &["r", "--", "true"]].concat());
        assert_eq!(output.code, Some(64), "{output:?}");
        assert!(output.stderr.contains(kind[0]), "{output:?}");
    }
}

#[test]
fn quota_take_exits_with_70_if_its_result_cannot_be_printed() {
    let masters = start_masters(3);
    let created_run = output_with(&masters, &["quota", "create", "prizes", "3"]);
    assert_eq!(created_run.code, Some(0), "{created_run:?}");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
    let mut take = command_with(&masters, &["quota", "take", "prizes"]);
    let take = take
        .stdout(full.expect("/dev/full must open for writing"))
        .stderr(Stdio::piped())
        .spawn();
    let take = wait_for_output(take.expect("starts"));
    assert_eq!(take.code, Some(70), "{take:?}");
    assert_eq!(
        output_with(&masters, &["quota", "left", "prizes"]).stdout,
        "2\n"
    );
    let help = output_of(quorate_command().args(["quota", "--help"]));
    let codes = help
        .stdout
        .split_once("Exit codes:")
        .expect("the help must list exit codes")
        .1;
    let line = codes.lines().find(|line| line.trim().starts_with("70 "));
    let line = line.expect("the help must list the exit code 70");
    assert!(
        line.contains("printed") && line.contains("may have been taken"),
        "{line}"
    );
}

#[test]
fn help_shows_how_to_create_a_quota_or_a_once_job() {
    for (command, wanted) in [
        ("quota", "quota create prizes 10"),
        ("once", "once --create"),
    ] {
        let help = output_of(quorate_command().args([command, "--help"]));
        assert_eq!(help.code, Some(0), "{help:?}");
        assert!(help.stdout.contains(wanted), "{help:?}");
    }
}
