//! Tests of the guarantees of a store, on real clusters.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use quorate::node::store::{Committed, Session as _, Store as _};
use quorate_testbed::EtcdOptions;

use crate::support::*;

test!(record_can_be_created_changed_and_removed_and_never_gets_a_version_again, cluster => {
    let mut session = cluster.session().await;
    assert_eq!(load(&mut session, "a").await, (0, Vec::new()));
    let first = put(&mut session, "a", 0, b"1").await;
    let second = put(&mut session, "a", first, b"2").await;
    assert!(second > first);
    assert_eq!(load(&mut session, "a").await, (second, b"2".to_vec()));
    session.remove(&[(name("a"), first)]).await.unwrap();
    assert_eq!(load(&mut session, "a").await.0, second, "an outdated removal has no effect");
    session.remove(&[(name("a"), second)]).await.unwrap();
    assert_eq!(load(&mut session, "a").await, (0, Vec::new()));
    assert!(put(&mut session, "a", 0, b"3").await > second);
});

test!(commit_of_several_records_takes_effect_completely_or_not_at_all, cluster => {
    let mut session = cluster.session().await;
    let a = put(&mut session, "a", 0, b"1").await;
    let stale = of(vec![change("a", a, b"2"), change("b", 7, b"2")]);
    let good = of(vec![change("c", 0, b"3"), check("a", a), check("absent", 0)]);
    let outdated = of(vec![check("a", a + 1), change("d", 0, b"4")]);
    let outcomes = commit(&mut session, &[stale, good, outdated]).await;
    assert_eq!([&outcomes[0], &outcomes[2]], [&Committed::Stale, &Committed::Stale]);
    assert_eq!(load(&mut session, "a").await, (a, b"1".to_vec()));
    let (c, state) = load(&mut session, "c").await;
    assert_eq!((&outcomes[1], &state[..]), (&Committed::Done(vec![c, a, 0]), &b"3"[..]));
    for absent in ["b", "d"] {
        assert_eq!(load(&mut session, absent).await.0, 0);
    }
});

test!(names_and_states_may_contain_any_bytes, cluster => {
    let mut session = cluster.session().await;
    let names: [Arc<[u8]>; 4] = [[0, 0xff, b'/'][..].into(), [0xff; 3][..].into(), [7; 2100][..].into(), name("")];
    let mut changes = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let mut change = change("", 0, &[0, 0xff, number as u8]);
        change.name = name.clone();
        changes.push(change);
    }
    assert!(matches!(commit(&mut session, &[of(changes)]).await[0], Committed::Done(_)));
    // A name may occur several times in a request.
    let twice = [&names[..], &names[..1]].concat();
    let loaded = session.load(&twice).await.unwrap().what;
    let states: Vec<u8> = loaded.iter().map(|record| record.state[2]).collect();
    assert_eq!(states, [0, 1, 2, 3, 0]);
    let mut listed: Vec<Vec<u8>> = session.page(0, 10).await.unwrap().what.into_iter().map(|(name, _)| name).collect();
    let mut expected: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
});

test!(requests_for_many_records_are_divided, cluster => {
    let mut session = cluster.session().await;
    let key = |number: usize| format!("r{number:03}");
    let commits: Vec<_> = (0..32)
        .map(|part| of((0..8).map(|number| change(&key(part * 8 + number), 0, &[1; 1000])).collect()))
        .collect();
    let outcomes = commit(&mut session, &commits).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Committed::Done(_))));
    let large = of(vec![change("large", 0, &vec![2; 1_400_000])]);
    let outcomes = commit(&mut session, &[large.clone(), of(vec![change("x", 0, b"")]), large]).await;
    assert_eq!(outcomes[2], Committed::Stale);
    let too_large = session.commit(&[of(vec![change("huge", 0, &vec![2; 1_600_000])])]).await;
    assert!(too_large.unwrap_err().to_string().contains("1500000"));
    let names: Vec<Arc<[u8]>> = (0..256).map(|number| name(&key(number))).collect();
    let loaded = session.load(&names).await.unwrap().what;
    assert!(loaded.len() == 256 && loaded.iter().all(|record| record.state == [1; 1000]));
    let found: Vec<_> = loaded.iter().zip(&names).map(|(record, name)| (name.clone(), record.version)).collect();
    session.remove(&found).await.unwrap();
    assert_eq!(session.page(0, 300).await.unwrap().what.len(), 2);
});

test!(pages_have_one_order_and_continue_after_records_were_removed, cluster => {
    let mut session = cluster.session().await;
    let key = |number: usize| format!("r{number}");
    for number in 0..7 {
        put(&mut session, &key(number), 0, b"x").await;
    }
    let names = |page: Vec<(Vec<u8>, _)>| -> Vec<String> {
        page.into_iter().map(|(name, _): (Vec<u8>, quorate::node::store::Record)| String::from_utf8(name).unwrap()).collect()
    };
    let first = session.page(0, 3).await.unwrap().what;
    session.remove(&[(name("r1"), first[1].1.version)]).await.unwrap();
    assert_eq!(names(first), ["r0", "r1", "r2"]);
    assert_eq!(names(session.page(3, 3).await.unwrap().what), ["r3", "r4", "r5"]);
    assert_eq!(names(session.page(6, 3).await.unwrap().what), ["r6"]);
    // Another session begins in the middle.
    let mut other = cluster.session().await;
    assert_eq!(names(other.page(5, 3).await.unwrap().what), ["r6"]);
    assert_eq!(names(other.page(90, 3).await.unwrap().what), [""; 0]);
});

test!(two_sessions_that_change_one_record_never_both_succeed, cluster => {
    let mut first = cluster.session().await;
    put(&mut first, "a", 0, &0_u64.to_be_bytes()).await;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let mut session = cluster.session().await;
        tasks.push(tokio::spawn(async move {
            let mut done = 0;
            while done < 20 {
                let (version, state) = load(&mut session, "a").await;
                let count = u64::from_be_bytes(state.try_into().unwrap()) + 1;
                let one = of(vec![change("a", version, &count.to_be_bytes())]);
                if matches!(commit(&mut session, &[one]).await[0], Committed::Done(_)) {
                    done += 1;
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(load(&mut first, "a").await.1, 80_u64.to_be_bytes());
});

test!(session_has_dates_of_one_clock_even_before_its_first_change, cluster => {
    let mut session = cluster.session().await;
    let date = session.date().expect("a date");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
    assert!(now.abs_diff(date.micros) < 30_000_000, "{date:?}");
    assert_eq!((date.micros % 1_000_000, date.grain.as_secs()), (0, 1));
    put(&mut session, "a", 0, b"x").await;
    assert_eq!(session.date().map(|date| date.era), Some(date.era));
    assert_eq!(cluster.session().await.date().map(|date| date.era), Some(date.era));
    quorate_testbed::Etcd::restart(&cluster.etcd, 0).unwrap();
    let after = cluster.session().await.date().expect("a date");
    assert_ne!(after.era, date.era, "a restarted member has another clock");
});

test!(acknowledged_changes_survive_the_death_of_the_server, cluster => {
    let mut session = cluster.session().await;
    let (_, before) = cluster.store().connect().await.unwrap();
    let version = put(&mut session, "a", 0, b"1").await;
    quorate_testbed::Etcd::restart(&cluster.etcd, 0).unwrap();
    assert!(session.load(&[name("a")]).await.is_err());
    let (mut session, after) = cluster.store().connect().await.unwrap();
    assert_eq!(load(&mut session, "a").await, (version, b"1".to_vec()));
    assert_eq!((before.run, before.server), (after.run, after.server.clone()));
    assert_eq!((before.uptime, after.uptime), (None, None));
});

test!(two_prefixes_of_one_cluster_count_as_one_server, cluster => {
    let elsewhere = format!("{}?timeout=4s", cluster.etcd.url("elsewhere"));
    let (mut one, first) = cluster.store().connect().await.unwrap();
    let (mut two, second) = quorate_etcd::Etcd::open(&elsewhere).unwrap().connect().await.unwrap();
    assert!(first.server.is_some() && first.server == second.server);
    put(&mut one, "a", 0, b"x").await;
    assert_eq!(load(&mut two, "a").await.0, 0);
    // A second cluster with the same settings has the same number, but another identity.
    let other = Cluster::start(EtcdOptions::new()).await;
    let (_, greeting) = other.store().connect().await.unwrap();
    assert_ne!(first.server, greeting.server);
});
