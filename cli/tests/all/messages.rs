//! Tests of the messages of `quorate run` on stderr: why it waits, why it gave up, and why the lock was lost.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{
    self, output_of, quorate_command, quorate_on, quorate_run, start_masters, wait_for_output,
    wait_until_held,
};
use quorate_testbed::{Masters, ServerOptions};

fn names(masters: &Masters) -> Vec<String> {
    masters
        .iter()
        .map(|master| master.addr().to_string())
        .collect()
}

#[test]
fn run_with_the_option_try_does_not_report_healthy_masters_as_silent() {
    let masters = start_masters(5);
    for master in &masters {
        master
            .command(&["SET", "held", "somebody"])
            .expect("a reply");
    }
    for _ in 0..10 {
        let tried_run = output_of(&mut quorate_run(&masters, &["--try", "held"], &["true"]));
        assert_eq!(tried_run.code, Some(75), "{tried_run:?}");
        assert!(!tried_run.stderr.contains("no answer yet"), "{tried_run:?}");
        assert!(
            tried_run.stderr.contains("held by another"),
            "{tried_run:?}"
        );
    }
}

#[test]
fn waiter_reports_why_masters_do_not_vote() {
    let masters = start_masters(3);
    let mut waiting = quorate_run(&masters, &["--wait", "5s", "young"], &["true"]);
    waiting.env("QUORATE_RESTART_GUARD", "on");
    let waited_run = output_of(&mut waiting);
    assert_eq!(waited_run.code, Some(69), "{waited_run:?}");
    let line = waited_run
        .stderr
        .lines()
        .find(|line| line.contains("waiting for"));
    let line = line.expect("a waiter must print a line after three seconds");
    assert!(line.contains("no vote from 3 of 3 masters"), "{line}");
    assert!(
        line.contains("restart guard: can vote after clients have been connected for another"),
        "{line}"
    );
    let warning = "quorate: warning: master restarted recently";
    assert!(waited_run.stderr.contains(warning), "{waited_run:?}");
}

#[test]
fn quiet_run_prints_one_warning_while_a_majority_of_masters_is_down() {
    let masters = start_masters(3);
    for master in masters.iter().take(2) {
        master.kill().expect("killed");
    }
    let waited = output_of(&mut quorate_run(
        &masters,
        &["--quiet", "--wait", "9s", "r"],
        &["true"],
    ));
    assert_warned_once(&waited, "2 of 3 masters");
}

/// Checks that a command with `--quiet` exited with 69, and printed one warning and one error. The warning must say
/// which masters gave no vote for the lock `r`: this part of the text is `masters`, for example "2 of 3 masters".
fn assert_warned_once(waited: &common::RunOutput, masters: &str) {
    assert_eq!(waited.code, Some(69), "{waited:?}");
    assert_eq!(
        waited.stderr.lines().count(),
        2,
        "quorate must print exactly one warning and one error: {waited:?}"
    );
    let warning = format!("quorate: warning: waiting for 'r', no vote from {masters}");
    assert!(waited.stderr.starts_with(&warning), "{waited:?}");
}

#[test]
fn quiet_run_warns_if_most_old_masters_are_down_during_a_change_of_masters() {
    let masters = start_masters(6);
    let (old, next) = (&masters.urls()[..3], &masters.urls()[3..]);
    for master in masters.iter().take(2) {
        master.kill().expect("killed");
    }
    let mut waiting = quorate_run(&masters, &["-q", "--wait", "9s", "r"], &["true"]);
    waiting.env("QUORATE_MASTERS", old.join(","));
    waiting.env("QUORATE_NEXT_MASTERS", next.join(","));
    let waited = output_of(&mut waiting);
    assert_warned_once(&waited, "2 of 6 masters");
}

/// Tests that `--quiet` does not suppress the warning that most masters are down.
#[test]
fn quiet_quota_and_once_commands_print_one_warning_if_most_masters_are_down() {
    let masters = start_masters(3);
    for master in masters.iter().take(2) {
        master.kill().expect("killed");
    }
    for words in [
        &["quota", "take", "-q", "--wait", "9s", "r"][..],
        &["once", "-q", "--create", "r"],
    ] {
        let mut command = quorate_on(&masters);
        command.env("QUORATE_CONNECT_TIMEOUT", "2s").args(words);
        let waited = output_of(&mut command);
        assert_warned_once(&waited, "2 of 3 masters");
    }
}

#[test]
fn waiting_message_does_not_report_healthy_masters_as_silent() {
    let masters = start_masters(5);
    for master in &masters {
        master
            .command(&["SET", "held", "somebody"])
            .expect("a reply");
    }
    let waited_run = output_of(&mut quorate_run(
        &masters,
        &["--wait", "4s", "held"],
        &["true"],
    ));
    assert_eq!(waited_run.code, Some(75), "{waited_run:?}");
    assert!(
        waited_run.stderr.contains("waiting for 'held'"),
        "{waited_run:?}"
    );
    assert!(
        !waited_run.stderr.contains("no vote from"),
        "{waited_run:?}"
    );
}

#[test]
fn run_without_a_wait_limit_exits_with_69_if_all_masters_deny_access() {
    let with_user = |_| {
        ServerOptions::new()
            .acl("lock on >xyzzy ~* &* +@all -@scripting")
            .login("lock", "xyzzy")
    };
    let masters = Masters::start_with(3, with_user).expect("three masters");
    let refused_run = output_of(&mut quorate_run(&masters, &["x"], &["true"]));
    assert_eq!(
        (refused_run.code, &*refused_run.stdout),
        (Some(69), ""),
        "{refused_run:?}"
    );
    assert!(
        refused_run.elapsed < Duration::from_secs(10),
        "{refused_run:?}"
    );
    assert!(
        refused_run.stderr.contains("waiting does not help"),
        "{refused_run:?}"
    );
    assert!(
        refused_run.stderr.contains("access denied"),
        "{refused_run:?}"
    );
    for name in names(&masters) {
        assert!(
            refused_run.stderr.contains(&name),
            "{name}: {refused_run:?}"
        );
    }
    assert!(!refused_run.stderr.contains("xyzzy"), "{refused_run:?}");
}

#[test]
fn lost_lock_is_reported_with_the_replies_of_the_masters() {
    let masters = start_masters(3);
    let options = ["-q", "--ttl", "2s", "lost"];
    let dir = tempfile::tempdir().expect("a directory");
    let started = dir.path().join("started");
    let shell = format!("touch {}; exec sleep 60", started.display());
    let holder_child = quorate_run(&masters, &options, &["sh", "-c", &shell])
        .spawn()
        .expect("runs");
    // Kill the masters only when the lock is held. Otherwise `quorate run` would never acquire it.
    common::wait_until("the command has started", || started.exists());
    masters[0].kill().expect("killed");
    masters[2].kill().expect("killed");
    let holder_output = wait_for_output(holder_child);
    assert_eq!(holder_output.code, Some(74), "{holder_output:?}");
    let names = names(&masters);
    let line = holder_output.stderr.lines().last().expect("a line");
    assert!(
        line.contains(&names[0]) && line.contains(&names[2]),
        "{line}"
    );
    assert!(!line.contains(&names[1]), "{line}");
    assert!(
        line.contains("down (") || line.contains("connection lost ("),
        "{line}"
    );
}

/// Runs `quorate run` with the command `echo data` on three masters, one of which is down. `prepare` can change options
/// and variables of this `quorate run` before its start.
fn run_with_a_dead_master(prepare: impl FnOnce(&mut std::process::Command)) -> common::RunOutput {
    let with_user = |_| {
        ServerOptions::new()
            .acl("lock on >s3cret ~* &* +@all")
            .login("lock", "s3cret")
    };
    let masters = Masters::start_with(3, with_user).expect("three masters");
    masters[1].kill().expect("killed");
    let mut command = quorate_run(&masters, &["x"], &["echo", "data"]);
    prepare(&mut command);
    let output = output_of(&mut command);
    assert_eq!(
        (output.code, &*output.stdout),
        (Some(0), "data\n"),
        "{output:?}"
    );
    assert!(!output.stderr.contains("s3cret"), "{output:?}");
    let name = masters[1].addr().to_string();
    assert_eq!(
        output.stderr.contains("warning: no connection"),
        output.stderr.contains(&name)
    );
    output
}

#[test]
fn library_warnings_are_printed_according_to_quiet_verbose_and_rust_log() {
    let default_run = run_with_a_dead_master(|_| {});
    assert!(
        default_run
            .stderr
            .contains("quorate: warning: no connection"),
        "{default_run:?}"
    );
    assert!(!default_run.stderr.contains("debug"), "{default_run:?}");
    let quiet_run = run_with_a_dead_master(|command| {
        command.env("QUORATE_QUIET", "true");
        command.env("QUORATE_KEEP_FOR", "500ms");
    });
    assert_eq!(quiet_run.stderr, "");
    let verbose_run = run_with_a_dead_master(|command| {
        command.env("QUORATE_VERBOSE", "2");
    });
    assert!(
        verbose_run.stderr.contains("debug: lock acquired"),
        "{verbose_run:?}"
    );
    assert!(
        verbose_run.stderr.contains("warning: no connection"),
        "{verbose_run:?}"
    );
    let chosen_run = run_with_a_dead_master(|command| {
        command.env("RUST_LOG", "quorate=debug");
    });
    assert!(
        chosen_run.stderr.contains("debug: lock acquired"),
        "{chosen_run:?}"
    );
    for (variable, value) in [("RUST_LOG", "off"), ("RUST_LOG", "quorate=error")] {
        let off_run = run_with_a_dead_master(|command| {
            command.env(variable, value);
        });
        assert_eq!(off_run.stderr, "");
    }
}

#[test]
fn run_limits_messages_about_a_master_with_frequent_reconnects() {
    let masters = start_masters(3);
    let mut holder = quorate_run(&masters, &["r"], &["sleep", "3"]);
    let spawn_result = holder.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut holder_child = spawn_result.expect("starts");
    wait_until_held(&masters, "r");
    let mut cut_connections = 0;
    while holder_child.try_wait().expect("a child").is_none() {
        for kind in ["normal", "pubsub"] {
            let reply = masters[0].command(&["CLIENT", "KILL", "TYPE", kind]);
            cut_connections += reply.expect("a reply").int().unwrap_or_default();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = wait_for_output(holder_child);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(cut_connections > 10, "{cut_connections}");
    let lines = output.stderr.lines().count();
    assert!(
        (1..=4).contains(&lines),
        "{cut_connections} cuts: {output:?}"
    );
}

#[test]
fn even_number_of_masters_causes_a_warning() {
    let two_masters_run = output_of(&mut quorate_run(&start_masters(2), &["r"], &["true"]));
    assert_eq!(two_masters_run.code, Some(0), "{two_masters_run:?}");
    let warning = "quorate: warning: an even number of masters";
    assert!(
        two_masters_run.stderr.starts_with(warning),
        "{two_masters_run:?}"
    );
}

#[test]
fn run_warns_about_lost_connections_and_failed_renewals_of_its_lock() {
    let masters = start_masters(3);
    let mut holder = quorate_run(&masters, &["--ttl", "3s", "lost"], &["sleep", "60"]);
    let holder_child = holder.spawn().expect("runs");
    wait_until_held(&masters, "lost");
    masters[0].kill().expect("killed");
    masters[2].kill().expect("killed");
    let holder_output = wait_for_output(holder_child);
    assert_eq!(holder_output.code, Some(74), "{holder_output:?}");
    for warning in [
        "connection lost",
        "no connection",
        "no majority for a renewal, trying again",
    ] {
        let warning_start = format!("quorate: warning: {warning} ");
        assert!(
            holder_output.stderr.contains(&warning_start),
            "{warning}: {holder_output:?}"
        );
    }
}

#[test]
fn invalid_value_of_rust_log_is_reported_and_ignored() {
    let invalid_level_run = run_with_a_dead_master(|command| {
        command.env("RUST_LOG", "quorate=loud");
    });
    assert!(
        invalid_level_run.stderr.contains("RUST_LOG"),
        "{invalid_level_run:?}"
    );
    assert!(
        invalid_level_run.stderr.contains("warning: no connection"),
        "{invalid_level_run:?}"
    );
    let empty_run = run_with_a_dead_master(|command| {
        command.env("RUST_LOG", "");
    });
    assert!(!empty_run.stderr.contains("RUST_LOG"), "{empty_run:?}");
    let flags = |flags: &[&str]| {
        output_of(
            quorate_command()
                .args(["status"])
                .args(flags)
                .args(["x", "--help"]),
        )
    };
    for options in [&["-q"][..], &["--quiet"], &["-v"], &["-vv"], &["--verbose"]] {
        assert_eq!(flags(options).code, Some(0), "{options:?}");
    }
    let quiet_and_verbose_run = output_of(quorate_command().args(["status", "-q", "-v", "x"]));
    assert_eq!(
        quiet_and_verbose_run.code,
        Some(64),
        "{quiet_and_verbose_run:?}"
    );
    assert!(
        quiet_and_verbose_run
            .stderr
            .contains("give only one of them"),
        "{quiet_and_verbose_run:?}"
    );
}

#[test]
fn nested_run_of_the_same_lock_is_refused_with_the_reason() {
    let masters = start_masters(3);
    let quorate_path = env!("CARGO_BIN_EXE_quorate");
    let inside = [quorate_path, "run", "--wait", "4s", "mine", "--", "true"];
    let outer_output = output_of(&mut quorate_run(&masters, &["mine"], &inside));
    assert_eq!(outer_output.code, Some(75), "{outer_output:?}");
    // The inner run must be refused before its `--wait` of 4 s ends.
    assert!(
        outer_output.elapsed < Duration::from_secs(4),
        "{outer_output:?}"
    );
    assert!(
        outer_output
            .stderr
            .contains("waits for this inner quorate to end"),
        "{outer_output:?}"
    );
}

/// Tests that renewals continue while a write to stderr blocks, for example after Ctrl-S on a terminal.
#[test]
fn lock_is_renewed_while_a_write_to_stderr_blocks() {
    let (mut full_end, unread_end) = UnixStream::pair().expect("a pair");
    full_end.set_nonblocking(true).expect("a setting");
    while full_end.write(&[b'.'; 64]).is_ok() {}
    full_end.set_nonblocking(false).expect("a setting");
    let masters = start_masters(3);
    // The command runs for twice the ttl, so that the lock must be renewed.
    let mut command = quorate_run(&masters, &["--ttl", "3s", "x"], &["sh", "-c", "sleep 6"]);
    command.stderr(OwnedFd::from(full_end));
    let mut child = command.spawn().expect("starts");
    drop(command);
    wait_until_held(&masters, "x");
    masters[1].kill().expect("killed");
    // After at most 15 s, close the other end of stderr. A blocked write of `quorate` then fails.
    let give_up_at = Instant::now() + Duration::from_secs(15);
    while child.try_wait().expect("a status").is_none() && Instant::now() < give_up_at {
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(unread_end);
    let output = wait_for_output(child);
    assert_eq!(output.code, Some(0), "{output:?}");
}
