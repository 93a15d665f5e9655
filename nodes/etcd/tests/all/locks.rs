//! Locks over etcd, alone and together with Redis, through the public API.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quorate::{Redlock, RedlockBuilder, RestartGuard, Take, TryAcquire, ValueError, Wait};
use quorate_etcd::{node, prepare};
use quorate_testbed::{Etcd as Process, EtcdOptions, Fault as Cut, Masters, Proxy, ServerDir, Way};

use crate::support::*;

fn builder(cluster: &Cluster) -> RedlockBuilder {
    Redlock::builder()
        .node(node(&cluster.url()).unwrap())
        .connect_timeout(Duration::from_secs(4))
        .ttl(Duration::from_secs(30))
        .wait(Wait::For(Duration::from_secs(40)))
}

fn client(cluster: &Cluster) -> Redlock {
    builder(cluster).build().unwrap()
}

/// Lets these clients acquire and release the lock `prize` four times each. Checks that no two clients hold the lock at
/// the same time, and that the fencing tokens rise. Returns the duration.
async fn acquire_four_times_each(clients: Vec<Redlock>) -> Duration {
    let is_held = Arc::new(AtomicBool::new(false));
    let last_token = Arc::new(AtomicU64::new(0));
    let started_at = Instant::now();
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|redlock| {
            let (is_held, last_token) = (is_held.clone(), last_token.clone());
            tokio::spawn(async move {
                for _ in 0..4 {
                    let guard = redlock.acquire("prize").await.unwrap();
                    assert!(
                        !is_held.swap(true, Ordering::SeqCst),
                        "two clients must not hold the lock at the same time"
                    );
                    let token = guard.fencing_token().expect("fenced");
                    let last = last_token.swap(token, Ordering::SeqCst);
                    assert!(last < token, "fencing tokens must rise");
                    is_held.store(false, Ordering::SeqCst);
                    guard.release().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    started_at.elapsed()
}

test!(quota_of_a_restored_snapshot_is_lost_after_the_identity_was_changed, cluster => {
    let home = ServerDir::create(None).unwrap();
    let file = home.path().join("snapshot");
    let redlock = client(&cluster);
    let prizes = redlock.quota("prizes");
    prizes.create(10).await.unwrap();
    cluster.etcd.save_snapshot(&file).unwrap();
    assert_eq!(prizes.take(1).await, Ok(Take::Taken { left: 9 }));
    Process::restart(&cluster.etcd, 0).unwrap();
    assert_eq!(client(&cluster).quota("prizes").left().await, Ok(9));
    cluster.etcd.restore_snapshot(&file).unwrap();
    cluster.ctl("del /quorate-server");
    assert!(prepare(&cluster.url()).await.unwrap().made);
    for guard in [RestartGuard::AfterFirstContact, RestartGuard::Off] {
        let later = builder(&cluster).restart_guard(guard).build().unwrap();
        let error = later.quota("prizes").take(1).await.expect_err("the unit was handed out before");
        assert!(matches!(error, ValueError::Lost(_)), "{error}");
    }
});

test!(ten_clients_of_one_cluster_never_hold_the_lock_together, cluster => {
    let elapsed = acquire_four_times_each((0..10).map(|_| client(&cluster)).collect()).await;
    // Without wake-ups, waiters would wait for their next heartbeat, and these 40 holds would take minutes.
    assert!(elapsed < Duration::from_secs(30), "{elapsed:?}");
});

test!(locks_over_redis_and_etcd_exclude_each_other_while_a_redis_is_down, cluster => {
    if quorate_testbed::available().is_none() {
        return quorate_testbed::not_run(
            "locks_over_redis_and_etcd_exclude_each_other_while_a_redis_is_down",
            "no redis-server",
        );
    }
    let masters = Masters::start(2).unwrap();
    let mixed = || {
        let builder = builder(&cluster).masters(masters.urls());
        builder.node_timeout(Duration::from_millis(500)).build().unwrap()
    };
    masters[0].kill().unwrap();
    acquire_four_times_each((0..4).map(|_| mixed()).collect()).await;
});

test!(lock_survives_the_restart_of_the_cluster, cluster => {
    let holder = client(&cluster);
    let guard = holder.acquire("a").await.unwrap();
    Process::restart(&cluster.etcd, 0).unwrap();
    let other = client(&cluster);
    assert!(matches!(other.try_acquire("a").await, Ok(TryAcquire::Held(_))));
    assert!(guard.is_valid());
    let token = guard.fencing_token();
    guard.release().await;
    let next = other.acquire("a").await.unwrap();
    assert!(next.fencing_token() > token);
});

test!(lock_of_a_dead_holder_is_granted_to_a_process_that_tries_once_after_its_lease, cluster => {
    let ttl = Duration::from_secs(3);
    let addr = cluster.etcd.addr(0);
    let proxy = Proxy::start(addr).unwrap();
    let url = format!("{}?timeout=700ms", cluster.etcd.url("locks"));
    let proxied = url.replace(&addr.to_string(), &proxy.addr().to_string());
    let holder = Redlock::builder().node(node(&proxied).unwrap()).ttl(ttl).build().unwrap();
    let guard = holder.acquire("a").await.unwrap();
    // Simulate the death of the holder's process: nothing renews or releases the lock.
    let _dead = proxy.inject(Cut::Hold(Way::Both));
    std::mem::forget(guard);
    let other = Redlock::builder().node(node(&url).unwrap()).ttl(ttl).build().unwrap();
    assert!(matches!(other.try_acquire("a").await, Ok(TryAcquire::Held(_))));
    tokio::time::sleep(ttl + Duration::from_secs(2)).await;
    // A process that begins now has never seen the lease.
    let late = Redlock::builder().node(node(&url).unwrap()).ttl(ttl).build().unwrap();
    assert!(matches!(late.try_acquire("a").await, Ok(TryAcquire::Acquired(_))));
});

test!(lock_is_held_while_the_leader_of_three_members_changes, EtcdOptions::new().members(3), cluster => {
    let holder = client(&cluster);
    let guard = holder.acquire("a").await.unwrap();
    let leader = cluster.etcd.leader().expect("a leader");
    Process::kill(&cluster.etcd, leader).unwrap();
    let other = client(&cluster);
    let started = Instant::now();
    while !matches!(other.try_acquire("a").await, Ok(TryAcquire::Held(_))) {
        assert!(started.elapsed() < PATIENCE, "the cluster must serve locks again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(guard.is_valid());
    guard.release().await;
    other.acquire("a").await.unwrap().release().await;
});
