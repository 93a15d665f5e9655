//! Tests of `quorate check` on real masters.

use crate::common::{self, Done, bare, done, end, mark, masters, quorate, run, signal, until_held};
use quorate_testbed::Masters;
use serde_json::Value;

/// The binary under test, for a command that quorate runs.
const BIN: &str = env!("CARGO_BIN_EXE_quorate");

fn check(masters: &Masters, words: &[&str]) -> Done {
    done(quorate(masters).arg("check").args(words))
}

/// The exit code and the verdict of `quorate check --json`.
fn verdict(masters: &Masters, words: &[&str]) -> (Option<i32>, String) {
    let done = check(masters, &[&["--json"], words].concat());
    let json: Value = serde_json::from_str(&done.out).expect("JSON");
    let verdict = json["verdict"].as_str().expect("a text");
    (done.code, verdict.to_owned())
}

fn is(code: i32, verdict: &str) -> (Option<i32>, String) {
    (Some(code), verdict.to_owned())
}

/// Takes the lock with these options, and checks its token in the command that quorate runs. Returns the token.
fn checked_by_its_holder(masters: &Masters, options: &[&str]) -> String {
    let script = "\"$0\" check >&2 && echo $QUORATE_FENCING_TOKEN";
    let held = done(&mut run(masters, options, &["sh", "-c", script, BIN]));
    assert_eq!(held.code, Some(0), "{options:?}: {held:?}");
    assert!(held.err.contains(" is current: "), "{options:?}: {held:?}");
    held.out.trim().to_owned()
}

#[test]
fn token_is_current_until_the_release_and_superseded_by_the_next_holder() {
    let masters = masters(3);
    let token = checked_by_its_holder(&masters, &["r"]);
    assert_eq!(verdict(&masters, &["r", &token]), is(74, "ended"));
    let text = check(&masters, &["r", &token]);
    let words = format!("r: token {token} is ended: no client with this token holds the lock\n");
    assert_eq!(
        (text.code, text.out, text.err),
        (Some(74), words, String::new())
    );
    let quiet = check(&masters, &["-q", "r", &token]);
    assert_eq!((quiet.code, quiet.out), (Some(74), String::new()));

    let next = run(&masters, &["r"], &["sleep", &mark()])
        .spawn()
        .expect("starts");
    until_held(&masters, "r");
    assert_eq!(verdict(&masters, &["r", &token]), is(74, "superseded"));
    let text = check(&masters, &["r", &token]).out;
    assert!(
        text.contains("a majority of the masters has a newer number"),
        "{text}"
    );
    let line = format!("pid {}", next.id());
    common::until("the present holder is shown", || {
        check(&masters, &["r", &token]).out.contains(&line)
    });
    signal(&next, "TERM");
    end(next);
}

#[test]
fn token_is_current_while_a_minority_is_down_and_unknown_while_a_majority_is_down() {
    let masters = masters(3);
    let script = format!("echo $QUORATE_FENCING_TOKEN; exec sleep {}", mark());
    let holder = run(&masters, &["r"], &["sh", "-c", &script]).spawn();
    let mut holder = holder.expect("starts");
    let mut line = String::new();
    let out = holder.stdout.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("a line");
    let token = line.trim();
    masters[2].kill().expect("killed");
    assert_eq!(verdict(&masters, &["r", token]), is(0, "current"));
    masters[1].kill().expect("killed");
    let unknown = check(&masters, &["r", token]);
    assert_eq!(unknown.code, Some(69), "{unknown:?}");
    assert!(
        unknown.out.contains("is unknown: no majority answered"),
        "{unknown:?}"
    );
    assert!(
        unknown.err.contains("1 of 3 masters answered"),
        "{unknown:?}"
    );
    signal(&holder, "KILL");
    end(holder);
}

#[test]
fn token_of_each_kind_of_lock_is_current_while_it_is_held() {
    let masters = masters(3);
    for options in [
        &["--shared", "r"][..],
        &["--owner", "7", "r"],
        &["r", "--also", "s"],
    ] {
        let token = checked_by_its_holder(&masters, options);
        assert_eq!(
            verdict(&masters, &["r", &token]),
            is(74, "ended"),
            "{options:?}"
        );
    }
    let permit = checked_by_its_holder(&masters, &["--permits", "1", "r"]);
    assert_eq!(
        verdict(&masters, &["--slot", "0", "r", &permit]),
        is(74, "ended")
    );
    let next = checked_by_its_holder(&masters, &["--permits", "1", "r"]);
    assert_ne!(permit, next);
    assert_eq!(
        verdict(&masters, &["--slot", "0", "r", &permit]),
        is(74, "superseded")
    );
    assert_eq!(
        check(&masters, &["--slot", "64", "r", &permit]).code,
        Some(64)
    );
}

/// Masters can lose one key of a lock on several resources. The lock is then no longer held as a whole.
#[test]
fn token_of_a_lock_on_several_resources_is_current_only_if_every_name_is_held() {
    let masters = masters(3);
    // With this ttl, the holder does not renew the lock in the time between the loss of the key and the check.
    let names = ["--ttl", "30s", "r", "--also", "s t", "--also", "ü"];
    let token = checked_by_its_holder(&masters, &names);
    // The command waits for a line, and then checks.
    let script =
        "\"$0\" check; echo; read line; \"$0\" check; echo \"code $?\"; \"$0\" check --json";
    let mut holder = run(&masters, &names, &["sh", "-c", script, BIN])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("starts");
    let out = holder.stdout.take().expect("a pipe");
    let mut out = std::io::BufReader::new(out);
    let mut before = String::new();
    while !before.ends_with("\n\n") {
        let read = std::io::BufRead::read_line(&mut out, &mut before).expect("a line");
        assert!(read > 0, "{before}");
    }
    assert_eq!(before.matches(" is current: ").count(), 3, "{before}");
    for master in &masters {
        master.command(&["DEL", "s t"]).expect("a reply");
    }
    drop(holder.stdin.take());
    let mut after = String::new();
    std::io::Read::read_to_string(&mut out, &mut after).expect("text");
    end(holder);
    assert_eq!(after.matches(" is current: ").count(), 2, "{after}");
    assert!(
        after.contains("s t: token ") && after.contains(" is ended: "),
        "{after}"
    );
    let (_, json) = after.split_once("code 74\n").expect("the exit code 74");
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
    let masters = masters(3);
    let holder = run(&masters, &["r"], &["sleep", &mark()])
        .spawn()
        .expect("starts");
    until_held(&masters, "r");
    let status = done(quorate(&masters).args(["status", "--json", "r"])).out;
    let status: Value = serde_json::from_str(&status).expect("JSON");
    let counters = status["resources"][0]["masters"]
        .as_array()
        .expect("masters")
        .iter();
    let mut counters: Vec<u64> = counters
        .filter_map(|m| m["fencing_counter"].as_u64())
        .collect();
    counters.sort_unstable();
    let token = counters[counters.len() - 1].to_string();
    assert_eq!(verdict(&masters, &["r", &token]), is(0, "current"));
    let broken = done(quorate(&masters).args(["break", "--yes", "r"]));
    assert_eq!(broken.code, Some(0), "{broken:?}");
    assert_eq!(verdict(&masters, &["r", &token]), is(74, "ended"));
    signal(&holder, "KILL");
    end(holder);
}

#[test]
fn token_that_a_minority_has_confirmed_counts_only_if_a_majority_shows_the_same_holder() {
    let masters = masters(3);
    let holder = "0123456789abcdef".repeat(2);
    for (master, counter) in masters.iter().zip(["9", "5", "5"]) {
        for words in [["SET", "r", &holder], ["SET", "quorate:fence:r", counter]] {
            master.command(&words).expect("a reply");
        }
    }
    assert_eq!(verdict(&masters, &["r", "9"]), is(0, "current"));
    // No master has this number.
    assert_eq!(verdict(&masters, &["r", "7"]), is(69, "unknown"));
    let text = check(&masters, &["r", "7"]);
    assert!(
        text.out.contains("no majority of the masters decides"),
        "{text:?}"
    );
    masters[1].command(&["DEL", "r"]).expect("a reply");
    masters[2].command(&["DEL", "r"]).expect("a reply");
    assert_eq!(verdict(&masters, &["r", "9"]), is(74, "ended"));
}

#[test]
fn check_of_something_that_is_no_token_is_refused() {
    let masters = masters(1);
    for (words, said) in [
        (&["r", "0"][..], "0 is not in 1.."),
        (&["r", "x"], "invalid value 'x'"),
        (&["r", ""], "token"),
        (&["r", "9007199254740993"], "9007199254740993 is not in 1.."),
        (&["r"], "TOKEN"),
        (&[], "give NAME and TOKEN"),
        (&["", "7"], "name of a lock"),
    ] {
        let refused = check(&masters, words);
        assert_eq!(refused.code, Some(64), "{words:?}: {refused:?}");
        assert!(
            refused.err.to_lowercase().contains(&said.to_lowercase()),
            "{words:?}: {refused:?}"
        );
    }
    let number = done(
        bare()
            .arg("check")
            .envs([("QUORATE_RESOURCE", "r"), ("QUORATE_FENCING_TOKEN", "x")]),
    );
    assert_eq!(number.code, Some(64), "{number:?}");
    assert!(
        number
            .err
            .contains("QUORATE_FENCING_TOKEN must be a number"),
        "{number:?}"
    );
}
