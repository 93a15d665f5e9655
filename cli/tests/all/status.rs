//! Tests of `status` and `break` on real masters, and of the manual pages.

use crate::common::{
    self, output_of, quorate_on, quorate_run, send_signal, start_masters, unique_marker,
    wait_for_output, wait_until_held,
};
use serde_json::Value;

fn parse_json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn status_reports_whether_a_lock_is_held_free_or_unknown() {
    let masters = start_masters(3);
    let free_run = output_of(quorate_on(&masters).args(["status", "--json", "r", "s"]));
    assert_eq!(free_run.code, Some(0), "{free_run:?}");
    let free_run = parse_json(&free_run.stdout);
    assert_eq!(free_run["resources"][1]["resource"], "s");
    assert_eq!(free_run["resources"][0]["verdict"], "free");
    assert_eq!(free_run["resources"][0]["quorum"], 2);

    let holder = quorate_run(&masters, &["r"], &["sleep", &unique_marker()])
        .spawn()
        .expect("starts");
    wait_until_held(&masters, "r");
    let waiter = quorate_run(&masters, &["r"], &["true"])
        .spawn()
        .expect("starts");
    common::wait_until("a waiter is queued", || {
        let status =
            parse_json(&output_of(quorate_on(&masters).args(["status", "--json", "r"])).stdout);
        let waiting = &status["resources"][0]["masters"][0]["waiting"];
        waiting.as_array().map(Vec::len) == Some(1) && waiting[0]["lives_ms"].as_u64().is_some()
    });
    send_signal(&waiter, "HUP");
    assert_eq!(wait_for_output(waiter).code, Some(129));
    masters[2].kill().expect("killed");
    let held_status_run = output_of(quorate_on(&masters).args(["status", "--json", "r"]));
    let held_status = parse_json(&held_status_run.stdout);
    let held_resource = &held_status["resources"][0];
    assert_eq!(held_resource["verdict"], "held");
    assert_eq!(held_resource["answered"], 2);
    assert_eq!(
        held_resource["masters"][0]["token"],
        held_resource["holder"]
    );
    assert_eq!(held_resource["masters"][0]["state"], "held");
    assert!(
        held_resource["masters"][0]["ttl_left_ms"]
            .as_u64()
            .is_some_and(|ms| ms <= 10_000)
    );
    assert!(
        held_resource["masters"][0]["fencing_counter"]
            .as_u64()
            .is_some()
    );
    assert_eq!(held_resource["masters"][2]["state"], "error");
    let text = output_of(quorate_on(&masters).args(["status", "r"]));
    assert!(
        text.stdout.contains("held by") && text.stdout.contains("2 of 3"),
        "{text:?}"
    );
    assert!(
        !text.stdout.contains('\u{1b}'),
        "output to a pipe must contain no colours: {text:?}"
    );

    masters[1].kill().expect("killed");
    let unknown_run = output_of(quorate_on(&masters).args(["status", "--json", "r"]));
    assert_eq!(unknown_run.code, Some(69), "{unknown_run:?}");
    assert_eq!(
        parse_json(&unknown_run.stdout)["resources"][0]["verdict"],
        "unknown"
    );
    send_signal(&holder, "KILL");
    wait_for_output(holder);
}

#[test]
fn status_explains_a_key_that_expires_later_than_any_client_can_have_asked_for() {
    let masters = start_masters(3);
    // As after a master's clock was set back by two hours: the TTL left of each key has grown by this time.
    let long_ttl_reply = masters[0].command(&["SET", "r", "a dead client", "PX", "7200000"]);
    long_ttl_reply.expect("a reply");
    let short = masters[1].command(&["SET", "r", "a dead client", "PX", "20000"]);
    short.expect("a reply");
    let status = output_of(quorate_on(&masters).args(["status", "r"]));
    let lines: Vec<&str> = status.stdout.lines().collect();
    let warnings: Vec<&&str> = lines
        .iter()
        .filter(|line| line.contains("longer than max_ttl (30s)"))
        .collect();
    assert_eq!(warnings.len(), 1, "{status:?}");
    assert!(warnings[0].contains("quorate break"), "{status:?}");
    let broken_run = output_of(quorate_on(&masters).args(["break", "r", "--yes", "--foreign"]));
    assert_eq!(broken_run.code, Some(0), "{broken_run:?}");
    let taken_run = output_of(&mut quorate_run(&masters, &["--try", "r"], &["true"]));
    assert_eq!(taken_run.code, Some(0), "{taken_run:?}");
}

#[test]
fn status_shows_host_pid_and_start_of_each_waiting_command() {
    let masters = start_masters(3);
    let holder = |name: &str, options: &[&str]| {
        let words = [options, &[name]].concat();
        let command = quorate_run(&masters, &words, &["sleep", &unique_marker()]).spawn();
        command.expect("starts")
    };
    let holders = [holder("r", &[]), holder("api", &["--permits", "1"])];
    wait_until_held(&masters, "r");
    wait_until_held(&masters, "quorate:slot:0:api");
    let waiters = [
        quorate_run(&masters, &["r"], &["true"])
            .spawn()
            .expect("starts"),
        quorate_run(&masters, &["--permits", "1", "api"], &["true"])
            .spawn()
            .expect("starts"),
    ];
    let status = || {
        parse_json(&output_of(quorate_on(&masters).args(["status", "--json", "r", "api"])).stdout)
    };
    let queues_of_master = |status: &Value, master: usize| {
        let [r, api] = [0, 1].map(|at| &status["resources"][at]);
        [
            r["masters"][master]["waiting"].clone(),
            api["permit_line"][master]["waiting"].clone(),
        ]
    };
    common::wait_until("both waiters are queued on all masters", || {
        let status = status();
        (0..3).all(|master| {
            let [r, api] = queues_of_master(&status, master);
            [r, api]
                .iter()
                .all(|queue| queue.as_array().is_some_and(|all| all.len() == 1))
        })
    });
    let status = status();
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    let text = output_of(quorate_on(&masters).args(["status", "r", "api"])).stdout;
    for (lines, waiter) in queues_of_master(&status, 2).iter().zip(&waiters) {
        let queued = &lines[0];
        assert_eq!(queued["host"], host, "{queued}");
        assert_eq!(queued["pid"], waiter.id(), "{queued}");
        let since = queued["since"].as_str().expect("a time");
        let queued_at = humantime::parse_rfc3339(since).expect("a time");
        let age = std::time::SystemTime::now().duration_since(queued_at);
        assert!(age.is_ok_and(|age| age.as_secs() < 60), "{since}");
        // The output without `--json` shows times in whole seconds.
        let seconds = since.split_once('.').map_or(since, |(seconds, _)| seconds);
        let waiting_line = format!("waiting: {host}, pid {}, since {seconds}Z\n", waiter.id());
        assert!(text.contains(&waiting_line), "no {waiting_line:?}: {text}");
    }
    for child in waiters.into_iter().chain(holders) {
        send_signal(&child, "TERM");
        wait_for_output(child);
    }
}

#[test]
fn status_shows_only_the_first_ten_waiters_and_skips_expired_ones() {
    let masters = start_masters(1);
    let token = "0123456789abcdef".repeat(2);
    let run_on_master = |words: &[&str]| {
        let reply = masters[0].command(words).expect("a reply");
        assert!(
            !matches!(reply, quorate_testbed::Reply::Error(_)),
            "{reply:?}"
        );
    };
    let note = format!("{token} 1763000000500\t7\tweb-3\tbackup\t");
    run_on_master(&["SET", "r", &token, "PX", "60000"]);
    run_on_master(&["SET", "quorate:note:r", &note, "PX", "60000"]);
    for number in 0..14 {
        let (pid, alive) = match number {
            0 => ("7", "9e15"),
            // Waiter 1 has lost its place in the queue, because its last heartbeat has expired.
            1 => ("8", "0"),
            _ => ("8", "9e15"),
        };
        // Older versions of the client use ids without host and pid.
        let id = match number {
            2 => "00000000000000aa:2".to_owned(),
            _ => format!("00000000000000aa:{number}/web-3:{pid}:1763000000500"),
        };
        run_on_master(&["ZADD", "quorate:queue:r", &number.to_string(), &id]);
        run_on_master(&["ZADD", "quorate:alive:r", alive, &id]);
    }
    let status = output_of(quorate_on(&masters).args(["status", "r"]));
    let lines: Vec<&str> = status
        .stdout
        .lines()
        .filter(|line| line.starts_with("waiting: "))
        .collect();
    assert_eq!(lines.len(), 11, "{status:?}");
    let since = "since 2025-11-13T02:13:20Z";
    assert_eq!(
        lines[0],
        format!("waiting: web-3, pid 7, {since} (same process as the holder)")
    );
    assert_eq!(lines[1], "waiting: unknown client");
    assert_eq!(lines[2], format!("waiting: web-3, pid 8, {since}"));
    assert_eq!(lines[10], "waiting: 3 more, see --json");
}

/// Reads the name of a held lock from `quorate status --json`, and passes it to `quorate status NAME`.
#[test]
fn status_lists_a_resource_name_with_a_newline_and_accepts_it_as_an_argument() {
    let masters = start_masters(1);
    let name = "a\n\\b\u{1b}[31m";
    let set_reply = masters[0].command(&["SET", name, &"0".repeat(32), "PX", "60000"]);
    assert!(set_reply.expect("a reply").is_ok());
    let listing = parse_json(&output_of(quorate_on(&masters).args(["status", "--json"])).stdout);
    let listed_name = listing["resources"][0]["resource"]
        .as_str()
        .expect("a name");
    assert_eq!(listed_name, name);
    let named_status =
        parse_json(&output_of(quorate_on(&masters).args(["status", "--json", listed_name])).stdout);
    assert_eq!(named_status["resources"][0]["verdict"], "held");
    let list_text = output_of(quorate_on(&masters).args(["status"])).stdout;
    let status_text = output_of(quorate_on(&masters).args(["status", listed_name])).stdout;
    for text in [list_text, status_text] {
        assert!(text.contains("a\\n\\\\b\\u{1b}[31m"), "{text}");
    }
}

#[test]
fn status_without_a_name_marks_its_list_as_incomplete_if_no_majority_answers() {
    let masters = start_masters(3);
    for master in masters.iter().take(2) {
        master.kill().expect("killed");
    }
    let list_run = output_of(quorate_on(&masters).arg("status"));
    assert_eq!(list_run.code, Some(69), "{list_run:?}");
    assert!(
        list_run
            .stdout
            .contains("incomplete: no majority of the masters answered"),
        "{list_run:?}"
    );
    assert!(!list_run.stdout.contains("--starting-with"), "{list_run:?}");
}

#[test]
fn status_reports_a_lock_as_unknown_if_a_majority_has_just_restarted() {
    let masters = start_masters(5);
    let value = "0123456789abcdef".repeat(2);
    for master in masters.iter().skip(3) {
        let set_reply = master.command(&["SET", "r", &value, "PX", "60000"]);
        assert!(set_reply.expect("a reply").is_ok());
    }
    // With the restart guard, a master does not vote in its first 8 s. Wait until all five masters vote, then restart
    // three of them.
    std::thread::sleep(std::time::Duration::from_secs(10));
    for master in masters.iter().take(3) {
        master.restart_empty().expect("restarted");
    }
    let run_with_restart_guard = |args: &[&str]| {
        let mut command = quorate_on(&masters);
        command.args(args).env("QUORATE_RESTART_GUARD", "on");
        output_of(command.env("QUORATE_MAX_TTL", "8s"))
    };
    let status_run = run_with_restart_guard(&["status", "--json", "r"]);
    let list_run = run_with_restart_guard(&["status"]);
    let empty_list_run = run_with_restart_guard(&["status", "--starting-with", "nothing"]);
    assert_eq!(status_run.code, Some(69), "{status_run:?}");
    let resource = &parse_json(&status_run.stdout)["resources"][0];
    assert_eq!(resource["verdict"], "unknown", "{status_run:?}");
    assert_eq!(resource["answered"], 2);
    assert_eq!(resource["masters"][0]["error_kind"], "quarantined");
    assert_eq!(resource["masters"][4]["state"], "held");
    assert!(status_run.stderr.contains("just started"), "{status_run:?}");
    assert_eq!(
        (list_run.code, empty_list_run.code),
        (Some(69), Some(69)),
        "{list_run:?}"
    );
    assert!(
        list_run.stdout.contains("not asked: ") && list_run.stdout.contains("restart guard"),
        "{list_run:?}"
    );
    assert!(
        list_run.stdout.lines().any(|line| line.starts_with("r ")),
        "{list_run:?}"
    );
    assert!(
        !empty_list_run.stdout.contains("nothing is locked"),
        "{empty_list_run:?}"
    );
}

#[test]
fn key_of_a_wrong_type_is_reported_by_status_and_not_deleted_by_break() {
    let masters = start_masters(3);
    masters[0]
        .command(&["LPUSH", "r", "mine"])
        .expect("a reply");
    let status =
        parse_json(&output_of(quorate_on(&masters).args(["status", "--json", "r"])).stdout);
    assert_eq!(
        status["resources"][0]["masters"][0]["error_kind"],
        "wrong_type"
    );
    assert_eq!(status["resources"][0]["verdict"], "free");
    let output = output_of(&mut quorate_run(&masters, &["r"], &["true"]));
    assert_eq!(output.code, Some(0), "{output:?}");
    let broken_run = output_of(quorate_on(&masters).args(["break", "r", "--yes"]));
    assert_eq!(broken_run.code, Some(0), "{broken_run:?}");
    assert!(
        broken_run
            .stdout
            .contains("not deleted: the key holds another type"),
        "{broken_run:?}"
    );
    let left = masters[0].command(&["LLEN", "r"]).expect("a reply");
    assert_eq!(left.int(), Some(1));
}

#[test]
fn status_does_not_report_an_outage_if_a_majority_has_another_type_of_value() {
    let masters = start_masters(3);
    for master in masters.iter().take(2) {
        let put = master.command(&["HSET", "r", "field", "mine"]);
        assert_eq!(put.expect("a reply").int(), Some(1));
    }
    let status = output_of(quorate_on(&masters).args(["status", "r"]));
    assert_eq!(status.code, Some(69), "{status:?}");
    let words = "r: blocked: on 2 of 3 masters, another program wrote another type of value to the lock key (1 of 3 \
                 masters can vote, 2 are a majority)";
    assert!(status.stdout.contains(words), "{status:?}");
    let words = "nobody can get the lock 'r': on 2 of 3 masters, another program wrote another type of value to its key";
    assert!(status.stderr.contains(words), "{status:?}");
    let shown = parse_json(&output_of(quorate_on(&masters).args(["status", "--json", "r"])).stdout);
    assert_eq!(shown["resources"][0]["verdict"], "unknown");
    assert_eq!(shown["resources"][0]["answered"], 1);
    // The masters that are down answered nothing.
    masters[1].kill().expect("killed");
    masters[2].kill().expect("killed");
    let down_run = output_of(quorate_on(&masters).args(["status", "r"]));
    assert!(
        down_run.stdout.contains("unknown: no majority answered"),
        "{down_run:?}"
    );
    assert!(
        down_run
            .stderr
            .contains("no quorum: 0 of 3 masters answered"),
        "{down_run:?}"
    );
}

#[test]
fn status_and_break_say_that_another_program_wrote_a_key_without_an_expiry() {
    let masters = start_masters(3);
    common::occupy_lock(&masters);
    let status = output_of(quorate_on(&masters).args(["status", "r"]));
    assert_eq!(status.code, Some(0), "{status:?}");
    let expected_text = "the lock key has no expiry, so another program wrote it";
    assert!(status.stdout.contains(expected_text), "{status:?}");
    let broken_run = output_of(quorate_on(&masters).args(["break", "r", "--yes", "--foreign"]));
    assert_eq!(broken_run.code, Some(0), "{broken_run:?}");
    let expected_text = "(no expiry: another program wrote this key)";
    assert!(broken_run.stdout.contains(expected_text), "{broken_run:?}");
}

/// The data of another program cannot be restored after the deletion.
#[test]
fn break_deletes_the_key_of_another_program_only_with_the_option_foreign() {
    let masters = start_masters(3);
    for key in ["r", "quorate:slot:2:api"] {
        let set = masters[1].command(&["SET", key, "an important value"]);
        assert!(set.expect("a reply").is_ok());
    }
    let exists = |key| masters[1].command(&["EXISTS", key]).expect("a reply").int();
    for (key, words) in [
        ("r", &["break", "r", "--yes"][..]),
        (
            "quorate:slot:2:api",
            &["break", "api", "--slot", "2", "--yes"],
        ),
    ] {
        let refused_run = output_of(quorate_on(&masters).args(words));
        assert_eq!(refused_run.code, Some(64), "{refused_run:?}");
        for part in ["another program wrote it on 1 of 3 masters", "--foreign"] {
            assert!(
                refused_run.stderr.contains(part),
                "{part:?}: {refused_run:?}"
            );
        }
        assert_eq!(refused_run.stdout, "");
        assert_eq!(exists(key), Some(1), "{key} must still exist");
        let broken_run = output_of(quorate_on(&masters).args(words).arg("--foreign"));
        assert_eq!(broken_run.code, Some(0), "{broken_run:?}");
        assert!(
            broken_run.stdout.contains("deleted an important value"),
            "{broken_run:?}"
        );
        assert_eq!(exists(key), Some(0), "{key} must be deleted");
    }
}

#[test]
fn break_requires_the_option_yes_and_prints_the_state_before_the_break() {
    let masters = start_masters(3);
    let holder = quorate_run(
        &masters,
        &["--ttl", "3s", "r"],
        &["sleep", &unique_marker()],
    )
    .spawn()
    .expect("starts");
    wait_until_held(&masters, "r");
    let unasked_run = output_of(quorate_on(&masters).args(["break", "r"]));
    assert_eq!(unasked_run.code, Some(64));
    assert!(
        unasked_run.stderr.contains("--yes") && unasked_run.stderr.lines().count() == 1,
        "{unasked_run:?}"
    );
    let exists = masters[0].command(&["EXISTS", "r"]).expect("a reply");
    assert_eq!(exists.int(), Some(1), "the key must still exist");

    let broken_run = output_of(quorate_on(&masters).args(["break", "r", "--yes", "--json"]));
    assert_eq!(broken_run.code, Some(0), "{broken_run:?}");
    let broken_run = parse_json(&broken_run.stdout);
    assert_eq!(broken_run["verdict"], "held");
    assert_eq!(broken_run["masters"][0]["token"], broken_run["holder"]);
    let next_run = output_of(&mut quorate_run(&masters, &["--try", "r"], &["true"]));
    assert_eq!(next_run.code, Some(0), "{next_run:?}");
    let second_break_run = output_of(quorate_on(&masters).args(["break", "r", "--yes"]));
    assert!(
        second_break_run.stdout.contains("no key"),
        "{second_break_run:?}"
    );
    send_signal(&holder, "TERM");
    wait_for_output(holder);
}

#[test]
fn every_command_has_a_manual_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let man_run = output_of(
        common::quorate_command()
            .args(["man", "--out"])
            .arg(dir.path()),
    );
    assert_eq!(man_run.code, Some(0), "{man_run:?}");
    for page in [
        "quorate.1",
        "quorate-run.1",
        "quorate-status.1",
        "quorate-break.1",
        "quorate-lead.1",
        "quorate-watch.1",
    ] {
        assert!(dir.path().join(page).exists(), "{page}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = output_of(common::quorate_command().args(["completions", shell]));
        assert!(
            script.code == Some(0) && script.stdout.contains("max-hold"),
            "{shell}"
        );
    }
    for command in [
        &["--help"][..],
        &["run", "--help"],
        &["status", "--help"],
        &["break", "--help"],
        &["lead", "--help"],
        &["watch", "--help"],
    ] {
        let help = output_of(common::quorate_command().args(command));
        assert_eq!(help.code, Some(0));
        assert!(
            help.stdout.contains("Exit codes:") && help.stdout.contains("Examples:"),
            "{command:?}"
        );
    }
    assert_eq!(output_of(&mut common::quorate_command()).code, Some(64));
}

#[test]
fn break_with_the_option_slot_deletes_one_of_the_permits_listed_by_status() {
    let masters = start_masters(3);
    let hold_permit = |note: &str| {
        let options = ["--permits", "2", "--note", note, "api"];
        quorate_run(&masters, &options, &["sleep", &unique_marker()])
            .spawn()
            .expect("starts")
    };
    let hold_as_reader = |note: &str| {
        let options = ["--shared", "--note", note, "doc"];
        quorate_run(&masters, &options, &["sleep", &unique_marker()])
            .spawn()
            .expect("starts")
    };
    let holders = [
        hold_permit("one"),
        hold_permit("two"),
        hold_as_reader("here"),
        hold_as_reader("there"),
    ];
    let status = || {
        parse_json(&output_of(quorate_on(&masters).args(["status", "--json", "api", "doc"])).stdout)
    };
    let texts = |holds: &Value| -> Vec<String> {
        let holds = holds.as_array().into_iter().flatten();
        let text = |hold: &Value| hold["note"]["text"].as_str().map(str::to_owned);
        let mut texts: Vec<String> = holds.filter_map(text).collect();
        texts.sort_unstable();
        texts
    };
    common::wait_until("status shows the notes of all holders", || {
        let current = status();
        texts(&current["resources"][0]["permits"]) == ["one", "two"]
            && texts(&current["resources"][1]["holds"]) == ["here", "there"]
    });
    let current = status();
    assert_eq!(current["resources"][0]["verdict"], "free");
    assert_eq!(current["resources"][0]["permits"][1]["slot"], 1);
    assert_eq!(current["resources"][0]["permits"][1]["verdict"], "held");
    let text = output_of(quorate_on(&masters).args(["status", "api", "doc"])).stdout;
    let parts = "api: plain lock free; 2 permits held (|2 held, 0 waiting|doc: held by readers (|one|two|here|there";
    for part in parts.split('|') {
        assert!(text.contains(part), "{part:?} must be in {text}");
    }
    let list = output_of(quorate_on(&masters).args(["status"])).stdout;
    for part in [
        "api, permit in slot 0",
        "api, permit in slot 1",
        "here",
        "there",
    ] {
        assert!(list.contains(part), "{part:?} must be in {list}");
    }
    let invalid_run =
        output_of(quorate_on(&masters).args(["break", "api", "--slot", "64", "--yes"]));
    assert_eq!(invalid_run.code, Some(64), "{invalid_run:?}");
    let line = "quorate: cannot use 'api' as the name of a lock: there is no slot 64: the slots of a semaphore are 0 \
                to 63\n";
    assert_eq!(invalid_run.stderr, line);
    let broken_run = output_of(quorate_on(&masters).args(["break", "api", "--slot", "0", "--yes"]));
    assert_eq!(broken_run.code, Some(0), "{broken_run:?}");
    assert!(broken_run.stdout.contains("deleted"), "{broken_run:?}");
    let options = ["--permits", "2", "--try", "api"];
    let next_run = output_of(&mut quorate_run(&masters, &options, &["true"]));
    assert_eq!(next_run.code, Some(0), "{next_run:?}");
    for holder in holders {
        send_signal(&holder, "TERM");
        wait_for_output(holder);
    }
}

#[test]
fn status_shows_waiters_for_a_permit_even_if_no_permit_is_held() {
    let masters = start_masters(3);
    let free_run = output_of(quorate_on(&masters).args(["status", "api"]));
    assert!(!free_run.stdout.contains("semaphore"), "{free_run:?}");
    let on_each_master = |words: &[&str]| {
        for master in &masters {
            master.command(words).expect("a reply");
        }
    };
    on_each_master(&["SET", "quorate:slot:0:api", "somebody", "PX", "600000"]);
    let waits = quorate_run(&masters, &["--permits", "1", "api"], &["true"]).spawn();
    let waits = waits.expect("starts");
    common::wait_until("a waiter is queued on all masters", || {
        masters.iter().all(|master| {
            let line = master.command(&["EXISTS", "quorate:queue:quorate:slot:line:api"]);
            line.expect("a reply").int() == Some(1)
        })
    });
    // The stopped waiter cannot take the free permit, but stays in the queue until its heartbeat expires.
    send_signal(&waits, "STOP");
    on_each_master(&["DEL", "quorate:slot:0:api"]);
    let status =
        parse_json(&output_of(quorate_on(&masters).args(["status", "--json", "api"])).stdout);
    let text = output_of(quorate_on(&masters).args(["status", "api"])).stdout;
    send_signal(&waits, "KILL");
    wait_for_output(waits);
    let status = &status["resources"][0];
    assert_eq!(status["permits"], Value::Null, "{status}");
    assert_eq!(status["permit_line"].as_array().map(Vec::len), Some(3));
    for place in status["permit_line"].as_array().into_iter().flatten() {
        assert!(place["master"].as_str().is_some(), "{status}");
        assert_eq!(place["waiting"].as_array().map(Vec::len), Some(1));
        assert!(place["waiting"][0]["lives_ms"].as_u64().is_some());
    }
    assert!(text.contains("0 held, 1 waiting"), "{text}");
}

#[test]
fn status_of_an_unreadable_semaphore_reports_the_error() {
    let masters = start_masters(3);
    let user = "ACL SETUSER looks reset on >word +evalsha +script|load +info +time +ping +subscribe +get +pttl \
                +zrange +zscore ~api ~quorate:fence:* ~quorate:queue:* ~quorate:alive:* ~quorate:note:* &*";
    let user: Vec<&str> = user.split_whitespace().collect();
    for master in &masters {
        assert!(master.command(&user).expect("a reply").is_ok());
    }
    let urls = masters
        .urls()
        .join(",")
        .replace("redis://", "redis://looks:word@");
    let run_as_reader = |words: &[&str]| {
        output_of(
            quorate_on(&masters)
                .env("QUORATE_MASTERS", &urls)
                .args(words),
        )
    };
    let text = run_as_reader(&["status", "api"]);
    assert_eq!(text.code, Some(0), "{text:?}");
    assert!(text.stdout.contains("api: free"), "{text:?}");
    assert!(
        text.stdout.contains("cannot read its permits") && text.stdout.contains("NOPERM"),
        "{text:?}"
    );
    assert!(!text.stdout.contains("word"), "{text:?}");
    let status = parse_json(&run_as_reader(&["status", "--json", "api"]).stdout);
    let reason = status["resources"][0]["permits_error"]
        .as_str()
        .expect("status must report why the semaphore could not be read");
    assert!(reason.contains("NOPERM"), "{reason}");
    // The default user can read the semaphore, so this status contains no error.
    let full_status =
        parse_json(&output_of(quorate_on(&masters).args(["status", "--json", "api"])).stdout);
    assert_eq!(full_status["resources"][0]["permits_error"], Value::Null);
}
