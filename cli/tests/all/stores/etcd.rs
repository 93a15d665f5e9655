//! Tests of etcd clusters that are configured wrongly, and of the checks of `doctor` for them.

use std::process::Command;

use super::{assert_has_line, assert_refused, run_doctor, run_lock, run_quorate};
use crate::common::{output_of, quorate_command};
use quorate_testbed::{Etcd, EtcdOptions, TestServer as _, not_run};

fn etcd(options: &EtcdOptions) -> Option<Etcd> {
    if let Some(why) = Etcd::missing() {
        not_run(std::thread::current().name().unwrap_or("a test"), &why);
        return None;
    }
    let started = Etcd::start_with(options);
    Some(started.unwrap_or_else(|error| panic!("{error}")))
}

/// Runs `quorate prepare-server`, and returns its output.
fn prepare(url: &str) -> String {
    let run = output_of(quorate_command().args(["prepare-server", url]));
    assert_eq!(run.code, Some(0), "{run:?}");
    run.stdout
}

fn url(cluster: &Etcd) -> String {
    format!("{}?timeout=2s", cluster.url("locks"))
}

fn name(cluster: &Etcd) -> String {
    let hosts: Vec<String> = cluster.addrs().iter().map(ToString::to_string).collect();
    format!("etcd {}/locks", hosts.join("+"))
}

/// Runs `etcdctl` with these arguments, separated by spaces.
fn ctl(cluster: &Etcd, arguments: &str) -> String {
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let output = cluster.ctl(&arguments);
    output.unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
}

/// Runs `quorate run`, which must fail at once, and `doctor`. Both must name the master and contain `words`.
#[track_caller]
fn assert_reported(url: &str, name: &str, check: &str, words: &[&str]) {
    let words = [&[name], words].concat();
    assert_refused(&run_lock(url), &words);
    let (run, lines) = run_doctor(url);
    assert_eq!(run.code, Some(69), "{run:?}");
    assert_has_line(&lines, &format!("error {check}"), &words);
}

#[test]
fn etcd_without_its_identity_is_reported_with_the_remedy() {
    let Some(cluster) = etcd(&EtcdOptions::new()) else {
        return;
    };
    let (url, name) = (url(&cluster), name(&cluster));
    assert_reported(&url, &name, "prepared", &["quorate prepare-server"]);
    assert!(prepare(&url).contains("prepared"));
    assert!(prepare(&url).contains("was already prepared"));
    assert_eq!(run_lock(&url).code, Some(0));
    let (run, lines) = run_doctor(&url);
    assert!(
        !lines.iter().any(|line| line.starts_with("error")),
        "{run:?}"
    );
    assert_has_line(
        &lines,
        "note history",
        &[&name, "--auto-compaction-retention"],
    );
    // A cluster of one member cannot lose a member, so it must not be the only master.
    assert_has_line(&lines, "warning", &["only"]);
    let run = run_quorate(&url, &["status", "--json"]);
    assert_eq!(run.code, Some(0), "{run:?}");

    // Two prefixes of one cluster are one master.
    let both = format!("{url},{}?timeout=2s", cluster.url("others"));
    assert_refused(&run_lock(&both), &["same server"]);
    let (_, lines) = run_doctor(&both);
    assert_has_line(&lines, "error run_id", &["once"]);
}

#[test]
fn printed_script_of_prepare_server_prepares_an_etcd() {
    let Some(cluster) = etcd(&EtcdOptions::new()) else {
        return;
    };
    let url = url(&cluster);
    let printed = output_of(quorate_command().args(["prepare-server", "--print", &url]));
    assert_eq!(printed.code, Some(0), "{printed:?}");
    let script = Command::new("sh").args(["-c", &printed.stdout]).output();
    let script = script.expect("a shell");
    assert!(script.status.success(), "{script:?}");
    assert!(prepare(&url).contains("was already prepared"));
    assert_eq!(run_lock(&url).code, Some(0));
    let login = "etcd://ann:hunter2@127.0.0.1:1/locks";
    let printed = output_of(quorate_command().args(["prepare-server", "--print", login]));
    assert_eq!(printed.code, Some(0), "{printed:?}");
    assert!(!printed.stdout.contains("hunter2"), "{printed:?}");
    for (wrong, words) in [
        ("etcd://h1,h2/locks", "+"),
        ("etcds://h", "etcd+tls://"),
        ("etcd://ann@h", "password"),
    ] {
        let run = output_of(quorate_command().args(["prepare-server", "--print", wrong]));
        assert_eq!(run.code, Some(64), "{run:?}");
        assert!(run.stderr.contains(words), "{wrong}: {run:?}");
    }
}

#[test]
fn doctor_distinguishes_a_missing_right_from_a_wrong_password_of_etcd() {
    let Some(cluster) = etcd(&EtcdOptions::new()) else {
        return;
    };
    let (admin, name) = (url(&cluster), name(&cluster));
    let grants = prepare(&admin);
    for command in [
        "user add root:r00t",
        "user grant-role root root",
        "user add app:hunter2",
        "user add idle:hunter2",
    ] {
        ctl(&cluster, command);
    }
    for grant in grants
        .lines()
        .filter_map(|line| line.trim().strip_prefix("etcdctl "))
    {
        ctl(&cluster, &grant.replace("USER", "app").replace('\'', ""));
    }
    ctl(&cluster, "auth enable");
    let url = |login: &str| admin.replacen("://", &format!("://{login}@"), 1);
    assert_eq!(run_lock(&url("app:hunter2")).code, Some(0));
    assert_reported(&url("idle:hunter2"), &name, "acl", &["/quorate-server"]);
    assert_reported(&url("app:hunter3"), &name, "login", &["password"]);
    let run = run_lock(&url("app:hunter3"));
    assert!(!run.stderr.contains("hunter3"), "{run:?}");
    assert_reported(&admin, &name, "login", &["user"]);
}

#[test]
fn etcd_whose_database_is_full_is_reported_with_what_to_do() {
    let Some(cluster) = etcd(&EtcdOptions::new().argument("--quota-backend-bytes=1048576")) else {
        return;
    };
    let (url, name) = (url(&cluster), name(&cluster));
    prepare(&url);
    assert_eq!(run_lock(&url).code, Some(0));
    let value = "x".repeat(100_000);
    let is_full = (0..100).any(|number| {
        let key = format!("other-{number}");
        cluster.ctl(&["put", &key, &value]).is_err()
    });
    assert!(is_full, "the quota must end");
    let words = ["etcdctl compact", "etcdctl alarm disarm"];
    let run = run_quorate(&url, &["run", "--wait", "2s", "nightly", "--", "true"]);
    assert_refused(&run, &[&[&name[..]], &words[..]].concat());
    let (run, lines) = run_doctor(&url);
    assert_ne!(run.code, Some(0), "{run:?}");
    assert_has_line(&lines, "error space", &[&[&name[..]], &words[..]].concat());
}

#[test]
fn etcd_without_a_leader_and_a_server_of_another_kind_are_reported() {
    let Some(cluster) = etcd(&EtcdOptions::new().members(3)) else {
        return;
    };
    let (url, name) = (url(&cluster), name(&cluster));
    prepare(&url);
    let (run, lines) = run_doctor(&url);
    // A cluster of three members may be the only master.
    assert!(
        !lines.iter().any(|line| !line.starts_with("note")),
        "{run:?}"
    );
    for member in [0, 1] {
        Etcd::kill(&cluster, member).expect("killed");
    }
    crate::common::wait_until("the last member has noticed the loss", || {
        cluster.figure(2, "etcd_server_has_leader") == Some(0.0)
    });
    let run = run_quorate(&url, &["run", "--wait", "2s", "nightly", "--", "true"]);
    assert_refused(&run, &[&name]);
    let (run, lines) = run_doctor(&url);
    assert_eq!(run.code, Some(69), "{run:?}");
    assert_has_line(&lines, "error", &[&name, "no leader"]);

    // The URL has the scheme of another kind of server.
    let redis = format!("redis://{}", cluster.addr(2));
    let run = run_quorate(&redis, &["run", "--wait", "2s", "nightly", "--", "true"]);
    assert_eq!(run.code, Some(69), "{run:?}");
}
