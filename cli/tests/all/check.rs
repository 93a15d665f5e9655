//! Tests of `quorate check` on real masters.

use crate::common::{
    self, RunOutput, output_of, quorate_command, quorate_on, quorate_run, send_signal,
    start_masters, unique_marker, wait_for_output, wait_until_held,
};
use quorate_testbed::Masters;
use serde_json::Value;

/// The binary under test, for a command that quorate runs.
const QUORATE_PROGRAM: &str = env!("CARGO_BIN_EXE_quorate");

fn check(masters: &Masters, words: &[&str]) -> RunOutput {
    output_of(quorate_on(masters).arg("check").args(words))
}

/// The exit code and the verdict of `quorate check --json`.
fn verdict(masters: &Masters, args: &[&str]) -> (Option<i32>, String) {
    let output = check(masters, &[&["--json"], args].concat());
    let json: Value = serde_json::from_str(&output.stdout).expect("JSON");
    let verdict = json["verdict"].as_str().expect("a text");
    (output.code, verdict.to_owned())
}

fn expected_verdict(code: i32, verdict: &str) -> (Option<i32>, String) {
    (Some(code), verdict.to_owned())
}

/// Takes the lock with these options, and checks its token in the command that quorate runs. Returns the token.
fn token_checked_by_its_holder(masters: &Masters, options: &[&str]) -> String {
    let script = "\"$0\" check >&2 && echo $QUORATE_FENCING_TOKEN";
    let held_run = output_of(&mut quorate_run(
        masters,
        options,
        &["sh", "-c", script, QUORATE_PROGRAM],
    ));
    assert_eq!(held_run.code, Some(0), "{options:?}: {held_run:?}");
    assert!(
        held_run.stderr.contains(" is current: "),
        "{options:?}: {held_run:?}"
    );
    held_run.stdout.trim().to_owned()
}

#[test]
fn token_is_current_until_the_release_and_superseded_by_the_next_holder() {
    let masters = start_masters(3);
    let token = token_checked_by_its_holder(&masters, &["r"]);
    assert_eq!(
        verdict(&masters, &["r", &token]),
        expected_verdict(74, "ended")
    );
    let verdict_text = check(&masters, &["r", &token]);
    let ended_line =
        format!("r: token {token} is ended: no client with this token holds the lock\n");
    assert_eq!(
        (verdict_text.code, verdict_text.stdout, verdict_text.stderr),
        (Some(74), ended_line, String::new())
    );
    let quiet_run = check(&masters, &["-q", "r", &token]);
    assert_eq!(
        (quiet_run.code, quiet_run.stdout),
        (Some(74), String::new())
    );

    let next_holder = quorate_run(&masters, &["r"], &["sleep", &unique_marker()])
        .spawn()
        .expect("starts");
    wait_until_held(&masters, "r");
    assert_eq!(
        verdict(&masters, &["r", &token]),
        expected_verdict(74, "superseded")
    );
    let verdict_text = check(&masters, &["r", &token]).stdout;
    assert!(
        verdict_text.contains("a majority of the masters has a newer number"),
        "{verdict_text}"
    );
    let pid_text = format!("pid {}", next_holder.id());
    common::wait_until("the present holder is shown", || {
        check(&masters, &["r", &token]).stdout.contains(&pid_text)
    });
    send_signal(&next_holder, "TERM");
    wait_for_output(next_holder);
}

#[test]
fn token_is_current_while_a_minority_is_down_and_unknown_while_a_majority_is_down() {
    let masters = start_masters(3);
    let script = format!(
        "echo $QUORATE_FENCING_TOKEN; exec sleep {}",
        unique_marker()
    );
    let holder_child = quorate_run(&masters, &["r"], &["sh", "-c", &script]).spawn();
    let mut holder = holder_child.expect("starts");
    let mut token_line = String::new();
    let holder_stdout = holder.stdout.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(holder_stdout), &mut token_line)
        .expect("a line");
    let token = token_line.trim();
    masters[2].kill().expect("killed");
    assert_eq!(
        verdict(&masters, &["r", token]),
        expected_verdict(0, "current")
    );
    masters[1].kill().expect("killed");
    let unknown_run = check(&masters, &["r", token]);
    assert_eq!(unknown_run.code, Some(69), "{unknown_run:?}");
    assert!(
        unknown_run
            .stdout
            .contains("is unknown: no majority answered"),
        "{unknown_run:?}"
    );
    assert!(
        unknown_run.stderr.contains("1 of 3 masters answered"),
        "{unknown_run:?}"
    );
    send_signal(&holder, "KILL");
    wait_for_output(holder);
}

#[test]
fn token_of_each_kind_of_lock_is_current_while_it_is_held() {
    let masters = start_masters(3);
    for options in [
        &["--shared", "r"][..],
        &["--owner", "7", "r"],
        &["r", "--also", "s"],
    ] {
        let token = token_checked_by_its_holder(&masters, options);
        assert_eq!(
            verdict(&masters, &["r", &token]),
            expected_verdict(74, "ended"),
            "{options:?}"
        );
    }
    let permit = token_checked_by_its_holder(&masters, &["--permits", "1", "r"]);
    assert_eq!(
        verdict(&masters, &["--slot", "0", "r", &permit]),
        expected_verdict(74, "ended")
    );
    let next = token_checked_by_its_holder(&masters, &["--permits", "1", "r"]);
    assert_ne!(permit, next);
    assert_eq!(
        verdict(&masters, &["--slot", "0", "r", &permit]),
        expected_verdict(74, "superseded")
    );
    assert_eq!(
        check(&masters, &["--slot", "64", "r", &permit]).code,
        Some(64)
    );
}

/// Masters can lose one key of a lock on several resources. The lock is then no longer held as a whole.
#[test]
fn token_of_a_lock_on_several_resources_is_current_only_if_every_name_is_held() {
    let masters = start_masters(3);
    // With this ttl, the holder does not renew the lock in the time between the loss of the key and the check.
    let names = ["--ttl", "30s", "r", "--also", "s t", "--also", "ü"];
    let token = token_checked_by_its_holder(&masters, &names);
    // The command waits for a line, and then checks.
    let script =
        "\"$0\" check; echo; read line; \"$0\" check; echo \"code $?\"; \"$0\" check --json";
    let mut holder = quorate_run(&masters, &names, &["sh", "-c", script, QUORATE_PROGRAM])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("starts");
    let out = holder.stdout.take().expect("a pipe");
    let mut out = std::io::BufReader::new(out);
    let mut output_before = String::new();
    while !output_before.ends_with("\n\n") {
        let length = std::io::BufRead::read_line(&mut out, &mut output_before).expect("a line");
        assert!(length > 0, "{output_before}");
    }
    assert_eq!(
        output_before.matches(" is current: ").count(),
        3,
        "{output_before}"
    );
    for master in &masters {
        master.command(&["DEL", "s t"]).expect("a reply");
    }
    drop(holder.stdin.take());
    let mut output_after = String::new();
    std::io::Read::read_to_string(&mut out, &mut output_after).expect("text");
    wait_for_output(holder);
    assert_eq!(
        output_after.matches(" is current: ").count(),
        2,
        "{output_after}"
    );
    assert!(
        output_after.contains("s t: token ") && output_after.contains(" is ended: "),
        "{output_after}"
    );
    let (_, json) = output_after
        .split_once("code 74\n")
        .expect("the exit code 74");
    let json: Value = serde_json::from_str(json).expect("JSON");
    assert_eq!(json["verdict"], "ended");
    assert_eq!(json["status"]["resource"], "r");
    assert_eq!(json["also"][0]["verdict"], "ended");
    assert_eq!(json["also"][0]["status"]["resource"], "s t");
    assert_eq!(json["also"][1]["verdict"], "current");
    assert!(token.parse::<u64>().is_ok(), "{token}");
}

#[test]
fn token_of_a_broken_lock_is_ended() {
    let masters = start_masters(3);
    let holder = quorate_run(&masters, &["r"], &["sleep", &unique_marker()])
        .spawn()
        .expect("starts");
    wait_until_held(&masters, "r");
    let status = output_of(quorate_on(&masters).args(["status", "--json", "r"])).stdout;
    let status_json: Value = serde_json::from_str(&status).expect("JSON");
    let counters = status_json["resources"][0]["masters"]
        .as_array()
        .expect("masters")
        .iter();
    let mut counters: Vec<u64> = counters
        .filter_map(|m| m["fencing_counter"].as_u64())
        .collect();
    counters.sort_unstable();
    let token = counters[counters.len() - 1].to_string();
    assert_eq!(
        verdict(&masters, &["r", &token]),
        expected_verdict(0, "current")
    );
    let broken_run = output_of(quorate_on(&masters).args(["break", "--yes", "r"]));
    assert_eq!(broken_run.code, Some(0), "{broken_run:?}");
    assert_eq!(
        verdict(&masters, &["r", &token]),
        expected_verdict(74, "ended")
    );
    send_signal(&holder, "KILL");
    wait_for_output(holder);
}

#[test]
fn token_that_a_minority_has_confirmed_counts_only_if_a_majority_shows_the_same_holder() {
    let masters = start_masters(3);
    let holder_value = "0123456789abcdef".repeat(2);
    for (master, counter) in masters.iter().zip(["9", "5", "5"]) {
        for words in [
            ["SET", "r", &holder_value],
            ["SET", "quorate:fence:r", counter],
        ] {
            master.command(&words).expect("a reply");
        }
    }
    assert_eq!(
        verdict(&masters, &["r", "9"]),
        expected_verdict(0, "current")
    );
    // No master has this number.
    assert_eq!(
        verdict(&masters, &["r", "7"]),
        expected_verdict(69, "unknown")
    );
    let verdict_text = check(&masters, &["r", "7"]);
    assert!(
        verdict_text
            .stdout
            .contains("no majority of the masters decides"),
        "{verdict_text:?}"
    );
    masters[1].command(&["DEL", "r"]).expect("a reply");
    masters[2].command(&["DEL", "r"]).expect("a reply");
    assert_eq!(
        verdict(&masters, &["r", "9"]),
        expected_verdict(74, "ended")
    );
}

#[test]
fn check_of_something_that_is_no_token_is_refused() {
    let masters = start_masters(1);
    for (words, error_text) in [
        (&["r", "0"][..], "0 is not in 1.."),
        (&["r", "x"], "invalid value 'x'"),
        (&["r", ""], "token"),
        (&["r", "9007199254740993"], "9007199254740993 is not in 1.."),
        (&["r"], "TOKEN"),
        (&[], "give NAME and TOKEN"),
        (&["", "7"], "name of a lock"),
    ] {
        let refused_run = check(&masters, words);
        assert_eq!(refused_run.code, Some(64), "{words:?}: {refused_run:?}");
        assert!(
            refused_run
                .stderr
                .to_lowercase()
                .contains(&error_text.to_lowercase()),
            "{words:?}: {refused_run:?}"
        );
    }
    let number = output_of(
        quorate_command()
            .arg("check")
            .envs([("QUORATE_RESOURCE", "r"), ("QUORATE_FENCING_TOKEN", "x")]),
    );
    assert_eq!(number.code, Some(64), "{number:?}");
    assert!(
        number
            .stderr
            .contains("QUORATE_FENCING_TOKEN must be a number"),
        "{number:?}"
    );
}
