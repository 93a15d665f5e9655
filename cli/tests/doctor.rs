//! `quorate doctor` on real masters: each illness is found, and health is told as such.

mod common;

use common::{Done, done, quorate};
use quorate_testbed::{Masters, Persistence, ServerOptions};
use serde_json::Value;

fn durable(n: usize) -> Masters {
    Masters::start_with(n, |_| {
        ServerOptions::new().persistence(Persistence::AofAlways)
    })
    .expect("masters start")
}

fn examine(masters: &Masters, options: &[&str]) -> (Done, Value) {
    let run = done(quorate(masters).args(["doctor", "--json"]).args(options));
    let json = serde_json::from_str(&run.out).expect("JSON");
    (run, json)
}

/// The checks that found something of this severity.
fn found(json: &Value, severity: &str) -> Vec<String> {
    let findings = json["findings"].as_array().expect("findings");
    findings
        .iter()
        .filter(|finding| finding["severity"] == severity)
        .map(|finding| finding["check"].as_str().expect("a check").to_owned())
        .collect()
}

#[test]
fn healthy_masters_are_well() {
    let masters = durable(3);
    let (run, json) = examine(&masters, &[]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(json["well"], true);
    assert_eq!(
        json["findings"].as_array().map(Vec::len),
        Some(0),
        "{run:?}"
    );
    let first = &json["masters"][0];
    assert_eq!(first["appendfsync"], "always");
    assert_eq!(first["maxmemory_policy"], "noeviction");
    assert!(first["latency_ms"].as_f64().is_some_and(|ms| ms > 0.0));
    assert!(
        first["clock_offset_ms"]
            .as_i64()
            .is_some_and(|ms| ms.abs() < 500)
    );
    let text = done(quorate(&masters).arg("doctor"));
    assert!(text.out.contains("all is well"), "{text:?}");
}

#[test]
fn illnesses_are_found_and_the_exit_code_says_so() {
    let masters = durable(5);
    let set = |n: usize, command: &[&str]| {
        assert!(
            masters[n].command(command).expect("alive").is_ok(),
            "{command:?}"
        );
    };
    set(0, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let replica_of = masters[0].port().to_string();
    set(1, &["REPLICAOF", "127.0.0.1", &replica_of]);
    masters[2].kill().expect("killed");
    let (run, json) = examine(&masters, &[]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let mut errors = found(&json, "error");
    errors.sort();
    assert_eq!(errors, ["eviction", "reachable", "role"], "{run:?}");
    for finding in json["findings"].as_array().expect("findings") {
        assert!(
            finding["advice"]
                .as_str()
                .is_some_and(|advice| !advice.is_empty())
        );
    }
}

#[test]
fn one_server_under_two_addresses_is_found() {
    let masters = durable(2);
    let one = masters.urls()[0].clone();
    let again = format!("unix://{}", masters[0].unix_socket().display());
    let list = [one, again, masters.urls()[1].clone()].join(",");
    let (run, json) = examine(&masters, &["--masters", &list]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_eq!(found(&json, "error"), ["run_id"], "{run:?}");
}

#[test]
fn a_young_master_is_told_apart_from_a_forgetful_one() {
    let masters = common::masters(3); // without persistence
    let (run, json) = examine(&masters, &["--restart-guard", "on"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_eq!(found(&json, "error"), [] as [&str; 0], "{run:?}");
    assert_eq!(found(&json, "warning"), ["uptime"; 3], "{run:?}");
    assert_eq!(found(&json, "note"), ["persistence"; 3], "{run:?}");
    let (run, json) = examine(&masters, &["--restart-guard", "off"]);
    assert_eq!(found(&json, "error"), ["persistence"; 3], "{run:?}");
}

#[test]
fn a_user_with_too_few_rights_is_found() {
    let masters = Masters::start_with(3, |_| {
        ServerOptions::new()
            .persistence(Persistence::AofAlways)
            .acl("clerk on >s3cret ~jobs:* ~quorate:* +@all -evalsha -config")
            .login("clerk", "s3cret")
    })
    .expect("masters start");
    let (run, json) = examine(&masters, &["--prefix", "jobs:"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_eq!(found(&json, "error"), ["acl"; 3], "{run:?}");
    assert_eq!(
        json["masters"][0]["denied"],
        serde_json::json!(["EVALSHA"]),
        "{run:?}"
    );
    let (run, json) = examine(&masters, &[]);
    assert!(run.out.contains("on keys like"), "{json}");
    assert!(
        !run.out.contains("s3cret") && !run.err.contains("s3cret"),
        "{run:?}"
    );
}

#[test]
fn without_a_quorum_it_is_69() {
    let masters = durable(3);
    masters[0].kill().expect("killed");
    masters[1].stop().expect("stopped");
    let (run, json) = examine(&masters, &[]);
    assert_eq!(run.code, Some(69), "{run:?}");
    assert!(
        found(&json, "error").contains(&"quorum".to_owned()),
        "{run:?}"
    );
    masters[1].cont().expect("continued");
}
