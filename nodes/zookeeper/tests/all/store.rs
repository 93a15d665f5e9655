//! Tests of the ZooKeeper implementation of `Store`, `Session` and `Listener`, on a real ZooKeeper.

use std::time::{Duration, Instant};

use crate::support::*;
use quorate::node::Fault;
use quorate::node::store::{Commit, Committed, Listener, Session, Store};
use quorate_testbed::ZooKeeperOptions;
use quorate_zookeeper::ZooKeeper;

test!(committed_record_is_loaded_with_a_new_version_each_time, server => {
    let mut session = connect(&server).await;
    assert_eq!(load(&mut session, "a").await, (0, Vec::new()));
    let mut versions_so_far = vec![0];
    for round in 0..5_u8 {
        let old_version = *versions_so_far.last().unwrap();
        let outcome = commit_one(&mut session, change("a", old_version, &[round])).await;
        let Committed::Done(versions) = outcome else { panic!("{round}") };
        assert_eq!(load(&mut session, "a").await, (versions[0], vec![round]));
        assert!(!versions_so_far.contains(&versions[0]));
        versions_so_far.push(versions[0]);
    }
    // Writing an empty state does not remove the record.
    let last_version = *versions_so_far.last().unwrap();
    assert!(matches!(commit_one(&mut session, change("a", last_version, b"")).await, Committed::Done(_)));
    assert_eq!(load(&mut session, "a").await, (last_version + 1, Vec::new()));
});

test!(commit_that_expects_another_version_changes_nothing, server => {
    let mut session = connect(&server).await;
    assert_eq!(commit_one(&mut session, change("a", 3, b"x")).await, Committed::Stale);
    assert_eq!(load(&mut session, "a").await, (0, Vec::new()));
    let Committed::Done(first) = commit_one(&mut session, change("a", 0, b"1")).await else { panic!() };
    let Committed::Done(second) = commit_one(&mut session, change("a", first[0], b"2")).await else { panic!() };
    for version in [0, first[0], second[0] + 1] {
        assert_eq!(commit_one(&mut session, change("a", version, b"x")).await, Committed::Stale, "{version}");
    }
    // A version that differs only in its upper 32 bits does not match.
    assert_eq!(commit_one(&mut session, change("a", second[0] ^ (1 << 32), b"x")).await, Committed::Stale);
    // If the lower 32 bits are -1, ZooKeeper would accept any version. Such a commit must not be sent.
    let impossible_commit = commit(change("a", second[0] | u64::from(u32::MAX), b"x"));
    assert!(matches!(session.commit(&[impossible_commit]).await, Err(Fault::Server(_))));
    assert_eq!(load(&mut session, "a").await, (second[0], b"2".to_vec()));
});

test!(commits_of_a_batch_are_applied_in_order_and_independently_of_each_other, server => {
    let mut session = connect(&server).await;
    let batch: Vec<Commit> = (0..64)
        .map(|i| change(&format!("r{i}"), u64::from(i % 3 == 0), &[i]))
        .map(commit)
        .collect();
    let reply = session.commit(&batch).await.unwrap();
    assert!(reply.clock.is_none(), "ZooKeeper must not report a clock");
    for (i, outcome) in reply.what.iter().enumerate() {
        assert_eq!(matches!(outcome, Committed::Stale), i % 3 == 0, "{i}");
    }
    let names: Vec<_> = (0..64).map(|i| record_name(&format!("r{i}"))).collect();
    let loaded = session.load(&names).await.unwrap();
    assert!(loaded.clock.is_none());
    for (i, (record, outcome)) in loaded.what.iter().zip(&reply.what).enumerate() {
        let expected = match outcome {
            Committed::Done(versions) => (versions[0], vec![i as u8]),
            Committed::Stale => (0, vec![]),
        };
        assert_eq!((record.version, record.state.clone()), expected);
    }
});

test!(commit_of_several_records_is_applied_as_a_whole_or_not_at_all, server => {
    let mut session = connect(&server).await;
    let first_version = put(&mut session, "a", 0, b"1").await;
    let joint_commit = |a, b| Commit { changes: vec![change("a", a, b"2"), change("b", b, b"2")], wakes: vec![], ..Commit::default() };
    for stale in [joint_commit(first_version + 6, 0), joint_commit(first_version, first_version), joint_commit(0, 0)] {
        assert_eq!(session.commit(&[stale]).await.unwrap().what, [Committed::Stale]);
    }
    assert_eq!(load(&mut session, "a").await, (first_version, b"1".to_vec()));
    assert_eq!(load(&mut session, "b").await, (0, vec![]));
    let outcomes = session.commit(&[joint_commit(first_version, 0)]).await.unwrap().what;
    let [Committed::Done(versions)] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!(versions[0], first_version + 1);
    assert_eq!(load(&mut session, "b").await, (versions[1], b"2".to_vec()));
});

test!(record_whose_version_is_only_checked_decides_the_commit_and_is_unchanged, server => {
    let mut session = connect(&server).await;
    let first_version = put(&mut session, "a", 0, b"1").await;
    let checked_commit = |a_version: u64, none_version: u64| Commit {
        changes: vec![version_check("a", a_version), version_check("none", none_version), change("b", 0, b"1")],
        wakes: vec![],
        ..Commit::default()
    };
    for stale in [checked_commit(first_version + 1, 0), checked_commit(first_version, first_version), checked_commit(0, 0)] {
        assert_eq!(session.commit(&[stale]).await.unwrap().what, [Committed::Stale]);
    }
    let outcomes = session.commit(&[checked_commit(first_version, 0)]).await.unwrap().what;
    let [Committed::Done(versions)] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!(versions[..2], [first_version, 0]);
    assert_eq!(load(&mut session, "a").await, (first_version, b"1".to_vec()));
    assert_eq!(load(&mut session, "b").await, (versions[2], b"1".to_vec()));
    assert_eq!(load(&mut session, "none").await, (0, vec![]));
    // A commit can check the version of a record without writing anything.
    assert_eq!(commit_one(&mut session, version_check("a", first_version)).await, Committed::Done(vec![first_version]));
    assert_eq!(commit_one(&mut session, version_check("a", first_version + 1)).await, Committed::Stale);
    assert_eq!(commit_one(&mut session, version_check("none", 0)).await, Committed::Done(vec![0]));
    assert_eq!(commit_one(&mut session, version_check("a", 0)).await, Committed::Stale);
});

test!(record_created_again_after_its_removal_never_has_an_earlier_version, server => {
    let mut first_session = connect(&server).await;
    let mut second_session = connect(&server).await;
    let mut used_versions = std::collections::BTreeSet::new();
    for round in 0..20_u8 {
        let mut version = 0;
        for _ in 0..3 {
            version = put(&mut first_session, "a", version, &[round]).await;
            assert!(used_versions.insert(version), "the version {version} must not be used twice");
        }
        assert_eq!(load(&mut second_session, "a").await, (version, vec![round]));
        let outdated = [(record_name("a"), version - 1), (record_name("b"), version), (record_name("a"), 0)];
        first_session.remove(&outdated).await.unwrap();
        assert_eq!(
            load(&mut first_session, "a").await.0,
            version,
            "the record has another version, so it must not be removed"
        );
        first_session.remove(&[(record_name("a"), version)]).await.unwrap();
        assert_eq!(load(&mut second_session, "a").await, (0, vec![]));
        assert!(first_session.page(0, 10).await.unwrap().what.is_empty());
        // The versions of the removed record must never match again, even after a new record got the same name.
        assert_eq!(commit_one(&mut second_session, change("a", version, b"late")).await, Committed::Stale);
        let recreated_version = put(&mut second_session, "a", 0, b"anew").await;
        for old_version in used_versions.iter().copied() {
            assert_eq!(commit_one(&mut first_session, change("a", old_version, b"late")).await, Committed::Stale);
            assert_eq!(commit_one(&mut first_session, version_check("a", old_version)).await, Committed::Stale);
        }
        first_session.remove(&[(record_name("a"), version)]).await.unwrap();
        assert_eq!(load(&mut first_session, "a").await, (recreated_version, b"anew".to_vec()));
        first_session.remove(&[(record_name("a"), recreated_version)]).await.unwrap();
    }
});

test!(foreign_znode_in_place_of_a_record_is_shown_as_unchangeable, server => {
    let admin = admin(&server).await;
    let options = zookeeper_client::CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
    for path in ["/a/locks/records/61", "/a/locks/records/62", "/a/locks/records/62/strange"] {
        admin.create(path, b"x", &options).await.unwrap();
    }
    let mut session = connect(&server).await;
    for key in ["a", "b"] {
        let (version, state) = load(&mut session, key).await;
        assert_eq!((version, state), (u64::MAX, vec![u8::MAX]), "{key}");
    }
    assert_eq!(commit_one(&mut session, change("a", 0, b"1")).await, Committed::Stale);
});

test!(of_concurrent_commits_to_one_record_exactly_one_is_applied, server => {
    let mut first_session = connect(&server).await;
    let mut second_session = connect(&server).await;
    for round in 0..50 {
        let (version, _) = load(&mut first_session, "a").await;
        let (first_commit, second_commit) = (commit(change("a", version, b"1")), commit(change("a", version, b"2")));
        let (first_batch, second_batch) = ([first_commit], [second_commit]);
        let (first_reply, second_reply) = futures::join!(
            first_session.commit(&first_batch),
            second_session.commit(&second_batch)
        );
        let applied = [first_reply, second_reply].map(|reply| matches!(reply.unwrap().what[0], Committed::Done(_)));
        assert_eq!(applied.iter().filter(|is_applied| **is_applied).count(), 1, "{round}");
        let (_, state) = load(&mut first_session, "a").await;
        assert_eq!(state, if applied[0] { b"1" } else { b"2" });
    }
});

test!(commits_of_the_same_records_in_opposite_orders_never_block_each_other, server => {
    let applied = std::sync::atomic::AtomicU64::new(0);
    let commit_in = async |order: [&'static str; 2]| {
        let mut session = connect(&server).await;
        while applied.load(std::sync::atomic::Ordering::Relaxed) < 100 {
            let loaded = session.load(&order.map(record_name)).await.unwrap().what;
            let changes = order.iter().zip(&loaded).map(|(key, record)| change(key, record.version, b"x"));
            let commit = Commit { changes: changes.collect(), wakes: vec![], ..Commit::default() };
            if let Committed::Done(_) = session.commit(&[commit]).await.unwrap().what[0] {
                applied.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
    };
    futures::join!(commit_in(["a", "b"]), commit_in(["b", "a"]), commit_in(["a", "b"]), commit_in(["b", "a"]));
    let mut session = connect(&server).await;
    let (a, b) = (load(&mut session, "a").await.0, load(&mut session, "b").await.0);
    assert_eq!(times_written(a), times_written(b));
    assert_eq!(times_written(a), applied.into_inner());
});

test!(record_names_of_any_bytes_and_of_the_maximum_length_are_distinguished, server => {
    let mut session = connect(&server).await;
    let names: Vec<Vec<u8>> = vec![
        vec![], vec![0], b"/".to_vec(), b"a/b".to_vec(), b"-".to_vec(), b"2d".to_vec(), vec![0xff; 2_100], vec![0xff; 2_099],
    ];
    let mut versions = Vec::new();
    for (i, name) in names.iter().enumerate() {
        let mut change = change("", 0, &[i as u8]);
        change.name = name.as_slice().into();
        let Committed::Done(version) = commit_one(&mut session, change).await else { panic!("{i}") };
        versions.extend(version);
    }
    let mut listed = Vec::new();
    for start in (0..8).step_by(3) {
        listed.extend(session.page(start, 3).await.unwrap().what);
    }
    assert!(session.page(8, 3).await.unwrap().what.is_empty());
    assert_eq!(listed.len(), names.len());
    for (i, name) in names.iter().enumerate() {
        let (_, record) = listed.iter().find(|(listed_name, _)| listed_name == name).expect("listed");
        assert_eq!((record.version, &*record.state), (versions[i], &[i as u8][..]));
    }
});

test!(too_large_state_is_refused_and_the_session_stays_usable, server => {
    let mut session = connect(&server).await;
    let large = vec![1; 1_000_000];
    assert!(matches!(commit_one(&mut session, change("a", 0, &large)).await, Committed::Done(_)));
    assert_eq!(load(&mut session, "a").await.1, large);
    let larger = commit(change("b", 0, &vec![1; 1_000_001]));
    let fault = session.commit(&[larger]).await.unwrap_err();
    assert!(matches!(&fault, Fault::Server(why) if why.contains("1000001")), "{fault}");
    assert_eq!(load(&mut session, "b").await.0, 0);
});

test!(late_commit_of_a_dropped_future_is_refused_because_the_version_has_changed, server => {
    let mut first_session = connect(&server).await;
    let mut second_session = connect(&server).await;
    let first_version = put(&mut first_session, "a", 0, b"0").await;
    // Stop the server, so that it processes the commit only after the session was dropped.
    server.zookeeper.stop(0).unwrap();
    let late_commits = [commit(change("a", first_version, b"late"))];
    let early_outcome = tokio::time::timeout(Duration::from_millis(50), first_session.commit(&late_commits)).await;
    assert!(early_outcome.is_err());
    drop(first_session);
    server.zookeeper.cont(0).unwrap();
    // The second client overwrites the record at its current version. From then on, the delayed commit of the first
    // client has no effect.
    let (version, _) = load(&mut second_session, "a").await;
    let outcome = commit_one(&mut second_session, change("a", version, b"next")).await;
    let mut current_version = version;
    if let Committed::Done(versions) = outcome {
        current_version = versions[0];
    } else {
        let (version, state) = load(&mut second_session, "a").await;
        assert_eq!(state, b"late");
        assert!(matches!(commit_one(&mut second_session, change("a", version, b"next")).await, Committed::Done(_)));
        current_version = version.max(current_version) + 1;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(load(&mut second_session, "a").await, (current_version, b"next".to_vec()));
});

test!(listener_receives_every_wake_up_for_its_process_and_no_others, server => {
    let mut session = connect(&server).await;
    let mut listener = listen(&server, "00000000000000aa").await;
    let mut other_listener = listen(&server, "00000000000000bb").await;
    expect_no_wake_up(&mut listener).await;
    expect_no_wake_up(&mut other_listener).await;
    let fired_before = server.watches_fired();
    let mut version = 0;
    for round in 0..20_u64 {
        let message = format!("word {round}");
        let waking_commit = Commit { changes: vec![change("a", version, b"x")], wakes: vec![wake("00000000000000aa", &message)], ..Commit::default() };
        let outcomes = session.commit(&[waking_commit]).await.unwrap().what;
        let [Committed::Done(versions)] = &outcomes[..] else { panic!("{outcomes:?}") };
        version = versions[0];
        assert_eq!(next_wake_up(&mut listener).await, [message.into_bytes()]);
    }
    expect_no_wake_up(&mut other_listener).await;
    expect_no_wake_up(&mut listener).await;
    assert_eq!(server.watches_fired() - fired_before, 20, "each wake-up must fire exactly one watch");
});

test!(several_wake_ups_of_one_commit_for_one_process_arrive_together, server => {
    let mut session = connect(&server).await;
    let mut listener = listen(&server, "00000000000000aa").await;
    expect_no_wake_up(&mut listener).await;
    let fired_before = server.watches_fired();
    let wakes = vec![wake("00000000000000aa", "one"), wake("00000000000000cc", "gone"), wake("00000000000000aa", "")];
    let waking_commit = Commit { changes: vec![], wakes, ..Commit::default() };
    assert_eq!(session.commit(&[waking_commit]).await.unwrap().what, [Committed::Done(vec![])]);
    assert_eq!(next_wake_up(&mut listener).await, [b"one".to_vec(), vec![]]);
    expect_no_wake_up(&mut listener).await;
    assert_eq!(server.watches_fired() - fired_before, 1);
});

test!(wake_up_for_a_dead_process_does_not_prevent_the_commit, server => {
    let mut session = connect(&server).await;
    let mut listener = listen(&server, "00000000000000aa").await;
    let dead_listener = listen(&server, "00000000000000bb").await;
    drop(dead_listener);
    let wakes = ["00000000000000bb", "00000000000000aa", "00000000000000cc"].map(|process| wake(process, "w"));
    let waking_commit = Commit { changes: vec![change("a", 0, b"x")], wakes: wakes.to_vec(), ..Commit::default() };
    let outcomes = session.commit(std::slice::from_ref(&waking_commit)).await.unwrap().what;
    assert!(matches!(outcomes[..], [Committed::Done(_)]), "{outcomes:?}");
    assert_eq!(next_wake_up(&mut listener).await, [b"w".to_vec()]);
    // A commit that was not applied wakes no listener.
    assert_eq!(session.commit(&[waking_commit]).await.unwrap().what, [Committed::Stale]);
    expect_no_wake_up(&mut listener).await;
});

test!(listener_reports_that_wake_ups_were_lost_if_they_were_overwritten, server => {
    let mut session = connect(&server).await;
    let mut listener = listen(&server, "00000000000000aa").await;
    for message in ["one", "two", "three"] {
        let waking_commit = Commit { changes: vec![], wakes: vec![wake("00000000000000aa", message)], ..Commit::default() };
        session.commit(&[waking_commit]).await.unwrap();
    }
    assert_eq!(next_wake_up(&mut listener).await, Vec::<Vec<u8>>::new(), "the listener must report that wake-ups may have been lost");
    expect_no_wake_up(&mut listener).await;
    let waking_commit = Commit { changes: vec![], wakes: vec![wake("00000000000000aa", "four")], ..Commit::default() };
    session.commit(&[waking_commit]).await.unwrap();
    assert_eq!(next_wake_up(&mut listener).await, [b"four".to_vec()]);
});

test!(second_listener_of_a_process_replaces_the_first, server => {
    let mut session = connect(&server).await;
    let mut first_listener = listen(&server, "00000000000000aa").await;
    expect_no_wake_up(&mut first_listener).await;
    let mut second_listener = listen(&server, "00000000000000aa").await;
    let outcome = tokio::time::timeout(PATIENCE, first_listener.next()).await.expect("the listener must report in time");
    assert!(matches!(outcome, Err(Fault::Disconnected(_))), "{outcome:?}");
    drop(first_listener);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let waking_commit = Commit { changes: vec![], wakes: vec![wake("00000000000000aa", "w")], ..Commit::default() };
    session.commit(&[waking_commit]).await.unwrap();
    assert_eq!(next_wake_up(&mut second_listener).await, [b"w".to_vec()]);
});

test!(session_ends_if_the_server_is_stopped_beyond_the_session_timeout_and_records_are_kept, server => {
    let url = server.url_with("session=1s&timeout=400ms");
    let store = ZooKeeper::open(&url).unwrap();
    let (mut session, _) = store.connect().await.unwrap();
    let mut listener = store.listen("00000000000000aa".into()).await.unwrap();
    let version = put(&mut session, "a", 0, b"1").await;
    server.zookeeper.stop(0).unwrap();
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    server.zookeeper.cont(0).unwrap();
    let received = tokio::time::timeout(PATIENCE, listener.next()).await.expect("the listener must report in time");
    assert!(matches!(received, Err(Fault::Disconnected(_) | Fault::Down(_))), "{received:?}");
    let fault = session.load(&[record_name("a")]).await.unwrap_err();
    assert!(matches!(fault, Fault::Disconnected(_) | Fault::Down(_)), "{fault}");
    let mut next_session = reconnect(&store).await;
    assert_eq!(load(&mut next_session, "a").await, (version, b"1".to_vec()));
    let mut listener = store.listen("00000000000000aa".into()).await.unwrap();
    let waking_commit = Commit { changes: vec![], wakes: vec![wake("00000000000000aa", "w")], ..Commit::default() };
    next_session.commit(&[waking_commit]).await.unwrap();
    assert_eq!(next_wake_up(&mut listener).await, [b"w".to_vec()]);
});

test!(session_notices_a_killed_server_at_once_and_the_records_survive, server => {
    let store = server.store();
    let (mut session, first_greeting) = store.connect().await.unwrap();
    let mut versions = Vec::new();
    for i in 0..50 {
        versions.push(put(&mut session, &format!("r{i}"), 0, &[i]).await);
    }
    server.zookeeper.kill(0).unwrap();
    let started_at = Instant::now();
    let fault = session.load(&[record_name("r1")]).await.unwrap_err();
    assert!(matches!(fault, Fault::Disconnected(_) | Fault::Down(_)), "{fault}");
    assert!(started_at.elapsed() < Duration::from_secs(2), "{:?}", started_at.elapsed());
    let connect_fault = store.connect().await.map(|_| ()).unwrap_err();
    assert!(matches!(&connect_fault, Fault::Down(why) if why.contains("refused")), "{connect_fault}");
    server.zookeeper.restart(0).unwrap();
    let (mut session, second_greeting) = store.connect().await.unwrap();
    for (i, version) in (0..50_u8).zip(versions) {
        assert_eq!(load(&mut session, &format!("r{i}")).await, (version, vec![i]));
    }
    assert_eq!((first_greeting.run, first_greeting.server), (second_greeting.run, second_greeting.server));
    assert!(second_greeting.uptime.is_none(), "a server that loses nothing must report no uptime");
});

test!(session_reports_the_date_of_the_last_change_even_before_its_own_first_change, server => {
    let mut session = connect(&server).await;
    let is_near_now = |date: Option<u64>| {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        date.is_some_and(|date| date.abs_diff(since_epoch.as_micros() as u64) < 60_000_000)
    };
    let first_date = session.date().map(|date| date.micros);
    assert!(is_near_now(first_date), "{first_date:?}");
    let mut last_date = first_date;
    let mut version = 0;
    for round in 0..3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        version = put(&mut session, "a", version, &[round]).await;
        let date = session.date().map(|date| date.micros);
        assert!(
            is_near_now(date) && (date > last_date || round == 0),
            "the date {date:?} must be near the current time and later than {last_date:?}"
        );
        last_date = date;
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
    let joint_commit = Commit { changes: vec![change("a", version, b"2"), change("b", 0, b"2")], wakes: vec![], ..Commit::default() };
    session.commit(&[joint_commit]).await.unwrap();
    assert!(session.date().map(|date| date.micros) > last_date);
    // The session has created and removed a znode to read the ensemble's clock. This must leave no record.
    let names: Vec<_> = session.page(0, 100).await.unwrap().what.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [b"a".to_vec(), b"b".to_vec()]);
});

test!(page_with_a_record_that_was_removed_meanwhile_is_not_taken_for_the_last_page, server => {
    let (mut session, mut other_session) = (connect(&server).await, connect(&server).await);
    let mut versions = Vec::new();
    for key in ["a", "b", "c"] {
        versions.push(put(&mut other_session, key, 0, b"1").await);
    }
    assert_eq!(session.page(0, 1).await.unwrap().what[0].0, b"a");
    other_session.remove(&[(record_name("b"), versions[1])]).await.unwrap();
    let second_page = session.page(1, 1).await.unwrap().what;
    assert_eq!((second_page.len(), second_page[0].1.version), (1, 0));
    assert_eq!(session.page(2, 1).await.unwrap().what[0].0, b"c");
});
