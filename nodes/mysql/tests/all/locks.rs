//! Locks over MariaDB servers, alone and together with Redis servers, through the public API.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::start_prepared;
use quorate::Redlock;
use quorate::node::store::StoreNode;
use quorate_mysql::MySql;
use quorate_testbed::{MariaDb, MariaDbOptions, Server, ServerOptions};

/// MariaDB and Redis servers for one test.
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
                .push(start_prepared(MariaDbOptions::new().flush(2)).await?.0);
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
        for mysql in &self.mysql {
            let url = format!("{}?timeout=2s", mysql.url("locks"));
            let store = MySql::open(&url).expect("a URL");
            builder = builder.node(StoreNode::new(store));
        }
        builder.build().expect("a Redlock")
    }
}

/// On a busy machine, the turns of the other clients can take longer than the default wait.
const LONG_WAIT: Duration = Duration::from_secs(300);

/// Lets `clients` concurrent clients acquire the same lock `turns` times each. Checks that no two clients hold it at
/// the same time, and that the fencing tokens rise. Returns how long this took.
async fn take_turns(fleet: &Fleet, clients: usize, turns: u32) -> Duration {
    let holder_count = Arc::new(AtomicU32::new(0));
    let highest_token = Arc::new(AtomicU64::new(0));
    let started_at = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..clients {
        let (redlock, holder_count, highest_token) =
            (fleet.redlock(), holder_count.clone(), highest_token.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..turns {
                let acquire = redlock.lock("turns").wait(quorate::Wait::For(LONG_WAIT));
                let guard = acquire.acquire().await.expect("the lock");
                assert_eq!(
                    holder_count.fetch_add(1, Ordering::SeqCst),
                    0,
                    "two clients must not hold the lock at the same time"
                );
                let token = guard.fencing_token().expect("a token");
                assert!(
                    highest_token.swap(token, Ordering::SeqCst) < token,
                    "fencing tokens must rise"
                );
                holder_count.fetch_sub(1, Ordering::SeqCst);
                guard.release().await;
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    started_at.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_clients_of_three_mariadb_servers_exclude_each_other_and_tokens_rise() {
    let Some(fleet) = Fleet::start(0, 3).await else {
        return;
    };
    let elapsed = take_turns(&fleet, 10, 4).await;
    println!("3 MariaDB: 10 clients, 4 turns each: {elapsed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_clients_of_two_redis_and_one_mariadb_exclude_each_other_and_tokens_rise() {
    let Some(fleet) = Fleet::start(2, 1).await else {
        return;
    };
    let elapsed = take_turns(&fleet, 10, 4).await;
    println!("2 Redis + 1 MariaDB: 10 clients, 4 turns each: {elapsed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_exclude_each_other_while_one_of_three_servers_is_dead() {
    let Some(fleet) = Fleet::start(0, 3).await else {
        return;
    };
    fleet.mysql[1].kill().expect("dead");
    take_turns(&fleet, 2, 4).await;
}

/// The number of statements that a server has executed, including those inside blocks of statements.
fn executed_statements(server: &MariaDb) -> u64 {
    let status = server.sql("SHOW GLOBAL STATUS LIKE 'Queries'");
    let status_line = status.expect("a status");
    let number_text = status_line.split_whitespace().nth(1);
    number_text
        .and_then(|digits| digits.parse().ok())
        .expect("a number")
}

/// Starts `count` clients, one every 200 ms. Each waits for the lock `waited`, and releases it immediately after it has
/// acquired it.
async fn start_waiters(fleet: &Fleet, count: usize) -> Vec<tokio::task::JoinHandle<usize>> {
    let mut waiters = Vec::new();
    for number in 0..count {
        let client = fleet.redlock();
        waiters.push(tokio::spawn(async move {
            let lock_request = client.lock("waited").wait(quorate::Wait::Forever);
            let guard = lock_request.acquire().await.expect("the lock");
            guard.release().await;
            number
        }));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    waiters
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn six_waiting_clients_send_fewer_than_300_statements_in_three_seconds() {
    let Some(fleet) = Fleet::start(0, 1).await else {
        return;
    };
    // At its first renewal, the holder takes a server lock (`GET_LOCK`), on which the first of the six waiters blocks.
    let guard = fleet.redlock().acquire("waited").await.expect("free");
    let waiters = start_waiters(&fleet, 6).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let statements_before = executed_statements(&fleet.mysql[0]);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let sent_statements = executed_statements(&fleet.mysql[0]) - statements_before;
    guard.release().await;
    for wait in waiters {
        wait.await.expect("no panic");
    }
    // In 3 s, the heartbeats of the waiters and the idle sessions need about 45 statements. If one waiter polled every
    // 20 ms, it would need more than 450.
    assert!(
        sent_statements < 300,
        "the waiting clients must send less than 300 statements in 3 s, not {sent_statements}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_get_the_lock_after_all_their_sessions_were_killed() {
    let Some(fleet) = Fleet::start(0, 1).await else {
        return;
    };
    let server = &fleet.mysql[0];
    let guard = fleet.redlock().acquire("waited").await.expect("free");
    let waiters = start_waiters(&fleet, 3).await;
    let session_query = "SELECT id FROM information_schema.processlist WHERE db='locks'";
    let sessions = server.sql(session_query).expect("a list");
    let ids: Vec<&str> = sessions
        .split_whitespace()
        .filter(|id| id.parse::<u64>().is_ok())
        .collect();
    assert!(ids.len() >= 4, "{ids:?}");
    server
        .sql(&format!("KILL {}", ids.join(";KILL ")))
        .expect("killed");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let started_at = Instant::now();
    guard.release().await;
    for wait in waiters {
        wait.await.expect("no panic");
    }
    assert!(
        started_at.elapsed() < Duration::from_secs(8),
        "{:?}",
        started_at.elapsed()
    );
}

/// Each waiter would block a statement at the server. Eight of them would occupy all threads, so that the server would
/// execute no renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_waiters_than_threads_of_the_server_do_not_end_the_lock_of_the_holder() {
    let options = MariaDbOptions::new()
        .flush(2)
        .arg("--thread-handling=pool-of-threads")
        .arg("--thread-pool-size=2")
        .arg("--thread-pool-max-threads=8");
    let Some((server, _)) = start_prepared(options).await else {
        return;
    };
    let fleet = Fleet {
        redis: Vec::new(),
        mysql: vec![server],
    };
    let guard = fleet.redlock().acquire("waited").await.expect("free");
    let waiters = start_waiters(&fleet, 10).await;
    // The holder renews its lock more than once in this time. Its TTL is 10 s.
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(guard.is_valid(), "the holder must keep its lock");
    guard.release().await;
    for waiter in waiters {
        waiter.await.expect("every waiter must get the lock");
    }
}
