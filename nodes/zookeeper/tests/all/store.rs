//! Tests of the ZooKeeper implementation of `Store`, `Session` and `Listener`, on a real ZooKeeper.

use std::time::{Duration, Instant};

use crate::support::*;
use quorate::node::Fault;
use quorate::node::store::{Commit, Committed, Listener, Session, Store};
use quorate_testbed::ZooKeeperOptions;
use quorate_zookeeper::ZooKeeper;

test!(committed_record_is_loaded_with_a_new_version_each_time, server => {
    let mut session = session(&server).await;
    assert_eq!(load(&mut session, "a").await, (0, Vec::new()));
    let mut seen = vec![0];
    for round in 0..5_u8 {
        let before = *seen.last().unwrap();
        let done = one(&mut session, change("a", before, &[round])).await;
        let Committed::Done(versions) = done else { panic!("{round}") };
        assert_eq!(load(&mut session, "a").await, (versions[0], vec![round]));
        assert!(!seen.contains(&versions[0]));
        seen.push(versions[0]);
    }
    // Writing an empty state does not remove the record.
    let last = *seen.last().unwrap();
    assert!(matches!(one(&mut session, change("a", last, b"")).await, Committed::Done(_)));
    assert_eq!(load(&mut session, "a").await, (last + 1, Vec::new()));
});

test!(commit_that_expects_another_version_changes_nothing, server => {
    let mut session = session(&server).await;
    assert_eq!(one(&mut session, change("a", 3, b"x")).await, Committed::Stale);
    assert_eq!(load(&mut session, "a").await, (0, Vec::new()));
    let Committed::Done(first) = one(&mut session, change("a", 0, b"1")).await else { panic!() };
    let Committed::Done(second) = one(&mut session, change("a", first[0], b"2")).await else { panic!() };
    for version in [0, first[0], second[0] + 1] {
        assert_eq!(one(&mut session, change("a", version, b"x")).await, Committed::Stale, "{version}");
    }
    // A version that differs only in its upper 32 bits does not match.
    assert_eq!(one(&mut session, change("a", second[0] ^ (1 << 32), b"x")).await, Committed::Stale);
    // If the lower 32 bits are -1, ZooKeeper would accept any version. Such a commit must not be sent.
    let never = commit(change("a", second[0] | u64::from(u32::MAX), b"x"));
    assert!(matches!(session.commit(&[never]).await, Err(Fault::Server(_))));
    assert_eq!(load(&mut session, "a").await, (second[0], b"2".to_vec()));
});

test!(commits_of_a_batch_are_applied_in_order_and_independently_of_each_other, server => {
    let mut session = session(&server).await;
    let batch: Vec<Commit> = (0..64)
        .map(|i| change(&format!("r{i}"), u64::from(i % 3 == 0), &[i]))
        .map(commit)
        .collect();
    let became = session.commit(&batch).await.unwrap();
    assert!(became.clock.is_none(), "ZooKeeper must not report a clock");
    for (i, became) in became.what.iter().enumerate() {
        assert_eq!(matches!(became, Committed::Stale), i % 3 == 0, "{i}");
    }
    let names: Vec<_> = (0..64).map(|i| name(&format!("r{i}"))).collect();
    let loaded = session.load(&names).await.unwrap();
    assert!(loaded.clock.is_none());
    for (i, (record, became)) in loaded.what.iter().zip(&became.what).enumerate() {
        let there = match became {
            Committed::Done(versions) => (versions[0], vec![i as u8]),
            Committed::Stale => (0, vec![]),
        };
        assert_eq!((record.version, record.state.clone()), there);
    }
});

test!(commit_of_several_records_is_applied_as_a_whole_or_not_at_all, server => {
    let mut session = session(&server).await;
    let first = put(&mut session, "a", 0, b"1").await;
    let both = |a, b| Commit { changes: vec![change("a", a, b"2"), change("b", b, b"2")], wakes: vec![], ..Commit::default() };
    for stale in [both(first + 6, 0), both(first, first), both(0, 0)] {
        assert_eq!(session.commit(&[stale]).await.unwrap().what, [Committed::Stale]);
    }
    assert_eq!(load(&mut session, "a").await, (first, b"1".to_vec()));
    assert_eq!(load(&mut session, "b").await, (0, vec![]));
    let done = session.commit(&[both(first, 0)]).await.unwrap().what;
    let [Committed::Done(versions)] = &done[..] else { panic!("{done:?}") };
    assert_eq!(versions[0], first + 1);
    assert_eq!(load(&mut session, "b").await, (versions[1], b"2".to_vec()));
});

test!(record_whose_version_is_only_checked_decides_the_commit_and_is_unchanged, server => {
    let mut session = session(&server).await;
    let first = put(&mut session, "a", 0, b"1").await;
    let with = |a: u64, none: u64| Commit {
        changes: vec![look("a", a), look("none", none), change("b", 0, b"1")],
        wakes: vec![],
        ..Commit::default()
    };
    for stale in [with(first + 1, 0), with(first, first), with(0, 0)] {
        assert_eq!(session.commit(&[stale]).await.unwrap().what, [Committed::Stale]);
    }
    let done = session.commit(&[with(first, 0)]).await.unwrap().what;
    let [Committed::Done(versions)] = &done[..] else { panic!("{done:?}") };
    assert_eq!(versions[..2], [first, 0]);
    assert_eq!(load(&mut session, "a").await, (first, b"1".to_vec()));
    assert_eq!(load(&mut session, "b").await, (versions[2], b"1".to_vec()));
    assert_eq!(load(&mut session, "none").await, (0, vec![]));
    // A commit can check the version of a record without writing anything.
    assert_eq!(one(&mut session, look("a", first)).await, Committed::Done(vec![first]));
    assert_eq!(one(&mut session, look("a", first + 1)).await, Committed::Stale);
    assert_eq!(one(&mut session, look("none", 0)).await, Committed::Done(vec![0]));
    assert_eq!(one(&mut session, look("a", 0)).await, Committed::Stale);
});

test!(record_created_again_after_its_removal_never_has_an_earlier_version, server => {
    let mut first = session(&server).await;
    let mut second = session(&server).await;
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..20_u8 {
        let mut version = 0;
        for _ in 0..3 {
            version = put(&mut first, "a", version, &[round]).await;
            assert!(seen.insert(version), "the version {version} must not be used twice");
        }
        assert_eq!(load(&mut second, "a").await, (version, vec![round]));
        let removed = [(name("a"), version - 1), (name("b"), version), (name("a"), 0)];
        first.remove(&removed).await.unwrap();
        assert_eq!(load(&mut first, "a").await.0, version, "the record has another version, so it must not be removed");
        first.remove(&[(name("a"), version)]).await.unwrap();
        assert_eq!(load(&mut second, "a").await, (0, vec![]));
        assert!(first.page(0, 10).await.unwrap().what.is_empty());
        // The versions of the removed record must never match again, even after a new record got the same name.
        assert_eq!(one(&mut second, change("a", version, b"late")).await, Committed::Stale);
        let anew = put(&mut second, "a", 0, b"anew").await;
        for late in seen.iter().copied() {
            assert_eq!(one(&mut first, change("a", late, b"late")).await, Committed::Stale);
            assert_eq!(one(&mut first, look("a", late)).await, Committed::Stale);
        }
        first.remove(&[(name("a"), version)]).await.unwrap();
        assert_eq!(load(&mut first, "a").await, (anew, b"anew".to_vec()));
        first.remove(&[(name("a"), anew)]).await.unwrap();
    }
});

test!(foreign_znode_in_place_of_a_record_is_shown_as_unchangeable, server => {
    let admin = admin(&server).await;
    let options = zookeeper_client::CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
    for path in ["/a/locks/records/61", "/a/locks/records/62", "/a/locks/records/62/strange"] {
        admin.create(path, b"x", &options).await.unwrap();
    }
    let mut session = session(&server).await;
    for of in ["a", "b"] {
        let (version, state) = load(&mut session, of).await;
        assert_eq!((version, state), (u64::MAX, vec![u8::MAX]), "{of}");
    }
    assert_eq!(one(&mut session, change("a", 0, b"1")).await, Committed::Stale);
});

test!(of_concurrent_commits_to_one_record_exactly_one_is_applied, server => {
    let mut first = session(&server).await;
    let mut second = session(&server).await;
    for round in 0..50 {
        let (version, _) = load(&mut first, "a").await;
        let (mine, yours) = (commit(change("a", version, b"1")), commit(change("a", version, b"2")));
        let (mine, yours) = ([mine], [yours]);
        let (one, two) = futures::join!(first.commit(&mine), second.commit(&yours));
        let done = [one, two].map(|said| matches!(said.unwrap().what[0], Committed::Done(_)));
        assert_eq!(done.iter().filter(|done| **done).count(), 1, "{round}");
        let (_, state) = load(&mut first, "a").await;
        assert_eq!(state, if done[0] { b"1" } else { b"2" });
    }
});

test!(commits_of_the_same_records_in_opposite_orders_never_block_each_other, server => {
    let counted = std::sync::atomic::AtomicU64::new(0);
    let work = async |order: [&'static str; 2]| {
        let mut session = session(&server).await;
        while counted.load(std::sync::atomic::Ordering::Relaxed) < 100 {
            let loaded = session.load(&order.map(name)).await.unwrap().what;
            let changes = order.iter().zip(&loaded).map(|(it, now)| change(it, now.version, b"x"));
            let both = Commit { changes: changes.collect(), wakes: vec![], ..Commit::default() };
            if let Committed::Done(_) = session.commit(&[both]).await.unwrap().what[0] {
                counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
    };
    futures::join!(work(["a", "b"]), work(["b", "a"]), work(["a", "b"]), work(["b", "a"]));
    let mut session = session(&server).await;
    let (a, b) = (load(&mut session, "a").await.0, load(&mut session, "b").await.0);
    assert_eq!(times_written(a), times_written(b));
    assert_eq!(times_written(a), counted.into_inner());
});

test!(record_names_of_any_bytes_and_of_the_maximum_length_are_distinguished, server => {
    let mut session = session(&server).await;
    let names: Vec<Vec<u8>> = vec![
        vec![], vec![0], b"/".to_vec(), b"a/b".to_vec(), b"-".to_vec(), b"2d".to_vec(), vec![0xff; 2_100], vec![0xff; 2_099],
    ];
    let mut versions = Vec::new();
    for (i, name) in names.iter().enumerate() {
        let mut change = change("", 0, &[i as u8]);
        change.name = name.as_slice().into();
        let Committed::Done(version) = one(&mut session, change).await else { panic!("{i}") };
        versions.extend(version);
    }
    let mut paged = Vec::new();
    for from in (0..8).step_by(3) {
        paged.extend(session.page(from, 3).await.unwrap().what);
    }
    assert!(session.page(8, 3).await.unwrap().what.is_empty());
    assert_eq!(paged.len(), names.len());
    for (i, name) in names.iter().enumerate() {
        let (_, record) = paged.iter().find(|(it, _)| it == name).expect("listed");
        assert_eq!((record.version, &*record.state), (versions[i], &[i as u8][..]));
    }
});

test!(too_large_state_is_refused_and_the_session_stays_usable, server => {
    let mut session = session(&server).await;
    let large = vec![1; 1_000_000];
    assert!(matches!(one(&mut session, change("a", 0, &large)).await, Committed::Done(_)));
    assert_eq!(load(&mut session, "a").await.1, large);
    let larger = commit(change("b", 0, &vec![1; 1_000_001]));
    let refused = session.commit(&[larger]).await.unwrap_err();
    assert!(matches!(&refused, Fault::Server(why) if why.contains("1000001")), "{refused}");
    assert_eq!(load(&mut session, "b").await.0, 0);
});

test!(late_commit_of_a_dropped_future_is_refused_because_the_version_has_changed, server => {
    let mut first = session(&server).await;
    let mut second = session(&server).await;
    let made = put(&mut first, "a", 0, b"0").await;
    // Stop the server, so that it processes the commit only after the session was dropped.
    server.zookeeper.stop(0).unwrap();
    let late = [commit(change("a", made, b"late"))];
    let cut = tokio::time::timeout(Duration::from_millis(50), first.commit(&late)).await;
    assert!(cut.is_err());
    drop(first);
    server.zookeeper.cont(0).unwrap();
    // The second client overwrites the record at its current version. From then on, the delayed commit of the first
    // client has no effect.
    let (version, _) = load(&mut second, "a").await;
    let done = one(&mut second, change("a", version, b"next")).await;
    let mut now = version;
    if let Committed::Done(versions) = done {
        now = versions[0];
    } else {
        let (version, state) = load(&mut second, "a").await;
        assert_eq!(state, b"late");
        assert!(matches!(one(&mut second, change("a", version, b"next")).await, Committed::Done(_)));
        now = version.max(now) + 1;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(load(&mut second, "a").await, (now, b"next".to_vec()));
});

test!(listener_receives_every_wake_up_for_its_process_and_no_others, server => {
    let mut session = session(&server).await;
    let mut mine = listener(&server, "00000000000000aa").await;
    let mut other = listener(&server, "00000000000000bb").await;
    idle(&mut mine).await;
    idle(&mut other).await;
    let fired = server.watches_fired();
    let mut version = 0;
    for round in 0..20_u64 {
        let word = format!("word {round}");
        let told = Commit { changes: vec![change("a", version, b"x")], wakes: vec![wake("00000000000000aa", &word)], ..Commit::default() };
        let done = session.commit(&[told]).await.unwrap().what;
        let [Committed::Done(versions)] = &done[..] else { panic!("{done:?}") };
        version = versions[0];
        assert_eq!(next(&mut mine).await, [word.into_bytes()]);
    }
    idle(&mut other).await;
    idle(&mut mine).await;
    assert_eq!(server.watches_fired() - fired, 20, "each wake-up must fire exactly one watch");
});

test!(several_wake_ups_of_one_commit_for_one_process_arrive_together, server => {
    let mut session = session(&server).await;
    let mut mine = listener(&server, "00000000000000aa").await;
    idle(&mut mine).await;
    let fired = server.watches_fired();
    let wakes = vec![wake("00000000000000aa", "one"), wake("00000000000000cc", "gone"), wake("00000000000000aa", "")];
    let told = Commit { changes: vec![], wakes, ..Commit::default() };
    assert_eq!(session.commit(&[told]).await.unwrap().what, [Committed::Done(vec![])]);
    assert_eq!(next(&mut mine).await, [b"one".to_vec(), vec![]]);
    idle(&mut mine).await;
    assert_eq!(server.watches_fired() - fired, 1);
});

test!(wake_up_for_a_dead_process_does_not_prevent_the_commit, server => {
    let mut session = session(&server).await;
    let mut there = listener(&server, "00000000000000aa").await;
    let gone = listener(&server, "00000000000000bb").await;
    drop(gone);
    let wakes = ["00000000000000bb", "00000000000000aa", "00000000000000cc"].map(|it| wake(it, "w"));
    let told = Commit { changes: vec![change("a", 0, b"x")], wakes: wakes.to_vec(), ..Commit::default() };
    let done = session.commit(std::slice::from_ref(&told)).await.unwrap().what;
    assert!(matches!(done[..], [Committed::Done(_)]), "{done:?}");
    assert_eq!(next(&mut there).await, [b"w".to_vec()]);
    // A commit that was not applied wakes no listener.
    assert_eq!(session.commit(&[told]).await.unwrap().what, [Committed::Stale]);
    idle(&mut there).await;
});

test!(listener_reports_that_wake_ups_were_lost_if_they_were_overwritten, server => {
    let mut session = session(&server).await;
    let mut mine = listener(&server, "00000000000000aa").await;
    for word in ["one", "two", "three"] {
        let told = Commit { changes: vec![], wakes: vec![wake("00000000000000aa", word)], ..Commit::default() };
        session.commit(&[told]).await.unwrap();
    }
    assert_eq!(next(&mut mine).await, Vec::<Vec<u8>>::new(), "the listener must report that wake-ups may have been lost");
    idle(&mut mine).await;
    let told = Commit { changes: vec![], wakes: vec![wake("00000000000000aa", "four")], ..Commit::default() };
    session.commit(&[told]).await.unwrap();
    assert_eq!(next(&mut mine).await, [b"four".to_vec()]);
});

test!(second_listener_of_a_process_replaces_the_first, server => {
    let mut session = session(&server).await;
    let mut first = listener(&server, "00000000000000aa").await;
    idle(&mut first).await;
    let mut second = listener(&server, "00000000000000aa").await;
    let over = tokio::time::timeout(PATIENCE, first.next()).await.expect("the listener must report in time");
    assert!(matches!(over, Err(Fault::Disconnected(_))), "{over:?}");
    drop(first);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let told = Commit { changes: vec![], wakes: vec![wake("00000000000000aa", "w")], ..Commit::default() };
    session.commit(&[told]).await.unwrap();
    assert_eq!(next(&mut second).await, [b"w".to_vec()]);
});

test!(session_ends_if_the_server_is_stopped_beyond_the_session_timeout_and_records_are_kept, server => {
    let url = server.url_with("session=1s&timeout=400ms");
    let store = ZooKeeper::open(&url).unwrap();
    let (mut session, _) = store.connect().await.unwrap();
    let mut mine = store.listen("00000000000000aa".into()).await.unwrap();
    let made = put(&mut session, "a", 0, b"1").await;
    server.zookeeper.stop(0).unwrap();
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    server.zookeeper.cont(0).unwrap();
    let heard = tokio::time::timeout(PATIENCE, mine.next()).await.expect("the listener must report in time");
    assert!(matches!(heard, Err(Fault::Disconnected(_) | Fault::Down(_))), "{heard:?}");
    let over = session.load(&[name("a")]).await.unwrap_err();
    assert!(matches!(over, Fault::Disconnected(_) | Fault::Down(_)), "{over}");
    let mut again = until_connected(&store).await;
    assert_eq!(load(&mut again, "a").await, (made, b"1".to_vec()));
    let mut mine = store.listen("00000000000000aa".into()).await.unwrap();
    let told = Commit { changes: vec![], wakes: vec![wake("00000000000000aa", "w")], ..Commit::default() };
    again.commit(&[told]).await.unwrap();
    assert_eq!(next(&mut mine).await, [b"w".to_vec()]);
});

test!(session_notices_a_killed_server_at_once_and_the_records_survive, server => {
    let store = server.store();
    let (mut session, before) = store.connect().await.unwrap();
    let mut done = Vec::new();
    for i in 0..50 {
        done.push(put(&mut session, &format!("r{i}"), 0, &[i]).await);
    }
    server.zookeeper.kill(0).unwrap();
    let begun = Instant::now();
    let over = session.load(&[name("r1")]).await.unwrap_err();
    assert!(matches!(over, Fault::Disconnected(_) | Fault::Down(_)), "{over}");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let down = store.connect().await.map(|_| ()).unwrap_err();
    assert!(matches!(&down, Fault::Down(why) if why.contains("refused")), "{down}");
    server.zookeeper.restart(0).unwrap();
    let (mut session, after) = store.connect().await.unwrap();
    for (i, version) in (0..50_u8).zip(done) {
        assert_eq!(load(&mut session, &format!("r{i}")).await, (version, vec![i]));
    }
    assert_eq!((before.run, before.server), (after.run, after.server));
    assert!(after.uptime.is_none(), "a server that loses nothing must report no uptime");
});

test!(session_reports_the_date_of_the_last_change_even_before_its_own_first_change, server => {
    let mut session = session(&server).await;
    let near = |date: Option<u64>| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        date.is_some_and(|date| date.abs_diff(since.as_micros() as u64) < 60_000_000)
    };
    let first = session.date().map(|date| date.micros);
    assert!(near(first), "{first:?}");
    let mut last = first;
    let mut version = 0;
    for round in 0..3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        version = put(&mut session, "a", version, &[round]).await;
        let date = session.date().map(|date| date.micros);
        assert!(
            near(date) && (date > last || round == 0),
            "the date {date:?} must be near the current time and later than {last:?}"
        );
        last = date;
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
    let both = Commit { changes: vec![change("a", version, b"2"), change("b", 0, b"2")], wakes: vec![], ..Commit::default() };
    session.commit(&[both]).await.unwrap();
    assert!(session.date().map(|date| date.micros) > last);
    // The session has created and removed a znode to read the ensemble's clock. This must leave no record.
    let names: Vec<_> = session.page(0, 100).await.unwrap().what.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [b"a".to_vec(), b"b".to_vec()]);
});

test!(page_with_a_record_that_was_removed_meanwhile_is_not_taken_for_the_last_page, server => {
    let (mut session, mut other) = (session(&server).await, session(&server).await);
    let mut versions = Vec::new();
    for of in ["a", "b", "c"] {
        versions.push(put(&mut other, of, 0, b"1").await);
    }
    assert_eq!(session.page(0, 1).await.unwrap().what[0].0, b"a");
    other.remove(&[(name("b"), versions[1])]).await.unwrap();
    let second = session.page(1, 1).await.unwrap().what;
    assert_eq!((second.len(), second[0].1.version), (1, 0));
    assert_eq!(session.page(2, 1).await.unwrap().what[0].0, b"c");
});
