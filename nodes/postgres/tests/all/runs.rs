//! Tests of the events in which a server may forget records. quorate ignores the vote of such a server for `max_ttl`.

use std::time::Duration;

use crate::common::{
    Server, bare, get, name, options, put, report_not_run, server, session, sql, store, store_at,
};
use quorate::node::Fault;
use quorate::node::store::{Greeting, Session as _, Store as _, StoreNode};
use quorate::{Redlock, RestartGuard, TryAcquire};
use quorate_postgres::{Postgres, prepare};

/// The name of an event, and a function that makes it happen.
type Event<'a> = (&'static str, &'a dyn Fn(&Server));

async fn greeting(store: &Postgres) -> Greeting {
    let connected = store.connect().await;
    connected.unwrap_or_else(|fault| panic!("{fault}")).1
}

async fn fault(store: &Postgres) -> Fault {
    match store.connect().await {
        Err(fault) => fault,
        Ok(_) => panic!("the server must not vote"),
    }
}

fn uptime(greeting: &Greeting) -> Duration {
    greeting
        .uptime
        .expect("the store must report an uptime, because it may lose records")
}

/// Connects with `store` until its process has counted and written an age of at least one second.
async fn let_it_age(store: &Postgres) {
    let mut session = session(store).await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    for _ in 0..2 {
        // The second answer shows that the age was written.
        session.load(&[name("a")]).await.expect("answered");
    }
}

#[tokio::test]
async fn clean_restart_keeps_the_records_and_begins_a_run_without_an_age() {
    let Some((server, one)) = server(options()).await else {
        return;
    };
    let first = greeting(&one).await;
    let version = put(&mut session(&one).await, "a", 0, "s").await;
    let_it_age(&one).await;
    server.shut_down().expect("down");
    server.start_again().expect("up");
    for next in [greeting(&one).await, greeting(&store(&server)).await] {
        assert_ne!(next.run, first.run);
        assert_eq!(next.server, first.server);
        assert!(uptime(&next) < Duration::from_secs(1), "{next:?}");
    }
    assert_eq!(get(&mut session(&one).await, "a").await.version, version);
}

#[tokio::test]
async fn each_kind_of_crash_begins_a_run_without_an_age() {
    let Some((server, one)) = server(options()).await else {
        return;
    };
    let started = "SELECT pg_postmaster_start_time()";
    let events: [Event<'_>; 3] = [
        ("an immediate stop", &|server| server.restart().expect("up")),
        ("kill -9 of the main process", &|server| {
            server.kill().expect("dead");
            server.start_again().expect("up");
        }),
        ("kill -9 of one backend", &|server| {
            let before = sql(server, started);
            let pid = sql(
                server,
                "SELECT pid FROM pg_stat_activity WHERE application_name='quorate' LIMIT 1",
            );
            server
                .kill_backend(pid.trim().parse().expect("a pid"))
                .expect("killed");
            let back = || server.sql("SELECT 1").is_ok();
            assert!(
                quorate_testbed::within(Duration::from_secs(20), back),
                "the server must recover"
            );
            assert_eq!(
                sql(server, started),
                before,
                "the time of the start does not show this crash"
            );
        }),
    ];
    for (event, happen) in events {
        let (mut open, first) = one.connect().await.expect("connected");
        let version = get(&mut open, "a").await.version;
        let version = put(&mut open, "a", version, event).await;
        let_it_age(&one).await;
        happen(&server);
        let fault = open.load(&[name("a")]).await.expect_err(event);
        assert!(fault.passes_by_itself(), "{event}: {fault}");
        for next in [greeting(&one).await, greeting(&store(&server)).await] {
            assert_ne!(next.run, first.run, "{event}");
            assert_eq!(next.server, first.server, "{event}");
            assert!(uptime(&next) < Duration::from_secs(1), "{event}: {next:?}");
        }
        let record = get(&mut session(&one).await, "a").await;
        assert_eq!(
            record.version, version,
            "{event}: an acknowledged commit must not be lost"
        );
    }
}

#[tokio::test]
async fn commit_survives_a_crash_of_a_server_whose_default_is_not_to_wait_for_the_disk() {
    let lazy = options()
        .set("synchronous_commit", "off")
        .set("wal_writer_delay", "10s");
    let Some((server, one)) = server(lazy).await else {
        return;
    };
    sql(&server, "CREATE TABLE plain (n int)");
    sql(&server, "CHECKPOINT");
    let mut first = session(&one).await;
    let version = put(&mut first, "a", 0, "kept").await;
    // The next commit is sent behind the notification of the first one, which does not wait for the disk.
    let mut commit = crate::common::of(crate::common::change("a", version, "last"));
    commit.wakes = vec![crate::common::wake("0123456789abcdef", b"w")];
    let answer = first.commit(&[commit]).await.expect("answered");
    sql(&server, "INSERT INTO plain VALUES (1)");
    server.restart().expect("up");
    let record = get(&mut session(&one).await, "a").await;
    assert_eq!(record.version, crate::common::version(&answer.what[0]));
    assert_eq!(record.state, b"last");
}

#[tokio::test]
async fn crash_of_a_backend_keeps_the_lock_of_a_holder_safe() {
    let Some((server, _)) = server(options()).await else {
        return;
    };
    let redlock = |guard| {
        let builder = Redlock::builder().node(StoreNode::new(store(&server)));
        // Longer than any busy machine needs for the steps below.
        let ttl = Duration::from_secs(600);
        let builder = builder.ttl(ttl).max_ttl(ttl).restart_guard(guard);
        builder.build().expect("a Redlock")
    };
    let holder = redlock(RestartGuard::Off);
    let lock = holder
        .lock("a")
        .renewal(false)
        .acquire()
        .await
        .expect("the lock");
    // As a crash that loses the record.
    sql(&server, "DELETE FROM quorate.record");
    server.restart().expect("up");
    let other = redlock(RestartGuard::On);
    // On a busy machine, a server that has just started may accept a connection or answer too late.
    let is_late = |text: &str| {
        ["no answer within", "down (connecting)"]
            .iter()
            .any(|state| text.contains(state))
    };
    let answer = loop {
        match other.try_acquire("a").await {
            Ok(TryAcquire::Acquired(_)) => {
                panic!("two clients must not hold the lock at the same time")
            }
            Ok(_) => panic!("the server has lost the record, so no other client can hold the lock"),
            Err(error) if is_late(&error.details()) => {}
            Err(error) => break error.details(),
        }
        assert!(lock.is_valid(), "the server never answered in time");
    };
    assert!(answer.contains("restart guard"), "{answer}");
}

#[tokio::test]
async fn standby_does_not_vote_and_its_promotion_begins_a_run() {
    let Some((primary, one)) = server(options()).await else {
        return;
    };
    let first = greeting(&one).await;
    let_it_age(&one).await;
    let standby = match primary.start_standby() {
        Ok(standby) => standby,
        Err(error) => return report_not_run(&error.to_string()),
    };
    let other = store(&standby);
    assert_eq!(fault(&other).await, Fault::ReadOnly);
    let found = other.inspect().await;
    assert_eq!(
        (found.role.as_deref(), found.fault),
        (Some("slave"), Some(Fault::ReadOnly))
    );
    standby.sql("SELECT pg_promote()").expect("promoted");
    let next = greeting(&other).await;
    assert_ne!(next.run, first.run);
    assert_eq!(
        next.server, first.server,
        "a promoted standby must not get a vote of its own"
    );
    assert!(uptime(&next) < Duration::from_secs(1), "{next:?}");
    // This process has seen the new timeline, so it knows that the other server is the old primary.
    let fault = fault(&one).await;
    assert!(fault.to_string().contains("old primary"), "{fault}");
}

#[tokio::test]
async fn copy_of_the_files_of_a_running_server_begins_a_run() {
    let Some((server, one)) = server(options()).await else {
        return;
    };
    let first = greeting(&one).await;
    let_it_age(&one).await;
    server.sql("CHECKPOINT").expect("done");
    let copy = server.start_copy().expect("a copy");
    let next = greeting(&store(&copy)).await;
    assert_ne!(next.run, first.run);
    assert_eq!(next.server, first.server);
    assert!(uptime(&next) < Duration::from_secs(1), "{next:?}");
}

#[tokio::test]
async fn copy_of_the_files_of_a_stopped_server_begins_a_run() {
    let Some((server, one)) = server(options()).await else {
        return;
    };
    let first = greeting(&one).await;
    let_it_age(&one).await;
    server.shut_down().expect("down");
    let copy = server.start_copy().expect("a copy");
    let next = greeting(&store(&copy)).await;
    assert_ne!(next.run, first.run);
    assert!(uptime(&next) < Duration::from_secs(1), "{next:?}");
}

#[tokio::test]
async fn primary_that_was_stopped_cleanly_and_started_by_mistake_begins_a_run() {
    let Some((primary, one)) = server(options()).await else {
        return;
    };
    let first = greeting(&one).await;
    let_it_age(&one).await;
    let standby = match primary.start_standby() {
        Ok(standby) => standby,
        Err(error) => return report_not_run(&error.to_string()),
    };
    primary.shut_down().expect("down");
    standby.sql("SELECT pg_promote()").expect("promoted");
    put(&mut session(&store(&standby)).await, "a", 0, "held").await;
    primary.start_again().expect("up");
    // In this process, the earlier timeline shows the old primary, too. A new process has seen no timeline.
    sql(
        &primary,
        "CREATE ROLE locks LOGIN;GRANT USAGE ON SCHEMA quorate TO locks;\
         GRANT ALL ON ALL TABLES IN SCHEMA quorate TO locks;\
         REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC",
    );
    let new_process = store_at(&primary.url_of("locks", "locks"));
    let next = greeting(&new_process).await;
    assert_ne!(next.run, first.run);
    assert!(uptime(&next) < Duration::from_secs(1), "{next:?}");
}

#[tokio::test]
async fn server_that_was_set_back_within_a_run_begins_another_run() {
    let Some((server, one)) = server(options()).await else {
        return;
    };
    let all = "SELECT id,started FROM quorate.run";
    let data = server.dir().join("data");
    let copy = server.dir().join("old");
    greeting(&one).await;
    server.shut_down().expect("down");
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([&data, &copy])
        .status();
    assert!(copied.expect("cp").success());
    server.start_again().expect("up");
    sql(&server, "SELECT pg_switch_wal()");
    let_it_age(&one).await;
    let first = greeting(&one).await;
    server.shut_down().expect("down");
    std::fs::remove_dir_all(&data).expect("removed");
    std::fs::rename(&copy, &data).expect("renamed");
    server.start_again().expect("up");
    // A snapshot of a virtual machine contains the memory of the server, and so the time of its start.
    let set_back = format!(
        "UPDATE quorate.run SET id='{}',started=(extract(epoch from pg_postmaster_start_time())*1000000)::bigint",
        first.run.as_str()
    );
    sql(&server, &set_back);
    assert!(sql(&server, all).contains(first.run.as_str()));
    for next in [greeting(&one).await, greeting(&store(&server)).await] {
        assert_ne!(next.run, first.run);
        assert!(uptime(&next) < Duration::from_secs(1), "{next:?}");
    }
}

#[tokio::test]
async fn copy_of_the_database_on_the_same_server_begins_a_run() {
    let Some((server, one)) = server(options()).await else {
        return;
    };
    let first = greeting(&one).await;
    let_it_age(&one).await;
    let gone = || server.sql("CREATE DATABASE copy TEMPLATE locks").is_ok();
    assert!(quorate_testbed::within(Duration::from_secs(10), gone));
    let next = greeting(&store_at(&server.url("copy"))).await;
    assert_ne!(next.run, first.run);
    assert_eq!(
        next.server, first.server,
        "two databases of a server are one master"
    );
    assert!(uptime(&next) < Duration::from_secs(1), "{next:?}");
}

#[tokio::test]
async fn emptied_or_recreated_table_of_records_ends_open_sessions_and_begins_a_run() {
    let Some((server, one)) = server(options()).await else {
        return;
    };
    for event in [
        "TRUNCATE quorate.record",
        "VACUUM FULL quorate.record",
        "DROP TABLE quorate.record",
    ] {
        let (mut open, first) = one.connect().await.expect("connected");
        put(&mut open, event, 0, "s").await;
        sql(&server, event);
        if event.starts_with("DROP") {
            let fault = open.load(&[name("a")]).await.expect_err("no table");
            assert_eq!(fault.kind(), "unprepared", "{fault}");
            assert!(prepare(&server.url("locks")).await.expect("prepared").made);
        }
        let fault = open.load(&[name("a")]).await.expect_err(event);
        assert_eq!(fault.kind(), "disconnected", "{event}: {fault}");
        let next = greeting(&one).await;
        assert_ne!(next.run, first.run, "{event}");
        assert!(uptime(&next) < Duration::from_secs(1), "{event}: {next:?}");
        assert_eq!(greeting(&one).await.run, next.run, "{event}");
    }
}

#[tokio::test]
async fn logged_table_of_the_run_is_refused_and_repaired() {
    let Some((server, one)) = server(options()).await else {
        return;
    };
    let first = greeting(&one).await;
    for (wrong, text) in [
        ("ALTER TABLE quorate.run SET LOGGED", "not UNLOGGED"),
        ("ALTER TABLE quorate.record SET UNLOGGED", "is UNLOGGED"),
    ] {
        sql(&server, wrong);
        let fault = fault(&one).await;
        assert_eq!(fault.kind(), "unprepared");
        assert!(fault.to_string().contains(text), "{fault}");
        let report = prepare(&server.url("locks")).await.expect("prepared");
        assert_eq!(report.repaired.len(), 1, "{report}");
        assert_ne!(greeting(&one).await.run, first.run, "{wrong}");
    }
}

#[tokio::test]
async fn new_process_takes_over_the_age_that_others_have_counted() {
    let Some((server, one)) = server(options()).await else {
        return;
    };
    assert!(uptime(&greeting(&one).await) < Duration::from_secs(1));
    let_it_age(&one).await;
    let other = store(&server);
    let taken = uptime(&greeting(&other).await);
    assert!(taken >= Duration::from_secs(1), "{taken:?}");
    // Processes that end soon add up their ages.
    let_it_age(&other).await;
    let sum = uptime(&greeting(&store(&server)).await);
    assert!(sum >= Duration::from_secs(2), "{sum:?}");
    // The wall clock of the server plays no part.
    assert_eq!(
        sql(
            &server,
            "SELECT count(*) FROM quorate.run WHERE aged>3600000000"
        ),
        "0\n"
    );
}

/// Commands that try once stay connected for a 32nd part of `max_ttl` if there is no quorum.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_try_once_end_the_restart_guard_together() {
    let Some((server, _)) = server(options()).await else {
        return;
    };
    let ttl = Duration::from_secs(4);
    let url = format!("{}?timeout=1s", server.url("locks"));
    let mut tries = 0;
    loop {
        let store = Postgres::open(&url).expect("a URL");
        let builder = Redlock::builder().node(StoreNode::new(store));
        let builder = builder.ttl(ttl).max_ttl(ttl);
        let process = builder
            .restart_guard(RestartGuard::On)
            .build()
            .expect("a Redlock");
        if let Ok(TryAcquire::Acquired(_)) = process.try_acquire("a").await {
            break;
        }
        tries += 1;
        assert!(tries < 40, "the restart guard must end");
        tokio::time::sleep(ttl / 32 + Duration::from_millis(150)).await;
    }
    assert!(tries > 8, "{tries}");
}

#[tokio::test]
async fn session_that_only_commits_counts_the_age() {
    let Some((server, one)) = server(options()).await else {
        return;
    };
    let mut session = session(&one).await;
    let mut version = 0;
    for _ in 0..6 {
        version = put(&mut session, "a", version, "s").await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let taken = uptime(&greeting(&store(&server)).await);
    assert!(taken >= Duration::from_millis(700), "{taken:?}");
}

#[tokio::test]
async fn server_that_may_lose_commits_without_a_trace_does_not_vote() {
    let Some(server) = bare(options().set("fsync", "off")) else {
        return;
    };
    prepare(&server.url("locks")).await.expect("prepared");
    let one = store(&server);
    let refused = fault(&one).await;
    assert!(
        !refused.passes_by_itself() && refused.to_string().contains("fsync"),
        "{refused}"
    );
    server.sql("ALTER SYSTEM SET fsync=on").expect("set");
    assert_eq!(one.inspect().await.setting("fsync"), Some("off"));
}

#[tokio::test]
async fn server_that_an_administrator_made_read_only_does_not_vote() {
    let Some((server, one)) = server(options()).await else {
        return;
    };
    server
        .sql("ALTER DATABASE locks SET default_transaction_read_only=on")
        .expect("set");
    assert_eq!(fault(&one).await, Fault::ReadOnly);
    assert_eq!(one.inspect().await.role.as_deref(), Some("read-only"));
}

/// A database, the statements that rename something away, and those that rename it back.
type Rename = (&'static str, &'static str, &'static str);

#[tokio::test]
async fn table_schema_or_database_that_was_renamed_away_and_back_begins_a_run() {
    let Some((server, one)) = server(options()).await else {
        return;
    };
    let renames: [Rename; 3] = [
        (
            "locks",
            "ALTER TABLE quorate.record RENAME TO away",
            "DROP TABLE quorate.record;ALTER TABLE quorate.away RENAME TO record",
        ),
        (
            "locks",
            "ALTER SCHEMA quorate RENAME TO away",
            "DROP SCHEMA quorate CASCADE;ALTER SCHEMA away RENAME TO quorate",
        ),
        (
            "postgres",
            "ALTER DATABASE locks RENAME TO away",
            "DROP DATABASE locks WITH (FORCE);ALTER DATABASE away RENAME TO locks",
        ),
    ];
    for (database, away, back) in renames {
        put(&mut session(&one).await, away, 0, "s").await;
        let_it_age(&one).await;
        let first = greeting(&one).await;
        assert!(uptime(&first) >= Duration::from_secs(1), "{first:?}");
        assert_eq!(greeting(&store(&server)).await.run, first.run);
        let each = |statements: &str| {
            for statement in statements.split(';') {
                let done = || server.sql_in(database, statement).is_ok();
                let is_done = quorate_testbed::within(Duration::from_secs(10), done);
                assert!(is_done, "{statement}");
            }
        };
        each(away);
        prepare(&server.url("locks")).await.expect("prepared");
        put(&mut session(&store(&server)).await, "b", 0, "held").await;
        each(back);
        for next in [greeting(&store(&server)).await, greeting(&one).await] {
            assert_ne!(next.run, first.run, "{away}");
            assert!(uptime(&next) < Duration::from_secs(1), "{away}: {next:?}");
        }
    }
}

#[tokio::test]
async fn open_sessions_end_when_another_process_begins_a_run() {
    let Some((server, one)) = server(options()).await else {
        return;
    };
    let (mut open, first) = one.connect().await.expect("connected");
    let version = put(&mut open, "a", 0, "s").await;
    // As another process does that finds the server at an earlier position in the WAL.
    let begin = "UPDATE quorate.run SET id='0123456789abcdef0123456789abcdef',aged=0";
    sql(&server, begin);
    let commits = [crate::common::of(crate::common::change("a", version, "no"))];
    let fault = open.commit(&commits).await.expect_err("another run");
    assert_eq!(fault.kind(), "disconnected", "{fault}");
    assert!(fault.to_string().contains("run"), "{fault}");
    let next = greeting(&one).await;
    assert_ne!(next.run, first.run);
    assert!(uptime(&next) < Duration::from_secs(1), "{next:?}");
}

/// The address may lead to another server, for example after a failover. Its first session then shows a new run.
#[tokio::test]
async fn open_sessions_end_when_another_session_of_the_process_meets_another_run() {
    let Some((server, one)) = server(options()).await else {
        return;
    };
    let (mut open, first) = one.connect().await.expect("connected");
    put(&mut open, "a", 0, "s").await;
    let set = |id: &str| sql(&server, &format!("UPDATE quorate.run SET id='{id}'"));
    set("0123456789abcdef0123456789abcdef");
    let other = greeting(&one).await;
    assert_ne!(other.run, first.run);
    set(first.run.as_str());
    let fault = open.load(&[name("a")]).await.expect_err("another run");
    assert_eq!(fault.kind(), "disconnected", "{fault}");
    // Another process that has met only the first run is not concerned.
    session(&store(&server)).await;
}
