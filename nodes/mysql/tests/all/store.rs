//! Tests of the guarantees of the trait `Store`, on a real MariaDB server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{
    change, commit_of, commit_of_all, record_name, start_prepared, version_check, wake,
};
use quorate::node::store::{Commit, Committed, Listener as _, Record, Session as _, Store as _};
use quorate_mysql::MySql;
use quorate_testbed::{MariaDb, MariaDbOptions};

/// A store over a new server. The test returns early if MariaDB is missing.
macro_rules! store {
    ($options:expr) => {
        match start_prepared($options).await {
            Some(started) => started,
            None => return,
        }
    };
    () => {
        store!(MariaDbOptions::new().flush(2))
    };
}

async fn connect(store: &MySql) -> quorate_mysql::MySqlSession {
    store.connect().await.expect("connected").0
}

fn first_version(committed: &Committed) -> u64 {
    match committed {
        Committed::Done(versions) => versions[0],
        Committed::Stale => panic!("the commit must be applied, but its version is outdated"),
    }
}

/// Creates the record `key` (`old_version` is 0) or changes it from `old_version`. Returns the new version of the
/// record.
async fn put(
    session: &mut quorate_mysql::MySqlSession,
    key: &str,
    old_version: u64,
    state: &str,
) -> u64 {
    let reply = session
        .commit(&[commit_of(change(key, old_version, state))])
        .await;
    first_version(&reply.expect("answered").what[0])
}

async fn get(session: &mut quorate_mysql::MySqlSession, key: &str) -> Record {
    let reply = session.load(&[record_name(key)]).await.expect("answered");
    reply.what.into_iter().next().expect("one")
}

#[tokio::test]
async fn record_is_changed_only_if_it_has_the_expected_version() {
    let (_server, store) = store!();
    let mut session = connect(&store).await;
    let first_version = put(&mut session, "a", 0, "one").await;
    let record = get(&mut session, "a").await;
    assert_eq!(
        (record.version, &record.state[..]),
        (first_version, &b"one"[..])
    );
    let second_version = put(&mut session, "a", first_version, "two").await;
    assert_ne!(second_version, first_version);
    for stale in [0, first_version, second_version + 1] {
        let reply = session
            .commit(&[commit_of(change("a", stale, "no"))])
            .await
            .unwrap();
        assert_eq!(reply.what, [Committed::Stale], "{stale}");
        assert!(
            reply.clock.is_some(),
            "the answer to an outdated commit must contain the clock"
        );
    }
    let record = get(&mut session, "a").await;
    assert_eq!(
        (record.version, &record.state[..]),
        (second_version, &b"two"[..])
    );
    assert_eq!(get(&mut session, "b").await, Record::default());
}

#[tokio::test]
async fn names_and_states_of_records_may_contain_any_bytes() {
    let (_server, store) = store!();
    let mut session = connect(&store).await;
    let all_bytes: Vec<u8> = (0..=255).collect();
    let longest_name = [7; 2100];
    for key in [
        &all_bytes[..],
        b"",
        b"' OR 1=1; --",
        b"A",
        b"a",
        b"a ",
        &longest_name,
    ] {
        let key: Arc<[u8]> = key.into();
        let mut change = change("x", 0, "");
        change.name = key.clone();
        change.state = Some([&key[..], &all_bytes].concat());
        let state = change.state.clone().unwrap();
        let reply = session.commit(&[commit_of(change)]).await.unwrap();
        let version = first_version(&reply.what[0]);
        let loaded = session.load(&[key]).await.unwrap();
        assert_eq!(loaded.what, [Record::new(version, state)]);
    }
    let mut change_with_long_name = change("x", 0, "s");
    change_with_long_name.name = [7; 2101][..].into();
    let fault = session
        .commit(&[commit_of(change_with_long_name)])
        .await
        .unwrap_err();
    assert_eq!(fault.kind(), "unsupported");
}

#[tokio::test]
async fn records_are_loaded_in_the_requested_order() {
    let (_server, store) = store!();
    let mut session = connect(&store).await;
    for key in ["a", "b", "c"] {
        put(&mut session, key, 0, key).await;
    }
    let names = ["c", "none", "a", "c"].map(record_name);
    let reply = session.load(&names).await.unwrap();
    let states: Vec<_> = reply.what.iter().map(|record| &record.state[..]).collect();
    assert_eq!(states, [&b"c"[..], b"", b"a", b"c"]);
    assert!(reply.what[1].version == 0 && reply.what[0].version > 0);
    assert!(session.load(&[]).await.unwrap().clock.is_some());
}

#[tokio::test]
async fn server_clock_in_a_reply_lies_between_the_times_of_request_and_reply() {
    let (_server, store) = store!();
    let mut session = connect(&store).await;
    let wall_clock_us = || {
        let now = std::time::SystemTime::now();
        let since_epoch = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        u64::try_from(since_epoch.as_micros()).unwrap()
    };
    let mut version = 0;
    for round in 0..4 {
        let sent_at_us = wall_clock_us();
        let clock = match round {
            0 => session.load(&[record_name("a")]).await.unwrap().clock,
            1 | 2 => {
                let reply = session
                    .commit(&[commit_of(change("a", version, "s"))])
                    .await
                    .unwrap();
                version = first_version(&reply.what[0]);
                reply.clock
            }
            _ => session.page(0, 10).await.unwrap().clock,
        };
        let clock = clock.expect("a clock");
        assert!(
            (sent_at_us..=wall_clock_us()).contains(&clock),
            "request {round}: the clock {clock} must be from {sent_at_us} to now"
        );
    }
}

#[tokio::test]
async fn record_version_is_never_reused_even_after_a_deletion() {
    let (server, store) = store!();
    let mut session = connect(&store).await;
    let mut used_versions = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let mut version = put(&mut session, "a", 0, "s").await;
        assert!(used_versions.insert(version));
        for _ in 0..3 {
            version = put(&mut session, "a", version, "s").await;
            assert!(
                used_versions.insert(version),
                "the version {version} must not be used twice"
            );
        }
        server.sql("DELETE FROM locks.quorate_record").unwrap();
    }
}

#[tokio::test]
async fn record_is_removed_only_if_it_has_the_given_version() {
    let (_server, store) = store!();
    let mut session = connect(&store).await;
    let first_version = put(&mut session, "a", 0, "1").await;
    let last_version = put(&mut session, "a", first_version, "2").await;
    let other_version = put(&mut session, "b", 0, "3").await;
    let outdated = [
        (record_name("b"), other_version - 1),
        (record_name("a"), first_version),
        (record_name("c"), 1),
    ];
    session.remove(&outdated).await.unwrap();
    assert_eq!(get(&mut session, "a").await.version, last_version);
    session
        .remove(&[(record_name("b"), 1), (record_name("a"), last_version)])
        .await
        .unwrap();
    assert_eq!(get(&mut session, "a").await, Record::default());
    assert_eq!(get(&mut session, "b").await.version, other_version);
    let recreated_version = put(&mut session, "a", 0, "4").await;
    session
        .remove(&[(record_name("a"), last_version)])
        .await
        .unwrap();
    assert_eq!(get(&mut session, "a").await.version, recreated_version);
}

#[tokio::test]
async fn removal_skips_a_record_whose_row_somebody_has_locked() {
    let (server, store) = store!();
    let mut session = connect(&store).await;
    let a = put(&mut session, "a", 0, "a").await;
    let b = put(&mut session, "b", 0, "b").await;
    let mut console = server.console().unwrap();
    console
        .say("BEGIN; SELECT version FROM locks.quorate_record WHERE name='a' FOR UPDATE")
        .unwrap();
    let records = [(record_name("a"), a), (record_name("b"), b)];
    session.remove(&records).await.unwrap();
    assert_eq!(get(&mut session, "a").await.version, a);
    assert_eq!(get(&mut session, "b").await, Record::default());
    console.say("ROLLBACK").unwrap();
    session.remove(&records).await.unwrap();
    assert_eq!(get(&mut session, "a").await, Record::default());
}

#[tokio::test]
async fn late_commit_of_a_lost_session_is_refused_because_the_version_has_changed() {
    let (server, store) = store!();
    let mut lost_session = connect(&store).await;
    let first_version = put(&mut lost_session, "a", 0, "first").await;
    let mut next_session = connect(&store).await;
    server.stop().unwrap();
    let late_commits = [commit_of(change("a", first_version, "late"))];
    let outcome = tokio::time::timeout(
        Duration::from_millis(100),
        lost_session.commit(&late_commits),
    )
    .await;
    assert!(outcome.is_err(), "a stopped server must not answer");
    server.cont().unwrap();
    // Exactly one of the two commits is applied, whichever arrives first.
    let reply = next_session
        .commit(&[commit_of(change("a", first_version, "next"))])
        .await
        .unwrap();
    let record = get(&mut next_session, "a").await;
    match &reply.what[0] {
        Committed::Done(versions) => assert_eq!(record.version, versions[0]),
        Committed::Stale => assert_eq!(record.state, b"late"),
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(
        get(&mut next_session, "a").await,
        record,
        "the late change must have no effect"
    );
}

#[tokio::test]
async fn session_with_an_abandoned_request_refuses_every_later_request() {
    let (server, store) = store!();
    let mut session = connect(&store).await;
    put(&mut session, "a", 0, "a").await;
    put(&mut session, "b", 0, "b").await;
    server.stop().unwrap();
    let names = [record_name("a")];
    let outcome = tokio::time::timeout(Duration::from_millis(50), session.load(&names)).await;
    assert!(outcome.is_err());
    server.cont().unwrap();
    let fault = session.load(&[record_name("b")]).await.unwrap_err();
    assert_eq!(fault.kind(), "disconnected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_of_a_dropped_session_are_applied_together_or_not_at_all() {
    let (server, store) = store!();
    let mut first_session = connect(&store).await;
    let a_version = put(&mut first_session, "a", 0, "a").await;
    let b_version = put(&mut first_session, "b", 0, "b").await;
    let lock_one_row = "BEGIN; SELECT version FROM locks.quorate_record WHERE name='b' FOR UPDATE; SELECT SLEEP(1)";
    std::thread::scope(|scope| {
        let console = scope.spawn(|| server.sql(lock_one_row));
        std::thread::sleep(Duration::from_millis(300));
        let batch = [
            commit_of(change("a", a_version, "late")),
            commit_of(change("b", b_version, "late")),
        ];
        let commit = first_session.commit(&batch);
        let limited = async { tokio::time::timeout(Duration::from_millis(200), commit).await };
        let outcome =
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(limited));
        assert!(outcome.is_err(), "the commit must wait for the locked row");
        drop(first_session);
        console.join().unwrap().unwrap();
    });
    // The server had received the whole packet, so it may have applied the commit, but never a part of it.
    let mut next_session = connect(&store).await;
    let a = get(&mut next_session, "a").await;
    let b = get(&mut next_session, "b").await;
    assert_eq!(a.state == b"late", b.state == b"late", "{a:?} {b:?}");
    put(&mut next_session, "a", a.version, "next").await;
}

#[tokio::test]
async fn dropped_session_closes_its_socket_even_if_the_server_hangs() {
    let (server, store) = store!();
    let mut session = connect(&store).await;
    let large = "x".repeat(4 << 20);
    for key in ["a", "b", "c", "d", "e", "f"] {
        put(&mut session, key, 0, &large).await;
    }
    // Drop the future while it reads a result of 24 MiB.
    let outcome = tokio::time::timeout(Duration::from_millis(8), session.page(0, 9)).await;
    assert!(
        outcome.is_err(),
        "24 megabytes were read too fast for this test"
    );
    server.stop().unwrap();
    drop(session);
    let connecting = tokio::time::timeout(Duration::from_millis(50), store.connect()).await;
    assert!(connecting.is_err());
    let started_at = Instant::now();
    while open_sockets(&server) > 0 {
        assert!(
            started_at.elapsed() < Duration::from_secs(10),
            "the sockets of dropped sessions must be closed"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The number of established connections from this process to the server, as the kernel lists them.
fn open_sockets(server: &MariaDb) -> usize {
    let port = format!(":{:04X}", server.port());
    let socket_table = std::fs::read_to_string("/proc/self/net/tcp").expect("Linux");
    let our_lines = socket_table.lines().skip(1).filter(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        // After a socket is closed, the kernel may still keep an entry for unacknowledged data; such an entry has no
        // inode.
        fields[2].ends_with(&port) && fields[9] != "0"
    });
    our_lines.count()
}

#[tokio::test]
async fn commit_of_several_records_is_applied_as_a_whole_or_not_at_all() {
    let (_server, store) = store!();
    let mut session = connect(&store).await;
    let a = put(&mut session, "a", 0, "a").await;
    let commit_of_both = commit_of_all(vec![change("b", 0, "b2"), change("a", a, "a2")]);
    let reply = session
        .commit(std::slice::from_ref(&commit_of_both))
        .await
        .unwrap();
    let Committed::Done(versions) = &reply.what[0] else {
        panic!("stale");
    };
    let (b, a2) = (versions[0], versions[1]);
    assert_eq!(get(&mut session, "b").await.version, b);
    assert_eq!(get(&mut session, "a").await.version, a2);
    // If the version of any record in a commit is wrong, nothing must be applied.
    for stale in [
        commit_of_both.clone(),
        commit_of_all(vec![change("a", a2, "no"), change("b", b + 9, "no")]),
        commit_of_all(vec![change("a", a2, "no"), change("c", 5, "no")]),
        commit_of_all(vec![change("a", a2, "no"), change("b", 0, "no")]),
        commit_of_all(vec![change("c", 0, "no"), version_check("b", b + 9)]),
        commit_of_all(vec![change("c", 0, "no"), version_check("a", 0)]),
    ] {
        let reply = session.commit(&[stale]).await.unwrap();
        assert_eq!(reply.what, [Committed::Stale]);
        assert!(reply.clock.is_some());
    }
    assert_eq!(get(&mut session, "a").await.state, b"a2");
    assert_eq!(get(&mut session, "b").await.state, b"b2");
    assert_eq!(get(&mut session, "c").await, Record::default());
    // The failed commit has reserved a row for a record. That row must not block a later commit.
    let c = put(&mut session, "c", 0, "c").await;
    let mixed_commit = commit_of_all(vec![
        version_check("c", c),
        change("a", a2, "a3"),
        version_check("d", 0),
    ]);
    let reply = session.commit(&[mixed_commit]).await;
    assert!(matches!(&reply.unwrap().what[0], Committed::Done(v) if v[0] == c && v[2] == 0));
    let page = session.page(0, 10).await.unwrap().what;
    assert_eq!(
        page.len(),
        3,
        "a row without a state must not be listed as a record: {page:?}"
    );
}

#[tokio::test]
async fn commit_can_check_the_version_of_a_record_without_changing_the_record() {
    let (_server, store) = store!();
    let mut session = connect(&store).await;
    let a_version = put(&mut session, "a", 0, "a").await;
    let check_commits = [
        commit_of(version_check("a", a_version)),
        commit_of(version_check("a", a_version + 1)),
        commit_of(version_check("a", 0)),
        commit_of(version_check("none", 0)),
        commit_of(version_check("none", 1)),
    ];
    let reply = session.commit(&check_commits).await.unwrap();
    let applied = |version| Committed::Done(vec![version]);
    let stale = || Committed::Stale;
    assert_eq!(
        reply.what,
        [applied(a_version), stale(), stale(), applied(0), stale()]
    );
    assert_eq!(get(&mut session, "a").await.version, a_version);
}

#[tokio::test]
async fn commits_of_a_batch_are_applied_independently() {
    let (_server, store) = store!();
    let mut session = connect(&store).await;
    let a = put(&mut session, "a", 0, "a").await;
    let batch: Vec<Commit> = vec![
        commit_of(change("z", 0, "z")),
        commit_of(change("a", a + 1, "no")),
        commit_of_all(vec![change("m", 0, "m"), change("l", 0, "l")]),
        commit_of(change("b", 7, "no")),
        commit_of(version_check("a", a)),
        commit_of_all(vec![change("n", 0, "n"), change("b", 7, "no")]),
        commit_of(change("c", 0, "c")),
    ];
    let outcomes = session.commit(&batch).await.unwrap().what;
    let applied: Vec<bool> = outcomes
        .iter()
        .map(|outcome| *outcome != Committed::Stale)
        .collect();
    assert_eq!(applied, [true, false, true, false, true, false, true]);
    for (key, state) in [("z", "z"), ("a", "a"), ("m", "m"), ("l", "l"), ("c", "c")] {
        assert_eq!(
            get(&mut session, key).await.state,
            state.as_bytes(),
            "{key}"
        );
    }
    assert_eq!(get(&mut session, "n").await, Record::default());
    assert_eq!(
        get(&mut session, "z").await.version,
        first_version(&outcomes[0])
    );
    assert_eq!(session.commit(&[]).await.unwrap().what, []);
}

#[tokio::test]
async fn acknowledged_commit_is_applied_despite_unusual_global_settings() {
    let (server, store) = store!();
    let unusual_settings = "SET GLOBAL completion_type=1;SET GLOBAL sql_select_limit=1;SET GLOBAL sql_safe_updates=1;\
         SET GLOBAL tx_read_only=1;SET GLOBAL max_join_size=1;SET GLOBAL sql_mode='ORACLE';\
         SET GLOBAL time_zone='-11:00';SET GLOBAL character_set_results=utf32";
    server.sql(unusual_settings).expect("set");
    let (mut writer, mut reader) = (connect(&store).await, connect(&store).await);
    let batch = [
        commit_of(change("a", 0, "a")),
        commit_of(change("b", 0, "b")),
    ];
    let reply = writer.commit(&batch).await.expect("answered");
    assert!(!reply.what.contains(&Committed::Stale));
    put(&mut writer, "c", 0, "c").await;
    assert_eq!(
        get(&mut reader, "c").await.state,
        b"c",
        "the acknowledged change must be visible to other sessions"
    );
    let keys = ["a", "b", "c"];
    let reply = reader.load(&keys.map(record_name)).await.expect("answered");
    let states: Vec<_> = reply.what.into_iter().map(|record| record.state).collect();
    assert_eq!(states, keys.map(|key| key.as_bytes().to_vec()));
    let mut listener = store.listen("p".into()).await.expect("listens");
    let commit = Commit {
        wakes: vec![wake("p", b"one"), wake("p", b"two")],
        ..commit_of(change("d", 0, "d"))
    };
    writer.commit(&[commit]).await.expect("answered");
    let received = listener.next().await.expect("heard");
    assert_eq!(received, [b"one".to_vec(), b"two".to_vec()]);
}

#[tokio::test]
async fn pages_of_records_are_sorted_by_name_and_continue_after_the_previous_page() {
    let (_server, store) = store!();
    let mut session = connect(&store).await;
    for key in ["c", "a", "b"] {
        put(&mut session, key, 0, key).await;
    }
    let first_page = session.page(0, 2).await.unwrap().what;
    let names: Vec<_> = first_page.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, [b"a", b"b"]);
    let second_page = session.page(2, 2).await.unwrap();
    assert_eq!(second_page.what[0].0, b"c");
    assert_eq!(second_page.what[0].1, get(&mut session, "c").await);
    // The next page must start after the last record of the previous page, even if an earlier record was removed.
    session.page(0, 2).await.unwrap();
    let first_version = get(&mut session, "a").await.version;
    session
        .remove(&[(b"a"[..].into(), first_version)])
        .await
        .unwrap();
    assert_eq!(session.page(2, 2).await.unwrap().what[0].0, b"c");
    let empty_page = session.page(3, 2).await.unwrap();
    assert!(empty_page.what.is_empty() && empty_page.clock.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_one_of_the_concurrent_commits_to_a_record_version_is_applied() {
    let (_server, store) = store!();
    let mut applied = 0;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let mut session = connect(&store).await;
        tasks.push(tokio::spawn(async move {
            let mut applied = 0_u64;
            for _ in 0..100 {
                let record = get(&mut session, "count").await;
                let count: u64 = String::from_utf8(record.state)
                    .unwrap()
                    .parse()
                    .unwrap_or(0);
                let next_count = (count + 1).to_string();
                let reply = session
                    .commit(&[commit_of(change("count", record.version, &next_count))])
                    .await;
                applied += u64::from(reply.unwrap().what[0] != Committed::Stale);
            }
            applied
        }));
    }
    for task in tasks {
        applied += task.await.unwrap();
    }
    let record = get(&mut connect(&store).await, "count").await;
    assert_eq!(
        String::from_utf8(record.state).unwrap(),
        applied.to_string()
    );
    assert!(applied > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_of_two_records_in_a_table_without_row_locks_loses_no_update() {
    let (server, store) = store!();
    let mut first_session = connect(&store).await;
    let keys = ["count", "other"];
    put(&mut first_session, keys[0], 0, "0").await;
    put(&mut first_session, keys[1], 0, "0").await;
    let mut sessions = Vec::new();
    for _ in 0..4 {
        sessions.push(connect(&store).await);
    }
    // Change the engine after the sessions have connected, because a session checks the engine when it connects.
    server
        .sql("ALTER TABLE locks.quorate_record ENGINE=Aria")
        .unwrap();
    let increments = sessions.into_iter().map(|mut session| async move {
        let mut applied = 0_u64;
        for _ in 0..100 {
            let loaded = session.load(&keys.map(record_name)).await.unwrap().what;
            let count: u64 = String::from_utf8_lossy(&loaded[0].state).parse().unwrap();
            let next_count = (count + 1).to_string();
            let changes = [0, 1].map(|n| change(keys[n], loaded[n].version, &next_count));
            let reply = session.commit(&[commit_of_all(changes.to_vec())]).await;
            applied += u64::from(reply.unwrap().what[0] != Committed::Stale);
        }
        applied
    });
    let tasks: Vec<_> = increments.map(tokio::spawn).collect();
    let mut applied = 0;
    for task in tasks {
        applied += task.await.unwrap();
    }
    let record = get(&mut first_session, "count").await;
    assert_eq!(
        String::from_utf8(record.state).unwrap(),
        applied.to_string()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_of_the_same_records_in_opposite_orders_do_not_deadlock() {
    let (server, store) = store!();
    let mut tasks = Vec::new();
    for client in 0..8_usize {
        let mut session = connect(&store).await;
        tasks.push(tokio::spawn(async move {
            let mut applied = 0_u64;
            for round in 0..50_usize {
                // The sessions lock the same names repeatedly, in a different order each time, and some of them in
                // batches.
                let mut keys: Vec<String> = (0..3)
                    .map(|n| format!("k{}", (client * n + round + n) % 5))
                    .collect();
                keys.sort();
                keys.dedup();
                if client % 2 == 0 {
                    keys.reverse();
                }
                let names: Vec<_> = keys.iter().map(|key| record_name(key)).collect();
                let loaded = session.load(&names).await.unwrap().what;
                let changes = keys
                    .iter()
                    .zip(&loaded)
                    .map(|(key, record)| change(key, record.version, "s"));
                let changes: Vec<_> = changes.collect();
                let commits = if round % 3 == 0 {
                    changes.into_iter().map(commit_of).collect()
                } else {
                    vec![commit_of_all(changes)]
                };
                let reply = session.commit(&commits).await;
                let outcomes = reply.unwrap_or_else(|fault| panic!("{fault}")).what;
                applied += outcomes
                    .iter()
                    .filter(|outcome| **outcome != Committed::Stale)
                    .count() as u64;
            }
            applied
        }));
    }
    let mut applied = 0;
    for task in tasks {
        applied += task.await.unwrap();
    }
    assert!(applied > 0);
    let status = server
        .sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")
        .unwrap();
    assert_eq!(status, "Innodb_deadlocks\t0\n");
}

#[tokio::test]
async fn listener_of_a_process_receives_each_of_its_wake_ups_once() {
    let (server, store) = store!();
    let mut session = connect(&store).await;
    let process: Arc<str> = "0123456789abcdef".into();
    let mut listener = store.listen(process.clone()).await.unwrap();
    let mut waking_commit = commit_of(change("a", 0, "s"));
    waking_commit.wakes = vec![
        wake(&process, b"one"),
        wake("ffff456789abcdef", b"other"),
        wake(&process, b"\0'two"),
    ];
    let reply = session.commit(&[waking_commit.clone()]).await.unwrap();
    assert_eq!(listener.next().await.unwrap(), [&b"one"[..], b"\0'two"]);
    // A commit with an outdated version is not applied, so it must wake no listener, alone or in a batch.
    waking_commit.changes.push(change("b", 9, "no"));
    session.commit(&[waking_commit.clone()]).await.unwrap();
    waking_commit.changes.pop();
    session.commit(&[waking_commit.clone()]).await.unwrap();
    let mut valid_commit = commit_of(change("a", first_version(&reply.what[0]), "s"));
    valid_commit.wakes = vec![wake(&process, b"three")];
    session
        .commit(&[waking_commit.clone(), valid_commit, waking_commit])
        .await
        .unwrap();
    assert_eq!(listener.next().await.unwrap(), [b"three"]);
    let next_wake_up = tokio::time::timeout(Duration::from_millis(300), listener.next()).await;
    assert!(next_wake_up.is_err(), "no further wake-up must arrive");
    let remaining = server.sql("SELECT DISTINCT process FROM locks.quorate_woken");
    assert_eq!(
        remaining.unwrap(),
        "ffff456789abcdef\n",
        "received wake-ups must be removed from the table"
    );
}

#[tokio::test]
async fn old_wake_ups_of_other_processes_are_removed_by_the_next_listener() {
    let (server, store) = store!();
    let count_wake_ups = "SELECT COUNT(*) FROM locks.quorate_woken";
    server
        .sql("INSERT INTO locks.quorate_woken (process,word,at) VALUES ('gone','old',1)")
        .unwrap();
    assert_eq!(server.sql(count_wake_ups).unwrap(), "1\n");
    let mut listener = store.listen("0123456789abcdef".into()).await.unwrap();
    let _ = tokio::time::timeout(Duration::from_millis(200), listener.next()).await;
    assert_eq!(server.sql(count_wake_ups).unwrap(), "0\n");
}

#[tokio::test]
async fn restart_of_a_server_changes_its_run_id_but_not_its_name() {
    let (server, store) = store!(MariaDbOptions::new());
    let (mut session, first_greeting) = store.connect().await.unwrap();
    let version = put(&mut session, "a", 0, "s").await;
    let (_, repeated_greeting) = store.connect().await.unwrap();
    assert_eq!(repeated_greeting.run, first_greeting.run);
    server.restart().unwrap();
    let fault = session.load(&[record_name("a")]).await.unwrap_err();
    assert_eq!(fault.kind(), "disconnected", "{fault}");
    let (mut session, second_greeting) = store.connect().await.unwrap();
    assert_ne!(second_greeting.run, first_greeting.run);
    assert_eq!(second_greeting.server, first_greeting.server);
    assert!(first_greeting.server.is_some());
    assert!(second_greeting.uptime.unwrap() < Duration::from_secs(60));
    assert_eq!(
        get(&mut session, "a").await.version,
        version,
        "the record must still have its version after the restart"
    );
}
