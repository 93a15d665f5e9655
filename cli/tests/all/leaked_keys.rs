//! Tests that `quorate run` leaves no keys behind that could block a client. The tests list the keys immediately after
//! `quorate run` has ended, before a leaked key can expire.

use std::io::{BufRead, BufReader};
use std::process::Command;
use std::time::Duration;

use crate::common::{
    RunOutput, count_processes, output_of, quorate_run, send_signal, start_masters, unique_marker,
    wait_for_output, wait_until, wait_until_held,
};
use quorate_testbed::{Fault, Masters, Proxy, Reply, Way};

/// All keys on the running masters, as `MASTER: KEY`, except keys that block no client, for example fencing counters.
fn leaked_keys(masters: &Masters) -> Vec<String> {
    let mut leaked = Vec::new();
    for (number, master) in masters.iter().enumerate().filter(|(_, m)| m.is_alive()) {
        let Ok(Reply::Array(keys)) = master.command(&["KEYS", "*"]) else {
            panic!("master {number} must list its keys");
        };
        let keys = keys.iter().filter_map(Reply::text);
        // Keys with these prefixes block no client, so they can remain.
        let is_leak = |key: &std::borrow::Cow<'_, str>| {
            let may_stay = ["quorate:fence:", "quorate:ticket:", "quorate:lines"];
            !may_stay.iter().any(|prefix| key.starts_with(prefix))
        };
        let leaks = keys.filter(is_leak);
        leaked.extend(leaks.map(|key| format!("{number}: {key}")));
    }
    leaked
}

/// Sets the lock key `r` on the first `n` masters, as if another client held the lock there.
fn occupy(masters: &Masters, n: usize) {
    for master in masters.iter().take(n) {
        let reply = master.command(&["SET", "r", "somebody else", "PX", "600000"]);
        assert!(reply.expect("a reply").is_ok());
    }
}

/// Waits until at least one master has the key `quorate:KIND:r`.
fn wait_until_key_exists(masters: &Masters, kind: &str) {
    wait_until_held(masters, &format!("quorate:{kind}:r"));
}

/// One way in which `quorate run` ends: a description, a function that runs `quorate run` on five masters until it
/// ends, and the accepted exit codes.
type Ending = (&'static str, fn(&Masters) -> RunOutput, &'static [i32]);

const ENDINGS: &[Ending] = &[
    (
        "success",
        |m| output_of(&mut quorate_run(m, &["r"], &["true"])),
        &[0],
    ),
    (
        "the command exits with 7",
        |m| output_of(&mut quorate_run(m, &["r"], &["sh", "-c", "exit 7"])),
        &[7],
    ),
    (
        "the command is ended by a signal",
        |m| output_of(&mut quorate_run(m, &["r"], &["sh", "-c", "kill -9 $$"])),
        &[137],
    ),
    (
        "wrong usage",
        |m| {
            let run = output_of(&mut quorate_run(m, &["--ttl", "2ms", "r"], &["true"]));
            for master in m {
                let keys = master.command(&["DBSIZE"]).expect("a reply");
                assert_eq!(keys.int(), Some(0), "no key may be written for wrong usage");
            }
            run
        },
        &[64],
    ),
    (
        "no quorum, single try",
        |m| {
            (0..3).for_each(|dead| m[dead].kill().expect("killed"));
            output_of(&mut quorate_run(m, &["--try", "r"], &["true"]))
        },
        &[69],
    ),
    (
        "no quorum, after a wait",
        |m| {
            (0..3).for_each(|dead| m[dead].kill().expect("killed"));
            output_of(&mut quorate_run(m, &["--wait", "700ms", "r"], &["true"]))
        },
        &[69],
    ),
    (
        "the lock is taken away",
        |m| {
            let child = quorate_run(m, &["--ttl", "3s", "r"], &["sleep", &unique_marker()])
                .spawn()
                .expect("starts");
            wait_until("the lock is held on all masters", || count_holding(m) == 5);
            for master in m.iter().take(3) {
                let reply = master.command(&["SET", "r", "x"]);
                assert!(reply.expect("a reply").is_ok());
            }
            let output = wait_for_output(child);
            for master in m.iter().take(3) {
                let reply = master.command(&["DEL", "r"]).expect("a reply");
                assert_eq!(
                    reply.int(),
                    Some(1),
                    "quorate must not delete the lock of another client"
                );
                // `quorate run` does not delete its note if the lock key has changed. So the test deletes the note.
                master.command(&["DEL", "quorate:note:r"]).expect("a reply");
            }
            output
        },
        &[74],
    ),
    (
        "a majority of masters dies",
        |m| {
            let child = quorate_run(m, &["--ttl", "3s", "r"], &["sleep", &unique_marker()])
                .spawn()
                .expect("starts");
            wait_until("the lock is held on all masters", || count_holding(m) == 5);
            (0..3).for_each(|dead| m[dead].kill().expect("killed"));
            wait_for_output(child)
        },
        &[74],
    ),
    (
        "the time of --max-hold has passed",
        |m| {
            let options = ["--ttl", "8s", "--max-hold", "1s", "r"];
            output_of(&mut quorate_run(m, &options, &["sleep", &unique_marker()]))
        },
        &[74],
    ),
    (
        "held by another client, single try",
        |m| {
            occupy(m, 3);
            let output = output_of(&mut quorate_run(m, &["--try", "r"], &["true"]));
            vacate(m, 3);
            output
        },
        &[75],
    ),
    (
        "held by another client, after a wait",
        |m| {
            occupy(m, 3);
            let output = output_of(&mut quorate_run(m, &["--wait", "300ms", "r"], &["true"]));
            vacate(m, 3);
            output
        },
        &[75],
    ),
    (
        "held by another client, wait without a queue",
        |m| {
            occupy(m, 3);
            let options = ["--wait", "300ms", "--order", "unordered", "r"];
            let output = output_of(&mut quorate_run(m, &options, &["true"]));
            vacate(m, 3);
            output
        },
        &[75],
    ),
    (
        "the command cannot be executed",
        |m| output_of(&mut quorate_run(m, &["r"], &["/etc/passwd"])),
        &[126],
    ),
    (
        "the command does not exist",
        |m| output_of(&mut quorate_run(m, &["r"], &["no-such-command"])),
        &[127],
    ),
    (
        "the command line is too long for the system",
        |m| output_of(&mut quorate_run(m, &["r"], &["echo", &"x".repeat(130_000)])),
        // If the system allows an argument of 130,000 bytes, the command starts, and `run` exits with 0.
        &[126, 0],
    ),
    (
        "a signal during the wait for the lock",
        |m| {
            occupy(m, 3);
            let child = quorate_run(m, &["r"], &["true"]).spawn().expect("starts");
            wait_until_key_exists(m, "queue");
            send_signal(&child, "INT");
            let output = wait_for_output(child);
            vacate(m, 3);
            output
        },
        &[130],
    ),
    (
        "the lock is acquired after a wait",
        |m| {
            occupy(m, 3);
            let child = quorate_run(m, &["r"], &["true"]).spawn().expect("starts");
            wait_until_key_exists(m, "queue");
            vacate(m, 3);
            wait_for_output(child)
        },
        &[0],
    ),
    (
        "a signal while the command runs",
        |m| {
            let sleep_marker = unique_marker();
            let child = quorate_run(m, &["r"], &["sleep", &sleep_marker])
                .spawn()
                .expect("starts");
            wait_until("the command runs", || count_processes(&sleep_marker) == 1);
            send_signal(&child, "TERM");
            wait_for_output(child)
        },
        &[143],
    ),
    (
        "the lock is kept after the command (--keep-for)",
        |m| {
            output_of(&mut quorate_run(
                m,
                &["--keep-for", "500ms", "r"],
                &["true"],
            ))
        },
        &[0],
    ),
    (
        "a signal while --keep-for keeps the lock",
        |m| {
            let options = ["--keep-for", "60s", "r"];
            let mut child = quorate_run(m, &options, &["sh", "-c", "exit 3"])
                .spawn()
                .expect("starts");
            let mut err = BufReader::new(child.stderr.take().expect("piped")).lines();
            let is_keep_message = |line: &str| line.contains("keeping the lock");
            assert!(err.any(|line| is_keep_message(&line.expect("text"))));
            send_signal(&child, "TERM");
            wait_for_output(child)
        },
        &[3],
    ),
];

fn count_holding(masters: &Masters) -> usize {
    let has_lock = |master: &&quorate_testbed::Server| {
        let reply = master.command(&["EXISTS", "r"]);
        reply.is_ok_and(|reply| reply.int() == Some(1))
    };
    masters.iter().filter(has_lock).count()
}

/// Checks that the lock key that [`occupy`] has set on the first `n` masters is unchanged, and deletes it.
fn vacate(masters: &Masters, n: usize) {
    for master in masters.iter().take(n) {
        let reply = master.command(&["GET", "r"]).expect("a reply");
        assert_eq!(reply.text().as_deref(), Some("somebody else"));
        master.command(&["DEL", "r"]).expect("a reply");
    }
}

#[test]
fn quorate_run_leaves_only_the_fencing_counter_however_it_ends() {
    let mut failures = Vec::new();
    for (name, run_to_ending, codes) in ENDINGS {
        let masters = start_masters(5);
        let run = run_to_ending(&masters);
        let leaked = leaked_keys(&masters);
        let is_expected_code = run.code.is_some_and(|code| codes.contains(&code));
        if !leaked.is_empty() || !is_expected_code {
            failures.push(format!(
                "{name}: quorate run must leave no keys, but left {leaked:?}: {run:?}"
            ));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn run_with_the_option_try_leaves_no_keys_if_the_lock_is_held() {
    let masters = start_masters(5);
    occupy(&masters, 3);
    for round in 0..10 {
        let run = output_of(&mut quorate_run(&masters, &["--try", "r"], &["true"]));
        assert_eq!(run.code, Some(75), "{run:?}");
        assert_eq!(
            leaked_keys(&masters),
            ["0: r", "1: r", "2: r"],
            "round {round}"
        );
    }
}

#[test]
fn run_waits_before_its_exit_until_slow_masters_have_received_the_release() {
    // Each round trip takes 500 ms. `quorate run` must wait this long for the replies to its releases.
    let masters = start_masters(3);
    occupy(&masters, 2);
    let proxies: Vec<_> = masters
        .iter()
        .map(|master| Proxy::start(master.addr()).expect("a proxy"))
        .collect();
    let slow = Fault::latency(Way::Both, Duration::from_millis(250));
    let _delays: Vec<_> = proxies.iter().map(|proxy| slow.inject(proxy)).collect();
    let urls: Vec<_> = masters
        .iter()
        .zip(&proxies)
        .map(|(master, proxy)| master.url_at(proxy.addr()))
        .collect();
    for wait_options in [&["--try"][..], &["--wait", "1s"]] {
        let mut options = vec![
            "--node-timeout",
            "2s",
            "--connect-timeout",
            "8s",
            "--ttl",
            "20s",
        ];
        options.extend(wait_options);
        options.push("r");
        let run = output_of(
            quorate_run(&masters, &options, &["true"]).env("QUORATE_MASTERS", urls.join(",")),
        );
        assert_eq!(run.code, Some(75), "{wait_options:?} {run:?}");
        assert_eq!(leaked_keys(&masters), ["0: r", "1: r"], "{wait_options:?}");
    }
}

#[test]
fn dead_and_silent_masters_do_not_delay_the_exit_of_run() {
    let masters = start_masters(5);
    occupy(&masters, 3);
    masters[3].kill().expect("killed");
    masters[4].stop().expect("stopped");
    let run = output_of(&mut quorate_run(&masters, &["--try", "r"], &["true"]));
    masters[4].kill().expect("killed");
    assert!(matches!(run.code, Some(75 | 69)), "{run:?}");
    assert_eq!(leaked_keys(&masters).len(), 3, "{run:?}");
    // The dead master 3 and the silent master 4 delay the exit by at most 2.5 s. The limit allows for a busy machine.
    assert!(run.elapsed < Duration::from_secs(6), "{run:?}");
}

#[test]
fn run_that_cannot_start_a_process_leaves_no_keys() {
    // If the limit on open files is low, `quorate` can connect to the masters, but cannot start the command. The exact
    // limit depends on the system, so try many limits.
    let mut failed = 0;
    let masters = start_masters(5);
    for files in 8..40 {
        let quorate = quorate_run(&masters, &["--wait", "1s", "r"], &["true"]);
        let mut limited = Command::new("sh");
        limited
            .args(["-c", &format!("ulimit -n {files}; exec \"$@\""), "sh"])
            .arg(quorate.get_program())
            .args(quorate.get_args());
        for (name, value) in quorate.get_envs() {
            match value {
                Some(value) => limited.env(name, value),
                None => limited.env_remove(name),
            };
        }
        let run = output_of(&mut limited);
        failed += u32::from(run.code == Some(70) && run.stderr.contains("cannot run the command"));
        assert_eq!(leaked_keys(&masters), [""; 0], "{files} files: {run:?}");
        if run.code == Some(0) {
            break;
        }
    }
    assert!(
        failed > 0,
        "under some limit of open files, quorate must get the lock but fail to start the command"
    );
}
