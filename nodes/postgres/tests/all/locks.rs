//! Locks over PostgreSQL servers, alone and together with Redis servers, through the public API.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{self, options, server, sql};
use quorate::Redlock;
use quorate::node::store::StoreNode;
use quorate_postgres::Postgres;
use quorate_testbed::{Server, ServerOptions};

/// PostgreSQL and Redis servers for one test.
struct Fleet {
    redis: Vec<Server>,
    postgres: Vec<common::Server>,
}

impl Fleet {
    async fn start(redis: usize, postgres: usize) -> Option<Self> {
        let mut fleet = Self {
            redis: Vec::new(),
            postgres: Vec::new(),
        };
        for _ in 0..postgres {
            fleet.postgres.push(server(options()).await?.0);
        }
        for _ in 0..redis {
            fleet
                .redis
                .push(Server::start(ServerOptions::new()).expect("a Redis"));
        }
        Some(fleet)
    }

    /// A new `Redlock` with its own connections. It simulates a separate process.
    fn redlock(&self) -> Redlock {
        let mut builder = Redlock::builder()
            .ttl(Duration::from_secs(10))
            .restart_guard(quorate::RestartGuard::Off);
        for redis in &self.redis {
            builder = builder.master(redis.url());
        }
        for postgres in &self.postgres {
            let url = format!("{}?timeout=2s", postgres.url("locks"));
            let store = Postgres::open(&url).expect("a URL");
            builder = builder.node(StoreNode::new(store));
        }
        builder.build().expect("a Redlock")
    }
}

/// On a busy machine, the turns of the other clients can take longer than the default wait.
const LONG_WAIT: Duration = Duration::from_secs(300);

/// Lets `clients` concurrent clients acquire the same lock `turns` times each. Checks that no two clients hold it at
/// the same time, and that the fencing tokens rise.
async fn take_turns(fleet: &Fleet, clients: usize, turns: u32) {
    let inside = Arc::new(AtomicU32::new(0));
    let highest = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..clients {
        let (redlock, inside, highest) = (fleet.redlock(), inside.clone(), highest.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..turns {
                let acquire = redlock.lock("turns").wait(quorate::Wait::For(LONG_WAIT));
                let guard = acquire.acquire().await.expect("the lock");
                let others = inside.fetch_add(1, Ordering::SeqCst);
                assert_eq!(
                    others, 0,
                    "two clients must not hold the lock at the same time"
                );
                let token = guard.fencing_token().expect("a token");
                let before = highest.swap(token, Ordering::SeqCst);
                assert!(before < token, "fencing tokens must rise");
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await;
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_clients_of_three_servers_exclude_each_other_and_tokens_rise() {
    let Some(fleet) = Fleet::start(0, 3).await else {
        return;
    };
    take_turns(&fleet, 10, 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_two_redis_and_one_postgres_exclude_each_other_and_tokens_rise() {
    let Some(fleet) = Fleet::start(2, 1).await else {
        return;
    };
    take_turns(&fleet, 6, 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_exclude_each_other_while_one_of_three_servers_is_dead() {
    let Some(fleet) = Fleet::start(0, 3).await else {
        return;
    };
    fleet.postgres[1].kill().expect("dead");
    take_turns(&fleet, 2, 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_is_woken_soon_after_the_release_and_then_listens_no_more() {
    let Some(fleet) = Fleet::start(0, 1).await else {
        return;
    };
    let (holder, waiter) = (fleet.redlock(), fleet.redlock());
    let listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
    let guard = holder.acquire("waited").await.expect("free");
    assert_eq!(
        sql(&fleet.postgres[0], listening),
        "0\n",
        "a client that does not wait must not listen"
    );
    let waits = tokio::spawn(async move {
        let guard = waiter
            .lock("waited")
            .wait(quorate::Wait::Forever)
            .acquire()
            .await
            .expect("the lock");
        let acquired = Instant::now();
        guard.release().await;
        (waiter, acquired)
    });
    // The listener rests 2 s after the last waiter, so this waiter must wait for longer.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(sql(&fleet.postgres[0], listening), "1\n");
    let released = Instant::now();
    guard.release().await;
    let (_waiter, acquired) = waits.await.expect("no panic");
    let took = acquired.saturating_duration_since(released);
    // A waiter that polls would need up to a heartbeat, which is seconds.
    assert!(took < Duration::from_millis(500), "{took:?}");
    let ended = || sql(&fleet.postgres[0], listening) == "0\n";
    assert!(
        quorate_testbed::within(Duration::from_secs(10), ended),
        "nobody waits"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_get_the_lock_after_all_their_sessions_were_ended() {
    let Some(fleet) = Fleet::start(0, 1).await else {
        return;
    };
    let guard = fleet.redlock().acquire("waited").await.expect("free");
    let mut waits = Vec::new();
    for _ in 0..3 {
        let client = fleet.redlock();
        waits.push(tokio::spawn(async move {
            let lock = client.lock("waited").wait(quorate::Wait::Forever);
            lock.acquire().await.expect("the lock").release().await;
        }));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name='quorate'";
    let ended: usize = sql(&fleet.postgres[0], end)
        .trim()
        .parse()
        .expect("a number");
    assert!(ended >= 4, "{ended}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    guard.release().await;
    for wait in waits {
        wait.await.expect("no panic");
    }
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "{:?}",
        began.elapsed()
    );
}
