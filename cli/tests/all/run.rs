//! Tests of `quorate run` on real masters: exit codes, signals, lost locks and leftover processes.

use std::process::Stdio;
use std::time::Duration;

use quorate_testbed::Fault::Latency;
use quorate_testbed::{Masters, Proxy, Server, Way};

use crate::common::{
    self, count_processes, is_sleeping, output_of, quorate_command, quorate_on, quorate_run,
    send_signal, start_masters, unique_marker, wait_for_output, wait_until, wait_until_held,
};

/// The longest time that `quorate` needs to start, connect and end on an overloaded machine. Tests add it to the
/// expected duration of a run.
const START: Duration = Duration::from_secs(3);

#[test]
fn command_gets_variables_that_describe_the_lock() {
    let masters = start_masters(3);
    let script = "echo $QUORATE_RESOURCE $QUORATE_TOKEN; test $QUORATE_FENCING_TOKEN -gt 0";
    let run = output_of(&mut quorate_run(
        &masters,
        &["a b{c}"],
        &["sh", "-c", script],
    ));
    assert_eq!(run.code, Some(0), "{run:?}");
    let output_words: Vec<&str> = run.stdout.split_whitespace().collect();
    assert_eq!(output_words[..2], ["a", "b{c}"]);
    assert_eq!(output_words[2].len(), 32, "{run:?}");
    assert_eq!(run.stderr, "");
    for master in &masters {
        let reply = master.command(&["EXISTS", "a b{c}"]).expect("a reply");
        assert_eq!(reply.int(), Some(0), "the lock key must have been deleted");
    }
}

#[test]
fn run_exits_with_the_code_of_the_command() {
    let masters = start_masters(3);
    for (command, code) in [
        (&["sh", "-c", "exit 7"][..], 7),
        (&["sh", "-c", "kill -9 $$"], 137),
        (&["sh", "-c", "kill -TERM $$"], 143),
        (&["no-such-command"], 127),
        (&["/etc/passwd"], 126),
        (&["/"], 126),
    ] {
        let run = output_of(&mut quorate_run(&masters, &["codes"], command));
        assert_eq!(run.code, Some(code), "{command:?} {run:?}");
    }
}

#[test]
fn command_inherits_stdin_and_stdout_of_run() {
    let masters = start_masters(1);
    let mut child = quorate_run(&masters, &["r"], &["cat"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("starts");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), b"through")
        .expect("the command must read its stdin");
    assert_eq!(wait_for_output(child).stdout, "through");
}

#[test]
fn resource_name_may_contain_any_bytes() {
    use std::os::unix::ffi::OsStrExt;
    let masters = start_masters(1);
    let name = std::ffi::OsStr::from_bytes(b"\xff\xfe {x}\n");
    let run = output_of(
        common::quorate_on(&masters)
            .args([std::ffi::OsStr::new("run"), name])
            .args([
                "--",
                "sh",
                "-c",
                "printf %s \"$QUORATE_RESOURCE\" | od -An -tx1",
            ]),
    );
    assert_eq!(run.stdout.trim(), "ff fe 20 7b 78 7d 0a", "{run:?}");
}

#[test]
fn run_on_a_held_lock_exits_with_75_without_running_the_command() {
    let masters = start_masters(3);
    let holder = quorate_run(&masters, &["held"], &["sleep", &unique_marker()])
        .spawn()
        .expect("starts");
    wait_until_held(&masters, "held");
    let tried_run = output_of(&mut quorate_run(
        &masters,
        &["--try", "held"],
        &["echo", "ran"],
    ));
    assert_eq!(
        (tried_run.code, &*tried_run.stdout),
        (Some(75), ""),
        "{tried_run:?}"
    );
    let waited_run = output_of(&mut quorate_run(
        &masters,
        &["--wait", "300ms", "held"],
        &["echo", "ran"],
    ));
    assert_eq!(
        (waited_run.code, &*waited_run.stdout),
        (Some(75), ""),
        "{waited_run:?}"
    );
    assert!(
        waited_run.elapsed >= Duration::from_millis(300),
        "{waited_run:?}"
    );
    assert_eq!(waited_run.stderr.lines().count(), 1, "{waited_run:?}");
    send_signal(&holder, "TERM");
    assert_eq!(wait_for_output(holder).code, Some(143));
    let last_run = output_of(&mut quorate_run(
        &masters,
        &["--wait", "5s", "held"],
        &["echo", "ran"],
    ));
    assert_eq!(
        (last_run.code, &*last_run.stdout),
        (Some(0), "ran\n"),
        "{last_run:?}"
    );
}

#[test]
fn run_works_unless_a_majority_of_masters_is_down() {
    let masters = start_masters(5);
    let assert_accepted = |what: &str| {
        let run = output_of(&mut quorate_run(
            &masters,
            &["--wait", "2s", "r"],
            &["true"],
        ));
        assert_eq!(run.code, Some(0), "{what}: {run:?}");
    };
    assert_accepted("all up");
    masters[0].kill().expect("killed");
    assert_accepted("one killed");
    masters[1].stop().expect("stopped");
    assert_accepted("one killed, one stopped");
    masters[2].kill().expect("killed");
    let run = output_of(&mut quorate_run(
        &masters,
        &["--wait", "1s", "r"],
        &["echo", "ran"],
    ));
    assert_eq!((run.code, &*run.stdout), (Some(69), ""), "{run:?}");
    assert!(run.elapsed < Duration::from_secs(1) + START, "{run:?}");
    let message_lines = run.stderr.lines().filter(|line| !line.contains("warning:"));
    assert_eq!(message_lines.count(), 1, "{run:?}");
    masters[1].cont().expect("continued");
}

/// Starts proxies in front of these masters, which delay each message in both directions by `delay`. Returns a value
/// that stops the proxies when it is dropped, and the URLs of the proxies.
fn delay_masters(masters: &Masters, delay: Duration) -> (impl Sized, String) {
    let start_proxy = |master: &Server| Proxy::start(master.addr()).expect("a proxy");
    let proxies: Vec<Proxy> = masters.iter().map(start_proxy).collect();
    let inject = |proxy: &Proxy| {
        proxy.inject(Latency {
            way: Way::Both,
            base: delay,
            jitter: Duration::ZERO,
        })
    };
    let delays: Vec<_> = proxies.iter().map(inject).collect();
    let url = |proxy: &Proxy| format!("redis://{}", proxy.addr());
    let urls: Vec<String> = proxies.iter().map(url).collect();
    ((proxies, delays), urls.join(","))
}

/// Regression test: on a busy machine, `--try` exited with 69 (no quorum), although all masters were up.
#[test]
fn run_with_the_option_try_does_not_report_slow_masters_as_down() {
    let masters = start_masters(3);
    let try_command = |options: &[&str]| {
        let mut run = quorate_on(&masters);
        run.args([
            "run",
            "--try",
            "--node-timeout",
            "1s",
            "--connect-timeout",
            "500ms",
            "r",
        ]);
        run.args(options).args(["--", "echo", "ran"]);
        run.stdout(Stdio::piped()).stderr(Stdio::piped());
        run
    };
    // A connect takes several round trips of 400 ms, so it exceeds its timeout of 500 ms. `--try` must still succeed.
    let (_delays, urls) = delay_masters(&masters, Duration::from_millis(200));
    let far_run = output_of(&mut try_command(&["--masters", &urls]));
    assert_eq!(
        (far_run.code, &*far_run.stdout),
        (Some(0), "ran\n"),
        "{far_run:?}"
    );
    // Stop two of three masters with SIGSTOP for one second. `--try` must ask the masters again.
    let frozen = || masters.iter().take(2);
    frozen().for_each(|master| master.stop().expect("stopped"));
    let tried_child = try_command(&[]).spawn().expect("quorate starts");
    std::thread::sleep(Duration::from_secs(1));
    frozen().for_each(|master| master.cont().expect("continued"));
    let run = wait_for_output(tried_child);
    assert_eq!((run.code, &*run.stdout), (Some(0), "ran\n"), "{run:?}");
    // If a majority refuses connections, `--try` must fail without asking the masters again.
    frozen().for_each(|master| master.kill().expect("killed"));
    let down_run = output_of(&mut try_command(&[]));
    assert_eq!(down_run.code, Some(69), "{down_run:?}");
    assert!(!down_run.stderr.contains("attempts: 2"), "{down_run:?}");
}

/// Each round trip takes 560 ms. This is longer than the default timeouts, but shorter than the timeouts of `--try`.
#[test]
fn run_with_the_option_try_uses_longer_timeouts_than_the_defaults() {
    let masters = start_masters(3);
    let (_delays, urls) = delay_masters(&masters, Duration::from_millis(280));
    let mut run = quorate_on(&masters);
    run.env("QUORATE_MASTERS", urls);
    let run = output_of(run.args(["run", "--try", "r", "--", "true"]));
    assert_eq!(run.code, Some(0), "{run:?}");
}

#[test]
fn quota_and_status_and_break_succeed_despite_slow_masters() {
    let masters = start_masters(3);
    let created_run = output_of(quorate_on(&masters).args(["quota", "create", "prizes", "9"]));
    assert_eq!(created_run.code, Some(0), "{created_run:?}");
    let calls: [&[&str]; 5] = [
        &["quota", "take", "prizes", "--wait", "none"],
        &["quota", "left", "prizes", "--wait", "none"],
        &["status", "r"],
        &["status"],
        &["break", "r", "--yes"],
    ];
    let frozen = || masters.iter().take(2);
    for words in calls {
        frozen().for_each(|master| master.stop().expect("stopped"));
        let spawned_call = quorate_on(&masters)
            .args(words)
            .stdout(Stdio::piped())
            .spawn();
        let call_child = spawned_call.expect("quorate starts");
        std::thread::sleep(Duration::from_secs(2));
        frozen().for_each(|master| master.cont().expect("continued"));
        let call_output = wait_for_output(call_child);
        assert_eq!(call_output.code, Some(0), "{words:?}: {call_output:?}");
    }
    let (_delays, urls) = delay_masters(&masters, Duration::from_millis(280));
    for words in calls {
        let mut command = quorate_on(&masters);
        command.env("QUORATE_MASTERS", &urls);
        let call_output = output_of(command.args(words));
        assert_eq!(call_output.code, Some(0), "{words:?}: {call_output:?}");
    }
    // If a majority refuses connections, each command in `calls` must fail without asking the masters again.
    frozen().for_each(|master| master.kill().expect("killed"));
    for words in calls {
        let down_run = output_of(quorate_on(&masters).args(words));
        assert_eq!(down_run.code, Some(69), "{words:?}: {down_run:?}");
        assert!(
            down_run.elapsed < Duration::from_secs(5),
            "{words:?}: {down_run:?}"
        );
    }
}

#[test]
fn run_forwards_a_signal_to_all_processes_of_its_command() {
    let masters = start_masters(1);
    for (name, code) in [("TERM", 9), ("HUP", 129), ("USR1", 138)] {
        let sleep_marker = unique_marker();
        let script = format!("trap 'exit 9' TERM; sleep {sleep_marker} & wait");
        let child = quorate_run(&masters, &["signals"], &["sh", "-c", &script])
            .spawn()
            .expect("starts");
        wait_until("both processes run", || {
            count_processes(&sleep_marker) == 2 && is_sleeping(&sleep_marker)
        });
        send_signal(&child, name);
        assert_eq!(wait_for_output(child).code, Some(code), "{name}");
        wait_until("the grandchild is gone", || {
            count_processes(&sleep_marker) == 0
        });
    }
}

#[test]
fn signal_ends_the_wait_for_a_lock_and_leaves_no_keys() {
    let masters = start_masters(3);
    let holder = quorate_run(&masters, &["r"], &["sleep", &unique_marker()])
        .spawn()
        .expect("starts");
    wait_until_held(&masters, "r");
    let waiter_child = quorate_run(&masters, &["r"], &["echo", "ran"])
        .spawn()
        .expect("starts");
    wait_until_held(&masters, "quorate:queue:r");
    send_signal(&waiter_child, "TERM");
    let waiter_output = wait_for_output(waiter_child);
    assert_eq!(
        (waiter_output.code, &*waiter_output.stdout),
        (Some(143), ""),
        "{waiter_output:?}"
    );
    assert!(waiter_output.elapsed < START, "{waiter_output:?}");
    send_signal(&holder, "TERM");
    wait_for_output(holder);
    let next_run = output_of(&mut quorate_run(&masters, &["--try", "r"], &["true"]));
    assert_eq!(
        next_run.code,
        Some(0),
        "the waiter must leave no lock key: {next_run:?}"
    );
}

#[test]
fn command_ends_and_lock_expires_if_quorate_is_killed() {
    let masters = start_masters(3);
    let sleep_marker = unique_marker();
    let script = format!("sleep {sleep_marker} & sleep {sleep_marker}");
    let mut holder = quorate_run(&masters, &["--ttl", "4s", "r"], &["sh", "-c", &script])
        .spawn()
        .expect("starts");
    wait_until("all three processes run", || {
        count_processes(&sleep_marker) == 3
    });
    send_signal(&holder, "KILL");
    let _ = holder.wait();
    wait_until("the group is gone", || count_processes(&sleep_marker) == 0);
    let next_run = output_of(&mut quorate_run(
        &masters,
        &["--wait", "20s", "r"],
        &["true"],
    ));
    assert_eq!(next_run.code, Some(0), "{next_run:?}");
    assert!(
        next_run.elapsed < Duration::from_secs(4) + START,
        "{next_run:?}"
    );
}

#[test]
fn command_ends_within_the_validity_of_a_lock_that_cannot_be_renewed() {
    let masters = start_masters(3);
    let sleep_marker = unique_marker();
    let script = format!("trap 'echo asked; exit 0' TERM; echo up; sleep {sleep_marker} & wait");
    let holder = quorate_run(&masters, &["--ttl", "4s", "r"], &["sh", "-c", &script])
        .spawn()
        .expect("starts");
    wait_until("the command runs", || {
        count_processes(&sleep_marker) == 2 && is_sleeping(&sleep_marker)
    });
    masters[0].kill().expect("killed");
    masters[1].kill().expect("killed");
    let holder = wait_for_output(holder);
    assert_eq!(
        (holder.code, &*holder.stdout),
        (Some(74), "up\nasked\n"),
        "{holder:?}"
    );
    assert!(
        holder.elapsed < Duration::from_secs(4) + START,
        "{holder:?}"
    );
    assert_eq!(count_processes(&sleep_marker), 0);
}

#[test]
fn command_that_ignores_sigterm_is_killed_within_the_validity_of_its_lock() {
    let masters = start_masters(3);
    let sleep_marker = unique_marker();
    let script = format!("trap '' TERM; sleep {sleep_marker} & while :; do wait; done");
    let holder = quorate_run(
        &masters,
        &["--ttl", "3s", "--grace", "200ms", "r"],
        &["sh", "-c", &script],
    )
    .spawn()
    .expect("starts");
    wait_until("the command runs", || {
        count_processes(&sleep_marker) == 2 && is_sleeping(&sleep_marker)
    });
    for master in &masters {
        master.kill().expect("killed");
    }
    let holder = wait_for_output(holder);
    assert_eq!(holder.code, Some(74), "{holder:?}");
    assert!(
        holder.elapsed < Duration::from_secs(3) + START,
        "{holder:?}"
    );
    assert_eq!(count_processes(&sleep_marker), 0);
}

#[test]
fn run_ends_its_command_as_soon_as_a_renewal_finds_that_the_lock_is_lost() {
    let masters = start_masters(3);
    let sleep_marker = unique_marker();
    let holder = quorate_run(&masters, &["--ttl", "6s", "r"], &["sleep", &sleep_marker])
        .spawn()
        .expect("starts");
    wait_until("the command runs", || count_processes(&sleep_marker) == 1);
    for master in &masters {
        master
            .command(&["SET", "r", "somebody else"])
            .expect("a reply");
    }
    let holder = wait_for_output(holder);
    assert_eq!(holder.code, Some(74), "{holder:?}");
    assert!(
        holder.stderr.contains("no longer holds it"),
        "quorate must end the command when a renewal reports the loss of the lock, not only at the end of the \
         validity: {holder:?}"
    );
    assert_eq!(count_processes(&sleep_marker), 0);
}

#[test]
fn guard_process_ends_the_command_of_a_stopped_quorate_before_the_lock_expires() {
    let masters = start_masters(3);
    let sleep_marker = unique_marker();
    let script = format!("sleep {sleep_marker} & sleep {sleep_marker}");
    let holder = quorate_run(&masters, &["--ttl", "3s", "r"], &["sh", "-c", &script])
        .spawn()
        .expect("starts");
    wait_until("all three processes run", || {
        count_processes(&sleep_marker) == 3
    });
    send_signal(&holder, "STOP");
    // `quorate` is stopped with SIGSTOP. So its guard process must end the process group of the command, before the
    // next holder gets the lock.
    let next_run = output_of(&mut quorate_run(
        &masters,
        &["--wait", "20s", "r"],
        &["true"],
    ));
    assert_eq!(next_run.code, Some(0), "{next_run:?}");
    assert_eq!(
        count_processes(&sleep_marker),
        0,
        "no process of the command may outlive the lock"
    );
    send_signal(&holder, "CONT");
    let holder = wait_for_output(holder);
    assert_eq!(holder.code, Some(74), "{holder:?}");
    assert!(holder.elapsed < START, "{holder:?}");
}

/// Waits until a majority of the masters has extended the lock `r`, whose TTL is `ttl`.
fn wait_until_renewed(masters: &Masters, ttl: Duration) {
    let ttl_left = |master: &quorate_testbed::Server| {
        let ttl_left = master.command(&["PTTL", "r"]).expect("a reply").int();
        Duration::from_millis(ttl_left.unwrap_or(0).max(0).cast_unsigned())
    };
    let count_extended = || {
        masters
            .iter()
            .filter(|master| ttl_left(master) > ttl * 19 / 20)
    };
    wait_until("the last renewal is old", || count_extended().count() == 0);
    wait_until("a majority has renewed the lock", || {
        count_extended().count() >= 2
    });
}

/// `quorate` is stopped twice, each time shortly after a renewal and until after the end of the validity before this
/// renewal. The guard process must use the new end.
#[test]
fn command_is_not_ended_if_quorate_is_stopped_just_after_a_renewal() {
    let masters = start_masters(3);
    let ttl = Duration::from_secs(6);
    let mut holder = quorate_run(&masters, &["--ttl", "6s", "r"], &["cat"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("starts");
    wait_until_held(&masters, "r");
    for _ in 0..2 {
        wait_until_renewed(&masters, ttl);
        // On a busy machine, the replies to the renewal take some time to arrive.
        std::thread::sleep(Duration::from_millis(100));
        send_signal(&holder, "STOP");
        // The guard process ends the command 3 s after a renewal that has no successor. A renewal is sent 2 s after the
        // previous one. So the previous end is reached 1 s after the stop, and the new end 3 s after it.
        std::thread::sleep(Duration::from_millis(1_900));
        send_signal(&holder, "CONT");
    }
    drop(holder.stdin.take());
    let holder = wait_for_output(holder);
    assert_eq!(holder.code, Some(0), "{holder:?}");
}

#[test]
fn run_reports_a_lost_lock_if_the_guard_process_has_ended_the_command() {
    let masters = start_masters(3);
    let sleep_marker = unique_marker();
    // The command exits with 0 on SIGTERM, as if it had succeeded.
    let script = format!("trap 'exit 0' TERM; sleep {sleep_marker} & wait");
    let holder = quorate_run(&masters, &["--ttl", "6s", "r"], &["sh", "-c", &script])
        .spawn()
        .expect("starts");
    wait_until("the command runs", || {
        count_processes(&sleep_marker) == 2 && is_sleeping(&sleep_marker)
    });
    send_signal(&holder, "STOP");
    wait_until("the guard process has asked the command to end", || {
        count_processes(&sleep_marker) == 0
    });
    // Continue `quorate` before the lock expires. `quorate` must still report a lost lock, because the guard process
    // has already ended the command.
    send_signal(&holder, "CONT");
    let holder = wait_for_output(holder);
    assert_eq!(holder.code, Some(74), "{holder:?}");
    assert!(holder.stderr.contains("was lost"), "{holder:?}");
}

#[test]
fn option_max_hold_ends_the_command_after_the_given_time() {
    let masters = start_masters(3);
    let sleep_marker = unique_marker();
    // Set a long ttl, so that only `max_hold` can end the lock.
    let run = output_of(&mut quorate_run(
        &masters,
        &["--ttl", "20s", "--max-hold", "2s", "r"],
        &["sleep", &sleep_marker],
    ));
    assert_eq!(run.code, Some(74), "{run:?}");
    assert!(run.elapsed > Duration::from_millis(900), "{run:?}");
    assert!(run.elapsed < Duration::from_secs(2) + START, "{run:?}");
    assert!(run.stderr.contains("reached --max-hold 2s"), "{run:?}");
    assert_eq!(count_processes(&sleep_marker), 0);
}

#[test]
fn option_keep_for_keeps_the_lock_after_the_command_has_ended() {
    let masters = start_masters(3);
    let keeper = quorate_run(
        &masters,
        &["--keep-for", "3s", "r"],
        &["sh", "-c", "exit 3"],
    )
    .spawn()
    .expect("starts");
    wait_until_held(&masters, "r");
    std::thread::sleep(Duration::from_millis(200));
    let try_run = output_of(&mut quorate_run(&masters, &["--try", "r"], &["true"]));
    assert_eq!(try_run.code, Some(75), "{try_run:?}");
    assert_eq!(wait_for_output(keeper).code, Some(3));
    let try_run = output_of(&mut quorate_run(&masters, &["--try", "r"], &["true"]));
    assert_eq!(try_run.code, Some(0), "{try_run:?}");
}

#[test]
fn concurrent_runs_write_in_the_order_of_their_fencing_tokens() {
    const MANY: usize = 60;
    let masters = start_masters(3);
    let dir = tempfile::tempdir().expect("a directory");
    let count_file = dir.path().join("count");
    std::fs::write(&count_file, "0").expect("written");
    let script = "n=$(cat count); echo $QUORATE_FENCING_TOKEN >> tokens; echo $((n + 1)) > count";
    let children: Vec<_> = (0..MANY)
        .map(|_| {
            quorate_run(&masters, &["r"], &["sh", "-c", script])
                .current_dir(dir.path())
                .spawn()
                .expect("starts")
        })
        .collect();
    for child in children {
        let run = wait_for_output(child);
        assert_eq!(run.code, Some(0), "{run:?}");
    }
    let text_of = |name: &str| std::fs::read_to_string(dir.path().join(name)).expect("read");
    assert_eq!(text_of("count").trim(), MANY.to_string());
    let tokens: Vec<u64> = text_of("tokens")
        .lines()
        .map(|t| t.parse().expect("a token"))
        .collect();
    assert_eq!(tokens.len(), MANY);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[test]
fn run_started_by_nohup_does_not_end_its_command_on_sighup() {
    let masters = start_masters(1);
    let sleep_marker = unique_marker();
    let mut command = quorate_command();
    let child = std::process::Command::new("nohup")
        .arg(command.get_program())
        .args([
            "run",
            "--masters",
            &masters.urls().join(","),
            "--restart-guard",
            "off",
            "r",
            "--",
        ])
        .args(["sleep", &sleep_marker])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    let _ = command.stdin(Stdio::null());
    wait_until("the command runs", || count_processes(&sleep_marker) == 1);
    send_signal(&child, "HUP");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(count_processes(&sleep_marker), 1);
    send_signal(&child, "TERM");
    assert_eq!(wait_for_output(child).code, Some(143));
}

#[test]
fn second_ctrl_c_ends_a_command_that_ignores_the_first_ctrl_c() {
    let masters = start_masters(1);
    for (traps, ends) in [("INT", "TERM"), ("INT TERM", "KILL")] {
        let trap_line = format!("trap '' {traps}; echo ready; while :; do sleep 0.1; done");
        let mut run = quorate_run(
            &masters,
            &["--grace", "300ms", "r"],
            &["sh", "-c", &trap_line],
        );
        let spawn_result = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut run = spawn_result.expect("starts");
        let mut ready = [0; 6];
        let out = run.stdout.as_mut().expect("piped");
        std::io::Read::read_exact(out, &mut ready).expect("a line");
        send_signal(&run, "INT");
        std::thread::sleep(Duration::from_millis(700));
        assert!(
            run.try_wait().expect("a status").is_none(),
            "the command must ignore the first Ctrl-C"
        );
        send_signal(&run, "INT");
        let run = wait_for_output(run);
        assert_eq!(run.died_of, Some(2), "{ends}: {run:?}");
        assert!(run.stderr.contains("second Ctrl-C"), "{run:?}");
        let reply = masters[0].command(&["EXISTS", "r"]).expect("a reply");
        assert_eq!(reply.int(), Some(0));
    }
}

#[test]
fn option_output_on_failure_prints_the_output_only_after_a_failure() {
    let masters = start_masters(1);
    for (line, code, printed) in [
        ("echo out; echo err >&2", Some(0), false),
        ("echo out; echo err >&2; exit 3", Some(3), true),
        ("echo out; echo err >&2; kill -9 $$", Some(137), true),
    ] {
        let options = ["--output-on-failure", "-q", "r"];
        let output = output_of(&mut quorate_run(&masters, &options, &["sh", "-c", line]));
        assert_eq!(output.code, code, "{output:?}");
        let expected = if printed {
            ("out\n", "err\n")
        } else {
            ("", "")
        };
        assert_eq!(
            (&*output.stdout, &*output.stderr),
            expected,
            "{line}: {output:?}"
        );
    }
    let options = ["--output-on-failure", "--max-hold", "1s", "r"];
    let lost_run = output_of(&mut quorate_run(
        &masters,
        &options,
        &["sh", "-c", "echo out; sleep 60"],
    ));
    assert_eq!(
        (lost_run.code, &*lost_run.stdout),
        (Some(74), "out\n"),
        "{lost_run:?}"
    );
    let options = ["--output-on-failure", "r"];
    let missing_run = output_of(&mut quorate_run(&masters, &options, &["no-such-command"]));
    assert_eq!(missing_run.code, Some(127), "{missing_run:?}");
    assert!(
        missing_run.stderr.contains("command not found"),
        "{missing_run:?}"
    );
}
