//! Tests of the command line with masters other than Redis, and with masters of different kinds.

use crate::common::{bare, done};
use quorate_testbed::{MariaDb, MariaDbOptions, Server, ServerOptions, not_run};

/// Starts a MariaDB. If it is not installed, reports that `test` did not run, and returns `None`.
fn mariadb(test: &str) -> Option<MariaDb> {
    if let Err(why) = MariaDb::available() {
        not_run(test, &why.to_string());
        return None;
    }
    Some(MariaDb::start(MariaDbOptions::new()).unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn run_succeeds_on_a_database_only_after_prepare_server() {
    let Some(server) = mariadb("run_succeeds_on_a_database_only_after_prepare_server") else {
        return;
    };
    let url = server.url("locks");
    let with_time = format!("{url}?timeout=2s");
    let quorate = |words: &[&str]| {
        let mut command = bare();
        command.env("QUORATE_MASTERS", &with_time);
        command.env("QUORATE_RESTART_GUARD", "off");
        done(command.args(words))
    };
    let early = quorate(&["run", "--wait", "1s", "nightly", "--", "true"]);
    assert_eq!(early.code, Some(69), "{early:?}");
    assert!(early.err.contains("quorate prepare-server"), "{early:?}");

    for said in ["prepared", "was already prepared"] {
        let prepared = done(bare().args(["prepare-server", &url]));
        assert_eq!(prepared.code, Some(0), "{prepared:?}");
        assert!(prepared.out.contains(said), "{prepared:?}");
        assert!(
            prepared
                .out
                .contains("grant for the account that takes locks"),
            "{prepared:?}"
        );
    }
    let held = quorate(&[
        "run",
        "nightly",
        "--",
        "sh",
        "-c",
        "test $QUORATE_FENCING_TOKEN -gt 0",
    ]);
    assert_eq!(held.code, Some(0), "{held:?}");
    let looked = quorate(&["doctor", "--json"]);
    assert!(looked.out.contains("\"mariadb\""), "{looked:?}");
    assert!(!looked.out.contains("eviction"), "{looked:?}");
}

#[test]
fn run_accepts_mixed_kinds_of_masters_but_no_invalid_url() {
    let Some(server) = mariadb("run_accepts_mixed_kinds_of_masters_but_no_invalid_url") else {
        return;
    };
    let redis = [(); 2].map(|()| Server::start(ServerOptions::new()).expect("a Redis"));
    let url = server.url("locks");
    assert_eq!(done(bare().args(["prepare-server", &url])).code, Some(0));
    let masters = format!("{},{},{url}", redis[0].url(), redis[1].url());
    let mut mixed = bare();
    mixed
        .env("QUORATE_MASTERS", masters)
        .env("QUORATE_RESTART_GUARD", "off")
        .args(["run", "nightly", "--", "true"]);
    let mixed = done(&mut mixed);
    assert_eq!(mixed.code, Some(0), "{mixed:?}");

    for (url, why) in [
        ("mysql://", "mysql://"),
        ("zk://h1++h2/locks", "a host in the list is empty"),
        ("zk://h1/", "zk"),
        ("zk://h1:2181,h2:2181/p", "zk://host:2181+host/path"),
        ("mysql+tls://root:secret@h/d", "mysqls:// for TLS"),
        ("mysql://root:secret@h1,h2/d", "a URL of its own"),
        ("mysql://root:secret@%2Frun%2Fm.sock/d", "?socket=/run"),
    ] {
        let mut wrong = bare();
        wrong.args([
            "run",
            "--masters",
            url,
            "--wait",
            "1ms",
            "nightly",
            "--",
            "true",
        ]);
        let wrong = done(&mut wrong);
        assert!(matches!(wrong.code, Some(64 | 69)), "{url}: {wrong:?}");
        assert!(wrong.err.contains(why), "{url}: {wrong:?}");
    }
    let none = done(bare().args(["prepare-server", "redis://127.0.0.1:1"]));
    assert_eq!(none.code, Some(64), "{none:?}");
    assert!(none.err.contains("need no preparation"), "{none:?}");
}

#[test]
fn run_connects_to_a_database_over_its_unix_socket() {
    let Some(server) = mariadb("run_connects_to_a_database_over_its_unix_socket") else {
        return;
    };
    server
        .sql("CREATE USER locks@localhost IDENTIFIED BY 's3cret'; GRANT ALL ON locks.* TO locks@localhost")
        .expect("a user");
    let socket = server.socket().display().to_string();
    let url = format!("mysql://locks:s3cret@localhost/locks?socket={socket}");
    let prepared = done(bare().args(["prepare-server", &url]));
    assert_eq!(prepared.code, Some(0), "{prepared:?}");
    let name = format!("mysql {socket}/locks");
    assert!(prepared.out.starts_with(&name), "{prepared:?}");
    let run = |url: &str, args: &[&str]| {
        let mut command = bare();
        command
            .env("QUORATE_MASTERS", url)
            .env("QUORATE_RESTART_GUARD", "off");
        let run = done(command.args(args));
        assert!(!(run.err.clone() + &run.out).contains("s3cret"), "{run:?}");
        run
    };
    let timed = format!("{url}&timeout=2s");
    let lock = ["run", "--wait", "5s", "nightly", "--", "true"];
    let held = run(&timed, &lock);
    assert_eq!(held.code, Some(0), "{held:?}");
    let looked = run(&timed, &["doctor", "--json"]);
    assert!(looked.out.contains(&format!("\"{name}\"")), "{looked:?}");
    server.kill().expect("the server must be killed");
    let dead = run(&timed, &["run", "--wait", "1s", "nightly", "--", "true"]);
    assert_eq!(dead.code, Some(69), "{dead:?}");
    assert!(dead.err.contains(&name), "{dead:?}");
}
