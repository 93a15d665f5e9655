//! Tests of the command line with masters other than Redis, and with masters of different kinds.

use crate::common::{output_of, quorate_command};
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
    let url_with_timeout = format!("{url}?timeout=2s");
    let quorate = |words: &[&str]| {
        let mut command = quorate_command();
        command.env("QUORATE_MASTERS", &url_with_timeout);
        command.env("QUORATE_RESTART_GUARD", "off");
        output_of(command.args(words))
    };
    let unprepared_run = quorate(&["run", "--wait", "1s", "nightly", "--", "true"]);
    assert_eq!(unprepared_run.code, Some(69), "{unprepared_run:?}");
    assert!(
        unprepared_run.stderr.contains("quorate prepare-server"),
        "{unprepared_run:?}"
    );

    for report in ["prepared", "was already prepared"] {
        let prepared_run = output_of(quorate_command().args(["prepare-server", &url]));
        assert_eq!(prepared_run.code, Some(0), "{prepared_run:?}");
        assert!(prepared_run.stdout.contains(report), "{prepared_run:?}");
        assert!(
            prepared_run
                .stdout
                .contains("grant for the account that takes locks"),
            "{prepared_run:?}"
        );
    }
    let held_run = quorate(&[
        "run",
        "nightly",
        "--",
        "sh",
        "-c",
        "test $QUORATE_FENCING_TOKEN -gt 0",
    ]);
    assert_eq!(held_run.code, Some(0), "{held_run:?}");
    let output = quorate(&["doctor", "--json"]);
    assert!(output.stdout.contains("\"mariadb\""), "{output:?}");
    assert!(!output.stdout.contains("eviction"), "{output:?}");
}

#[test]
fn run_accepts_mixed_kinds_of_masters_but_no_invalid_url() {
    let Some(server) = mariadb("run_accepts_mixed_kinds_of_masters_but_no_invalid_url") else {
        return;
    };
    let redis = [(); 2].map(|()| Server::start(ServerOptions::new()).expect("a Redis"));
    let url = server.url("locks");
    assert_eq!(
        output_of(quorate_command().args(["prepare-server", &url])).code,
        Some(0)
    );
    let masters = format!("{},{},{url}", redis[0].url(), redis[1].url());
    let mut mixed_run = quorate_command();
    mixed_run
        .env("QUORATE_MASTERS", masters)
        .env("QUORATE_RESTART_GUARD", "off")
        .args(["run", "nightly", "--", "true"]);
    let mixed_run = output_of(&mut mixed_run);
    assert_eq!(mixed_run.code, Some(0), "{mixed_run:?}");

    for (url, why) in [
        ("mysql://", "mysql://"),
        ("zk://h1++h2/locks", "a host in the list is empty"),
        ("zk://h1/", "zk"),
        ("zk://h1:2181,h2:2181/p", "zk://host:2181+host/path"),
        ("mysql+tls://root:secret@h/d", "mysqls:// for TLS"),
        ("mysql://root:secret@h1,h2/d", "a URL of its own"),
        ("mysql://root:secret@%2Frun%2Fm.sock/d", "?socket=/run"),
    ] {
        let mut wrong_run = quorate_command();
        wrong_run.args([
            "run",
            "--masters",
            url,
            "--wait",
            "1ms",
            "nightly",
            "--",
            "true",
        ]);
        let wrong_run = output_of(&mut wrong_run);
        assert!(
            matches!(wrong_run.code, Some(64 | 69)),
            "{url}: {wrong_run:?}"
        );
        assert!(wrong_run.stderr.contains(why), "{url}: {wrong_run:?}");
    }
    let redis_run = output_of(quorate_command().args(["prepare-server", "redis://127.0.0.1:1"]));
    assert_eq!(redis_run.code, Some(64), "{redis_run:?}");
    assert!(
        redis_run.stderr.contains("need no preparation"),
        "{redis_run:?}"
    );
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
    let prepared_run = output_of(quorate_command().args(["prepare-server", &url]));
    assert_eq!(prepared_run.code, Some(0), "{prepared_run:?}");
    let master_name = format!("mysql {socket}/locks");
    assert!(
        prepared_run.stdout.starts_with(&master_name),
        "{prepared_run:?}"
    );
    let run_with = |url: &str, args: &[&str]| {
        let mut command = quorate_command();
        command
            .env("QUORATE_MASTERS", url)
            .env("QUORATE_RESTART_GUARD", "off");
        let run_output = output_of(command.args(args));
        assert!(
            !(run_output.stderr.clone() + &run_output.stdout).contains("s3cret"),
            "{run_output:?}"
        );
        run_output
    };
    let url_with_timeout = format!("{url}&timeout=2s");
    let lock_args = ["run", "--wait", "5s", "nightly", "--", "true"];
    let held_run = run_with(&url_with_timeout, &lock_args);
    assert_eq!(held_run.code, Some(0), "{held_run:?}");
    let output = run_with(&url_with_timeout, &["doctor", "--json"]);
    assert!(
        output.stdout.contains(&format!("\"{master_name}\"")),
        "{output:?}"
    );
    server.kill().expect("the server must be killed");
    let dead_run = run_with(
        &url_with_timeout,
        &["run", "--wait", "1s", "nightly", "--", "true"],
    );
    assert_eq!(dead_run.code, Some(69), "{dead_run:?}");
    assert!(dead_run.stderr.contains(&master_name), "{dead_run:?}");
}
