//! Tests of databases, ZooKeeper and etcd that are configured wrongly, or on which `quorate prepare-server` has not run.
//! `quorate run` and `doctor` must report the problem and the remedy at once.

mod etcd;
mod postgres;

use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use crate::common::{RunOutput, output_of, quorate_command};
use quorate_testbed::{MariaDb, MariaDbOptions, ZooKeeper, ZooKeeperOptions, not_run};
use serde_json::Value;

/// The time limit for a command that must fail without waiting. It is shorter than the command's `--wait`, but long
/// enough for a busy machine.
const SOON: Duration = Duration::from_secs(30);

fn mariadb(options: MariaDbOptions) -> Option<MariaDb> {
    if let Err(why) = MariaDb::available() {
        not_run(
            std::thread::current().name().unwrap_or("a test"),
            &why.to_string(),
        );
        return None;
    }
    let started = MariaDb::start(options.flush(2));
    Some(started.unwrap_or_else(|error| panic!("{error}")))
}

fn zookeeper(options: &ZooKeeperOptions) -> Option<ZooKeeper> {
    if let Err(why) = ZooKeeper::available() {
        not_run(std::thread::current().name().unwrap_or("a test"), &why);
        return None;
    }
    let started = ZooKeeper::start_with(options);
    Some(started.unwrap_or_else(|error| panic!("{error}")))
}

/// Runs `quorate` with the given masters and arguments.
fn run_quorate(masters: &str, words: &[&str]) -> RunOutput {
    let mut command = quorate_command();
    command.env("QUORATE_MASTERS", masters);
    command.env("QUORATE_RESTART_GUARD", "after-first-contact");
    output_of(command.args(words))
}

/// Runs `quorate run` with a long `--wait` on masters that can never grant the lock. Checks that it fails before the
/// end of this wait.
fn run_lock(masters: &str) -> RunOutput {
    let words = ["run", "--wait", "45s", "nightly", "--", "true"];
    let run = run_quorate(masters, &words);
    assert!(run.elapsed < SOON, "{run:?}");
    assert!(!run.stderr.contains("panicked"), "{run:?}");
    run
}

/// Runs `quorate doctor`. Returns its result, and all findings as lines `severity check: finding | advice`.
fn run_doctor(masters: &str) -> (RunOutput, Vec<String>) {
    let run = run_quorate(masters, &["doctor", "--json"]);
    let page: Value = serde_json::from_str(&run.stdout).expect("JSON");
    let findings = page["findings"].as_array().expect("findings");
    let lines = findings.iter().map(|finding| {
        let field_text = |name: &str| finding[name].as_str().unwrap_or("-").to_owned();
        let [severity, check] = ["severity", "check"].map(field_text);
        let [what, advice, master] = ["finding", "advice", "master"].map(field_text);
        format!("{severity} {check}: {master} {what} | {advice}")
    });
    let lines = lines.collect();
    (run, lines)
}

#[track_caller]
fn assert_has_line(lines: &[String], start: &str, args: &[&str]) {
    let is_it =
        |line: &&String| line.starts_with(start) && args.iter().all(|word| line.contains(word));
    assert!(
        lines.iter().any(|line| is_it(&line)),
        "a line must begin with {start:?} and contain {args:?}: {lines:#?}"
    );
}

#[track_caller]
fn assert_refused(run: &RunOutput, args: &[&str]) {
    assert_eq!(run.code, Some(69), "{run:?}");
    for word in args {
        assert!(run.stderr.contains(word), "{word}: {run:?}");
    }
}

/// Creates a database user with the grants in `prepared`, the output of `quorate prepare-server`. Removes the text
/// `without` from each grant, so that the user lacks this right. Returns the server's URL for this user.
fn create_user(server: &MariaDb, prepared: &str, without: &str) -> String {
    server
        .sql("CREATE USER app IDENTIFIED BY 'hunter2'")
        .expect("a user");
    let grants = prepared
        .lines()
        .filter_map(|line| line.split_once("takes locks: ").map(|(_, grant)| grant));
    for grant in grants {
        let grant = grant.replace("TO USER", "TO app").replace(without, "");
        server.sql(&grant).expect("a grant");
    }
    format!("{}?timeout=2s", server.url_of("app:hunter2", "locks"))
}

#[test]
fn database_with_a_missing_or_wrong_schema_is_reported_with_the_remedy() {
    let Some(server) = mariadb(MariaDbOptions::new()) else {
        return;
    };
    let url = format!("{}?timeout=2s", server.url("locks"));
    let master_name = format!("mysql 127.0.0.1:{}/locks", server.port());
    assert_refused(&run_lock(&url), &[&master_name, "quorate prepare-server"]);
    let (run, lines) = run_doctor(&url);
    assert_eq!(run.code, Some(69), "{run:?}");
    assert_has_line(
        &lines,
        "error prepared",
        &[&master_name, "quorate prepare-server"],
    );
    assert_eq!(
        output_of(quorate_command().args(["prepare-server", &url])).code,
        Some(0)
    );
    assert_eq!(run_lock(&url).code, Some(0));
    server
        .sql("UPDATE locks.quorate_schema SET version=0")
        .expect("the test must be able to lower the version of the schema");
    assert_refused(
        &run_lock(&url),
        &[&master_name, "older", "quorate prepare-server"],
    );
    server
        .sql("UPDATE locks.quorate_schema SET version=9")
        .expect("the test must be able to raise the version of the schema");
    assert_refused(
        &run_lock(&url),
        &[&master_name, "version 9", "use a newer program"],
    );
    let prepared = output_of(quorate_command().args(["prepare-server", &url]));
    assert_refused(
        &prepared,
        &[&master_name, "version 9", "use a newer program"],
    );
}

#[test]
fn doctor_distinguishes_a_missing_database_right_from_a_read_only_server() {
    let Some(server) = mariadb(MariaDbOptions::new()) else {
        return;
    };
    let prepared_run = output_of(quorate_command().args(["prepare-server", &server.url("locks")]));
    let url = create_user(&server, &prepared_run.stdout, ", UPDATE");
    let name = format!("mysql 127.0.0.1:{}/locks", server.port());
    assert_refused(&run_lock(&url), &[&name, "denied"]);
    let (_, lines) = run_doctor(&url);
    assert_has_line(
        &lines,
        "error acl",
        &[&name, "UPDATE", "quorate prepare-server"],
    );
    let wrong_password_url = url.replace("hunter2", "hunter3");
    let run = run_lock(&wrong_password_url);
    assert_refused(&run, &[&name, "denied"]);
    assert!(!run.stderr.contains("hunter3"), "{run:?}");
    let (_, lines) = run_doctor(&wrong_password_url);
    assert_has_line(&lines, "error login", &[&name, "password"]);

    // Locks work without the DELETE right, so only `doctor` reports that the right is missing.
    server
        .sql("GRANT UPDATE ON locks.* TO app; REVOKE DELETE ON locks.quorate_record FROM app")
        .expect("the test must be able to change the rights of the user");
    assert_eq!(run_lock(&url).code, Some(0));
    let (_, lines) = run_doctor(&url);
    let missing_delete_right = [
        "removing records",
        "GRANT DELETE ON `locks`.`quorate_record` TO USER",
    ];
    assert_has_line(&lines, "warning acl", &missing_delete_right);
    server
        .sql("SET GLOBAL read_only=1")
        .expect("the test must be able to make the server read-only");
    let run = run_quorate(&url, &["run", "--wait", "2s", "nightly", "--", "true"]);
    assert_refused(&run, &[&name, "read-only"]);
    let (_, lines) = run_doctor(&url);
    assert_has_line(&lines, "error role", &[&name, "read_only = 0"]);
    // An administrator can write even to a read-only server. `doctor` must still report that the server is read-only.
    let (_, lines) = run_doctor(&server.url("locks"));
    assert_has_line(&lines, "error role", &[&name, "is read-only"]);
}

#[test]
fn doctor_reports_a_statement_based_binary_log_and_a_replica() {
    let options = MariaDbOptions::new()
        .binlog_format("STATEMENT")
        .arg("--server-id=7");
    let Some(server) = mariadb(options) else {
        return;
    };
    let url = format!("{}?timeout=2s", server.url("locks"));
    let name = format!("mysql 127.0.0.1:{}/locks", server.port());
    assert_eq!(
        output_of(quorate_command().args(["prepare-server", &url])).code,
        Some(0)
    );
    assert_refused(&run_lock(&url), &[&name, "binlog_format"]);
    let (_, lines) = run_doctor(&url);
    assert_has_line(&lines, "error binlog", &[&name, "binlog_format = ROW"]);
    server
        .sql("SET GLOBAL binlog_format=ROW; CHANGE MASTER TO MASTER_HOST='10.9.8.7'")
        .expect("the test must be able to make the server a replica");
    assert_eq!(run_lock(&url).code, Some(0));
    let (run, lines) = run_doctor(&url);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_has_line(&lines, "error role", &[&name, "10.9.8.7:3306"]);
    assert_has_line(
        &lines,
        "note persistence",
        &["innodb_flush_log_at_trx_commit = 2"],
    );
    let guard_off = ["doctor", "--restart-guard", "off"];
    let run = run_quorate(&url, &guard_off);
    assert!(run.stdout.contains("sync_binlog = 1"), "{run:?}");
}

#[test]
fn server_that_is_listed_under_two_names_is_refused() {
    let Some(server) = mariadb(MariaDbOptions::new()) else {
        return;
    };
    let port = server.port();
    for database in ["locks", "others"] {
        let url = server.url(database);
        assert_eq!(
            output_of(quorate_command().args(["prepare-server", &url])).code,
            Some(0)
        );
    }
    let url =
        |host: &str, database: &str| format!("mysql://root@{host}:{port}/{database}?timeout=2s");
    let here = url("127.0.0.1", "locks");
    for other in [url("localhost", "locks"), url("127.0.0.1", "others")] {
        let both = format!("{here},{other}");
        assert_refused(&run_lock(&both), &["same server"]);
        let (_, lines) = run_doctor(&both);
        assert_has_line(&lines, "error run_id", &["once"]);
    }
    let encrypted = here.replace("mysql://", "mysqls://");
    let run = run_lock(&format!("{here},{encrypted}"));
    assert_eq!(run.code, Some(64), "{run:?}");
    assert!(run.stderr.contains("mysql 127.0.0.1"), "{run:?}");
    // quorate must notice that both databases are on one server, even if they store different server names.
    server
        .sql("UPDATE others.quorate_schema SET server='0123456789abcdef'")
        .expect("the test must be able to change the server name");
    let both = format!("{here},{}", url("127.0.0.1", "others"));
    assert_refused(&run_lock(&both), &["same server"]);
    let (_, lines) = run_doctor(&both);
    assert_has_line(&lines, "error run_id", &["once"]);
}

#[test]
fn long_and_unusual_resource_names_work_on_databases_and_zookeeper() {
    let Some(server) = mariadb(MariaDbOptions::new()) else {
        return;
    };
    let url = format!("{}?timeout=2s", server.url("locks"));
    assert_eq!(
        output_of(quorate_command().args(["prepare-server", &url])).code,
        Some(0)
    );
    let mut all = vec![url];
    let zookeeper = zookeeper(&ZooKeeperOptions::new());
    if let Some(zookeeper) = &zookeeper {
        let url = format!("{}?timeout=2s", zookeeper.url("/a/locks"));
        assert_eq!(
            output_of(quorate_command().args(["prepare-server", &url])).code,
            Some(0)
        );
        all.push(url);
    }
    let longest = "x".repeat(1024);
    for url in &all {
        for name in [&longest, "a/b'c`d;--\\", "../..", "\u{1b}[2J\n", "naïve ⚿"] {
            let run = run_quorate(url, &["run", "--wait", "10s", name, "--", "true"]);
            assert_eq!(run.code, Some(0), "{name:?}: {run:?}");
            let output = run_quorate(url, &["status", "--json", name]);
            assert!(!output.stderr.contains("panicked"), "{output:?}");
        }
        let too_long = format!("{longest}x");
        let run = run_quorate(url, &["run", &too_long, "--", "true"]);
        assert_eq!(run.code, Some(64), "{run:?}");
        let bytes = std::ffi::OsStr::from_bytes(b"\xff\xfe\x80");
        let mut odd = quorate_command();
        odd.env("QUORATE_MASTERS", url).arg("run").arg(bytes);
        let run = output_of(odd.args(["--", "true"]));
        assert!(matches!(run.code, Some(0 | 64)), "{run:?}");
        assert!(!run.stderr.contains("panicked"), "{run:?}");
    }
}

#[test]
fn zookeeper_without_its_path_or_with_short_sessions_is_reported_with_the_remedy() {
    let short = (Duration::from_millis(100), Duration::from_millis(800));
    let options = ZooKeeperOptions::new().sessions(short.0, short.1);
    let Some(server) = zookeeper(&options) else {
        return;
    };
    let name = format!("zk {}/a/locks", server.addr(0));
    let url = server.url("/a/locks");
    assert_refused(&run_lock(&url), &[&name, "maxSessionTimeout"]);
    let (_, lines) = run_doctor(&url);
    assert_has_line(&lines, "error session", &[&name, "maxSessionTimeout"]);
    let quick = format!("{url}?timeout=300ms");
    assert_refused(&run_lock(&quick), &[&name, "quorate prepare-server"]);
    let (_, lines) = run_doctor(&quick);
    assert_has_line(&lines, "error prepared", &[&name, "quorate prepare-server"]);
    assert_eq!(
        output_of(quorate_command().args(["prepare-server", &quick])).code,
        Some(0)
    );
    assert_eq!(run_lock(&quick).code, Some(0));
    let other = format!("{}?timeout=300ms", server.url("/b/locks"));
    assert_eq!(
        output_of(quorate_command().args(["prepare-server", &other])).code,
        Some(0)
    );
    let both = format!("{quick},{other}");
    assert_refused(&run_lock(&both), &["same server"]);
    let (_, lines) = run_doctor(&both);
    assert_has_line(&lines, "error run_id", &["once"]);
}

/// Returns the SQL that `quorate prepare-server --print` prints for `database`. No server listens at the URL, because
/// the command must work without a server.
fn print_sql(database: &str) -> String {
    let url = format!("mysql://admin:hunter2@127.0.0.1:1/{database}");
    let printed_run = output_of(quorate_command().args(["prepare-server", "--print", &url]));
    assert_eq!(printed_run.code, Some(0), "{printed_run:?}");
    assert!(!printed_run.stdout.contains("hunter2"), "{printed_run:?}");
    printed_run.stdout
}

#[test]
fn prepare_server_and_its_printed_sql_prepare_a_database_in_the_same_way() {
    let Some(server) = mariadb(MariaDbOptions::new()) else {
        return;
    };
    let sql = print_sql("locks");
    server.sql(&sql).expect("the SQL runs");
    let url = format!("{}?timeout=2s", server.url("locks"));
    let prepared_run = output_of(quorate_command().args(["prepare-server", &url]));
    assert!(
        prepared_run.stdout.contains("was already prepared"),
        "{prepared_run:?}"
    );
    let (_, lines) = run_doctor(&url);
    assert!(
        !lines.iter().any(|line| line.starts_with("error")),
        "{lines:#?}"
    );
    let others = server.url("others");
    assert_eq!(
        output_of(quorate_command().args(["prepare-server", &others])).code,
        Some(0)
    );
    for table in ["schema", "record", "woken", "run"] {
        let table_definition = |database: &str| {
            let shown = server.sql(&format!("SHOW CREATE TABLE {database}.quorate_{table}"));
            // Ignore AUTO_INCREMENT, because this counter depends on the rows that were written to the table.
            let shown = shown.expect("a table");
            shown.split(" AUTO_INCREMENT=").next().map(str::to_owned)
        };
        assert_eq!(
            table_definition("locks"),
            table_definition("others"),
            "{table}"
        );
    }
    let grants = sql
        .lines()
        .filter_map(|line| line.strip_prefix("-- GRANT "));
    let grants = grants.filter(|grant| !grant.starts_with("EXECUTE"));
    let grants: Vec<String> = grants
        .map(|grant| format!("takes locks: GRANT {grant}"))
        .collect();
    let url = create_user(&server, &grants.join("\n"), "nothing");
    assert_eq!(run_lock(&url).code, Some(0));
    for (url, expected_text) in [
        ("redis://h", "no preparation"),
        ("mysql://h/d", "user is missing"),
    ] {
        let wrong_run = output_of(quorate_command().args(["prepare-server", "--print", url]));
        assert_eq!(wrong_run.code, Some(64), "{wrong_run:?}");
        assert!(wrong_run.stderr.contains(expected_text), "{wrong_run:?}");
    }
}

#[test]
fn sql_of_prepare_server_replaces_the_run_id_only_if_the_record_table_is_missing() {
    let Some(server) = mariadb(MariaDbOptions::new()) else {
        return;
    };
    let sql = print_sql("locks");
    server.sql(&sql).expect("the SQL runs");
    let run = || {
        let run = server.sql("SELECT run FROM locks.quorate_run");
        run.expect("a run")
    };
    let first = run();
    let (id, since) = first.trim().split_once('@').expect("a run with a start");
    assert_eq!(id.len(), 32, "{first}");
    let now = "SELECT TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))";
    let now = server.sql(now).expect("a time");
    let [since, now] = [since, now.trim()].map(|number| number.parse::<i64>().expect("a number"));
    // The server has just started, so its start time must be close to the current time.
    assert!((now - since).abs() < 3_600_000_000, "{since} {now}");
    server.sql(&sql).expect("the SQL runs again");
    assert_eq!(run(), first, "a complete schema must stay as it is");
    // All locks are lost with the table. So the SQL must store a new run id, by which clients notice the loss.
    server
        .sql("DROP TABLE locks.quorate_record")
        .expect("dropped");
    server.sql(&sql).expect("the SQL runs");
    assert_ne!(run(), first);

    // MariaDB ignores SQL in `/*!50700 */` comments. Remove the comment signs, so that it creates the procedure.
    let block = sql.replace("/*!50700 ", "").replace(" */ //", " //");
    server.sql(&block).expect("the procedure must be created");
    let called = server.sql("CALL locks.quorate_listen('p',0,0,0)");
    assert_eq!(called.expect("the procedure must run"), "");
    // Each run of the SQL generates a new server name, so that two servers do not get the same name.
    server.sql(&print_sql("third")).expect("the SQL runs");
    let name = |database: &str| {
        let name = server.sql(&format!("SELECT server FROM {database}.quorate_schema"));
        name.expect("a name")
    };
    assert_eq!(name("locks").trim().len(), 32);
    assert_ne!(name("locks"), name("third"));
}

#[test]
fn prepare_server_and_its_printed_script_prepare_zookeeper_in_the_same_way() {
    let Some(server) = zookeeper(&ZooKeeperOptions::new()) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    server
        .write_client(folder.path())
        .expect("a client program");
    let path = std::env::var("PATH").expect("a path");
    let path = format!("{}:{path}", folder.path().display());
    let apply = |url: &str| {
        let printed_run = output_of(quorate_command().args(["prepare-server", "--print", url]));
        assert_eq!(printed_run.code, Some(0), "{printed_run:?}");
        assert!(!printed_run.stdout.contains("hunter2"), "{printed_run:?}");
        let script = printed_run.stdout.replace("PASSWORD", "hunter2");
        let mut shell = std::process::Command::new("sh");
        let output = output_of(shell.arg("-c").arg(script).env("PATH", &path));
        assert!(
            (output.stdout.clone() + &output.stderr).contains("Created"),
            "{output:?}"
        );
    };
    let plain = server.url("/a/locks");
    let owned = server.url("/b").replace("zk://", "zk://locks:hunter2@");
    for url in [&plain, &owned] {
        apply(url);
        let timed = format!("{url}?timeout=2s");
        let prepared_run = output_of(quorate_command().args(["prepare-server", &timed]));
        assert!(
            prepared_run.stdout.contains("was already prepared"),
            "{prepared_run:?}"
        );
        assert!(
            !prepared_run.stdout.contains("got the ACL of the path"),
            "{prepared_run:?}"
        );
        let (_, lines) = run_doctor(&timed);
        assert!(
            !lines.iter().any(|line| line.starts_with("error")),
            "{lines:#?}"
        );
        assert_eq!(run_lock(&timed).code, Some(0));
    }
    let unreadable_url = format!("{}?timeout=2s", server.url("/b"));
    assert_refused(&run_lock(&unreadable_url), &["ACL"]);
    // Two paths of one ZooKeeper ensemble must not count as two masters, even if they store different server names.
    assert_refused(
        &run_lock(&format!("{plain}?timeout=2s,{owned}?timeout=2s")),
        &["same server"],
    );
}

/// A job runs every few seconds, and tries once to take its lock. One run is killed together with its machine: nothing
/// releases the lock. Each later run is a new process.
#[test]
fn run_with_try_gets_the_lock_of_a_killed_holder_at_a_zookeeper() {
    let Some(server) = zookeeper(&ZooKeeperOptions::new()) else {
        return;
    };
    let url = format!("{}?timeout=1s", server.url("/a/locks"));
    assert_eq!(
        output_of(quorate_command().args(["prepare-server", &url])).code,
        Some(0)
    );
    let status = || {
        let output = run_quorate(&url, &["status", "--json", "nightly"]);
        let page: Value = serde_json::from_str(&output.stdout).expect("JSON");
        page["resources"][0]["verdict"].as_str().map(str::to_owned)
    };
    for kind in [&[][..], &["--permits", "1"]] {
        let marker = crate::common::unique_marker();
        let mut holder_command = quorate_command();
        holder_command.env("QUORATE_MASTERS", &url);
        let options = ["run", "--ttl", "4s", "nightly"];
        holder_command
            .args(options)
            .args(kind)
            .args(["--", "sleep", &marker]);
        let _ends = crate::common::KillAtDrop(marker.clone());
        let mut holder_child = holder_command.spawn().expect("a process");
        crate::common::wait_until("the job runs", || crate::common::is_sleeping(&marker));
        holder_child.kill().expect("killed");
        holder_child.wait().expect("ended");
        let run_with_try = || {
            let options = ["run", "--try", "--ttl", "4s", "nightly"];
            let words = [&options[..], kind, &["--", "true"]].concat();
            run_quorate(&url, &words).code
        };
        let exit_code = run_with_try();
        if kind.is_empty() && exit_code == Some(75) {
            assert_eq!(status().as_deref(), Some("held"));
        }
        // Twice the TTL, for a busy machine.
        std::thread::sleep(Duration::from_secs(8));
        assert_eq!(status().as_deref(), Some("free"), "{kind:?}");
        assert_eq!(run_with_try(), Some(0), "{kind:?}");
    }
}
