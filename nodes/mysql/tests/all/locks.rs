//! Locks over MariaDB servers, alone and together with Redis servers, through the public API.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::server;
use quorate::Redlock;
use quorate::node::store::StoreNode;
use quorate_mysql::MySql;
use quorate_testbed::{MariaDb, MariaDbOptions, Server, ServerOptions};

/// MariaDB and Redis servers for one test. `None` if MariaDB is missing.
struct Fleet {
    redis: Vec<Server>,
    mysql: Vec<MariaDb>,
}

impl Fleet {
    async fn start(redis: usize, mysql: usize) -> Option<Self> {
        let mut fleet = Self {
            redis: Vec::new(),
            mysql: Vec::new(),
        };
        for _ in 0..mysql {
            fleet
                .mysql
                .push(server(MariaDbOptions::new().flush(2)).await?.0);
        }
        for _ in 0..redis {
            fleet
                .redis
                .push(Server::start(ServerOptions::new()).expect("a Redis"));
        }
        Some(fleet)
    }

    /// A new `Redlock` with connections of its own, as another process would have.
    fn redlock(&self) -> Redlock {
        let mut builder = Redlock::builder()
            .ttl(Duration::from_secs(10))
            .restart_guard(quorate::RestartGuard::Off);
        for redis in &self.redis {
            builder = builder.master(redis.url());
        }
        for mysql in &self.mysql {
            let url = format!("{}?timeout=2s", mysql.url("locks"));
            let store = MySql::open(&url).expect("a URL");
            builder = builder.node(StoreNode::new(store));
        }
        builder.build().expect("a Redlock")
    }
}

/// Lets clients acquire the same lock in turn. Checks that no two clients hold it at once and that the tokens rise.
async fn take_turns(fleet: &Fleet, clients: usize, turns: u32) -> Duration {
    let inside = Arc::new(AtomicU32::new(0));
    let highest = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..clients {
        let (redlock, inside, highest) = (fleet.redlock(), inside.clone(), highest.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..turns {
                let guard = redlock.acquire("turns").await.expect("the lock");
                assert_eq!(
                    inside.fetch_add(1, Ordering::SeqCst),
                    0,
                    "two clients hold the lock at the same time"
                );
                let token = guard.fencing_token().expect("a token");
                assert!(
                    highest.swap(token, Ordering::SeqCst) < token,
                    "fencing tokens must rise"
                );
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await;
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_mariadb_servers_exclude_ten_clients_and_tokens_rise() {
    let Some(fleet) = Fleet::start(0, 3).await else {
        return;
    };
    let took = take_turns(&fleet, 10, 4).await;
    println!("3 MariaDB: 10 clients, 4 turns each: {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_redis_and_one_mariadb_exclude_ten_clients_and_tokens_rise() {
    let Some(fleet) = Fleet::start(2, 1).await else {
        return;
    };
    let took = take_turns(&fleet, 10, 4).await;
    println!("2 Redis + 1 MariaDB: 10 clients, 4 turns each: {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_over_three_servers_survives_one_dead_server() {
    let Some(fleet) = Fleet::start(0, 3).await else {
        return;
    };
    fleet.mysql[1].kill().expect("dead");
    take_turns(&fleet, 2, 4).await;
}
