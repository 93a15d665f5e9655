//! Tests of PostgreSQL servers that are configured wrongly, and of the checks of `doctor` for them.

use std::process::Stdio;

use super::{assert_has_line, assert_refused, run_doctor, run_lock, run_quorate};
use crate::common::{output_of, quorate_command};
use quorate_testbed::{PgBouncer, Postgres, PostgresOptions, not_run};

/// Options of a server with a port. `fsync` is on, because clients refuse other servers. Its files are in memory.
fn options() -> PostgresOptions {
    PostgresOptions::new().tcp().set("fsync", "on")
}

fn report_not_run(why: &str) {
    not_run(std::thread::current().name().unwrap_or("a test"), why);
}

fn bare(options: PostgresOptions) -> Option<Postgres> {
    if let Err(why) = Postgres::available() {
        report_not_run(&why.to_string());
        return None;
    }
    let started = Postgres::start_with(options);
    Some(started.unwrap_or_else(|error| panic!("{error}")))
}

/// Runs `quorate prepare-server`, and returns its output.
fn prepare(url: &str) -> String {
    let run = output_of(quorate_command().args(["prepare-server", url]));
    assert_eq!(run.code, Some(0), "{run:?}");
    run.stdout
}

/// A server with the tables in its database `locks`; its URL, with a long timeout; and its name in reports.
fn prepared(options: PostgresOptions) -> Option<(Postgres, String, String)> {
    let server = bare(options)?;
    let url = url(&server);
    prepare(&url);
    let name = name(&server);
    Some((server, url, name))
}

fn url(server: &Postgres) -> String {
    format!("{}?timeout=2s", server.url("locks"))
}

fn name(server: &Postgres) -> String {
    format!("postgres {}/locks", server.addr().expect("a port"))
}

/// Executes statements in the database `locks`.
fn sql(server: &Postgres, statements: &str) -> String {
    let answer = server.sql_in("locks", statements);
    answer.unwrap_or_else(|error| panic!("{error}"))
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
fn postgres_with_missing_or_wrong_tables_is_reported_with_the_remedy() {
    let Some(server) = bare(options()) else {
        return;
    };
    let (url, name) = (url(&server), name(&server));
    assert_reported(&url, &name, "prepared", &["quorate prepare-server"]);
    prepare(&url);
    assert_eq!(run_lock(&url).code, Some(0));
    let (run, lines) = run_doctor(&url);
    assert!(
        !lines.iter().any(|line| line.starts_with("error")),
        "{run:?}"
    );
    for (wrong, words) in [
        (
            "ALTER TABLE quorate.run SET LOGGED",
            ["not UNLOGGED", "quorate prepare-server"],
        ),
        (
            "ALTER TABLE quorate.record SET UNLOGGED",
            ["UNLOGGED", "quorate prepare-server"],
        ),
        (
            "DROP TABLE quorate.record",
            ["missing", "quorate prepare-server"],
        ),
        (
            "COMMENT ON SCHEMA quorate IS 'tables of quorate, version 0'",
            ["older", "quorate prepare-server"],
        ),
    ] {
        sql(&server, wrong);
        assert_reported(&url, &name, "prepared", &words);
        prepare(&url);
        assert_eq!(run_lock(&url).code, Some(0), "{wrong}");
    }
    sql(
        &server,
        "COMMENT ON SCHEMA quorate IS 'tables of quorate, version 9'",
    );
    assert_refused(&run_lock(&url), &[&name, "version 9", "newer program"]);
    let run = output_of(quorate_command().args(["prepare-server", &url]));
    assert_refused(&run, &[&name, "version 9", "newer program"]);
}

#[test]
fn doctor_distinguishes_a_missing_right_from_a_wrong_password_and_a_read_only_postgres() {
    let hba = "host all app 127.0.0.1/32 password";
    let Some((server, admin, name)) = prepared(options().hba(hba)) else {
        return;
    };
    sql(&server, "CREATE USER app PASSWORD 'hunter2'");
    let url = |password: &str| {
        let user = format!("app:{password}");
        format!("{}?timeout=2s", server.url_of(&user, "locks"))
    };
    assert_reported(&url("hunter2"), &name, "acl", &["SELECT ON quorate.run"]);
    let grants = prepare(&admin);
    let grants = grants
        .lines()
        .filter_map(|line| line.split_once("takes locks: ").map(|(_, grant)| grant));
    for grant in grants {
        sql(&server, &grant.replace("TO USER", "TO app"));
    }
    assert_eq!(run_lock(&url("hunter2")).code, Some(0));
    sql(&server, "REVOKE UPDATE ON quorate.record FROM app");
    assert_reported(&url("hunter2"), &name, "acl", &["UPDATE ON quorate.record"]);
    assert_reported(&url("hunter3"), &name, "login", &["password"]);
    let run = run_lock(&url("hunter3"));
    assert!(!run.stderr.contains("hunter3"), "{run:?}");

    // Locks work without the DELETE right, so only `doctor` reports that the right is missing.
    sql(
        &server,
        "GRANT UPDATE ON quorate.record TO app;REVOKE DELETE ON quorate.record FROM app",
    );
    assert_eq!(run_lock(&url("hunter2")).code, Some(0));
    let (_, lines) = run_doctor(&url("hunter2"));
    let words = ["removing records", "GRANT DELETE ON quorate.record TO USER"];
    assert_has_line(&lines, "warning acl", &words);
    server.set_and_reload("default_transaction_read_only", "on");
    let run = run_quorate(&admin, &["run", "--wait", "2s", "nightly", "--", "true"]);
    assert_refused(&run, &[&name, "read-only"]);
    let (_, lines) = run_doctor(&admin);
    assert_has_line(
        &lines,
        "error role",
        &[&name, "default_transaction_read_only = off"],
    );
}

#[test]
fn doctor_reports_fsync_off_and_a_standby() {
    let Some((server, url, name)) = prepared(options().set("wal_level", "replica")) else {
        return;
    };
    let standby = match server.start_standby() {
        Ok(standby) => standby,
        Err(error) => return report_not_run(&error.to_string()),
    };
    let standby_url = self::url(&standby);
    let run = run_quorate(
        &standby_url,
        &["run", "--wait", "2s", "nightly", "--", "true"],
    );
    assert_refused(&run, &[&self::name(&standby), "read-only"]);
    let (_, lines) = run_doctor(&standby_url);
    assert_has_line(
        &lines,
        "error role",
        &[&self::name(&standby), "list its primary instead"],
    );
    drop(standby);
    let Some(unsynced) = bare(PostgresOptions::new().tcp()) else {
        return;
    };
    let unsynced_url = self::url(&unsynced);
    prepare(&unsynced_url);
    let words = ["fsync is off"];
    assert_reported(&unsynced_url, &self::name(&unsynced), "persistence", &words);
    // The primary itself is fit, apart from its test setting `full_page_writes`.
    assert_eq!(run_lock(&url).code, Some(0));
    let (_, lines) = run_doctor(&url);
    assert_has_line(&lines, "warning persistence", &[&name, "full_page_writes"]);
}

#[test]
fn postgres_without_its_synchronous_standby_is_reported_with_what_to_do() {
    let Some((server, url, name)) = prepared(options()) else {
        return;
    };
    server.set_and_reload("synchronous_standby_names", "nobody");
    let run = run_quorate(&url, &["run", "--wait", "4s", "nightly", "--", "true"]);
    assert_refused(&run, &[&name, "synchronous standby"]);
    let (_, lines) = run_doctor(&url);
    assert_has_line(
        &lines,
        "error replication",
        &[&name, "synchronous_standby_names"],
    );
    server.set_and_reload("synchronous_standby_names", "");
    assert_eq!(run_lock(&url).code, Some(0));
}

#[test]
fn pooler_in_transaction_mode_is_refused_and_in_session_mode_it_works() {
    let Some((server, _, _)) = prepared(options()) else {
        return;
    };
    let pooler = match PgBouncer::start(&server, "transaction") {
        Err(error @ quorate_testbed::Error::NoPgBouncer) => {
            return report_not_run(&error.to_string());
        }
        started => started.unwrap_or_else(|error| panic!("{error}")),
    };
    let url = format!("{}?timeout=2s", pooler.url("locks"));
    let name = format!("postgres {}/locks", pooler.addr());
    assert_reported(&url, &name, "pooler", &["pool_mode=session"]);
    drop(pooler);
    let pooler = PgBouncer::start(&server, "session").unwrap_or_else(|error| panic!("{error}"));
    let url = format!("{}?timeout=2s", pooler.url("locks"));
    assert_eq!(run_lock(&url).code, Some(0));
    let (run, lines) = run_doctor(&url);
    assert!(
        !lines.iter().any(|line| line.starts_with("error")),
        "{run:?}"
    );
}

#[test]
fn doctor_reports_an_old_snapshot_and_shows_the_use_of_the_notification_queue() {
    let Some((server, url, name)) = prepared(options()) else {
        return;
    };
    let (_, lines) = run_doctor(&url);
    assert!(
        !lines.iter().any(|line| line.contains(" snapshot:")),
        "{lines:#?}"
    );
    // A console that keeps a transaction open. It keeps its snapshot, and reads no notification.
    let mut console = server
        .client()
        .args(["--quiet", "--dbname=locks"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("psql");
    let statements = "LISTEN elsewhere;BEGIN ISOLATION LEVEL REPEATABLE READ;SELECT 1;\n";
    let input = console.stdin.as_mut().expect("stdin");
    std::io::Write::write_all(input, statements.as_bytes()).expect("written");
    let open = "SELECT count(*) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND state='idle in transaction'";
    crate::common::wait_until("the console has a snapshot", || sql(&server, open) == "1\n");
    sql(
        &server,
        "SELECT count(pg_notify('elsewhere',repeat('x',7900)||i)) FROM generate_series(1,2000) i",
    );
    sql(
        &server,
        "DO $$ BEGIN FOR i IN 1..100100 LOOP PERFORM pg_current_xact_id();COMMIT;END LOOP; END $$",
    );
    let (run, lines) = run_doctor(&url);
    assert_has_line(&lines, "note snapshot", &[&name, "backend_xmin"]);
    let page: serde_json::Value = serde_json::from_str(&run.stdout).expect("JSON");
    let used = &page["masters"][0]["settings"]["notification_queue_usage"];
    let used: f64 = used
        .as_str()
        .and_then(|text| text.parse().ok())
        .expect("a number");
    assert!(used > 0.001, "{used}");
    console.kill().expect("killed");
    console.wait().expect("ended");
}
