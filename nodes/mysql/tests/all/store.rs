//! Tests of the guarantees of the trait `Store`, on a real MariaDB server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{change, check, commit, name, of, server, wake};
use quorate::node::store::{Commit, Committed, Listener as _, Record, Session as _, Store as _};
use quorate_mysql::MySql;
use quorate_testbed::{MariaDb, MariaDbOptions};

/// A store over a new server. The test returns early if MariaDB is missing.
macro_rules! store {
    ($options:expr) => {
        match server($options).await {
            Some(it) => it,
            None => return,
        }
    };
    () => {
        store!(MariaDbOptions::new().flush(2))
    };
}

async fn session(store: &MySql) -> quorate_mysql::MySqlSession {
    store.connect().await.expect("connected").0
}

fn version(committed: &Committed) -> u64 {
    match committed {
        Committed::Done(versions) => versions[0],
        Committed::Stale => panic!("the commit must be applied, but its version is outdated"),
    }
}

/// Creates the record `key` (`from` is 0) or changes it from version `from`. Returns the new version of the record.
async fn put(session: &mut quorate_mysql::MySqlSession, key: &str, from: u64, state: &str) -> u64 {
    let said = session.commit(&[of(change(key, from, state))]).await;
    version(&said.expect("answered").what[0])
}

async fn get(session: &mut quorate_mysql::MySqlSession, key: &str) -> Record {
    let said = session.load(&[name(key)]).await.expect("answered");
    said.what.into_iter().next().expect("one")
}

#[tokio::test]
async fn record_is_changed_only_if_it_has_the_expected_version() {
    let (_server, store) = store!();
    let mut session = session(&store).await;
    let first = put(&mut session, "a", 0, "one").await;
    let record = get(&mut session, "a").await;
    assert_eq!((record.version, &record.state[..]), (first, &b"one"[..]));
    let second = put(&mut session, "a", first, "two").await;
    assert_ne!(second, first);
    for stale in [0, first, second + 1] {
        let said = session
            .commit(&[of(change("a", stale, "no"))])
            .await
            .unwrap();
        assert_eq!(said.what, [Committed::Stale], "{stale}");
        assert!(
            said.clock.is_some(),
            "the answer to an outdated commit must contain the clock"
        );
    }
    let record = get(&mut session, "a").await;
    assert_eq!((record.version, &record.state[..]), (second, &b"two"[..]));
    assert_eq!(get(&mut session, "b").await, Record::default());
}

#[tokio::test]
async fn names_and_states_of_records_may_contain_any_bytes() {
    let (_server, store) = store!();
    let mut session = session(&store).await;
    let all: Vec<u8> = (0..=255).collect();
    let longest = [7; 2100];
    for key in [&all[..], b"", b"' OR 1=1; --", b"A", b"a", b"a ", &longest] {
        let key: Arc<[u8]> = key.into();
        let mut change = change("x", 0, "");
        change.name = key.clone();
        change.state = Some([&key[..], &all].concat());
        let state = change.state.clone().unwrap();
        let said = session.commit(&[of(change)]).await.unwrap();
        let version = version(&said.what[0]);
        let said = session.load(&[key]).await.unwrap();
        assert_eq!(said.what, [Record::new(version, state)]);
    }
    let mut long = change("x", 0, "s");
    long.name = [7; 2101][..].into();
    let fault = session.commit(&[of(long)]).await.unwrap_err();
    assert_eq!(fault.kind(), "unsupported");
}

#[tokio::test]
async fn records_are_loaded_in_the_requested_order() {
    let (_server, store) = store!();
    let mut session = session(&store).await;
    for key in ["a", "b", "c"] {
        put(&mut session, key, 0, key).await;
    }
    let asked = ["c", "none", "a", "c"].map(name);
    let said = session.load(&asked).await.unwrap();
    let states: Vec<_> = said.what.iter().map(|one| &one.state[..]).collect();
    assert_eq!(states, [&b"c"[..], b"", b"a", b"c"]);
    assert!(said.what[1].version == 0 && said.what[0].version > 0);
    assert!(session.load(&[]).await.unwrap().clock.is_some());
}

#[tokio::test]
async fn server_clock_in_a_reply_lies_between_the_times_of_request_and_reply() {
    let (_server, store) = store!();
    let mut session = session(&store).await;
    let wall = || {
        let now = std::time::SystemTime::now();
        let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        u64::try_from(now.as_micros()).unwrap()
    };
    let mut version = 0;
    for turn in 0..4 {
        let asked = wall();
        let clock = match turn {
            0 => session.load(&[name("a")]).await.unwrap().clock,
            1 | 2 => {
                let said = session
                    .commit(&[of(change("a", version, "s"))])
                    .await
                    .unwrap();
                version = self::version(&said.what[0]);
                said.clock
            }
            _ => session.page(0, 10).await.unwrap().clock,
        };
        let clock = clock.expect("a clock");
        assert!(
            (asked..=wall()).contains(&clock),
            "request {turn}: the clock {clock} must be from {asked} to now"
        );
    }
}

#[tokio::test]
async fn record_version_is_never_reused_even_after_a_deletion() {
    let (server, store) = store!();
    let mut session = session(&store).await;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let mut version = put(&mut session, "a", 0, "s").await;
        assert!(seen.insert(version));
        for _ in 0..3 {
            version = put(&mut session, "a", version, "s").await;
            assert!(
                seen.insert(version),
                "the version {version} must not be used twice"
            );
        }
        server.sql("DELETE FROM locks.quorate_record").unwrap();
    }
}

#[tokio::test]
async fn record_is_removed_only_if_it_has_the_given_version() {
    let (_server, store) = store!();
    let mut session = session(&store).await;
    let first = put(&mut session, "a", 0, "1").await;
    let last = put(&mut session, "a", first, "2").await;
    let kept = put(&mut session, "b", 0, "3").await;
    let name = |key: &str| std::sync::Arc::<[u8]>::from(key.as_bytes());
    let late = [(name("b"), kept - 1), (name("a"), first), (name("c"), 1)];
    session.remove(&late).await.unwrap();
    assert_eq!(get(&mut session, "a").await.version, last);
    session
        .remove(&[(name("b"), 1), (name("a"), last)])
        .await
        .unwrap();
    assert_eq!(get(&mut session, "a").await, Record::default());
    assert_eq!(get(&mut session, "b").await.version, kept);
    let anew = put(&mut session, "a", 0, "4").await;
    session.remove(&[(name("a"), last)]).await.unwrap();
    assert_eq!(get(&mut session, "a").await.version, anew);
}

#[tokio::test]
async fn late_commit_of_a_lost_session_is_refused_because_the_version_has_changed() {
    let (server, store) = store!();
    let mut lost = session(&store).await;
    let first = put(&mut lost, "a", 0, "first").await;
    let mut next = session(&store).await;
    server.stop().unwrap();
    let late = [of(change("a", first, "late"))];
    let asked = tokio::time::timeout(Duration::from_millis(100), lost.commit(&late)).await;
    assert!(asked.is_err(), "a stopped server must not answer");
    server.cont().unwrap();
    // Exactly one of the two commits is applied, whichever arrives first.
    let said = next
        .commit(&[of(change("a", first, "next"))])
        .await
        .unwrap();
    let record = get(&mut next, "a").await;
    match &said.what[0] {
        Committed::Done(versions) => assert_eq!(record.version, versions[0]),
        Committed::Stale => assert_eq!(record.state, b"late"),
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(
        get(&mut next, "a").await,
        record,
        "the late change must have no effect"
    );
}

#[tokio::test]
async fn session_with_an_abandoned_request_refuses_every_later_request() {
    let (server, store) = store!();
    let mut session = session(&store).await;
    put(&mut session, "a", 0, "a").await;
    put(&mut session, "b", 0, "b").await;
    server.stop().unwrap();
    let names = [name("a")];
    let asked = tokio::time::timeout(Duration::from_millis(50), session.load(&names)).await;
    assert!(asked.is_err());
    server.cont().unwrap();
    let fault = session.load(&[name("b")]).await.unwrap_err();
    assert_eq!(fault.kind(), "disconnected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_of_a_dropped_session_are_applied_together_or_not_at_all() {
    let (server, store) = store!();
    let mut one = session(&store).await;
    let a = put(&mut one, "a", 0, "a").await;
    let b = put(&mut one, "b", 0, "b").await;
    let held = "BEGIN; SELECT version FROM locks.quorate_record WHERE name='b' FOR UPDATE; SELECT SLEEP(1)";
    std::thread::scope(|scope| {
        let console = scope.spawn(|| server.sql(held));
        std::thread::sleep(Duration::from_millis(300));
        let batch = [of(change("a", a, "late")), of(change("b", b, "late"))];
        let asking = one.commit(&batch);
        let asking = async { tokio::time::timeout(Duration::from_millis(200), asking).await };
        let asked =
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(asking));
        assert!(asked.is_err(), "the commit must wait for the locked row");
        drop(one);
        console.join().unwrap().unwrap();
    });
    // The server had received the whole packet, so it may have applied the commit, but never a part of it.
    let mut next = session(&store).await;
    let (a, b) = (get(&mut next, "a").await, get(&mut next, "b").await);
    assert_eq!(a.state == b"late", b.state == b"late", "{a:?} {b:?}");
    put(&mut next, "a", a.version, "next").await;
}

#[tokio::test]
async fn dropped_session_closes_its_socket_even_if_the_server_hangs() {
    let (server, store) = store!();
    let mut one = session(&store).await;
    let large = "x".repeat(4 << 20);
    for key in ["a", "b", "c", "d", "e", "f"] {
        put(&mut one, key, 0, &large).await;
    }
    // Drop the future while it reads a result of 24 MiB.
    let asked = tokio::time::timeout(Duration::from_millis(8), one.page(0, 9)).await;
    assert!(
        asked.is_err(),
        "24 megabytes were read too fast for this test"
    );
    server.stop().unwrap();
    drop(one);
    let connecting = tokio::time::timeout(Duration::from_millis(50), store.connect()).await;
    assert!(connecting.is_err());
    let began = Instant::now();
    while open_sockets(&server) > 0 {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "the sockets of dropped sessions must be closed"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The number of established connections from this process to the server, as the kernel lists them.
fn open_sockets(server: &MariaDb) -> usize {
    let port = format!(":{:04X}", server.port());
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("Linux");
    let ours = table.lines().skip(1).filter(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        // After a socket is closed, the kernel may still keep an entry for unacknowledged data; such an entry has no
        // inode.
        fields[2].ends_with(&port) && fields[9] != "0"
    });
    ours.count()
}

#[tokio::test]
async fn commit_of_several_records_is_applied_as_a_whole_or_not_at_all() {
    let (_server, store) = store!();
    let mut session = session(&store).await;
    let a = put(&mut session, "a", 0, "a").await;
    let both = commit(vec![change("b", 0, "b2"), change("a", a, "a2")]);
    let said = session.commit(std::slice::from_ref(&both)).await.unwrap();
    let Committed::Done(versions) = &said.what[0] else {
        panic!("stale");
    };
    let (b, a2) = (versions[0], versions[1]);
    assert_eq!(get(&mut session, "b").await.version, b);
    assert_eq!(get(&mut session, "a").await.version, a2);
    // If the version of any record in a commit is wrong, nothing must be applied.
    for stale in [
        both.clone(),
        commit(vec![change("a", a2, "no"), change("b", b + 9, "no")]),
        commit(vec![change("a", a2, "no"), change("c", 5, "no")]),
        commit(vec![change("a", a2, "no"), change("b", 0, "no")]),
        commit(vec![change("c", 0, "no"), check("b", b + 9)]),
        commit(vec![change("c", 0, "no"), check("a", 0)]),
    ] {
        let said = session.commit(&[stale]).await.unwrap();
        assert_eq!(said.what, [Committed::Stale]);
        assert!(said.clock.is_some());
    }
    assert_eq!(get(&mut session, "a").await.state, b"a2");
    assert_eq!(get(&mut session, "b").await.state, b"b2");
    assert_eq!(get(&mut session, "c").await, Record::default());
    // The failed commit has reserved a row for a record. That row must not block a later commit.
    let c = put(&mut session, "c", 0, "c").await;
    let mixed = commit(vec![check("c", c), change("a", a2, "a3"), check("d", 0)]);
    let said = session.commit(&[mixed]).await;
    assert!(matches!(&said.unwrap().what[0], Committed::Done(v) if v[0] == c && v[2] == 0));
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
    let mut session = session(&store).await;
    let a = put(&mut session, "a", 0, "a").await;
    let asked = [
        of(check("a", a)),
        of(check("a", a + 1)),
        of(check("a", 0)),
        of(check("none", 0)),
        of(check("none", 1)),
    ];
    let said = session.commit(&asked).await.unwrap();
    let done = |version| Committed::Done(vec![version]);
    let stale = || Committed::Stale;
    assert_eq!(said.what, [done(a), stale(), stale(), done(0), stale()]);
    assert_eq!(get(&mut session, "a").await.version, a);
}

#[tokio::test]
async fn commits_of_a_batch_are_applied_independently() {
    let (_server, store) = store!();
    let mut session = session(&store).await;
    let a = put(&mut session, "a", 0, "a").await;
    let batch: Vec<Commit> = vec![
        of(change("z", 0, "z")),
        of(change("a", a + 1, "no")),
        commit(vec![change("m", 0, "m"), change("l", 0, "l")]),
        of(change("b", 7, "no")),
        of(check("a", a)),
        commit(vec![change("n", 0, "n"), change("b", 7, "no")]),
        of(change("c", 0, "c")),
    ];
    let said = session.commit(&batch).await.unwrap().what;
    let done: Vec<bool> = said.iter().map(|one| *one != Committed::Stale).collect();
    assert_eq!(done, [true, false, true, false, true, false, true]);
    for (key, state) in [("z", "z"), ("a", "a"), ("m", "m"), ("l", "l"), ("c", "c")] {
        assert_eq!(
            get(&mut session, key).await.state,
            state.as_bytes(),
            "{key}"
        );
    }
    assert_eq!(get(&mut session, "n").await, Record::default());
    assert_eq!(get(&mut session, "z").await.version, version(&said[0]));
    assert_eq!(session.commit(&[]).await.unwrap().what, []);
}

#[tokio::test]
async fn acknowledged_commit_is_applied_despite_unusual_global_settings() {
    let (server, store) = store!();
    let odd = "SET GLOBAL completion_type=1;SET GLOBAL sql_select_limit=1;SET GLOBAL sql_safe_updates=1;\
         SET GLOBAL tx_read_only=1;SET GLOBAL max_join_size=1;SET GLOBAL sql_mode='ORACLE';\
         SET GLOBAL time_zone='-11:00';SET GLOBAL character_set_results=utf32";
    server.sql(odd).expect("set");
    let (mut one, mut other) = (session(&store).await, session(&store).await);
    let batch = [of(change("a", 0, "a")), of(change("b", 0, "b"))];
    let said = one.commit(&batch).await.expect("answered");
    assert!(!said.what.contains(&Committed::Stale));
    put(&mut one, "c", 0, "c").await;
    assert_eq!(
        get(&mut other, "c").await.state,
        b"c",
        "the acknowledged change must be visible to other sessions"
    );
    let all = ["a", "b", "c"];
    let said = other.load(&all.map(name)).await.expect("answered");
    let said: Vec<_> = said.what.into_iter().map(|record| record.state).collect();
    assert_eq!(said, all.map(|key| key.as_bytes().to_vec()));
    let mut listener = store.listen("p".into()).await.expect("listens");
    let commit = Commit {
        wakes: vec![wake("p", b"one"), wake("p", b"two")],
        ..of(change("d", 0, "d"))
    };
    one.commit(&[commit]).await.expect("answered");
    let heard = listener.next().await.expect("heard");
    assert_eq!(heard, [b"one".to_vec(), b"two".to_vec()]);
}

#[tokio::test]
async fn pages_of_records_are_sorted_by_name_and_continue_after_the_previous_page() {
    let (_server, store) = store!();
    let mut session = session(&store).await;
    for key in ["c", "a", "b"] {
        put(&mut session, key, 0, key).await;
    }
    let said = session.page(0, 2).await.unwrap().what;
    let names: Vec<_> = said.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, [b"a", b"b"]);
    let said = session.page(2, 2).await.unwrap();
    assert_eq!(said.what[0].0, b"c");
    assert_eq!(said.what[0].1, get(&mut session, "c").await);
    // The next page must start after the last record of the previous page, even if an earlier record was removed.
    session.page(0, 2).await.unwrap();
    let first = get(&mut session, "a").await.version;
    session.remove(&[(b"a"[..].into(), first)]).await.unwrap();
    assert_eq!(session.page(2, 2).await.unwrap().what[0].0, b"c");
    let none = session.page(3, 2).await.unwrap();
    assert!(none.what.is_empty() && none.clock.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_one_of_the_concurrent_commits_to_a_record_version_is_applied() {
    let (_server, store) = store!();
    let mut won = 0;
    let mut turns = Vec::new();
    for _ in 0..4 {
        let mut session = session(&store).await;
        turns.push(tokio::spawn(async move {
            let mut won = 0_u64;
            for _ in 0..100 {
                let record = get(&mut session, "count").await;
                let count: u64 = String::from_utf8(record.state)
                    .unwrap()
                    .parse()
                    .unwrap_or(0);
                let next = (count + 1).to_string();
                let said = session
                    .commit(&[of(change("count", record.version, &next))])
                    .await;
                won += u64::from(said.unwrap().what[0] != Committed::Stale);
            }
            won
        }));
    }
    for turn in turns {
        won += turn.await.unwrap();
    }
    let record = get(&mut session(&store).await, "count").await;
    assert_eq!(String::from_utf8(record.state).unwrap(), won.to_string());
    assert!(won > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_of_two_records_in_a_table_without_row_locks_loses_no_update() {
    let (server, store) = store!();
    let mut first = session(&store).await;
    let all = ["count", "other"];
    put(&mut first, all[0], 0, "0").await;
    put(&mut first, all[1], 0, "0").await;
    let mut sessions = Vec::new();
    for _ in 0..4 {
        sessions.push(session(&store).await);
    }
    // Change the engine after the sessions have connected, because a session checks the engine when it connects.
    server
        .sql("ALTER TABLE locks.quorate_record ENGINE=Aria")
        .unwrap();
    let turns = sessions.into_iter().map(|mut session| async move {
        let mut won = 0_u64;
        for _ in 0..100 {
            let loaded = session.load(&all.map(name)).await.unwrap().what;
            let count: u64 = String::from_utf8_lossy(&loaded[0].state).parse().unwrap();
            let next = (count + 1).to_string();
            let both = [0, 1].map(|n| change(all[n], loaded[n].version, &next));
            let said = session.commit(&[commit(both.to_vec())]).await;
            won += u64::from(said.unwrap().what[0] != Committed::Stale);
        }
        won
    });
    let turns: Vec<_> = turns.map(tokio::spawn).collect();
    let mut won = 0;
    for turn in turns {
        won += turn.await.unwrap();
    }
    let record = get(&mut first, "count").await;
    assert_eq!(String::from_utf8(record.state).unwrap(), won.to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_of_the_same_records_in_opposite_orders_do_not_deadlock() {
    let (server, store) = store!();
    let mut turns = Vec::new();
    for client in 0..8_usize {
        let mut session = session(&store).await;
        turns.push(tokio::spawn(async move {
            let mut won = 0_u64;
            for turn in 0..50_usize {
                // The sessions lock the same names repeatedly, in a different order each time, and some of them in
                // batches.
                let keys: Vec<String> = (0..3)
                    .map(|n| format!("k{}", (client * n + turn + n) % 5))
                    .collect();
                let mut keys = keys;
                keys.sort();
                keys.dedup();
                if client % 2 == 0 {
                    keys.reverse();
                }
                let names: Vec<_> = keys.iter().map(|key| name(key)).collect();
                let loaded = session.load(&names).await.unwrap().what;
                let changes = keys
                    .iter()
                    .zip(&loaded)
                    .map(|(key, one)| change(key, one.version, "s"));
                let changes: Vec<_> = changes.collect();
                let commits = if turn % 3 == 0 {
                    changes.into_iter().map(of).collect()
                } else {
                    vec![commit(changes)]
                };
                let said = session.commit(&commits).await;
                let said = said.unwrap_or_else(|fault| panic!("{fault}")).what;
                won += said.iter().filter(|one| **one != Committed::Stale).count() as u64;
            }
            won
        }));
    }
    let mut won = 0;
    for turn in turns {
        won += turn.await.unwrap();
    }
    assert!(won > 0);
    let status = server
        .sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")
        .unwrap();
    assert_eq!(status, "Innodb_deadlocks\t0\n");
}

#[tokio::test]
async fn listener_of_a_process_receives_each_of_its_wake_ups_once() {
    let (server, store) = store!();
    let mut session = session(&store).await;
    let process: Arc<str> = "0123456789abcdef".into();
    let mut listener = store.listen(process.clone()).await.unwrap();
    let mut told = of(change("a", 0, "s"));
    told.wakes = vec![
        wake(&process, b"one"),
        wake("ffff456789abcdef", b"other"),
        wake(&process, b"\0'two"),
    ];
    let said = session.commit(&[told.clone()]).await.unwrap();
    assert_eq!(listener.next().await.unwrap(), [&b"one"[..], b"\0'two"]);
    // A commit with an outdated version is not applied, so it must wake no listener, alone or in a batch.
    told.changes.push(change("b", 9, "no"));
    session.commit(&[told.clone()]).await.unwrap();
    told.changes.pop();
    session.commit(&[told.clone()]).await.unwrap();
    let mut fresh = of(change("a", version(&said.what[0]), "s"));
    fresh.wakes = vec![wake(&process, b"three")];
    session.commit(&[told.clone(), fresh, told]).await.unwrap();
    assert_eq!(listener.next().await.unwrap(), [b"three"]);
    let waits = tokio::time::timeout(Duration::from_millis(300), listener.next()).await;
    assert!(waits.is_err(), "no further wake-up must arrive");
    let left = server.sql("SELECT DISTINCT process FROM locks.quorate_woken");
    assert_eq!(
        left.unwrap(),
        "ffff456789abcdef\n",
        "received wake-ups must be removed from the table"
    );
}

#[tokio::test]
async fn old_wake_ups_of_other_processes_are_removed_by_the_next_listener() {
    let (server, store) = store!();
    let left = "SELECT COUNT(*) FROM locks.quorate_woken";
    server
        .sql("INSERT INTO locks.quorate_woken (process,word,at) VALUES ('gone','old',1)")
        .unwrap();
    assert_eq!(server.sql(left).unwrap(), "1\n");
    let mut listener = store.listen("0123456789abcdef".into()).await.unwrap();
    let _ = tokio::time::timeout(Duration::from_millis(200), listener.next()).await;
    assert_eq!(server.sql(left).unwrap(), "0\n");
}

#[tokio::test]
async fn restart_of_a_server_changes_its_run_id_but_not_its_name() {
    let (server, store) = store!(MariaDbOptions::new());
    let (mut session, first) = store.connect().await.unwrap();
    let version = put(&mut session, "a", 0, "s").await;
    let (_, again) = store.connect().await.unwrap();
    assert_eq!(again.run, first.run);
    server.restart().unwrap();
    let fault = session.load(&[name("a")]).await.unwrap_err();
    assert_eq!(fault.kind(), "disconnected", "{fault}");
    let (mut session, second) = store.connect().await.unwrap();
    assert_ne!(second.run, first.run);
    assert_eq!(second.server, first.server);
    assert!(first.server.is_some());
    assert!(second.uptime.unwrap() < Duration::from_secs(60));
    assert_eq!(
        get(&mut session, "a").await.version,
        version,
        "the record must still have its version after the restart"
    );
}
