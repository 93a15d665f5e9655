//! Tests of servers that cannot be masters in their current state. Each server is refused with an error that names the
//! reason and the remedy, and no request hangs.

use std::time::Duration;

use crate::common::{self, change, commit_of, start_prepared, start_unprepared};
use quorate::node::Fault;
use quorate::node::store::{Session as _, Store as _, StoreNode};
use quorate::{Purpose, Redlock, Wait};
use quorate_mysql::{MySql, NotPrepared, prepare};
use quorate_testbed::{MariaDb, MariaDbOptions};

const SECRET: &str = "hunter2";

fn options() -> MariaDbOptions {
    MariaDbOptions::new().flush(2)
}

/// Creates a user with these grants, and returns the URL for this user.
fn create_user(server: &MariaDb, grants: &[String]) -> String {
    let create = format!("CREATE USER app IDENTIFIED BY '{SECRET}'");
    server.sql(&create).unwrap();
    for grant in grants {
        server.sql(&grant.replace("TO USER", "TO app")).unwrap();
    }
    format!(
        "{}?timeout=5s",
        server.url_of(&format!("app:{SECRET}"), "locks")
    )
}

async fn fault_of(url: &str) -> Fault {
    let store = MySql::open(url).unwrap();
    let connect_outcome = tokio::time::timeout(Duration::from_secs(20), store.connect()).await;
    let Err(fault) = connect_outcome.expect("connecting must not hang") else {
        panic!("the server must refuse the connection");
    };
    assert!(!fault.to_string().contains(SECRET), "{fault}");
    fault
}

#[tokio::test]
async fn server_of_another_kind_ends_an_endless_wait() {
    for (greeting, remedy) in [
        (&b"-ERR unknown command 'srvr'\r\n"[..], "use redis://"),
        (b"-NOAUTH Authentication required.\r\n", "use redis://"),
        (b"Zookeeper version: 3.8.0-1, built on 2023\n", "use zk://"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP"),
    ] {
        let server = quorate_testbed::answers(greeting).unwrap();
        let url = format!("mysql://app:{SECRET}@{server}/locks");
        let fault = fault_of(&url).await;
        assert_eq!(fault.kind(), "unsupported", "{fault}");
        assert!(fault.to_string().contains(remedy), "{fault}");
        let inspection = MySql::open(&url).unwrap().inspect().await;
        assert_eq!(inspection.fault, Some(fault));
        let node = StoreNode::new(MySql::open(&url).unwrap());
        let builder = Redlock::builder().node(node).wait(Wait::Forever);
        let waiting_client = builder.build().unwrap();
        let outcome =
            tokio::time::timeout(Duration::from_secs(20), waiting_client.acquire("x")).await;
        let error = outcome.expect("the wait must end").unwrap_err().details();
        assert!(error.contains(remedy), "{error}");
    }
}

#[tokio::test]
async fn silent_server_is_not_taken_for_a_server_of_another_kind() {
    let server = quorate_testbed::answers(b"").unwrap();
    let store = MySql::open(&format!("mysql://app:{SECRET}@{server}/locks")).unwrap();
    let outcome = tokio::time::timeout(Duration::from_secs(1), store.connect()).await;
    let early_end = outcome.map(|connected| connected.map(drop));
    assert!(
        early_end.is_err(),
        "the client must go on waiting: {early_end:?}"
    );
}

#[tokio::test]
async fn concurrent_prepare_calls_create_the_schema_once() {
    let Some(server) = start_unprepared(options()) else {
        return;
    };
    let url = server.url("locks");
    assert_eq!(
        fault_of(&url).await.kind(),
        "unprepared",
        "a missing database must be reported as not prepared"
    );
    server.sql("CREATE DATABASE locks").unwrap();
    let fault = fault_of(&url).await;
    assert_eq!(
        fault.kind(),
        "unprepared",
        "missing tables must be reported as not prepared"
    );
    assert!(
        fault.to_string().contains("quorate prepare-server"),
        "{fault}"
    );
    let reports = tokio::join!(prepare(&url), prepare(&url));
    let (first, second) = (reports.0.unwrap(), reports.1.unwrap());
    assert!(
        first.made != second.made,
        "exactly one of the two calls must report that it created the tables"
    );
    let repeated = prepare(&url).await.unwrap();
    assert!(!repeated.made && repeated.version == 1);
    let store = MySql::open(&url).unwrap();
    let (_, greeting) = store.connect().await.unwrap();
    // `prepare` must repair an incomplete schema, and keep the server name that the schema stores.
    server
        .sql("DROP TABLE locks.quorate_woken; UPDATE locks.quorate_schema SET version=0")
        .unwrap();
    let fault = fault_of(&url).await;
    assert!(fault.to_string().contains("older"), "{fault}");
    assert!(prepare(&url).await.unwrap().made);
    let (_, later_greeting) = store.connect().await.unwrap();
    assert_eq!(later_greeting.server, greeting.server);
}

#[tokio::test]
async fn prepare_refuses_a_newer_schema_and_leaves_it_unchanged() {
    let Some((server, _)) = start_prepared(options()).await else {
        return;
    };
    server
        .sql("UPDATE locks.quorate_schema SET version=7")
        .unwrap();
    let url = server.url("locks");
    let fault = fault_of(&url).await;
    assert!(fault.to_string().contains("newer"), "{fault}");
    let error = prepare(&url).await.unwrap_err();
    assert!(
        matches!(error, NotPrepared::Newer { found: 7, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn user_with_the_reported_grants_can_lock_until_a_required_grant_is_revoked() {
    let Some(server) = start_unprepared(options()) else {
        return;
    };
    let report = prepare(&server.url("locks")).await.unwrap();
    let url = create_user(&server, &report.grants);
    let store = MySql::open(&url).unwrap();
    let (mut session, _) = store.connect().await.unwrap();
    session
        .commit(&[commit_of(change("a", 0, "s"))])
        .await
        .unwrap();
    let inspection = store.inspect().await;
    assert_eq!(inspection.fault, None);
    let mut listener = store.listen("0123456789abcdef".into()).await.unwrap();
    let next_message = quorate::node::store::Listener::next(&mut listener);
    assert!(
        tokio::time::timeout(Duration::from_millis(300), next_message)
            .await
            .is_err()
    );
    for (right, table) in [
        ("UPDATE", "quorate_record"),
        ("INSERT", "quorate_record"),
        ("SELECT", "quorate_record"),
        ("INSERT", "quorate_woken"),
    ] {
        let revoke = format!("REVOKE {right} ON locks.{table} FROM app");
        server.sql(&revoke).unwrap();
        let fault = fault_of(&url).await;
        assert_eq!(fault.kind(), "denied", "{right}: {fault}");
        assert!(fault.to_string().contains(table), "{fault}");
        assert_eq!(store.inspect().await.fault, Some(fault));
        let grant = format!("GRANT {right} ON locks.{table} TO app");
        server.sql(&grant).unwrap();
    }
}

#[tokio::test]
async fn inspection_names_an_optional_right_that_the_user_lacks() {
    let Some(server) = start_unprepared(options()) else {
        return;
    };
    let report = prepare(&server.url("locks")).await.unwrap();
    let store = MySql::open(&create_user(&server, &report.grants)).unwrap();
    for (right, table, purpose) in [
        ("DELETE", "quorate_record", Purpose::Removal),
        ("DELETE", "quorate_woken", Purpose::WakeUps),
        ("SELECT", "quorate_woken", Purpose::WakeUps),
    ] {
        let revoke = format!("REVOKE {right} ON locks.{table} FROM app");
        server.sql(&revoke).unwrap();
        let inspection = store.inspect().await;
        assert_eq!(inspection.fault, None, "{right} on {table}");
        assert_eq!(inspection.wake_ups, purpose != Purpose::WakeUps);
        let [missing] = &inspection.missing[..] else {
            panic!("the inspection must report only {right} on {table} as missing: {inspection:?}");
        };
        assert_eq!(missing.to_string(), format!("{right} on {table}"));
        assert_eq!(missing.purposes(), [purpose]);
        server
            .sql(&missing.rule().replace("TO USER", "TO app"))
            .unwrap();
        assert_eq!(store.inspect().await.missing, []);
    }
    server
        .sql("REVOKE DELETE ON locks.quorate_record FROM app")
        .unwrap();
    let (mut session, _) = store.connect().await.unwrap();
    session
        .commit(&[commit_of(change("a", 0, "s"))])
        .await
        .unwrap();
    let obsolete = [(common::record_name("a"), 1)];
    let fault = session.remove(&obsolete).await.unwrap_err();
    let text = fault.to_string();
    assert!(
        text.contains("cannot remove records") && text.contains("DELETE"),
        "{text}"
    );
    // A new session must not send the forbidden `DELETE` again, because the error would make it unusable.
    let (mut session, _) = store.connect().await.unwrap();
    assert_eq!(session.remove(&obsolete).await, Ok(()));
}

#[tokio::test]
async fn user_that_cannot_log_in_gets_a_permanent_error_with_the_reason() {
    let Some(server) = start_unprepared(options().arg("--max-password-errors=2")) else {
        return;
    };
    let report = prepare(&server.url("locks")).await.unwrap();
    let url = create_user(&server, &report.grants);
    let store = MySql::open(&url).unwrap();
    for (alter, expected, undo) in [
        ("ACCOUNT LOCK", "locked", "ACCOUNT UNLOCK"),
        ("PASSWORD EXPIRE", "expired", "IDENTIFIED BY 'hunter2'"),
    ] {
        server.sql(&format!("ALTER USER app {alter}")).unwrap();
        let fault = fault_of(&url).await;
        assert!(!fault.passes_by_itself(), "{alter}: {fault}");
        assert!(fault.to_string().contains(expected), "{alter}: {fault}");
        server.sql(&format!("ALTER USER app {undo}")).unwrap();
        let connected = store.connect().await;
        assert!(connected.is_ok(), "{alter}: {:?}", connected.err());
    }
    let wrong_url = url.replace(SECRET, "hunter2wrong");
    for _ in 0..2 {
        assert!(fault_of(&wrong_url).await.to_string().contains("(1045)"));
    }
    let blocked = fault_of(&url).await;
    assert_eq!(blocked.kind(), "denied", "{blocked}");
    assert!(blocked.to_string().contains("blocked"), "{blocked}");
}

#[tokio::test]
async fn user_without_free_connections_gets_a_passing_error_about_the_limit() {
    let Some(server) = start_unprepared(options()) else {
        return;
    };
    let report = prepare(&server.url("locks")).await.unwrap();
    let url = create_user(&server, &report.grants);
    // Set the limit before the user connects: the server does not count connections that existed before the limit.
    server
        .sql("ALTER USER app WITH MAX_USER_CONNECTIONS 1")
        .unwrap();
    let store = MySql::open(&url).unwrap();
    let (_session, _) = store.connect().await.unwrap();
    let fault = fault_of(&url).await;
    assert_eq!(fault.kind(), "down", "{fault}");
    assert!(fault.passes_by_itself(), "{fault}");
    let text = fault.to_string();
    assert!(
        text.contains("(1226)") && text.contains("?lanes="),
        "{text}"
    );
}

#[tokio::test]
async fn limit_of_queries_per_hour_gets_a_passing_error() {
    let Some(server) = start_unprepared(options()) else {
        return;
    };
    let report = prepare(&server.url("locks")).await.unwrap();
    let url = create_user(&server, &report.grants);
    server
        .sql("ALTER USER app WITH MAX_QUERIES_PER_HOUR 1")
        .unwrap();
    let fault = fault_of(&url).await;
    assert_eq!(fault.kind(), "server_error", "{fault}");
    assert!(fault.passes_by_itself(), "{fault}");
    assert!(fault.to_string().contains("the hour"), "{fault}");
}

#[tokio::test]
async fn error_of_a_server_without_free_connections_says_to_raise_max_connections() {
    let Some((_server, store)) = start_prepared(options().max_connections(10)).await else {
        return;
    };
    let mut sessions = Vec::new();
    let fault = loop {
        match store.connect().await {
            Ok((session, _)) => sessions.push(session),
            Err(fault) => break fault,
        }
        assert!(
            sessions.len() <= 11,
            "the server must refuse more connections than its limit"
        );
    };
    assert_eq!(fault.kind(), "down", "{fault}");
    let text = fault.to_string();
    assert!(text.contains("raise max_connections"), "{text}");
}

#[tokio::test]
async fn error_of_a_server_that_requires_tls_suggests_the_url_scheme_mysqls() {
    let Some(server) = start_unprepared(options().arg("--require-secure-transport=ON")) else {
        return;
    };
    let fault = fault_of(&server.url("locks")).await;
    assert_eq!(fault.kind(), "denied", "{fault}");
    assert!(fault.to_string().contains("mysqls://"), "{fault}");
}

#[tokio::test]
async fn server_whose_transactions_are_read_only_by_default_can_store_locks() {
    let Some((_server, store)) = start_prepared(options().arg("--transaction-read-only=ON")).await
    else {
        return;
    };
    let (mut session, _) = store.connect().await.unwrap();
    session
        .commit(&[commit_of(change("a", 0, "s"))])
        .await
        .unwrap();
    assert_eq!(store.inspect().await.fault, None);
}

#[tokio::test]
async fn refused_login_is_reported_without_the_password() {
    let Some((server, _)) = start_prepared(options()).await else {
        return;
    };
    let url = create_user(&server, &[]);
    assert_eq!(
        fault_of(&url).await.kind(),
        "denied",
        "a user without rights must be refused"
    );
    let wrong_url = url.replace(SECRET, "hunter2wrong");
    assert_eq!(
        fault_of(&wrong_url).await.kind(),
        "denied",
        "a wrong password must be refused"
    );
    let error = prepare(&wrong_url).await.unwrap_err().to_string();
    assert!(
        error.contains("denied") && !error.contains(SECRET),
        "{error}"
    );
    let debug_text = format!("{:?}", MySql::open(&url).unwrap());
    assert!(!debug_text.contains(SECRET), "{debug_text}");
}

#[tokio::test]
async fn read_only_server_is_refused_as_a_master() {
    let Some(server) = start_unprepared(options()) else {
        return;
    };
    let report = prepare(&server.url("locks")).await.unwrap();
    let url = create_user(&server, &report.grants);
    let store = MySql::open(&url).unwrap();
    let (mut session, _) = store.connect().await.unwrap();
    server.sql("SET GLOBAL read_only=1").unwrap();
    let fault = session
        .commit(&[commit_of(change("a", 0, "s"))])
        .await
        .unwrap_err();
    assert_eq!(fault, Fault::ReadOnly);
    assert_eq!(fault_of(&url).await, Fault::ReadOnly);
    let inspection = store.inspect().await;
    assert_eq!(inspection.fault, Some(Fault::ReadOnly));
    assert_eq!(inspection.role.as_deref(), Some("read-only"));
}

#[tokio::test]
async fn error_of_a_server_with_a_statement_based_binary_log_names_binlog_format() {
    let Some((server, store)) = start_prepared(options().binlog_format("STATEMENT")).await else {
        return;
    };
    let Err(fault) = store.connect().await else {
        panic!("the server must refuse the connection");
    };
    assert!(
        !fault.passes_by_itself(),
        "clients must not wait for this fault to pass: {fault}"
    );
    assert!(fault.to_string().contains("binlog_format"), "{fault}");
    let inspection = store.inspect().await;
    assert_eq!(inspection.fault, Some(fault));
    assert_eq!(inspection.setting("binlog_format"), Some("STATEMENT"));
    for format in ["ROW", "MIXED"] {
        let set_statement = format!("SET GLOBAL binlog_format={format}");
        server.sql(&set_statement).unwrap();
        let (mut session, _) = store.connect().await.unwrap();
        session
            .commit(&[commit_of(change(format, 0, "s"))])
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_to_a_locked_row_fails_as_busy_without_any_change() {
    let Some((server, store)) = start_prepared(options()).await else {
        return;
    };
    let (mut session, _) = store.connect().await.unwrap();
    let commits = [
        commit_of(change("a", 0, "s")),
        commit_of(change("b", 0, "s")),
    ];
    let reply = session.commit(&commits).await.unwrap();
    let quorate::node::store::Committed::Done(versions) = &reply.what[0] else {
        panic!("stale");
    };
    let lock_one_row =
        "BEGIN; SELECT * FROM locks.quorate_record WHERE name='b' FOR UPDATE; SELECT SLEEP(3)";
    let fault = std::thread::scope(|scope| {
        scope.spawn(|| server.sql(lock_one_row));
        std::thread::sleep(Duration::from_millis(300));
        let batch = [
            commit_of(change("a", versions[0], "no")),
            commit_of(change("b", 1, "no")),
        ];
        let commit = session.commit(&batch);
        let outcome =
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(commit));
        outcome.unwrap_err()
    });
    assert_eq!(fault, Fault::Busy);
    drop(session);
    let (mut next_session, _) = store.connect().await.unwrap();
    let loaded = next_session
        .load(&[common::record_name("a")])
        .await
        .unwrap();
    assert_eq!(
        loaded.what[0].version, versions[0],
        "the refused commit must leave no change"
    );
}

#[tokio::test]
async fn inspection_detects_a_replica_or_reports_the_missing_right_to_detect_one() {
    let Some(server) = start_unprepared(options().arg("--server-id=2")) else {
        return;
    };
    let report = prepare(&server.url("locks")).await.unwrap();
    let store = MySql::open(&create_user(&server, &report.grants)).unwrap();
    let inspection = store.inspect().await;
    assert_eq!(
        (inspection.fault, inspection.role.as_deref()),
        (None, Some("master"))
    );
    let unseen_settings = inspection.unseen.join(" ");
    assert!(
        unseen_settings.contains("GRANT SLAVE MONITOR ON *.*"),
        "{unseen_settings}"
    );
    server.sql("GRANT SLAVE MONITOR ON *.* TO app").unwrap();
    let inspection = store.inspect().await;
    assert_eq!(
        (inspection.unseen.len(), inspection.role.as_deref()),
        (0, Some("master"))
    );
    let change_master = "CHANGE MASTER TO MASTER_HOST='10.9.8.7', MASTER_PORT=3307";
    server.sql(change_master).unwrap();
    let inspection = store.inspect().await;
    assert_eq!(
        (inspection.fault.clone(), inspection.role.as_deref()),
        (None, Some("slave"))
    );
    assert_eq!(
        inspection.setting("source"),
        Some("10.9.8.7:3307"),
        "{inspection:?}"
    );
    // A server that does not replicate the database `locks` must report the role `master`, not `slave`.
    server
        .sql("SET GLOBAL replicate_ignore_db='other,locks'")
        .unwrap();
    let inspection = store.inspect().await;
    assert_eq!(inspection.role.as_deref(), Some("master"), "{inspection:?}");
}

#[tokio::test]
async fn two_databases_of_one_server_have_one_server_name() {
    let Some(server) = start_unprepared(options()) else {
        return;
    };
    let mut servers = Vec::new();
    for database in ["locks", "others"] {
        let url = server.url(database);
        prepare(&url).await.unwrap();
        let url = format!("{url}?timeout=5s");
        let (_, greeting) = MySql::open(&url).unwrap().connect().await.unwrap();
        servers.push(greeting.server.unwrap());
    }
    assert_eq!(servers[0], servers[1]);
    let other_server = start_unprepared(options()).unwrap();
    let url = other_server.url("locks");
    prepare(&url).await.unwrap();
    let store = MySql::open(&url).unwrap();
    let (_, greeting) = store.connect().await.unwrap();
    assert_ne!(greeting.server.as_ref(), Some(&servers[0]));
    assert_eq!(store.inspect().await.identity, greeting.server);
}

#[tokio::test]
async fn server_that_does_not_listen_is_reported_as_down() {
    let Some((server, store)) = start_prepared(options()).await else {
        return;
    };
    server.kill().unwrap();
    let Err(fault) = store.connect().await else {
        panic!("the server must refuse the connection");
    };
    assert_eq!(fault.kind(), "down", "{fault}");
    assert_eq!(
        store.inspect().await.fault.map(|fault| fault.kind()),
        Some("down")
    );
}

#[tokio::test]
async fn inspection_reports_version_role_settings_and_clock() {
    let Some((_server, store)) = start_prepared(options()).await else {
        return;
    };
    let inspection = store.inspect().await;
    assert_eq!(inspection.fault, None);
    assert_eq!(inspection.server.as_deref(), Some("mariadb"));
    assert_eq!(inspection.role.as_deref(), Some("master"));
    let flush = inspection.setting("innodb_flush_log_at_trx_commit");
    assert_eq!(flush, Some("2"), "{inspection:?}");
    assert!(inspection.setting("hostname").is_some() && inspection.setting("datadir").is_some());
    assert!(
        inspection
            .version
            .is_some_and(|version| version.contains('.'))
    );
    let (_, greeting) = store.connect().await.unwrap();
    assert_eq!(inspection.run_id.as_deref(), Some(greeting.run.as_str()));
    assert!(inspection.uptime.is_some() && inspection.wake_ups);
    let offset = inspection.clock_offset_ms.expect("a clock");
    assert!(
        offset.abs() < 5_000,
        "both clocks must agree, but differ by {offset} ms"
    );
    assert!(inspection.round_trip < inspection.connecting);
}

/// Runs `statement`, checks the error that a session reports afterwards, and checks whether `prepare` repairs the
/// fault.
async fn check_refusal_and_repair(server: &MariaDb, statement: &str, expected: &[&str]) {
    let url = server.url("locks");
    server.sql(statement).unwrap();
    let patient_url = format!("{url}?timeout=5s");
    let fault = fault_of(&patient_url).await;
    assert_eq!(fault.kind(), "unprepared", "{statement}: {fault}");
    for text in expected {
        assert!(fault.to_string().contains(text), "{statement}: {fault}");
    }
    let inspection = MySql::open(&patient_url).unwrap().inspect().await;
    assert_eq!(
        inspection.fault,
        Some(fault),
        "`doctor` must report the same fault"
    );
    let report = prepare(&url).await;
    let report = report.unwrap_or_else(|error| panic!("{statement}: {error}"));
    assert!(report.made, "{statement}");
    assert!(!prepare(&url).await.unwrap().made, "{statement}");
    let connected = MySql::open(&patient_url).unwrap().connect().await;
    assert!(connected.is_ok(), "{statement}");
}

#[tokio::test]
async fn table_with_a_wrong_storage_engine_is_refused_until_prepare_converts_it() {
    let Some((server, store)) = start_prepared(options()).await else {
        return;
    };
    let (mut session, _) = store.connect().await.unwrap();
    session
        .commit(&[commit_of(change("a", 0, "s"))])
        .await
        .unwrap();
    for (table, engine, expected_engine) in [
        ("quorate_record", "Aria", "InnoDB"),
        ("quorate_run", "InnoDB", "MEMORY"),
        ("quorate_woken", "InnoDB", "MEMORY"),
        ("quorate_schema", "MEMORY", "InnoDB"),
    ] {
        let alter = format!("ALTER TABLE locks.{table} ENGINE={engine}");
        check_refusal_and_repair(
            &server,
            &alter,
            &[table, engine, expected_engine, "quorate prepare-server"],
        )
        .await;
    }
    let (mut session, _) = store.connect().await.unwrap();
    let loaded = session.load(&[common::record_name("a")]).await.unwrap();
    assert_eq!(loaded.what[0].state, b"s", "the record must be kept");
}

#[tokio::test]
async fn database_without_a_required_table_is_refused_until_prepare_repairs_it() {
    let Some((server, _)) = start_prepared(options()).await else {
        return;
    };
    for table in [
        "quorate_woken",
        "quorate_run",
        "quorate_record",
        "quorate_schema",
    ] {
        let drop_statement = format!("DROP TABLE locks.{table}");
        check_refusal_and_repair(&server, &drop_statement, &["quorate prepare-server"]).await;
    }
}

#[tokio::test]
async fn error_about_an_unsuitable_table_names_the_wrong_column() {
    let Some((server, _)) = start_prepared(options()).await else {
        return;
    };
    for statement in [
        "ALTER TABLE locks.quorate_woken MODIFY process VARCHAR(64) NOT NULL",
        "ALTER TABLE locks.quorate_run DROP PRIMARY KEY",
    ] {
        check_refusal_and_repair(&server, statement, &["quorate_", "quorate prepare-server"]).await;
    }
    // `prepare` must return an error: if it converted the unsuitable table, the locks in it would be lost.
    let url = format!("{}?timeout=5s", server.url("locks"));
    for (statement, repair, column) in [
        (
            "MODIFY name VARCHAR(700) CHARACTER SET utf8mb4 NOT NULL",
            "MODIFY name VARBINARY(2100) NOT NULL",
            "name",
        ),
        ("DROP PRIMARY KEY", "ADD PRIMARY KEY (name)", "name"),
        (
            "MODIFY version INT NOT NULL",
            "MODIFY version BIGINT UNSIGNED NOT NULL",
            "version",
        ),
        ("MODIFY state TINYBLOB", "MODIFY state MEDIUMBLOB", "state"),
        (
            "DROP COLUMN changed",
            "ADD COLUMN changed BIGINT UNSIGNED NOT NULL",
            "changed",
        ),
    ] {
        server
            .sql(&format!("ALTER TABLE locks.quorate_record {statement}"))
            .unwrap();
        let fault = fault_of(&url).await;
        assert_eq!(fault.kind(), "unprepared", "{statement}: {fault}");
        let error = prepare(&url).await.unwrap_err().to_string();
        for text in [&fault.to_string(), &error] {
            assert!(
                text.contains("quorate_record") && text.contains(column),
                "{statement}: {text}"
            );
        }
        server
            .sql(&format!("ALTER TABLE locks.quorate_record {repair}"))
            .unwrap();
        assert!(!prepare(&url).await.unwrap().made, "{statement}");
    }
}

#[tokio::test]
async fn server_that_substitutes_another_storage_engine_cannot_be_prepared() {
    let Some(server) = start_unprepared(options().arg("--enforce-storage-engine=Aria")) else {
        return;
    };
    for mode in ["", "NO_ENGINE_SUBSTITUTION"] {
        server
            .sql(&format!("SET GLOBAL sql_mode='{mode}'"))
            .unwrap();
        let error = prepare(&server.url("locks")).await.unwrap_err().to_string();
        assert!(error.contains("enforce_storage_engine"), "{mode}: {error}");
    }
}

#[tokio::test]
async fn separately_prepared_databases_of_one_server_get_the_same_server_name() {
    let Some(server) = start_unprepared(options()) else {
        return;
    };
    let mut stores = Vec::new();
    for database in ["locks", "others", "thirds"] {
        let url = server.url(database);
        prepare(&url).await.unwrap();
        // Store a different name in each database, as `prepare` does if its user cannot see the other databases.
        let set_server_name =
            format!("UPDATE {database}.quorate_schema SET server=MD5('{database}')");
        server.sql(&set_server_name).unwrap();
        stores.push(MySql::open(&format!("{url}?timeout=5s")).unwrap());
    }
    let server_name = |store: MySql| async move { store.connect().await.unwrap().1.server };
    let first_name = server_name(stores[0].clone()).await;
    assert!(first_name.is_some());
    for store in &stores {
        assert_eq!(server_name(store.clone()).await, first_name);
        assert_eq!(store.inspect().await.identity, first_name);
    }
    // After a restart, the databases must still count as one server, whichever database the client connects to first.
    server.restart().unwrap();
    for store in stores.iter().rev() {
        assert_eq!(server_name(store.clone()).await, first_name);
    }
}

#[tokio::test]
async fn listener_receives_wake_ups_under_any_sql_mode() {
    let Some((server, store)) = start_prepared(options()).await else {
        return;
    };
    for mode in ["ORACLE", "ANSI", "DB2", "MAXDB"] {
        server
            .sql(&format!("SET GLOBAL sql_mode='{mode}'"))
            .unwrap();
        let (mut session, _) = store.connect().await.unwrap();
        let opened = store.listen(mode.into()).await;
        let mut listener = opened.unwrap_or_else(|fault| panic!("{mode}: {fault}"));
        let mut commit = commit_of(change(mode, 0, "s"));
        commit.wakes = vec![common::wake(mode, mode.as_bytes())];
        session.commit(&[commit]).await.unwrap();
        let next_message = quorate::node::store::Listener::next(&mut listener);
        let outcome = tokio::time::timeout(Duration::from_secs(10), next_message).await;
        let received =
            outcome.unwrap_or_else(|_| panic!("{mode}: the listener must receive the wake-up"));
        assert_eq!(received, Ok(vec![mode.as_bytes().to_vec()]), "{mode}");
    }
}
