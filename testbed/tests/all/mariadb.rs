//! Tests of the documented behavior of `MariaDb`, on a real server.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use quorate_testbed::{Error, MariaDb, MariaDbOptions, not_run, within};

fn server(options: MariaDbOptions) -> Option<MariaDb> {
    if let Err(error) = MariaDb::available() {
        not_run(
            std::thread::current().name().unwrap_or("a test"),
            &error.to_string(),
        );
        return None;
    }
    Some(MariaDb::start(options).unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn mariadb_keeps_acknowledged_commits_after_a_crash() {
    let Some(server) = server(MariaDbOptions::new()) else {
        return;
    };
    server
        .sql(
            "CREATE DATABASE d; CREATE TABLE d.t (a INT) ENGINE=InnoDB; INSERT INTO d.t VALUES (7)",
        )
        .unwrap();
    let port = server.port();
    server.restart().unwrap();
    assert_eq!(server.sql("SELECT a FROM d.t").unwrap(), "7\n");
    assert_eq!(server.port(), port);
    drop(TcpStream::connect(server.addr()).unwrap());
    assert_eq!(server.url("d"), format!("mysql://root@127.0.0.1:{port}/d"));
}

#[test]
fn mariadb_with_flush_0_loses_a_commit_in_a_crash() {
    let Some(server) = server(MariaDbOptions::new().flush(0)) else {
        return;
    };
    let create_table =
        "CREATE DATABASE IF NOT EXISTS d; CREATE TABLE IF NOT EXISTS d.t (a INT) ENGINE=InnoDB";
    // The server writes its log once a second, so some of these commits may survive.
    let is_lost = |number: u32| {
        let insert = format!("{create_table}; INSERT INTO d.t VALUES ({number})");
        server.sql(&insert).unwrap();
        server.restart().unwrap();
        let select = format!("{create_table}; SELECT COUNT(*) FROM d.t WHERE a = {number}");
        server.sql(&select).unwrap() == "0\n"
    };
    assert!((0..10).any(is_lost), "all commits survived");
}

#[test]
fn error_of_a_refused_sql_statement_contains_the_server_message() {
    let Some(server) = server(MariaDbOptions::new()) else {
        return;
    };
    let error = server.sql("SELECT * FROM nothing.here").unwrap_err();
    assert!(
        matches!(&error, Error::Refused(message) if message.contains("1146")),
        "{error}"
    );
}

#[test]
fn stopped_server_answers_only_after_it_is_resumed() {
    let Some(server) = server(MariaDbOptions::new()) else {
        return;
    };
    server.stop().unwrap();
    let answer = std::thread::scope(|scope| {
        let answer = scope.spawn(|| (server.sql("SELECT 1"), Instant::now()));
        std::thread::sleep(Duration::from_millis(300));
        let resumed_at = Instant::now();
        server.cont().unwrap();
        let (answer, answered_at) = answer.join().unwrap();
        assert!(
            answered_at >= resumed_at,
            "a stopped server must not answer"
        );
        answer
    });
    assert_eq!(answer.unwrap(), "1\n");
}

#[test]
fn killed_mariadb_server_can_be_restarted_and_is_cleaned_up_when_dropped() {
    let Some(server) = server(MariaDbOptions::new().flush(0).max_connections(20)) else {
        return;
    };
    let limits = "SELECT @@max_connections, @@innodb_flush_log_at_trx_commit, @@read_only";
    assert_eq!(server.sql(limits).unwrap(), "20\t0\t0\n");
    server.kill().unwrap();
    assert!(TcpStream::connect(server.addr()).is_err());
    assert!(matches!(server.stop(), Err(Error::NotRunning)));
    server.restart().unwrap();
    let (pid, dir) = (server.pid().unwrap(), server.dir().to_owned());
    drop(server);
    assert!(!dir.exists());
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn dropped_console_releases_its_row_locks() {
    let Some(server) = server(MariaDbOptions::new()) else {
        return;
    };
    let create_table =
        "CREATE DATABASE d; CREATE TABLE d.t (n INT PRIMARY KEY); INSERT INTO d.t VALUES (7)";
    server.sql(create_table).unwrap();
    let mut console = server.console().unwrap();
    let rows = console.say("BEGIN; SELECT n FROM d.t FOR UPDATE").unwrap();
    assert_eq!(rows, "7\n");
    let select_row = || server.sql("SELECT n FROM d.t FOR UPDATE NOWAIT");
    let error = select_row().unwrap_err();
    assert!(
        matches!(&error, Error::Refused(message) if message.contains("1205")),
        "{error}"
    );
    assert!(matches!(console.say("nonsense"), Err(Error::Refused(_))));
    drop(console);
    // The server needs a moment to notice that the client has disconnected and that its row lock has ended.
    assert!(within(Duration::from_secs(10), || select_row().is_ok()));
}
