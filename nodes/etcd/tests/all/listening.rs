//! Tests of wake-ups, on real clusters.

use std::time::Duration;

use quorate::node::store::Listener as _;
use quorate_testbed::{Fault as Cut, Proxy, Way};

use crate::support::*;

const PROCESS: &str = "00000000000000aa";

test!(wake_ups_of_a_commit_arrive_in_order_and_those_of_a_stale_commit_do_not, cluster => {
    let mut session = cluster.session().await;
    let mut listener = cluster.listener(PROCESS).await;
    expect_no_wake_up(&mut listener).await;
    let first = waking(change("a", 0, b"1"), PROCESS, &[b"one", b"two"]);
    let stale = waking(change("b", 7, b"1"), PROCESS, &[b"never"]);
    let other = waking(change("c", 0, b"1"), "00000000000000bb", &[b"absent"]);
    commit(&mut session, &[first, other]).await;
    commit(&mut session, &[stale]).await;
    assert_eq!(next_wake_up(&mut listener).await, [b"one", b"two"]);
    expect_no_wake_up(&mut listener).await;
    // Two commits of one batch wake the same process.
    let commits = ["d", "e"].map(|key| waking(change(key, 0, b""), PROCESS, &[key.as_bytes()]));
    commit(&mut session, &commits).await;
    assert_eq!(next_wake_up(&mut listener).await, [b"d", b"e"]);
});

test!(messages_that_were_written_one_after_the_other_are_all_received, cluster => {
    let mut session = cluster.session().await;
    let mut listener = cluster.listener(PROCESS).await;
    for number in 0..5_u8 {
        commit(&mut session, &[waking(change(&number.to_string(), 0, b""), PROCESS, &[&[number]])]).await;
    }
    let mut received = Vec::new();
    while received.len() < 5 {
        received.extend(next_wake_up(&mut listener).await);
    }
    assert_eq!(received, [[0], [1], [2], [3], [4]]);
});

test!(listener_continues_after_its_connections_were_lost, cluster => {
    let addr = cluster.etcd.addr(0);
    let proxy = Proxy::start(addr).unwrap();
    let url = cluster.url().replace(&addr.to_string(), &proxy.addr().to_string());
    let store = quorate_etcd::Etcd::open(&url).unwrap();
    let mut listener = quorate::node::store::Store::listen(&store, PROCESS.into()).await.unwrap();
    let mut session = cluster.session().await;
    commit(&mut session, &[waking(change("a", 0, b""), PROCESS, &[b"first"])]).await;
    assert_eq!(next_wake_up(&mut listener).await, [b"first"]);
    proxy.reset_all();
    commit(&mut session, &[waking(change("b", 0, b""), PROCESS, &[b"second"])]).await;
    assert_eq!(next_wake_up(&mut listener).await, [b"second"]);
    expect_no_wake_up(&mut listener).await;
});

test!(history_that_was_removed_wakes_all_waiters, cluster => {
    let addr = cluster.etcd.addr(0);
    let proxy = Proxy::start(addr).unwrap();
    let url = cluster.url().replace(&addr.to_string(), &proxy.addr().to_string());
    let store = quorate_etcd::Etcd::open(&url).unwrap();
    let mut listener = quorate::node::store::Store::listen(&store, PROCESS.into()).await.unwrap();
    let partition = Cut::Drop(Way::Both).inject(&proxy);
    let mut session = cluster.session().await;
    commit(&mut session, &[waking(change("a", 0, b""), PROCESS, &[b"lost"])]).await;
    let version = put(&mut session, "b", 0, b"").await;
    cluster.ctl(&format!("compact {}", revision(version)));
    proxy.reset_all();
    drop(partition);
    assert_eq!(next_wake_up(&mut listener).await, [[]; 0] as [[u8; 0]; 0]);
    // Later messages are received again.
    commit(&mut session, &[waking(change("c", 0, b""), PROCESS, &[b"later"])]).await;
    assert_eq!(next_wake_up(&mut listener).await, [b"later"]);
});

test!(key_of_a_listener_that_has_ended_is_removed_and_woken_no_more, cluster => {
    let mut session = cluster.session().await;
    let listener = cluster.listener(PROCESS).await;
    let keys = || cluster.ctl("get --prefix --keys-only /locks/wake/");
    assert!(keys().contains(PROCESS));
    drop(listener);
    tokio::time::timeout(Duration::from_secs(60), async {
        while keys().contains(PROCESS) {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await
    .expect("the lease must end");
    commit(&mut session, &[waking(change("a", 0, b""), PROCESS, &[b"x"])]).await;
    assert!(!keys().contains(PROCESS), "a wake-up must not create the key of a dead process");
});

test!(listener_keeps_its_key_while_it_waits_and_reports_its_removal, cluster => {
    let mut listener = cluster.listener(PROCESS).await;
    // Longer than the lease.
    let waited = tokio::time::timeout(Duration::from_secs(18), listener.next()).await;
    assert!(waited.is_err(), "{waited:?}");
    let mut session = cluster.session().await;
    commit(&mut session, &[waking(change("a", 0, b""), PROCESS, &[b"x"])]).await;
    assert_eq!(next_wake_up(&mut listener).await, [b"x"]);
    cluster.ctl(&format!("del /locks/wake/{PROCESS}"));
    let ended = tokio::time::timeout(PATIENCE, listener.next()).await.expect("in time");
    assert!(ended.unwrap_err().to_string().contains("lease"));
});
