//! Locks over ZooKeeper, alone and together with Redis, through the public API.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::*;
use quorate::{
    AcquireError, OnceOutcome, Redlock, RedlockBuilder, RestartGuard, Take, TryAcquire, ValueError,
    Wait,
};
use quorate_contract::wall_clock::{WallClock, wall_micros};
use quorate_testbed::{Fault as Cut, Masters, Proxy, Way, ZooKeeperOptions};
use quorate_zookeeper::{node, prepare};

/// Returns a builder for a client whose only master is this ZooKeeper.
fn builder_for(server: &TestServer) -> RedlockBuilder {
    builder_at(&server.url())
}

fn builder_at(url: &str) -> RedlockBuilder {
    Redlock::builder()
        .node(node(url).unwrap())
        .restart_guard(RestartGuard::Off)
        .connect_timeout(Duration::from_secs(4))
        .ttl(Duration::from_secs(30))
        .wait(Wait::For(Duration::from_secs(40)))
}

fn client(server: &TestServer) -> Redlock {
    builder_for(server).build().unwrap()
}

/// A client whose masters are two Redis servers and one ZooKeeper.
fn mixed_client(server: &TestServer, masters: &Masters) -> Redlock {
    builder_for(server)
        .masters(masters.urls())
        .node_timeout(Duration::from_millis(500))
        .build()
        .unwrap()
}

/// Whether another client holds the lock. Tries to acquire the lock, and tries again after an error, because errors are
/// possible just after a master was killed.
async fn is_held(redlock: &Redlock, resource: &str) -> bool {
    let started_at = Instant::now();
    loop {
        match redlock.try_acquire(resource).await {
            Ok(TryAcquire::Held(_)) => return true,
            Ok(TryAcquire::Acquired(guard)) => {
                guard.release().await;
                return false;
            }
            Err(error) => assert!(started_at.elapsed() < PATIENCE, "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Lets ten concurrent clients acquire and release the lock `prize` four times each. Checks that no two clients hold
/// the lock at the same time, and that the fencing tokens rise. Returns the duration of the whole test.
async fn acquire_forty_times(clients: Vec<Redlock>) -> Duration {
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
                    assert!(
                        last_token.swap(token, Ordering::SeqCst) < token,
                        "fencing tokens must rise"
                    );
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

test!(quota_is_lost_after_its_ensemble_got_another_identity, server => {
    let redlock = client(&server);
    let prizes = redlock.quota("prizes");
    prizes.create(10).await.unwrap();
    assert_eq!(prizes.take(1).await, Ok(Take::Taken { left: 9 }));
    assert_eq!(client(&server).quota("prizes").left().await, Ok(9));
    let admin = admin(&server).await;
    for path in ["/quorate-server", "/a/locks/identity"] {
        admin.delete(path, None).await.unwrap();
    }
    assert!(prepare(&server.url()).await.unwrap().made);
    for guard in [RestartGuard::AfterFirstContact, RestartGuard::Off] {
        let later = builder_for(&server).restart_guard(guard).build().unwrap();
        let error = later.quota("prizes").take(1).await.expect_err("the data may be older");
        assert!(matches!(error, ValueError::Lost(_)), "{error}");
    }
});

test!(quota_is_not_lost_if_the_name_of_its_ensemble_is_created_later, server => {
    let admin = admin(&server).await;
    // The user that prepared the path was not allowed to create `/quorate-server`.
    admin.delete("/quorate-server", None).await.unwrap();
    let prizes = client(&server);
    prizes.quota("prizes").create(10).await.unwrap();
    assert_eq!(prizes.quota("prizes").take(1).await, Ok(Take::Taken { left: 9 }));
    // An administrator prepares a path, which gives the ensemble another name.
    prepare(&server.url()).await.unwrap();
    assert!(admin.check_stat("/quorate-server").await.unwrap().is_some());
    for guard in [RestartGuard::AfterFirstContact, RestartGuard::Off] {
        let later = builder_for(&server).restart_guard(guard).build().unwrap();
        assert_eq!(later.quota("prizes").left().await, Ok(9));
    }
});

test!(lock_over_one_zookeeper_excludes_a_second_client, server => {
    let (first_client, second_client) = (client(&server), client(&server));
    let first_guard = first_client.acquire("a").await.unwrap();
    assert!(is_held(&second_client, "a").await);
    assert!(!is_held(&second_client, "b").await);
    let token = first_guard.fencing_token().unwrap();
    first_guard.release().await;
    let second_guard = second_client.acquire("a").await.unwrap();
    assert!(second_guard.fencing_token().unwrap() > token);
    second_guard.release().await;
});

test!(ten_clients_of_one_zookeeper_never_hold_the_lock_together, server => {
    let elapsed = acquire_forty_times((0..10).map(|_| client(&server)).collect()).await;
    // Without wake-ups, waiters would poll by timer, and these 40 holds would take half a minute.
    assert!(elapsed < Duration::from_secs(15), "{elapsed:?}");
});

test!(release_fires_one_watch_for_any_number_of_waiters, server => {
    let clients: Vec<_> = (0..6).map(|_| client(&server)).collect();
    let guard = clients[0].acquire("a").await.unwrap();
    let waiters: Vec<_> = clients[1..]
        .iter()
        .map(|redlock| {
            let redlock = redlock.clone();
            tokio::spawn(async move { redlock.acquire("a").await.unwrap() })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let fired_before = server.watches_fired();
    guard.release().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(server.watches_fired() - fired_before, 1);
    for waiter in waiters {
        waiter.abort();
    }
});

test!(lock_of_a_dead_holder_is_granted_again_after_its_lease_and_not_before, server => {
    let ttl = Duration::from_secs(3);
    let url = server.url_with("timeout=700ms");
    let addr = server.zookeeper.addr(0);
    let proxy = Proxy::start(addr).unwrap();
    let proxied_url = url.replace(&addr.to_string(), &proxy.addr().to_string());
    let dying_client = builder_at(&proxied_url).ttl(ttl).build().unwrap();
    let first_client = builder_at(&url).ttl(ttl).build().unwrap();
    let acquire_started_at = Instant::now();
    let guard = dying_client.acquire("a").await.unwrap();
    let token = guard.fencing_token().unwrap();
    // Simulate the death of the holder's process: nothing renews or releases the lock.
    let _dead = proxy.inject(Cut::Hold(Way::Both));
    std::mem::forget(guard);
    let guard = first_client.acquire("a").await.unwrap();
    assert!(acquire_started_at.elapsed() >= ttl, "{:?}", acquire_started_at.elapsed());
    assert!(acquire_started_at.elapsed() < ttl * 4, "{:?}", acquire_started_at.elapsed());
    assert!(guard.fencing_token().unwrap() > token);
});

test!(held_lock_survives_a_server_stop_longer_than_the_session_timeout, server => {
    let url = server.url_with("session=1s&timeout=400ms");
    let ttl = Duration::from_secs(12);
    let redlock = builder_at(&url).ttl(ttl).build().unwrap();
    let other_client = builder_at(&url).ttl(ttl).build().unwrap();
    let guard = redlock.acquire("a").await.unwrap();
    server.zookeeper.stop(0).unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    server.zookeeper.cont(0).unwrap();
    assert!(is_held(&other_client, "a").await);
    // Hold the lock for longer than one TTL. The client must renew it, now that the server runs again.
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(guard.is_valid() && is_held(&other_client, "a").await);
    guard.release().await;
    assert!(!is_held(&other_client, "a").await);
});

test!(
    lock_survives_the_death_of_the_leader_of_its_ensemble,
    ZooKeeperOptions::new().members(3),
    server => {
        let (first_client, second_client) = (client(&server), client(&server));
        let guard = first_client.acquire("a").await.unwrap();
        let leader = server.zookeeper.leader().unwrap();
        server.zookeeper.kill(leader).unwrap();
        let zookeeper = &server.zookeeper;
        let has_leader = || zookeeper.leader().is_some();
        tokio::task::block_in_place(|| assert!(quorate_testbed::within(PATIENCE, has_leader)));
        assert!(is_held(&second_client, "a").await);
        assert!(guard.is_valid());
        let token = guard.fencing_token().unwrap();
        guard.release().await;
        let next_guard = second_client.acquire("a").await.unwrap();
        assert!(next_guard.fencing_token().unwrap() > token);
        let elapsed = acquire_forty_times((0..10).map(|_| client(&server)).collect()).await;
        assert!(elapsed < Duration::from_secs(30), "{elapsed:?}");
    }
);

test!(lock_over_two_redis_and_one_zookeeper_survives_one_dead_master, server => {
    let masters = Masters::start(2).unwrap();
    let elapsed = acquire_forty_times((0..10).map(|_| mixed_client(&server, &masters)).collect()).await;
    assert!(elapsed < Duration::from_secs(15), "{elapsed:?}");
    let (first_client, second_client) = (mixed_client(&server, &masters), mixed_client(&server, &masters));
    let guard = first_client.acquire("a").await.unwrap();
    assert!(is_held(&second_client, "a").await);
    // The lock survives the failure of any one of the three masters.
    masters[0].kill().unwrap();
    assert!(is_held(&second_client, "a").await);
    let token = guard.fencing_token().unwrap();
    guard.release().await;
    let guard = second_client.acquire("a").await.unwrap();
    assert!(guard.fencing_token().unwrap() > token);
    masters[0].restart().unwrap();
    server.zookeeper.kill(0).unwrap();
    assert!(!is_held(&first_client, "b").await);
    guard.release().await;
    assert!(!is_held(&first_client, "a").await);
});

test!(two_urls_of_one_zookeeper_count_as_one_vote, server => {
    let other_url = format!("{}?timeout=4s", server.zookeeper.url("/elsewhere"));
    quorate_zookeeper::prepare(&other_url).await.unwrap();
    let redlock = builder_for(&server)
        .node(node(&other_url).unwrap())
        .wait(Wait::For(Duration::from_secs(5)))
        .build()
        .unwrap();
    let error = redlock.acquire("a").await.map(|_| ()).unwrap_err();
    let error_text = format!("{error:?}");
    assert!(error_text.contains("SameServer"), "{error_text}");
});

test!(acquire_on_an_unprepared_zookeeper_fails_at_once, server => {
    let url = format!("{}?timeout=4s", server.zookeeper.url("/nowhere"));
    let redlock = builder_at(&url).build().unwrap();
    let started_at = Instant::now();
    let error = redlock.acquire("a").await.map(|_| ()).unwrap_err();
    assert!(started_at.elapsed() < Duration::from_secs(8), "{:?}", started_at.elapsed());
    let AcquireError::NoQuorum(_) = &error else { panic!("{error:?}") };
    assert!(format!("{error:?}").contains("quorate prepare-server"), "{error:?}");
});

test!(once_job_and_fencing_tokens_follow_the_clock_of_the_ensemble_if_the_client_clock_is_ahead, server => {
    let month = Duration::from_secs(30 * 24 * 3600);
    let period = Duration::from_secs(24 * 3600);
    let ahead_builder = builder_for(&server).runtime(Arc::new(WallClock(move |micros| {
        micros + month.as_micros() as u64
    })));
    let (right_client, ahead_client) = (client(&server), ahead_builder.build().unwrap());
    right_client.once("nightly", period).create().await.unwrap();
    let outcome = ahead_client.once("nightly", period).at_most_once(async |_| ()).await;
    let Err(ValueError::Ahead { recorded: false, ahead: by, .. }) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(by + period >= month, "{by:?}");
    let outcome = right_client.once("nightly", period).at_most_once(async |_| ()).await;
    assert_eq!(outcome, Ok(OnceOutcome::Done(())));
    let guard = ahead_client.acquire("job").await.unwrap();
    let token = guard.fencing_token().expect("fenced");
    let now_us = wall_micros();
    assert!(token < now_us + 60_000_000, "{token} {now_us}");
    guard.release().await;
});

/// The TTL in the tests of dead holders, and a time after which a dead holder's lock can be acquired.
const SHORT_TTL: Duration = Duration::from_secs(6);
const DEAD_HOLDER_WAIT: Duration = Duration::from_secs(9);
/// URL settings for these tests: the timeout must be at most a quarter of the TTL.
const QUICK_SETTINGS: &str = "timeout=1500ms&session=10s";

/// Runs a process that tries once to take a lock, and then dies without a release. Returns whether it got the lock.
async fn try_once_and_die(url: String, request: fn(&Redlock) -> quorate::LockRequest) -> bool {
    let run_process = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            // With this runtime, no task goes on after the end of the process.
            let own_runtime = Arc::new(WallClock(|micros| micros));
            let builder = builder_at(&url).ttl(SHORT_TTL).runtime(own_runtime).build();
            let client = builder.unwrap();
            let outcome = request(&client).renewal(false).try_acquire().await.unwrap();
            let guard = outcome.acquired();
            let is_acquired = guard.is_some();
            std::mem::forget(guard);
            is_acquired
        })
    };
    tokio::task::spawn_blocking(run_process).await.unwrap()
}

test!(process_that_tries_once_gets_the_lock_of_a_dead_holder, server => {
    let plain_lock: fn(&Redlock) -> quorate::LockRequest = |process| process.lock("plain");
    let permit: fn(&Redlock) -> quorate::LockRequest = |process| process.semaphore("permit", 1);
    let shared_read: fn(&Redlock) -> quorate::LockRequest = |process| process.lock("read").shared();
    let exclusive_write: fn(&Redlock) -> quorate::LockRequest = |process| process.lock("read");
    let pairs = [(plain_lock, plain_lock), (permit, permit), (shared_read, exclusive_write)];
    for (first_request, _) in pairs {
        assert!(try_once_and_die(server.url_with(QUICK_SETTINGS), first_request).await);
    }
    for (_, second_request) in pairs {
        assert!(!try_once_and_die(server.url_with(QUICK_SETTINGS), second_request).await);
    }
    tokio::time::sleep(DEAD_HOLDER_WAIT).await;
    for (_, second_request) in pairs {
        assert!(try_once_and_die(server.url_with(QUICK_SETTINGS), second_request).await);
    }
});

test!(process_that_tries_once_gets_the_lock_of_a_dead_holder_after_the_leader_was_replaced,
    ZooKeeperOptions::new().members(3), server => {
    let plain_lock: fn(&Redlock) -> quorate::LockRequest = |process| process.lock("plain");
    assert!(try_once_and_die(server.url_with(QUICK_SETTINGS), plain_lock).await);
    let leader = server.zookeeper.leader().unwrap();
    server.zookeeper.kill(leader).unwrap();
    client(&server).acquire("other").await.unwrap().release().await;
    tokio::time::sleep(DEAD_HOLDER_WAIT).await;
    assert!(
        !try_once_and_die(server.url_with(QUICK_SETTINGS), plain_lock).await,
        "the dates of two leaders must not be compared"
    );
    tokio::time::sleep(DEAD_HOLDER_WAIT).await;
    assert!(try_once_and_die(server.url_with(QUICK_SETTINGS), plain_lock).await);
});
