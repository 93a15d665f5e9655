//! Tests of `quorate hold`: it holds the lock until a signal, the end of standard input, or the loss of the lock.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{
    output_of, quorate_on, send_signal, start_masters, wait_for_output, wait_until, wait_until_held,
};
use quorate_testbed::{Masters, Reply};

fn hold_command(masters: &Masters, options: &[&str]) -> Command {
    let mut command = quorate_on(masters);
    command
        .env("QUORATE_NODE_TIMEOUT", "500ms")
        .env("QUORATE_CONNECT_TIMEOUT", "2s")
        .arg("hold")
        .args(options)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Reads the line with the fencing token, which `quorate hold` prints when it holds the lock.
fn read_token(child: &mut Child) -> String {
    let mut line = String::new();
    let out = child.stdout.as_mut().expect("piped");
    BufReader::new(out).read_line(&mut line).expect("a line");
    line
}

fn is_free(masters: &Masters, name: &str) -> bool {
    let is_gone = |reply: std::io::Result<Reply>| reply.expect("a reply").int() == Some(0);
    let mut all_masters = masters.iter();
    all_masters.all(|master| is_gone(master.command(&["EXISTS", name])))
}

#[test]
fn hold_prints_its_token_and_releases_the_lock_at_the_end_of_its_input() {
    let masters = start_masters(3);
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let mut child = hold_command(&masters, &["r"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("starts");
        let line = read_token(&mut child);
        tokens.push(line.trim().parse::<u64>().expect("a number"));
        wait_until_held(&masters, "r");
        std::thread::sleep(Duration::from_millis(300));
        assert!(
            child.try_wait().expect("a status").is_none(),
            "`quorate hold` must not have ended yet"
        );
        assert!(!is_free(&masters, "r"));
        drop(child.stdin.take());
        let output = wait_for_output(child);
        assert_eq!((output.code, &*output.stderr), (Some(0), ""), "{output:?}");
        assert!(is_free(&masters, "r"));
    }
    assert!(tokens[0] < tokens[1], "{tokens:?}");
}

#[test]
fn hold_with_dev_null_as_its_input_runs_until_a_signal() {
    let masters = start_masters(3);
    for (name, signal_number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        let mut child = hold_command(&masters, &["r"])
            .stdin(Stdio::null())
            .spawn()
            .expect("starts");
        read_token(&mut child);
        std::thread::sleep(Duration::from_millis(300));
        assert!(
            child.try_wait().expect("a status").is_none(),
            "`quorate hold` must not have ended yet"
        );
        send_signal(&child, name);
        let output = wait_for_output(child);
        assert_eq!(output.died_of, Some(signal_number), "{output:?}");
        assert!(is_free(&masters, "r"), "{name}");
    }
}

#[test]
fn hold_keeps_the_lock_if_its_stdout_has_no_reader() {
    let masters = start_masters(1);
    let mut child = hold_command(&masters, &["r"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("starts");
    drop(child.stdout.take());
    wait_until_held(&masters, "r");
    std::thread::sleep(Duration::from_millis(600));
    assert!(
        child.try_wait().expect("a status").is_none(),
        "`quorate hold` must not have ended yet"
    );
    drop(child.stdin.take());
    assert_eq!(wait_for_output(child).code, Some(0));
}

#[test]
fn hold_exits_with_74_when_the_lock_is_lost() {
    let masters = start_masters(3);
    let spawned_hold = hold_command(&masters, &["--ttl", "6s", "r"])
        .stdin(Stdio::piped())
        .spawn();
    let mut child = spawned_hold.expect("starts");
    read_token(&mut child);
    // Keep the standard input of `quorate hold` open. Otherwise the command would end because its input ends.
    let _open_stdin = child.stdin.take();
    for master in &masters {
        master.command(&["SET", "r", "another"]).expect("a reply");
    }
    let replaced_output = wait_for_output(child);
    assert_eq!(replaced_output.code, Some(74), "{replaced_output:?}");
    assert!(
        replaced_output.stderr.contains("the lock on 'r' was lost"),
        "{replaced_output:?}"
    );
    assert!(
        replaced_output.stderr.contains("warning: lock lost"),
        "the library's warning must be printed: {replaced_output:?}"
    );
    let mut cut_off_hold = hold_command(&masters, &["-q", "--ttl", "2s", "s"]);
    let mut cut_off_child = cut_off_hold.stdin(Stdio::piped()).spawn().expect("starts");
    read_token(&mut cut_off_child);
    let _open_stdin = cut_off_child.stdin.take();
    masters[0].kill().expect("killed");
    masters[1].kill().expect("killed");
    let cut_off_output = wait_for_output(cut_off_child);
    assert_eq!(cut_off_output.code, Some(74), "{cut_off_output:?}");
    assert!(
        cut_off_output.elapsed < Duration::from_secs(6),
        "{cut_off_output:?}"
    );
    assert_eq!(
        cut_off_output.stderr.lines().count(),
        1,
        "{cut_off_output:?}"
    );
}

#[test]
fn hold_reports_a_lost_lock_if_it_was_stopped_until_the_lock_expired() {
    let masters = start_masters(3);
    for is_ended_by_signal in [false, true, false, true] {
        let mut child = hold_command(&masters, &["--ttl", "2s", "r"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("starts");
        read_token(&mut child);
        send_signal(&child, "STOP");
        wait_until("the lock is free", || is_free(&masters, "r"));
        let input = child.stdin.take();
        if is_ended_by_signal {
            send_signal(&child, "TERM");
        } else {
            drop(input);
        }
        send_signal(&child, "CONT");
        let output = wait_for_output(child);
        assert_eq!(
            output.code,
            Some(74),
            "a hold whose lock has expired must exit with 74 (ended by a signal: {is_ended_by_signal}): {output:?}"
        );
    }
}

#[test]
fn option_max_hold_ends_hold_after_the_given_time() {
    let masters = start_masters(3);
    let output = output_of(hold_command(&masters, &["--max-hold", "1s", "r"]).stdin(Stdio::null()));
    assert_eq!(output.code, Some(74), "{output:?}");
    assert!(
        output.stderr.contains("reached --max-hold 1s"),
        "{output:?}"
    );
    assert!(is_free(&masters, "r"));
}

#[test]
fn hold_with_the_option_shared_admits_readers_and_excludes_writers() {
    let masters = start_masters(3);
    let start = |options: &[&str]| {
        let mut command = hold_command(&masters, options);
        let mut child = command.stdin(Stdio::piped()).spawn().expect("starts");
        read_token(&mut child);
        child
    };
    let readers = [start(&["--shared", "r"]), start(&["--shared", "r"])];
    let writer = output_of(&mut hold_command(&masters, &["--try", "r"]));
    assert_eq!((writer.code, &*writer.stdout), (Some(75), ""), "{writer:?}");
    for mut reader in readers {
        drop(reader.stdin.take());
        assert_eq!(wait_for_output(reader).code, Some(0));
    }
    wait_until("the lock is free again", || {
        output_of(&mut hold_command(
            &masters,
            &["--try", "--max-hold", "300ms", "r"],
        ))
        .code
            == Some(74)
    });
}

#[test]
fn hold_terminates_the_given_process_when_the_lock_is_lost() {
    let masters = start_masters(3);
    for is_taken_away in [true, false] {
        let sleeper = Command::new("sleep").arg("600").spawn().expect("starts");
        let pid = sleeper.id().to_string();
        let mut hold_command = hold_command(&masters, &["--ttl", "3s", "--terminate", &pid, "r"]);
        let mut holder_child = hold_command.stdin(Stdio::piped()).spawn().expect("starts");
        read_token(&mut holder_child);
        let _open_stdin = holder_child.stdin.take();
        if is_taken_away {
            for master in &masters {
                master.command(&["SET", "r", "another"]).expect("a reply");
            }
        } else {
            masters[0].kill().expect("killed");
            masters[1].kill().expect("killed");
        }
        let sleeper_output = wait_for_output(sleeper);
        assert_eq!(sleeper_output.died_of, Some(15), "{sleeper_output:?}");
        assert_eq!(wait_for_output(holder_child).code, Some(74));
        for master in &masters {
            let _ = master.command(&["DEL", "r"]);
        }
    }
    let mut ended_process = Command::new("true").spawn().expect("starts");
    ended_process.wait().expect("a child");
    let ended_process_run = output_of(&mut hold_command(
        &masters,
        &["--terminate", &ended_process.id().to_string(), "r"],
    ));
    assert_eq!(ended_process_run.code, Some(64), "{ended_process_run:?}");
    assert!(
        ended_process_run.stderr.contains("--terminate"),
        "{ended_process_run:?}"
    );
}
