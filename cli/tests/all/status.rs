//! Tests of `status` and `break` on real masters, and of the manual pages.

use crate::common::{self, done, end, mark, masters, quorate, run, signal, until_held};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn status_reports_whether_a_lock_is_held_free_or_unknown() {
    let masters = masters(3);
    let free = done(quorate(&masters).args(["status", "--json", "r", "s"]));
    assert_eq!(free.code, Some(0), "{free:?}");
    let free = json(&free.out);
    assert_eq!(free["resources"][1]["resource"], "s");
    assert_eq!(free["resources"][0]["verdict"], "free");
    assert_eq!(free["resources"][0]["quorum"], 2);

    let holder = run(&masters, &["r"], &["sleep", &mark()])
        .spawn()
        .expect("starts");
    until_held(&masters, "r");
    let waiter = run(&masters, &["r"], &["true"]).spawn().expect("starts");
    common::until("a waiter is queued", || {
        let status = json(&done(quorate(&masters).args(["status", "--json", "r"])).out);
        let line = &status["resources"][0]["masters"][0]["waiting"];
        line.as_array().map(Vec::len) == Some(1) && line[0]["lives_ms"].as_u64().is_some()
    });
    signal(&waiter, "HUP");
    assert_eq!(end(waiter).code, Some(129));
    masters[2].kill().expect("killed");
    let held = done(quorate(&masters).args(["status", "--json", "r"]));
    let held = json(&held.out);
    let held = &held["resources"][0];
    assert_eq!(held["verdict"], "held");
    assert_eq!(held["answered"], 2);
    assert_eq!(held["masters"][0]["token"], held["holder"]);
    assert_eq!(held["masters"][0]["state"], "held");
    assert!(
        held["masters"][0]["ttl_left_ms"]
            .as_u64()
            .is_some_and(|ms| ms <= 10_000)
    );
    assert!(held["masters"][0]["fencing_counter"].as_u64().is_some());
    assert_eq!(held["masters"][2]["state"], "error");
    let text = done(quorate(&masters).args(["status", "r"]));
    assert!(
        text.out.contains("held by") && text.out.contains("2 of 3"),
        "{text:?}"
    );
    assert!(
        !text.out.contains('\u{1b}'),
        "output to a pipe must contain no colours: {text:?}"
    );

    masters[1].kill().expect("killed");
    let unknown = done(quorate(&masters).args(["status", "--json", "r"]));
    assert_eq!(unknown.code, Some(69), "{unknown:?}");
    assert_eq!(json(&unknown.out)["resources"][0]["verdict"], "unknown");
    signal(&holder, "KILL");
    end(holder);
}

#[test]
fn status_explains_a_key_that_expires_later_than_any_client_can_have_asked_for() {
    let masters = masters(3);
    // As after a master's clock was set back by two hours: the TTL left of each key has grown by this time.
    let kept = masters[0].command(&["SET", "r", "a dead client", "PX", "7200000"]);
    kept.expect("a reply");
    let short = masters[1].command(&["SET", "r", "a dead client", "PX", "20000"]);
    short.expect("a reply");
    let status = done(quorate(&masters).args(["status", "r"]));
    let lines: Vec<&str> = status.out.lines().collect();
    let told: Vec<&&str> = lines
        .iter()
        .filter(|line| line.contains("longer than max_ttl (30s)"))
        .collect();
    assert_eq!(told.len(), 1, "{status:?}");
    assert!(told[0].contains("quorate break"), "{status:?}");
    let broken = done(quorate(&masters).args(["break", "r", "--yes", "--foreign"]));
    assert_eq!(broken.code, Some(0), "{broken:?}");
    let taken = done(&mut run(&masters, &["--try", "r"], &["true"]));
    assert_eq!(taken.code, Some(0), "{taken:?}");
}

#[test]
fn status_shows_host_pid_and_start_of_each_waiting_command() {
    let masters = masters(3);
    let holder = |name: &str, options: &[&str]| {
        let words = [options, &[name]].concat();
        let command = run(&masters, &words, &["sleep", &mark()]).spawn();
        command.expect("starts")
    };
    let holders = [holder("r", &[]), holder("api", &["--permits", "1"])];
    until_held(&masters, "r");
    until_held(&masters, "quorate:slot:0:api");
    let waiters = [
        run(&masters, &["r"], &["true"]).spawn().expect("starts"),
        run(&masters, &["--permits", "1", "api"], &["true"])
            .spawn()
            .expect("starts"),
    ];
    let status = || json(&done(quorate(&masters).args(["status", "--json", "r", "api"])).out);
    let line = |status: &Value, master: usize| {
        let [r, api] = [0, 1].map(|at| &status["resources"][at]);
        [
            r["masters"][master]["waiting"].clone(),
            api["permit_line"][master]["waiting"].clone(),
        ]
    };
    common::until("both waiters are queued on all masters", || {
        let status = status();
        (0..3).all(|master| {
            let [r, api] = line(&status, master);
            [r, api]
                .iter()
                .all(|line| line.as_array().is_some_and(|all| all.len() == 1))
        })
    });
    let status = status();
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    let text = done(quorate(&masters).args(["status", "r", "api"])).out;
    for (lines, waiter) in line(&status, 2).iter().zip(&waiters) {
        let shown = &lines[0];
        assert_eq!(shown["host"], host, "{shown}");
        assert_eq!(shown["pid"], waiter.id(), "{shown}");
        let since = shown["since"].as_str().expect("a time");
        let at = humantime::parse_rfc3339(since).expect("a time");
        let age = std::time::SystemTime::now().duration_since(at);
        assert!(age.is_ok_and(|age| age.as_secs() < 60), "{since}");
        // The output without `--json` shows times in whole seconds.
        let seconds = since.split_once('.').map_or(since, |(seconds, _)| seconds);
        let words = format!("waiting: {host}, pid {}, since {seconds}Z\n", waiter.id());
        assert!(text.contains(&words), "no {words:?}: {text}");
    }
    for child in waiters.into_iter().chain(holders) {
        signal(&child, "TERM");
        end(child);
    }
}

#[test]
fn status_shows_only_the_first_ten_waiters_and_skips_expired_ones() {
    let masters = masters(1);
    let token = "0123456789abcdef".repeat(2);
    let all = |words: &[&str]| {
        let done = masters[0].command(words).expect("a reply");
        assert!(
            !matches!(done, quorate_testbed::Reply::Error(_)),
            "{done:?}"
        );
    };
    let note = format!("{token} 1763000000500\t7\tweb-3\tbackup\t");
    all(&["SET", "r", &token, "PX", "60000"]);
    all(&["SET", "quorate:note:r", &note, "PX", "60000"]);
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
        all(&["ZADD", "quorate:queue:r", &number.to_string(), &id]);
        all(&["ZADD", "quorate:alive:r", alive, &id]);
    }
    let status = done(quorate(&masters).args(["status", "r"]));
    let lines: Vec<&str> = status
        .out
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
    let masters = masters(1);
    let name = "a\n\\b\u{1b}[31m";
    let set = masters[0].command(&["SET", name, &"0".repeat(32), "PX", "60000"]);
    assert!(set.expect("a reply").is_ok());
    let listed = json(&done(quorate(&masters).args(["status", "--json"])).out);
    let listed = listed["resources"][0]["resource"].as_str().expect("a name");
    assert_eq!(listed, name);
    let named = json(&done(quorate(&masters).args(["status", "--json", listed])).out);
    assert_eq!(named["resources"][0]["verdict"], "held");
    let list = done(quorate(&masters).args(["status"])).out;
    let page = done(quorate(&masters).args(["status", listed])).out;
    for text in [list, page] {
        assert!(text.contains("a\\n\\\\b\\u{1b}[31m"), "{text}");
    }
}

#[test]
fn status_without_a_name_marks_its_list_as_incomplete_if_no_majority_answers() {
    let masters = masters(3);
    for master in masters.iter().take(2) {
        master.kill().expect("killed");
    }
    let list = done(quorate(&masters).arg("status"));
    assert_eq!(list.code, Some(69), "{list:?}");
    assert!(
        list.out
            .contains("incomplete: no majority of the masters answered"),
        "{list:?}"
    );
    assert!(!list.out.contains("--starting-with"), "{list:?}");
}

#[test]
fn status_reports_a_lock_as_unknown_if_a_majority_has_just_restarted() {
    let masters = masters(5);
    let value = "0123456789abcdef".repeat(2);
    for master in masters.iter().skip(3) {
        let set = master.command(&["SET", "r", &value, "PX", "60000"]);
        assert!(set.expect("a reply").is_ok());
    }
    // With the restart guard, a master does not vote in its first 8 s. Wait until all five masters vote, then restart
    // three of them.
    std::thread::sleep(std::time::Duration::from_secs(10));
    for master in masters.iter().take(3) {
        master.restart_empty().expect("restarted");
    }
    let guarded = |args: &[&str]| {
        let mut command = quorate(&masters);
        command.args(args).env("QUORATE_RESTART_GUARD", "on");
        done(command.env("QUORATE_MAX_TTL", "8s"))
    };
    let status = guarded(&["status", "--json", "r"]);
    let list = guarded(&["status"]);
    let none = guarded(&["status", "--starting-with", "nothing"]);
    assert_eq!(status.code, Some(69), "{status:?}");
    let found = &json(&status.out)["resources"][0];
    assert_eq!(found["verdict"], "unknown", "{status:?}");
    assert_eq!(found["answered"], 2);
    assert_eq!(found["masters"][0]["error_kind"], "quarantined");
    assert_eq!(found["masters"][4]["state"], "held");
    assert!(status.err.contains("just started"), "{status:?}");
    assert_eq!((list.code, none.code), (Some(69), Some(69)), "{list:?}");
    assert!(
        list.out.contains("not asked: ") && list.out.contains("restart guard"),
        "{list:?}"
    );
    assert!(
        list.out.lines().any(|line| line.starts_with("r ")),
        "{list:?}"
    );
    assert!(!none.out.contains("nothing is locked"), "{none:?}");
}

#[test]
fn key_of_a_wrong_type_is_reported_by_status_and_not_deleted_by_break() {
    let masters = masters(3);
    masters[0]
        .command(&["LPUSH", "r", "mine"])
        .expect("a reply");
    let status = json(&done(quorate(&masters).args(["status", "--json", "r"])).out);
    assert_eq!(
        status["resources"][0]["masters"][0]["error_kind"],
        "wrong_type"
    );
    assert_eq!(status["resources"][0]["verdict"], "free");
    let ran = done(&mut run(&masters, &["r"], &["true"]));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let broken = done(quorate(&masters).args(["break", "r", "--yes"]));
    assert_eq!(broken.code, Some(0), "{broken:?}");
    assert!(
        broken
            .out
            .contains("not deleted: the key holds another type"),
        "{broken:?}"
    );
    let left = masters[0].command(&["LLEN", "r"]).expect("a reply");
    assert_eq!(left.int(), Some(1));
}

#[test]
fn status_does_not_report_an_outage_if_a_majority_has_another_type_of_value() {
    let masters = masters(3);
    for master in masters.iter().take(2) {
        let put = master.command(&["HSET", "r", "field", "mine"]);
        assert_eq!(put.expect("a reply").int(), Some(1));
    }
    let status = done(quorate(&masters).args(["status", "r"]));
    assert_eq!(status.code, Some(69), "{status:?}");
    let words = "r: blocked: on 2 of 3 masters, another program wrote another type of value to the lock key (1 of 3 \
                 masters can vote, 2 are a majority)";
    assert!(status.out.contains(words), "{status:?}");
    let words = "nobody can get the lock 'r': on 2 of 3 masters, another program wrote another type of value to its key";
    assert!(status.err.contains(words), "{status:?}");
    let shown = json(&done(quorate(&masters).args(["status", "--json", "r"])).out);
    assert_eq!(shown["resources"][0]["verdict"], "unknown");
    assert_eq!(shown["resources"][0]["answered"], 1);
    // The masters that are down answered nothing.
    masters[1].kill().expect("killed");
    masters[2].kill().expect("killed");
    let down = done(quorate(&masters).args(["status", "r"]));
    assert!(
        down.out.contains("unknown: no majority answered"),
        "{down:?}"
    );
    assert!(
        down.err.contains("no quorum: 0 of 3 masters answered"),
        "{down:?}"
    );
}

#[test]
fn status_and_break_say_that_another_program_wrote_a_key_without_an_expiry() {
    let masters = masters(3);
    common::held_by_another(&masters);
    let status = done(quorate(&masters).args(["status", "r"]));
    assert_eq!(status.code, Some(0), "{status:?}");
    let said = "the lock key has no expiry, so another program wrote it";
    assert!(status.out.contains(said), "{status:?}");
    let broken = done(quorate(&masters).args(["break", "r", "--yes", "--foreign"]));
    assert_eq!(broken.code, Some(0), "{broken:?}");
    let said = "(no expiry: another program wrote this key)";
    assert!(broken.out.contains(said), "{broken:?}");
}

/// The data of another program cannot be restored after the deletion.
#[test]
fn break_deletes_the_key_of_another_program_only_with_the_option_foreign() {
    let masters = masters(3);
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
        let refused = done(quorate(&masters).args(words));
        assert_eq!(refused.code, Some(64), "{refused:?}");
        for part in ["another program wrote it on 1 of 3 masters", "--foreign"] {
            assert!(refused.err.contains(part), "{part:?}: {refused:?}");
        }
        assert_eq!(refused.out, "");
        assert_eq!(exists(key), Some(1), "{key} must still exist");
        let broken = done(quorate(&masters).args(words).arg("--foreign"));
        assert_eq!(broken.code, Some(0), "{broken:?}");
        assert!(
            broken.out.contains("deleted an important value"),
            "{broken:?}"
        );
        assert_eq!(exists(key), Some(0), "{key} must be deleted");
    }
}

#[test]
fn break_requires_the_option_yes_and_prints_the_state_before_the_break() {
    let masters = masters(3);
    let holder = run(&masters, &["--ttl", "3s", "r"], &["sleep", &mark()])
        .spawn()
        .expect("starts");
    until_held(&masters, "r");
    let unasked = done(quorate(&masters).args(["break", "r"]));
    assert_eq!(unasked.code, Some(64));
    assert!(
        unasked.err.contains("--yes") && unasked.err.lines().count() == 1,
        "{unasked:?}"
    );
    let exists = masters[0].command(&["EXISTS", "r"]).expect("a reply");
    assert_eq!(exists.int(), Some(1), "the key must still exist");

    let broken = done(quorate(&masters).args(["break", "r", "--yes", "--json"]));
    assert_eq!(broken.code, Some(0), "{broken:?}");
    let broken = json(&broken.out);
    assert_eq!(broken["verdict"], "held");
    assert_eq!(broken["masters"][0]["token"], broken["holder"]);
    let next = done(&mut run(&masters, &["--try", "r"], &["true"]));
    assert_eq!(next.code, Some(0), "{next:?}");
    let again = done(quorate(&masters).args(["break", "r", "--yes"]));
    assert!(again.out.contains("no key"), "{again:?}");
    signal(&holder, "TERM");
    end(holder);
}

#[test]
fn every_command_has_a_manual_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let man = done(common::bare().args(["man", "--out"]).arg(dir.path()));
    assert_eq!(man.code, Some(0), "{man:?}");
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
        let script = done(common::bare().args(["completions", shell]));
        assert!(
            script.code == Some(0) && script.out.contains("max-hold"),
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
        let help = done(common::bare().args(command));
        assert_eq!(help.code, Some(0));
        assert!(
            help.out.contains("Exit codes:") && help.out.contains("Examples:"),
            "{command:?}"
        );
    }
    assert_eq!(done(&mut common::bare()).code, Some(64));
}

#[test]
fn break_with_the_option_slot_deletes_one_of_the_permits_listed_by_status() {
    let masters = masters(3);
    let permit = |note: &str| {
        let options = ["--permits", "2", "--note", note, "api"];
        run(&masters, &options, &["sleep", &mark()])
            .spawn()
            .expect("starts")
    };
    let reader = |note: &str| {
        let options = ["--shared", "--note", note, "doc"];
        run(&masters, &options, &["sleep", &mark()])
            .spawn()
            .expect("starts")
    };
    let holders = [
        permit("one"),
        permit("two"),
        reader("here"),
        reader("there"),
    ];
    let status = || json(&done(quorate(&masters).args(["status", "--json", "api", "doc"])).out);
    let texts = |holds: &Value| -> Vec<String> {
        let holds = holds.as_array().into_iter().flatten();
        let text = |hold: &Value| hold["note"]["text"].as_str().map(str::to_owned);
        let mut texts: Vec<String> = holds.filter_map(text).collect();
        texts.sort_unstable();
        texts
    };
    common::until("status shows the notes of all holders", || {
        let seen = status();
        texts(&seen["resources"][0]["permits"]) == ["one", "two"]
            && texts(&seen["resources"][1]["holds"]) == ["here", "there"]
    });
    let seen = status();
    assert_eq!(seen["resources"][0]["verdict"], "free");
    assert_eq!(seen["resources"][0]["permits"][1]["slot"], 1);
    assert_eq!(seen["resources"][0]["permits"][1]["verdict"], "held");
    let text = done(quorate(&masters).args(["status", "api", "doc"])).out;
    let parts = "api: plain lock free; 2 permits held (|2 held, 0 waiting|doc: held by readers (|one|two|here|there";
    for part in parts.split('|') {
        assert!(text.contains(part), "{part:?} must be in {text}");
    }
    let list = done(quorate(&masters).args(["status"])).out;
    for part in [
        "api, permit in slot 0",
        "api, permit in slot 1",
        "here",
        "there",
    ] {
        assert!(list.contains(part), "{part:?} must be in {list}");
    }
    let none = done(quorate(&masters).args(["break", "api", "--slot", "64", "--yes"]));
    assert_eq!(none.code, Some(64), "{none:?}");
    let line = "quorate: cannot use 'api' as the name of a lock: there is no slot 64: the slots of a semaphore are 0 \
                to 63\n";
    assert_eq!(none.err, line);
    let broken = done(quorate(&masters).args(["break", "api", "--slot", "0", "--yes"]));
    assert_eq!(broken.code, Some(0), "{broken:?}");
    assert!(broken.out.contains("deleted"), "{broken:?}");
    let next = done(&mut run(
        &masters,
        &["--permits", "2", "--try", "api"],
        &["true"],
    ));
    assert_eq!(next.code, Some(0), "{next:?}");
    for holder in holders {
        signal(&holder, "TERM");
        end(holder);
    }
}

#[test]
fn status_shows_waiters_for_a_permit_even_if_no_permit_is_held() {
    let masters = masters(3);
    let free = done(quorate(&masters).args(["status", "api"]));
    assert!(!free.out.contains("semaphore"), "{free:?}");
    let all = |words: &[&str]| {
        for master in &masters {
            master.command(words).expect("a reply");
        }
    };
    all(&["SET", "quorate:slot:0:api", "somebody", "PX", "600000"]);
    let waits = run(&masters, &["--permits", "1", "api"], &["true"]).spawn();
    let waits = waits.expect("starts");
    common::until("a waiter is queued on all masters", || {
        masters.iter().all(|master| {
            let line = master.command(&["EXISTS", "quorate:queue:quorate:slot:line:api"]);
            line.expect("a reply").int() == Some(1)
        })
    });
    // The stopped waiter cannot take the free permit, but stays in the queue until its heartbeat expires.
    signal(&waits, "STOP");
    all(&["DEL", "quorate:slot:0:api"]);
    let status = json(&done(quorate(&masters).args(["status", "--json", "api"])).out);
    let text = done(quorate(&masters).args(["status", "api"])).out;
    signal(&waits, "KILL");
    end(waits);
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
    let masters = masters(3);
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
    let look = |words: &[&str]| done(quorate(&masters).env("QUORATE_MASTERS", &urls).args(words));
    let text = look(&["status", "api"]);
    assert_eq!(text.code, Some(0), "{text:?}");
    assert!(text.out.contains("api: free"), "{text:?}");
    assert!(
        text.out.contains("cannot read its permits") && text.out.contains("NOPERM"),
        "{text:?}"
    );
    assert!(!text.out.contains("word"), "{text:?}");
    let status = json(&look(&["status", "--json", "api"]).out);
    let why = status["resources"][0]["permits_error"]
        .as_str()
        .expect("status must report why the semaphore could not be read");
    assert!(why.contains("NOPERM"), "{why}");
    // The default user can read the semaphore, so this status contains no error.
    let all = json(&done(quorate(&masters).args(["status", "--json", "api"])).out);
    assert_eq!(all["resources"][0]["permits_error"], Value::Null);
}
