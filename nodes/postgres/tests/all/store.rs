//! Tests of the guarantees of the trait `Store`, on a real PostgreSQL server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{
    Console, change, check, commit, get, kill, name, of, options, put, server, session, sql,
    version, wake,
};
use quorate::node::store::{
    Commit, Committed, Listener as _, Pacer, Record, Session as _, Store as _,
};

/// A store over a new server. The test returns early if PostgreSQL is missing.
macro_rules! store {
    ($options:expr) => {
        match server($options).await {
            Some(it) => it,
            None => return,
        }
    };
    () => {
        store!(options())
    };
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
    for stale in [0, first, second + 1, u64::MAX] {
        let answer = session
            .commit(&[of(change("a", stale, "no"))])
            .await
            .unwrap();
        assert_eq!(answer.what, [Committed::Stale], "{stale}");
        assert!(
            answer.clock.is_some(),
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
    // A name whose bytes cannot be compressed, so that it needs all its room in the index.
    let mut number = 7_u32;
    let mut drawn = || {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        number.to_be_bytes()[0]
    };
    let longest: Vec<u8> = (0..2100).map(|_| drawn()).collect();
    for key in [&all[..], b"", b"' OR 1=1; --", b"A", b"a", b"a ", &longest] {
        let key: Arc<[u8]> = key.into();
        let mut change = change("x", 0, "");
        change.name = key.clone();
        change.state = Some([&key[..], &all].concat());
        let state = change.state.clone().unwrap();
        let answer = session.commit(&[of(change)]).await.unwrap();
        let version = version(&answer.what[0]);
        let answer = session.load(&[key]).await.unwrap();
        assert_eq!(answer.what, [Record::new(version, state)]);
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
    let answer = session.load(&asked).await.unwrap();
    let states: Vec<_> = answer.what.iter().map(|one| &one.state[..]).collect();
    assert_eq!(states, [&b"c"[..], b"", b"a", b"c"]);
    assert!(answer.what[1].version == 0 && answer.what[0].version > 0);
    assert!(session.load(&[]).await.unwrap().clock.is_some());
}

#[tokio::test]
async fn server_clock_in_a_reply_lies_between_the_times_of_request_and_reply() {
    let (server, store) = store!();
    let mut session = session(&store).await;
    let wall = || {
        let now = std::time::SystemTime::now();
        let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        u64::try_from(now.as_micros()).unwrap()
    };
    let mut version = put(&mut session, "a", 0, "s").await;
    for turn in 0..4 {
        let asked = wall();
        let clock = match turn {
            0 => session.load(&[name("a")]).await.unwrap().clock,
            1 | 2 => {
                let answer = session
                    .commit(&[of(change("a", version, "s"))])
                    .await
                    .unwrap();
                version = crate::common::version(&answer.what[0]);
                answer.clock
            }
            _ => session.page(0, 10).await.unwrap().clock,
        };
        let clock = clock.expect("a clock");
        assert!(
            (asked..=wall()).contains(&clock),
            "request {turn}: the clock {clock} must be from {asked} to now"
        );
    }
    // A change that waits for its row must show the time after the wait.
    let console = Console::open(
        &server,
        "BEGIN; SELECT 1 FROM quorate.record WHERE name='a' FOR UPDATE",
    );
    let ended = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        let ended = std::time::SystemTime::now();
        drop(console);
        ended
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_micros()
    });
    let answer = session
        .commit(&[of(change("a", version, "s"))])
        .await
        .unwrap();
    assert!(u128::from(answer.clock.unwrap()) >= ended.join().unwrap());
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
        sql(&server, "DELETE FROM quorate.record");
    }
}

#[tokio::test]
async fn record_is_removed_only_if_it_has_the_given_version() {
    let (_server, store) = store!();
    let mut session = session(&store).await;
    let first = put(&mut session, "a", 0, "1").await;
    let last = put(&mut session, "a", first, "2").await;
    let kept = put(&mut session, "b", 0, "3").await;
    let late = [(name("b"), kept - 1), (name("a"), first), (name("c"), 1)];
    session.remove(&late).await.unwrap();
    assert_eq!(get(&mut session, "a").await.version, last);
    session
        .remove(&[(name("b"), 1), (name("a"), last)])
        .await
        .unwrap();
    assert_eq!(get(&mut session, "a").await, Record::default());
    assert_eq!(get(&mut session, "b").await.version, kept);
    let again = put(&mut session, "a", 0, "4").await;
    session.remove(&[(name("a"), last)]).await.unwrap();
    assert_eq!(get(&mut session, "a").await.version, again);
}

#[tokio::test]
async fn removal_skips_a_record_whose_row_somebody_holds() {
    let (server, store) = store!();
    let mut session = session(&store).await;
    let a = put(&mut session, "a", 0, "a").await;
    let b = put(&mut session, "b", 0, "b").await;
    let console = Console::open(
        &server,
        "BEGIN; SELECT 1 FROM quorate.record WHERE name='a' FOR UPDATE",
    );
    let records = [(name("a"), a), (name("b"), b)];
    session.remove(&records).await.unwrap();
    assert_eq!(get(&mut session, "a").await.version, a);
    assert_eq!(get(&mut session, "b").await, Record::default());
    drop(console);
    let free = || sql(&server, "SELECT name FROM quorate.record FOR UPDATE NOWAIT").len() > 1;
    assert!(quorate_testbed::within(Duration::from_secs(5), free));
    session.remove(&records).await.unwrap();
    assert_eq!(get(&mut session, "a").await, Record::default());
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
    let answer = next
        .commit(&[of(change("a", first, "next"))])
        .await
        .unwrap();
    let record = get(&mut next, "a").await;
    match &answer.what[0] {
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
async fn request_after_an_abandoned_request_gets_its_own_answer() {
    let (server, store) = store!();
    let mut session = session(&store).await;
    put(&mut session, "a", 0, "a").await;
    put(&mut session, "b", 0, "b").await;
    server.stop().unwrap();
    let names = [name("a")];
    let asked = tokio::time::timeout(Duration::from_millis(50), session.load(&names)).await;
    assert!(asked.is_err());
    server.cont().unwrap();
    assert_eq!(get(&mut session, "b").await.state, b"b");
}

#[tokio::test]
async fn change_that_waits_for_a_row_is_not_executed_after_its_session_is_closed() {
    let (server, store) = store!();
    let mut one = session(&store).await;
    let first = put(&mut one, "a", 0, "first").await;
    let console = Console::open(
        &server,
        "BEGIN; SELECT 1 FROM quorate.record WHERE name='a' FOR UPDATE",
    );
    let late = [of(change("a", first, "late"))];
    let asked = tokio::time::timeout(Duration::from_millis(200), one.commit(&late)).await;
    assert!(asked.is_err(), "the commit must wait for the locked row");
    drop(one);
    // The server checks once a second whether the client is gone.
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type='Lock'";
    let ended = || sql(&server, waiting) == "0\n";
    assert!(quorate_testbed::within(Duration::from_secs(4), ended));
    drop(console);
    let mut next = session(&store).await;
    assert_eq!(get(&mut next, "a").await.state, b"first");
}

#[tokio::test]
async fn change_of_a_row_that_somebody_holds_has_no_effect_and_is_answered_in_time() {
    let (server, _) = store!();
    let store = quorate_postgres::Postgres::open(&format!("{}?timeout=400ms", server.url("locks")))
        .unwrap();
    let mut one = session(&store).await;
    let first = put(&mut one, "a", 0, "first").await;
    let console = Console::open(
        &server,
        "BEGIN; SELECT 1 FROM quorate.record WHERE name='a' FOR UPDATE",
    );
    let began = Instant::now();
    let answer = one.commit(&[of(change("a", first, "late"))]).await.unwrap();
    assert_eq!(answer.what, [Committed::Stale]);
    assert!(answer.clock.is_some());
    assert!(began.elapsed() < Duration::from_millis(390));
    assert_eq!(
        get(&mut one, "a").await.state,
        b"first",
        "the session must still be usable"
    );
    drop(console);
    let free = || sql(&server, "SELECT name FROM quorate.record FOR UPDATE NOWAIT").len() > 1;
    assert!(quorate_testbed::within(Duration::from_secs(5), free));
    put(&mut one, "a", first, "next").await;
}

#[tokio::test]
async fn other_commits_of_a_batch_are_applied_although_somebody_holds_a_row() {
    let (server, store) = store!();
    let mut one = session(&store).await;
    let process: Arc<str> = "0123456789abcdef".into();
    let mut listener = store.listen(process.clone()).await.unwrap();
    let a = put(&mut one, "a", 0, "a").await;
    let b = put(&mut one, "b", 0, "b").await;
    let c = put(&mut one, "c", 0, "c").await;
    let _console = Console::open(
        &server,
        "BEGIN; SELECT 1 FROM quorate.record WHERE name='a' FOR UPDATE",
    );
    let mut free = of(change("b", b, "b2"));
    free.wakes = vec![wake(&process, b"b is free")];
    let batch = [
        of(change("a", a, "a2")),
        free,
        of(change("new", 0, "n")),
        commit(vec![change("c", c, "no"), change("a", a, "no")]),
    ];
    let began = Instant::now();
    let answer = one.commit(&batch).await.unwrap().what;
    let done: Vec<bool> = answer.iter().map(|one| *one != Committed::Stale).collect();
    assert_eq!(done, [false, true, true, false]);
    assert!(began.elapsed() < Duration::from_secs(4));
    assert_eq!(listener.next().await.unwrap(), [b"b is free"]);
    for (key, state) in [("a", "a"), ("b", "b2"), ("new", "n"), ("c", "c")] {
        let record = get(&mut one, key).await;
        assert_eq!(record.state, state.as_bytes(), "{key}");
    }
    assert_eq!(get(&mut one, "b").await.version, version(&answer[1]));
}

#[tokio::test]
async fn notification_of_another_client_that_is_not_committed_yet_delays_no_commit() {
    let (server, _) = store!();
    let store =
        quorate_postgres::Postgres::open(&format!("{}?timeout=2s", server.url("locks"))).unwrap();
    let mut one = session(&store).await;
    let mut version = put(&mut one, "a", 0, "s").await;
    // The notification holds the queue of the whole server while its commit waits for a standby. The stopped process
    // keeps this state when commits no longer wait.
    server.set_and_reload("synchronous_standby_names", "nobody");
    let mut notify = server.client();
    notify.args(["--command", "CREATE TABLE elsewhere (); NOTIFY elsewhere"]);
    let mut notify = notify.spawn().expect("psql");
    let waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event='SyncRep'";
    let pid = || server.sql(waiting).expect("a list").trim().to_owned();
    assert!(quorate_testbed::within(Duration::from_secs(10), || !pid().is_empty()));
    let pid = pid();
    kill("-STOP", &pid);
    server.set_and_reload("synchronous_standby_names", "");
    let began = Instant::now();
    for _ in 0..4 {
        let mut change = of(change("a", version, "s"));
        change.wakes = vec![wake("0123456789abcdef", b"w")];
        let answer = one.commit(&[change]).await.unwrap();
        version = crate::common::version(&answer.what[0]);
    }
    let took = began.elapsed();
    // A stopped process receives this signal as soon as it goes on. Afterwards, it may have ended by itself.
    kill("-TERM", &pid);
    kill("-CONT", &pid);
    notify.wait().expect("ended");
    assert!(took < Duration::from_millis(450), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn canceled_commit_that_waited_for_a_standby_is_not_reported_as_done() {
    let (server, store) = store!();
    let mut one = session(&store).await;
    put(&mut one, "a", 0, "s").await;
    server.set_and_reload("synchronous_standby_names", "nobody");
    let commits = tokio::spawn(async move { one.commit(&[of(change("b", 0, "s"))]).await });
    let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event='SyncRep'";
    let canceled = || server.sql(cancel).expect("a list").contains('t');
    let server = &server;
    let canceled =
        tokio::task::block_in_place(|| quorate_testbed::within(Duration::from_secs(10), canceled));
    assert!(canceled, "the commit must wait");
    let fault = commits.await.expect("no panic").unwrap_err();
    assert_eq!(fault.kind(), "disconnected", "{fault}");
    server.set_and_reload("synchronous_standby_names", "");
}

#[tokio::test]
async fn server_without_its_synchronous_standby_gets_no_further_commits_until_the_first_has_ended()
{
    let (server, store) = store!();
    let mut one = session(&store).await;
    put(&mut one, "a", 0, "s").await;
    server.set_and_reload("synchronous_standby_names", "nobody");
    let commit = [of(change("b", 0, "s"))];
    let waits = tokio::time::timeout(Duration::from_millis(300), one.commit(&commit)).await;
    assert!(waits.is_err(), "the commit must wait");
    drop(one);
    let backends = || {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event='SyncRep'";
        server.sql(waiting).expect("a number")
    };
    for _ in 0..4 {
        let fault = store.connect().await.err().expect("no session");
        // The pauses between tries to connect grow after this kind of fault.
        assert_eq!(fault.kind(), "server_error", "{fault}");
        let text = fault.to_string();
        assert!(text.contains("synchronous_standby_names"), "{text}");
        // The commit must be neither canceled nor terminated, because it then takes effect without its standby.
        assert_eq!(backends(), "1\n");
    }
    // A process that starts later does not leave a commit behind either.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let other = quorate_postgres::Postgres::open(&format!("{}?timeout=1s", server.url("locks")));
    let other = other.expect("a URL");
    assert!(other.connect().await.is_err());
    assert!(other.inspect().await.fault.is_some());
    server.set_and_reload("synchronous_standby_names", "");
    let ended = || backends() == "0\n";
    assert!(quorate_testbed::within(Duration::from_secs(10), ended));
    for store in [&store, &other] {
        let mut one = session(store).await;
        assert_eq!(get(&mut one, "b").await.state, b"s");
    }
}

#[tokio::test]
async fn abandoned_commit_that_waits_for_a_row_is_ended_by_the_next_session() {
    let (server, store) = store!();
    let mut one = session(&store).await;
    let version = put(&mut one, "a", 0, "s").await;
    let console = crate::common::Console::open(
        &server,
        "BEGIN;UPDATE quorate.record SET version=version;SELECT",
    );
    let commit = [of(change("a", version, "t"))];
    let waits = tokio::time::timeout(Duration::from_millis(300), one.commit(&commit)).await;
    assert!(waits.is_err(), "the commit must wait");
    drop(one);
    let mut one = session(&store).await;
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type='Lock'";
    let ended = || server.sql(waiting).expect("a number") == "0\n";
    assert!(quorate_testbed::within(Duration::from_millis(700), ended));
    drop(console);
    assert_eq!(get(&mut one, "a").await.state, b"s");
}

#[tokio::test]
async fn commit_of_several_records_is_applied_as_a_whole_or_not_at_all() {
    let (_server, store) = store!();
    let mut session = session(&store).await;
    let a = put(&mut session, "a", 0, "a").await;
    let both = commit(vec![change("b", 0, "b2"), change("a", a, "a2")]);
    let answer = session.commit(std::slice::from_ref(&both)).await.unwrap();
    let Committed::Done(versions) = &answer.what[0] else {
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
        let answer = session.commit(&[stale]).await.unwrap();
        assert_eq!(answer.what, [Committed::Stale]);
        assert!(answer.clock.is_some());
    }
    assert_eq!(get(&mut session, "a").await.state, b"a2");
    assert_eq!(get(&mut session, "b").await.state, b"b2");
    assert_eq!(get(&mut session, "c").await, Record::default());
    // The failed commit has reserved a row for a record. That row must not block a later commit.
    let c = put(&mut session, "c", 0, "c").await;
    let mixed = commit(vec![check("c", c), change("a", a2, "a3"), check("d", 0)]);
    let answer = session.commit(&[mixed]).await;
    assert!(matches!(&answer.unwrap().what[0], Committed::Done(v) if v[0] == c && v[2] == 0));
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
    let answer = session.commit(&asked).await.unwrap();
    let done = |version| Committed::Done(vec![version]);
    let stale = || Committed::Stale;
    assert_eq!(answer.what, [done(a), stale(), stale(), done(0), stale()]);
    assert_eq!(get(&mut session, "a").await.version, a);
}

#[tokio::test]
async fn commits_of_a_batch_are_applied_independently() {
    let (_server, store) = store!();
    let mut session = session(&store).await;
    let a = put(&mut session, "a", 0, "a").await;
    let e = put(&mut session, "e", 0, "e").await;
    let batch: Vec<Commit> = vec![
        of(change("z", 0, "z")),
        of(change("a", a + 1, "no")),
        commit(vec![change("m", 0, "m"), change("l", 0, "l")]),
        of(change("b", 7, "no")),
        of(check("a", a)),
        commit(vec![change("n", 0, "n"), change("b", 7, "no")]),
        of(change("c", 0, "c")),
        of(change("e", e, "e2")),
    ];
    let answer = session.commit(&batch).await.unwrap().what;
    let done: Vec<bool> = answer.iter().map(|one| *one != Committed::Stale).collect();
    assert_eq!(done, [true, false, true, false, true, false, true, true]);
    for (key, state) in [
        ("z", "z"),
        ("a", "a"),
        ("m", "m"),
        ("l", "l"),
        ("c", "c"),
        ("e", "e2"),
    ] {
        assert_eq!(
            get(&mut session, key).await.state,
            state.as_bytes(),
            "{key}"
        );
    }
    assert_eq!(get(&mut session, "n").await, Record::default());
    assert_eq!(get(&mut session, "z").await.version, version(&answer[0]));
    assert_eq!(get(&mut session, "e").await.version, version(&answer[7]));
    assert_eq!(session.commit(&[]).await.unwrap().what, []);
}

#[tokio::test]
async fn acknowledged_commit_is_applied_despite_unusual_global_settings() {
    let odd = options()
        .set("default_transaction_isolation", "serializable")
        .set("default_transaction_deferrable", "on")
        .set("synchronous_commit", "off")
        .set("idle_session_timeout", "300ms")
        .set("statement_timeout", "1s")
        .set("TimeZone", "Pacific/Kiritimati")
        .set("bytea_output", "escape")
        .set("IntervalStyle", "sql_standard")
        .set("search_path", "nowhere");
    let (_server, store) = store!(odd);
    let (mut one, mut other) = (session(&store).await, session(&store).await);
    let batch = [of(change("a", 0, "a")), of(change("b", 0, "b"))];
    let answer = one.commit(&batch).await.expect("answered");
    assert!(!answer.what.contains(&Committed::Stale));
    tokio::time::sleep(Duration::from_millis(500)).await;
    put(&mut one, "c", 0, "c").await;
    let all = ["a", "b", "c"];
    let answer = other.load(&all.map(name)).await.expect("answered");
    let answer: Vec<_> = answer.what.into_iter().map(|record| record.state).collect();
    assert_eq!(answer, all.map(|key| key.as_bytes().to_vec()));
}

#[tokio::test]
async fn pages_of_records_are_sorted_by_name_and_continue_after_the_previous_page() {
    let (_server, store) = store!();
    let mut session = session(&store).await;
    for key in ["c", "a", "b"] {
        put(&mut session, key, 0, key).await;
    }
    let answer = session.page(0, 2).await.unwrap().what;
    let names: Vec<_> = answer.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, [b"a", b"b"]);
    let answer = session.page(2, 2).await.unwrap();
    assert_eq!(answer.what[0].0, b"c");
    assert_eq!(answer.what[0].1, get(&mut session, "c").await);
    // The next page must start after the last record of the previous page, even if an earlier record was removed.
    session.page(0, 2).await.unwrap();
    let first = get(&mut session, "a").await.version;
    session.remove(&[(b"a"[..].into(), first)]).await.unwrap();
    assert_eq!(session.page(2, 2).await.unwrap().what[0].0, b"c");
    let none = session.page(3, 2).await.unwrap();
    assert!(none.what.is_empty() && none.clock.is_some());
}

#[tokio::test]
async fn rows_of_records_that_were_never_created_are_removed_with_the_next_page() {
    let (server, store) = store!();
    let mut session = session(&store).await;
    let b = put(&mut session, "b", 0, "b").await;
    for key in ["a", "c", "d"] {
        let stale = commit(vec![change(key, 0, "no"), change("b", b + 9, "no")]);
        let answer = session.commit(&[stale]).await.unwrap();
        assert_eq!(answer.what, [Committed::Stale]);
    }
    let rows = "SELECT count(*) FROM quorate.record";
    assert_eq!(sql(&server, rows), "4\n");
    session.page(0, 1).await.unwrap();
    get(&mut session, "b").await;
    assert_eq!(sql(&server, rows), "3\n", "the page ends at b");
    session.page(1, 1).await.unwrap();
    get(&mut session, "b").await;
    assert_eq!(sql(&server, rows), "1\n");
    assert_eq!(get(&mut session, "b").await.version, b);
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
                let answer = session
                    .commit(&[of(change("count", record.version, &next))])
                    .await;
                won += u64::from(answer.unwrap().what[0] != Committed::Stale);
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
async fn commits_of_the_same_records_in_opposite_orders_do_not_deadlock() {
    let (server, store) = store!();
    let mut turns = Vec::new();
    for client in 0..8_usize {
        let mut session = session(&store).await;
        turns.push(tokio::spawn(async move {
            let mut won = 0_u64;
            for turn in 0..100_usize {
                // The sessions use the same names repeatedly, in a different order each time. Some use batches, and
                // some remove the records, so that others create them again.
                let mut keys: Vec<String> = (0..3)
                    .map(|n| format!("k{}", (client * n + turn + n) % 5))
                    .collect();
                keys.sort();
                keys.dedup();
                if client % 2 == 0 {
                    keys.reverse();
                }
                let names: Vec<_> = keys.iter().map(|key| name(key)).collect();
                let loaded = session.load(&names).await.unwrap().what;
                if turn % 7 == 0 {
                    let gone = names.into_iter().zip(loaded.iter().map(|one| one.version));
                    session.remove(&gone.collect::<Vec<_>>()).await.unwrap();
                    continue;
                }
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
                let answer = session.commit(&commits).await;
                let answer = answer.unwrap_or_else(|fault| panic!("{fault}")).what;
                won += answer
                    .iter()
                    .filter(|one| **one != Committed::Stale)
                    .count() as u64;
            }
            won
        }));
    }
    let mut won = 0;
    for turn in turns {
        won += turn.await.unwrap();
    }
    assert!(won > 0);
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname='locks'";
    assert_eq!(sql(&server, deadlocks), "0\n");
}

#[tokio::test]
async fn listener_of_a_process_receives_each_of_its_wake_ups_once() {
    let (server, store) = store!();
    let mut session = session(&store).await;
    let process: Arc<str> = "0123456789abcdef".into();
    let mut listener = store.listen(process.clone()).await.unwrap();
    let mut commit_with_wakes = of(change("a", 0, "s"));
    let long = [7; 2200];
    commit_with_wakes.wakes = vec![
        wake(&process, b"one"),
        wake("ffff456789abcdef", b"other"),
        wake(&process, b"\0'two"),
        wake(&process, &long),
    ];
    let answer = session.commit(&[commit_with_wakes.clone()]).await.unwrap();
    assert_eq!(
        listener.next().await.unwrap(),
        [&b"one"[..], b"\0'two", &long]
    );
    // A commit with an outdated version is not applied, so it must wake no listener, alone or in a batch.
    commit_with_wakes.changes.push(change("b", 9, "no"));
    session.commit(&[commit_with_wakes.clone()]).await.unwrap();
    commit_with_wakes.changes.pop();
    session.commit(&[commit_with_wakes.clone()]).await.unwrap();
    let mut fresh = of(change("a", version(&answer.what[0]), "s"));
    fresh.wakes = vec![wake(&process, b"three")];
    session
        .commit(&[commit_with_wakes.clone(), fresh, commit_with_wakes])
        .await
        .unwrap();
    assert_eq!(listener.next().await.unwrap(), [b"three"]);
    let waits = tokio::time::timeout(Duration::from_millis(300), listener.next()).await;
    assert!(waits.is_err(), "no further wake-up must arrive");
    // A text that quorate has not sent wakes all waiters.
    sql(&server, "NOTIFY quorate_0123456789abcdef, 'odd'");
    assert_eq!(listener.next().await.unwrap(), Vec::<Vec<u8>>::new());
}

#[tokio::test]
async fn listener_listens_while_the_pacer_shows_a_waiter() {
    let (server, store) = store!();
    let process: Arc<str> = "0123456789abcdef".into();
    let mut listener = store.listen(process.clone()).await.unwrap();
    listener.follow(Pacer::default());
    let waits = tokio::time::timeout(Duration::from_millis(300), listener.next()).await;
    assert!(waits.is_err());
    let mut session = session(&store).await;
    let mut commit_with_wakes = of(change("a", 0, "s"));
    commit_with_wakes.wakes = vec![wake(&process, b"one")];
    session.commit(&[commit_with_wakes]).await.unwrap();
    assert_eq!(listener.next().await.unwrap(), [b"one"]);
    let began = Instant::now();
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
    sql(&server, end);
    let fault = listener.next().await.unwrap_err();
    assert_eq!(fault.kind(), "disconnected", "{fault}");
    assert!(began.elapsed() < Duration::from_secs(5));
}

/// Each change of the pace ends a wait for notifications. So the time until the check of the connection must not begin again with each
/// wait.
#[tokio::test]
async fn listener_notices_a_lost_connection_although_each_wait_is_short() {
    let (server, store) = store!();
    let process: Arc<str> = "0123456789abcdef".into();
    let mut listener = store.listen(process).await.unwrap();
    server.stop().unwrap();
    // From here, the clock of the test jumps to the next timer.
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    let short = Duration::from_secs(14);
    let fault = loop {
        if let Ok(ended) = tokio::time::timeout(short, listener.next()).await {
            break ended.unwrap_err();
        }
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "the listener must check its connection"
        );
    };
    server.cont().unwrap();
    assert_eq!(fault.kind(), "timeout", "{fault}");
}
