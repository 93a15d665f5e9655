//! Tests of `quorate doctor` on real masters: it must report each problem. If the masters are healthy, it must report
//! none.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use crate::common::{self, RunOutput, output_of, quorate_command, quorate_on};
use quorate_testbed::{Fault, Masters, Persistence, Proxy, Server, ServerOptions};
use serde_json::Value;

fn durable_masters(n: usize) -> Masters {
    Masters::start_with(n, |_| {
        ServerOptions::new().persistence(Persistence::AofAlways)
    })
    .expect("masters start")
}

/// `quorate doctor` with longer timeouts than the defaults, because the tests share the processors.
fn patient_command(masters: &Masters) -> Command {
    let mut command = quorate_on(masters);
    command
        .env("QUORATE_NODE_TIMEOUT", "1s")
        .env("QUORATE_CONNECT_TIMEOUT", "5s");
    command
}

fn examine(masters: &Masters, options: &[&str]) -> (RunOutput, Value) {
    let run = output_of(
        patient_command(masters)
            .args(["doctor", "--json"])
            .args(options),
    );
    let json = serde_json::from_str(&run.stdout).expect("JSON");
    (run, json)
}

/// The names of the checks for which `doctor` reports a finding of this severity.
fn checks_of(json: &Value, severity: &str) -> Vec<String> {
    let findings = json["findings"].as_array().expect("findings");
    findings
        .iter()
        .filter(|finding| finding["severity"] == severity)
        .map(|finding| finding["check"].as_str().expect("a check").to_owned())
        .collect()
}

/// The second address leads to two servers in turn.
#[test]
fn doctor_and_mark_refuse_an_address_that_leads_to_several_servers() {
    let servers = durable_masters(4);
    let proxy = Proxy::start(servers[1].addr()).expect("a proxy");
    let _turns = proxy.inject(Fault::InTurn(servers[3].addr()));
    let second_url = servers[1].url_at(proxy.addr());
    let urls = [servers[0].url(), second_url.clone(), servers[2].url()].join(",");
    let run_with_urls = |words: &[&str]| {
        output_of(
            patient_command(&servers)
                .args(words)
                .args(["--masters", &urls]),
        )
    };
    let run = run_with_urls(&["doctor", "--json"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let json: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(checks_of(&json, "error"), ["address"], "{run:?}");
    let findings = json["findings"].as_array().expect("findings");
    let address_finding = findings
        .iter()
        .find(|finding| finding["check"] == "address");
    let master = address_finding.expect("the finding")["master"].as_str();
    assert_eq!(master, Some(proxy.addr().to_string().as_str()));
    let run = run_with_urls(&["masters", "mark"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stderr.contains("leads to 2 servers in turn"), "{run:?}");
}

#[test]
fn doctor_reports_masters_whose_marker_does_not_bear_the_configured_name() {
    let masters = durable_masters(3);
    let name_option = ["--masters-name", "orders"];
    let (run, json) = examine(&masters, &name_option);
    assert_eq!(run.code, Some(69), "{run:?}");
    assert_eq!(checks_of(&json, "error")[1..], ["generation"; 3], "{run:?}");
    let mark_masters = |name: &[&str]| {
        output_of(
            patient_command(&masters)
                .args(["masters", "mark"])
                .args(name),
        )
    };
    let run = mark_masters(&name_option);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(
        checks_of(&examine(&masters, &name_option).1, "error"),
        [""; 0]
    );
    let (run, json) = examine(&masters, &["--masters-name", "others"]);
    assert_eq!(run.code, Some(69), "{run:?}");
    assert_eq!(checks_of(&json, "error")[1..], ["generation"; 3], "{run:?}");
    let run = mark_masters(&["--masters-name", "two words"]);
    assert_eq!(run.code, Some(64), "{run:?}");
    assert!(run.stderr.contains("masters_name"), "{run:?}");
}

#[test]
fn doctor_finds_no_problem_on_healthy_masters() {
    let masters = durable_masters(3);
    let (run, json) = examine(&masters, &[]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(json["well"], true);
    let findings = json["findings"].as_array().expect("findings");
    // Ignore findings of the check `version`: the list of tested versions need not contain the installed server's
    // version.
    assert!(findings.iter().all(|f| f["check"] == "version"), "{run:?}");
    let first_master = &json["masters"][0];
    assert_eq!(first_master["appendfsync"], "always");
    assert_eq!(first_master["maxmemory_policy"], "noeviction");
    assert!(
        first_master["latency_ms"]
            .as_f64()
            .is_some_and(|ms| ms > 0.0)
    );
    assert!(
        first_master["clock_offset_ms"]
            .as_i64()
            .is_some_and(|ms| ms.abs() < 500)
    );
    assert_eq!(first_master["wake_ups"], true);
    assert!(
        first_master["connect_ms"]
            .as_f64()
            .is_some_and(|ms| ms > 0.0)
    );
    let text = output_of(patient_command(&masters).arg("doctor"));
    assert!(text.stdout.contains("all is well"), "{text:?}");
}

#[test]
fn doctor_reports_masters_that_are_out_of_memory() {
    let masters = durable_masters(3);
    let fill = |n: usize| {
        let reply = masters[n].command(&["CONFIG", "SET", "maxmemory", "1"]);
        assert!(reply.expect("a reply").is_ok());
    };
    fill(0);
    let (run, json) = examine(&masters, &[]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_eq!(checks_of(&json, "error"), ["memory"], "{run:?}");
    fill(1);
    let (run, json) = examine(&masters, &[]);
    assert_eq!(run.code, Some(69), "{run:?}");
    assert_eq!(
        checks_of(&json, "error"),
        ["quorum", "memory", "memory"],
        "{run:?}"
    );
    let lock_run = output_of(patient_command(&masters).args(["run", "--try", "r", "--", "true"]));
    assert_eq!(lock_run.code, Some(69), "{lock_run:?}");
}

#[test]
fn doctor_reports_records_and_quotas_that_masters_have_lost() {
    let masters = durable_masters(3);
    for words in [
        &["once", "--create", "report"][..],
        &["quota", "create", "it's", "3"],
    ] {
        let created_run = output_of(patient_command(&masters).args(words));
        assert_eq!(created_run.code, Some(0), "{created_run:?}");
    }
    let (run, json) = examine(&masters, &[]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(json["well"], true, "{run:?}");
    let lose = |n: usize, name: &str| {
        let key = format!("quorate:value:{name}");
        let reply = masters[n].command(&["DEL", &key]).expect("a reply");
        assert_eq!(reply.int(), Some(1));
    };
    lose(0, "report");
    let (run, json) = examine(&masters, &[]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_eq!(checks_of(&json, "warning"), ["values"], "{run:?}");
    assert!(
        run.stdout.contains("quorate once --status report"),
        "{run:?}"
    );
    let once_status_run = output_of(patient_command(&masters).args(["once", "--status", "report"]));
    assert_eq!(once_status_run.code, Some(0), "{once_status_run:?}");
    let (run, _) = examine(&masters, &[]);
    assert_eq!(
        run.code,
        Some(0),
        "the call must restore the record: {run:?}"
    );
    lose(0, "it's");
    lose(1, "it's");
    let (run, json) = examine(&masters, &[]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_eq!(checks_of(&json, "error"), ["values"], "{run:?}");
    let findings = json["findings"].as_array().expect("findings");
    let values_finding = findings.iter().find(|f| f["check"] == "values");
    let advice = values_finding.expect("a finding")["advice"].as_str();
    let advice = advice.expect("a text");
    assert!(
        advice.starts_with("if you had dropped it, only drop it again"),
        "{advice}"
    );
    assert!(
        advice.contains(r"`quorate quota drop 'it'\''s' --yes`"),
        "{advice}"
    );
    let (run, _) = examine(&masters, &["--prefix", "other:"]);
    assert_eq!(
        run.code,
        Some(0),
        "values of another prefix do not count: {run:?}"
    );
}

#[test]
fn doctor_reports_problems_of_the_masters_and_exits_with_1() {
    let masters = durable_masters(5);
    let set_succeeds = |n: usize, command: &[&str]| {
        assert!(
            masters[n].command(command).expect("a reply").is_ok(),
            "{command:?}"
        );
    };
    set_succeeds(0, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let replica_of = masters[0].port().to_string();
    set_succeeds(1, &["REPLICAOF", "127.0.0.1", &replica_of]);
    masters[2].kill().expect("killed");
    let (run, json) = examine(&masters, &[]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let mut error_checks = checks_of(&json, "error");
    error_checks.sort();
    assert_eq!(error_checks, ["eviction", "reachable", "role"], "{run:?}");
    for finding in json["findings"].as_array().expect("findings") {
        assert!(
            finding["advice"]
                .as_str()
                .is_some_and(|advice| !advice.is_empty())
        );
    }
}

#[test]
fn doctor_reports_a_server_that_is_listed_under_two_addresses() {
    let masters = durable_masters(2);
    let address = masters.urls()[0].clone();
    let second_address = format!("unix://{}", masters[0].unix_socket().display());
    let master_list = [address, second_address, masters.urls()[1].clone()].join(",");
    let (run, json) = examine(&masters, &["--masters", &master_list]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_eq!(checks_of(&json, "error"), ["run_id"], "{run:?}");
}

#[test]
fn doctor_distinguishes_a_recently_started_master_from_one_without_persistence() {
    let masters = common::start_masters(3); // these masters have no persistence
    let (run, json) = examine(&masters, &["--restart-guard", "on"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_eq!(checks_of(&json, "error"), ["uptime"], "{run:?}");
    assert_eq!(checks_of(&json, "warning"), ["uptime"; 3], "{run:?}");
    assert_eq!(
        checks_of(&json, "note"),
        ["marked", "persistence", "persistence", "persistence"],
        "{run:?}"
    );
    let (run, json) = examine(&masters, &["--restart-guard", "off"]);
    assert_eq!(checks_of(&json, "error"), ["persistence"; 3], "{run:?}");
}

#[test]
fn doctor_names_the_missing_rights_of_a_user() {
    let masters = Masters::start_with(3, |_| {
        ServerOptions::new()
            .persistence(Persistence::AofAlways)
            .acl("clerk on >s3cret ~jobs:* ~quorate:* resetchannels &quorate:* +@all -evalsha -config")
            .login("clerk", "s3cret")
    })
    .expect("masters start");
    let (run, json) = examine(&masters, &["--prefix", "jobs:"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_eq!(checks_of(&json, "error"), ["acl"; 3], "{run:?}");
    assert_eq!(
        json["masters"][0]["denied"],
        // CONFIG GET is in the list because `doctor` reads the persistence settings with it.
        serde_json::json!(["EVALSHA", "CONFIG GET"]),
        "{run:?}"
    );
    let (run, json) = examine(&masters, &["--prefix", "other:"]);
    assert!(run.stdout.contains("keys like other:*"), "{json}");
    assert!(
        !run.stdout.contains("s3cret") && !run.stderr.contains("s3cret"),
        "{run:?}"
    );
}

#[test]
fn doctor_without_a_quorum_exits_with_69() {
    let masters = durable_masters(3);
    masters[0].kill().expect("killed");
    masters[1].stop().expect("stopped");
    let (run, json) = examine(&masters, &[]);
    assert_eq!(run.code, Some(69), "{run:?}");
    assert!(
        checks_of(&json, "error").contains(&"quorum".to_owned()),
        "{run:?}"
    );
    masters[1].cont().expect("continued");
}

/// The words of the `ACL SETUSER` command in docs/operations.md.
fn documented_rights() -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let line = page.lines().find(|line| line.starts_with("ACL SETUSER "));
    let words = line
        .expect("the page must print the command")
        .split_whitespace();
    words.map(str::to_owned).collect()
}

/// Runs the `ACL SETUSER` command of docs/operations.md on every master. If `without` is a word of this command, leaves
/// out that word, so that the user lacks this right.
fn grant_rights(masters: &Masters, without: Option<&str>) {
    let words: Vec<String> = documented_rights()
        .into_iter()
        .filter(|word| Some(word.as_str()) != without)
        .collect();
    for master in masters {
        let reply = master.command(&words).expect("a reply");
        assert!(reply.is_ok(), "{words:?}: {reply:?}");
    }
}

/// Runs `quorate doctor` as the user that docs/operations.md creates. Its password is the literal word PASSWORD.
fn examine_as_locker(masters: &Masters, options: &[&str]) -> (RunOutput, Value) {
    let url = |master: &Server| format!("redis://quorate:PASSWORD@{}", master.addr());
    let urls: Vec<String> = masters.iter().map(url).collect();
    let master_list = urls.join(",");
    let mut all_options = vec![
        "--masters",
        &master_list,
        "--restart-guard",
        "after-first-contact",
    ];
    all_options.extend(options);
    examine(masters, &all_options)
}

#[test]
fn doctor_reports_no_missing_right_for_a_user_with_the_documented_rights() {
    let masters = durable_masters(3);
    grant_rights(&masters, None);
    let (run, json) = examine_as_locker(&masters, &["--prefix", "lock:"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(json["well"], true);
    assert_eq!(json["masters"][0]["denied"], serde_json::json!([]));
    assert_eq!(json["masters"][0]["wake_ups"], true);
}

#[test]
fn doctor_names_any_documented_right_that_a_user_lacks() {
    let masters = durable_masters(1);
    let rights = documented_rights();
    let rights = rights
        .iter()
        .filter(|word| word.starts_with(['+', '~', '&']));
    for right in rights {
        grant_rights(&masters, Some(right));
        let (run, json) = examine_as_locker(&masters, &["--prefix", "lock:"]);
        assert_ne!(run.code, Some(0), "{right}: {run:?}");
        let grants = &json["masters"][0]["grant"];
        assert_eq!(grants, &serde_json::json!([right]), "{right}: {run:?}");
        let findings = json["findings"].as_array().expect("findings");
        assert!(
            findings.iter().any(
                |f| f["check"] == "acl" && f["advice"] == format!("ACL SETUSER <user> {right}")
            ),
            "{right}: {run:?}"
        );
    }
}

#[test]
fn doctor_recommends_the_option_prefix_to_a_user_limited_to_some_keys() {
    let masters = durable_masters(3);
    grant_rights(&masters, None);
    // Without `--prefix`, `doctor` does not know which keys the user needs. It must report a warning, not an error.
    let (run, json) = examine_as_locker(&masters, &[]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_eq!(checks_of(&json, "error"), [] as [&str; 0], "{run:?}");
    assert_eq!(checks_of(&json, "warning"), ["acl"; 3], "{run:?}");
    assert!(run.stdout.contains("--prefix"), "{run:?}");
}

/// How a scripted server reacts to received data: a function of the connection and the data.
type Reaction = fn(&mut TcpStream, &[u8]) -> std::io::Result<()>;

/// Starts a scripted server on a free port, and returns its URL. It runs until the test program ends.
fn start_fake_server(reaction: Reaction) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there must be a free port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut received = vec![0; 1 << 16];
                while let Ok(count @ 1..) = stream.read(&mut received) {
                    if reaction(&mut stream, &received[..count]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    format!("redis://{address}")
}

/// Reacts as a server that is too old for RESP3: replies with an error to the command HELLO.
fn refuse_hello(stream: &mut TcpStream, received: &[u8]) -> std::io::Result<()> {
    let received = String::from_utf8_lossy(received);
    for line in received.split("\r\n").filter(|line| line.starts_with('*')) {
        let _ = line;
        stream.write_all(b"-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n")?;
    }
    Ok(())
}

/// Never replies.
fn do_not_answer(stream: &mut TcpStream, _: &[u8]) -> std::io::Result<()> {
    stream.flush()
}

/// Closes the connection as soon as data arrives.
fn disconnect(stream: &mut TcpStream, _: &[u8]) -> std::io::Result<()> {
    stream.shutdown(std::net::Shutdown::Both)
}

fn answer_with_http(stream: &mut TcpStream, _: &[u8]) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
}

#[test]
fn doctor_reports_every_master_that_cannot_be_used_for_locks() {
    for (reaction, check, word) in [
        (refuse_hello as Reaction, "version", "RESP3"),
        (do_not_answer, "reachable", "within"),
        (disconnect, "reachable", "closed"),
        (answer_with_http, "reachable", "HTTP"),
    ] {
        let master_list = [
            start_fake_server(reaction),
            start_fake_server(reaction),
            start_fake_server(reaction),
        ]
        .join(",");
        let run_quorate = |args: &[&str]| {
            let mut command = quorate_command();
            command
                .env("QUORATE_MASTERS", &master_list)
                .env("QUORATE_CONNECT_TIMEOUT", "500ms");
            output_of(command.args(args))
        };
        let lock_run = run_quorate(&["run", "--try", "r", "--", "true"]);
        assert_eq!(lock_run.code, Some(69), "{lock_run:?}");
        let doctor = run_quorate(&["doctor", "--json"]);
        assert_eq!(doctor.code, Some(69), "{doctor:?}");
        let json: Value = serde_json::from_str(&doctor.stdout).expect("JSON");
        assert_eq!(checks_of(&json, "error")[1..], [check; 3], "{doctor:?}");
        for master in json["masters"].as_array().expect("masters") {
            assert_eq!(master["reachable"], false);
            assert!(
                master["error"]
                    .as_str()
                    .is_some_and(|error| error.contains(word)),
                "{doctor:?}"
            );
        }
    }
}

/// Tests servers that the library must refuse (Redis 5 and older). The variable `QUORATE_TEST_OLD_SERVERS` contains the
/// paths of their programs, separated by commas. Nothing is tested if the variable is not set.
#[test]
fn doctor_reports_the_version_of_servers_that_are_too_old() {
    let programs = std::env::var("QUORATE_TEST_OLD_SERVERS").unwrap_or_default();
    for program in programs.split(',').filter(|path| !path.is_empty()) {
        let masters = Masters::start_with(3, |_| ServerOptions::new().program(program));
        let masters = masters.expect("masters start");
        let (run, json) = examine(&masters, &[]);
        assert_eq!(run.code, Some(69), "{run:?}");
        assert_eq!(checks_of(&json, "error")[1..], ["version"; 3], "{run:?}");
    }
}

#[test]
fn doctor_distinguishes_a_wrong_password_from_a_missing_right() {
    let masters = durable_masters(3);
    grant_rights(&masters, None);
    let url = |master: &Server| format!("redis://quorate:not-s3cret@{}", master.addr());
    let urls: Vec<String> = masters.iter().map(url).collect();
    let (run, json) = examine(&masters, &["--masters", &urls.join(",")]);
    assert_eq!(run.code, Some(69), "{run:?}");
    assert_eq!(checks_of(&json, "error")[1..], ["login"; 3], "{run:?}");
    assert!(!run.stdout.contains("not-s3cret"), "{run:?}");
}
