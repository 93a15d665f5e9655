//! Compares three designs of a lock over one MariaDB server:
//!
//! - this crate's lock,
//! - a design in which a client first locks one of 100 shared rows, chosen by the CRC-32 of the lock's name,
//! - the design of this crate's first version, which uses `SELECT .. FOR UPDATE` and `INSERT`.
//!
//! Then it measures this crate's lock over Redis servers, over MariaDB servers, and over a mix of both.
//!
//! ```text
//! cargo bench -p quorate-mysql --bench centre
//! ```
//!
//! The servers keep their data in memory (`/dev/shm`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts};
use quorate::node::store::StoreNode;
use quorate::{Redlock, RestartGuard};
use quorate_mysql::{MySql, prepare};
use quorate_testbed::{MariaDb, MariaDbOptions, Server, ServerOptions};

/// The number of runs of each measurement. Each run has a median, and the benchmark reports the smallest one: load from
/// other programs can only increase a median.
const ROUNDS: usize = 3;
const CYCLES: usize = 400;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    if let Err(error) = MariaDb::available() {
        println!("NOT RUN: {error}");
        return;
    }
    let servers = [
        start_mariadb().await,
        start_mariadb().await,
        start_mariadb().await,
    ];
    let redis: Vec<Server> = (0..3)
        .map(|_| Server::start(ServerOptions::new()).expect("a Redis"))
        .collect();
    compare_cycles(&servers[0]).await;
    compare_fresh_keys(&servers[0]).await;
    compare_contended_counter(&servers[0]).await;
    measure_hand_over("3 Redis", &redis, &[]).await;
    measure_hand_over("2 Redis + 1 MariaDB", &redis[..2], &servers[..1]).await;
    measure_hand_over("3 MariaDB", &[], &servers).await;
    measure_mixed_masters(&redis, &servers).await;
}

async fn start_mariadb() -> MariaDb {
    let options = MariaDbOptions::new().flush(0).folder("/dev/shm");
    let server = tokio::task::spawn_blocking(|| MariaDb::start(options));
    let server = server.await.expect("no panic").expect("a MariaDB");
    prepare(&server.url("locks")).await.expect("prepared");
    server
        .sql(
            "CREATE DATABASE seed; USE seed; CREATE TABLE centre (id INT PRIMARY KEY) ENGINE=InnoDB;\
             INSERT INTO centre SELECT seq FROM seq_0_to_99;\
             CREATE TABLE locks (name VARCHAR(200) PRIMARY KEY, holder BIGINT UNSIGNED NOT NULL,\
             expires DATETIME(6) NOT NULL) ENGINE=InnoDB;\
             CREATE TABLE first LIKE locks",
        )
        .expect("the tables of the two compared designs must be created");
    server
}

fn redlock(redis: &[Server], mysql: &[MariaDb]) -> Redlock {
    let mut builder = Redlock::builder()
        .ttl(Duration::from_secs(20))
        .restart_guard(RestartGuard::Off);
    for server in redis {
        builder = builder.master(server.url());
    }
    for server in mysql {
        let url = format!("{}?timeout=4s", server.url("locks"));
        let store = MySql::open(&url).expect("a URL");
        builder = builder.node(StoreNode::new(store));
    }
    builder.build().expect("a Redlock")
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// A client of one of the two designs that are compared with this crate's lock.
struct ComparedClient {
    conn: Conn,
    /// True for the design in which a client first locks one of 100 shared rows. False for the design of this crate's
    /// first version.
    uses_centre_rows: bool,
}

impl ComparedClient {
    async fn open(server: &MariaDb, uses_centre_rows: bool) -> Self {
        let opts = Opts::from_url(&server.url("seed")).expect("a URL");
        let conn = Conn::new(opts).await.expect("connected");
        Self {
            conn,
            uses_centre_rows,
        }
    }

    fn table(&self) -> &'static str {
        if self.uses_centre_rows {
            "locks"
        } else {
            "first"
        }
    }

    /// Tries once to acquire the lock, and returns whether it was acquired. A deadlock is an error; the transaction is
    /// then rolled back.
    async fn try_lock(&mut self, name: &str, holder: u64) -> Result<bool, Error> {
        let table = self.table();
        let transaction = async {
            self.conn.query_drop("BEGIN").await?;
            let for_update = if self.uses_centre_rows {
                let lock_centre_row =
                    format!("SELECT id FROM centre WHERE id=CRC32('{name}') MOD 100 FOR UPDATE");
                self.conn.query_drop(lock_centre_row).await?;
                ""
            } else {
                " FOR UPDATE"
            };
            let select = format!(
                "SELECT expires>UTC_TIMESTAMP(6) FROM {table} WHERE name='{name}'{for_update}"
            );
            let is_held: Option<bool> = self.conn.query_first(select).await?;
            let expires = "UTC_TIMESTAMP(6)+INTERVAL 20 SECOND";
            match is_held {
                Some(true) => {}
                Some(false) => {
                    let update = format!(
                        "UPDATE {table} SET holder={holder},expires={expires} WHERE name='{name}'"
                    );
                    self.conn.query_drop(update).await?;
                }
                None => {
                    let insert =
                        format!("INSERT INTO {table} VALUES ('{name}',{holder},{expires})");
                    self.conn.query_drop(insert).await?;
                }
            }
            self.conn.query_drop("COMMIT").await?;
            Ok(is_held != Some(true))
        };
        match transaction.await {
            Ok(is_acquired) => Ok(is_acquired),
            Err(error) => {
                self.conn.query_drop("ROLLBACK").await?;
                Err(error)
            }
        }
    }

    async fn unlock(&mut self, name: &str, holder: u64) -> Result<(), Error> {
        let table = self.table();
        let delete = format!("DELETE FROM {table} WHERE name='{name}' AND holder={holder}");
        self.conn.query_drop(delete).await
    }

    /// Tries until the lock is acquired, runs `inside`, and releases the lock. Returns how many deadlocks occurred.
    async fn cycle(&mut self, name: &str, holder: u64, inside: impl FnOnce()) -> u64 {
        let mut deadlocks = 0;
        loop {
            match self.try_lock(name, holder).await {
                Ok(true) => break,
                Ok(false) => tokio::time::sleep(Duration::from_micros(500)).await,
                Err(_) => deadlocks += 1,
            }
        }
        inside();
        while self.unlock(name, holder).await.is_err() {
            deadlocks += 1;
        }
        deadlocks
    }
}

/// Prints the median time of one lock and unlock by a single client, for each of the three designs.
async fn compare_cycles(server: &MariaDb) {
    println!("\none MariaDB, one client: lock + unlock, p50");
    let lock = redlock(&[], std::slice::from_ref(server));
    let (mut centre_client, mut first_client) = (
        ComparedClient::open(server, true).await,
        ComparedClient::open(server, false).await,
    );
    let mut best_medians = [Duration::MAX; 3];
    for _ in 0..ROUNDS {
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..CYCLES {
            let started_at = Instant::now();
            lock.acquire("cycle")
                .await
                .expect("the lock")
                .release()
                .await;
            times[0].push(started_at.elapsed());
            let started_at = Instant::now();
            centre_client.cycle("cycle", 1, || {}).await;
            times[1].push(started_at.elapsed());
            let started_at = Instant::now();
            first_client.cycle("cycle", 1, || {}).await;
            times[2].push(started_at.elapsed());
        }
        for (best, times) in best_medians.iter_mut().zip(times) {
            *best = (*best).min(median(times));
        }
    }
    let ratio_to = |other: Duration| best_medians[0].as_secs_f64() / other.as_secs_f64();
    println!("  quorate        {:?}", best_medians[0]);
    println!(
        "  centre locks   {:?}  (quorate / centre locks: {:.2}, goal: at most 0.35)",
        best_medians[1],
        ratio_to(best_medians[1])
    );
    println!(
        "  first version of quorate-mysql  {:?}  (quorate / first version: {:.2}, goal: at most 0.30)",
        best_medians[2],
        ratio_to(best_medians[2])
    );
}

fn deadlocks(server: &MariaDb) -> u64 {
    let status = server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'");
    let status = status.expect("a status");
    status
        .split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}

/// Measures 16 clients that acquire locks for two seconds. Every lock has a name that was never used before.
async fn compare_fresh_keys(server: &MariaDb) {
    println!("\none MariaDB, 16 clients, fresh keys, 2 s: locks and unlocks per second, deadlocks");
    let end_of_run = || Instant::now() + Duration::from_secs(2);
    let key =
        |client: u64, n: u64| format!("fresh-{}", (n * 16 + client).wrapping_mul(0x9E37_79B9));
    let deadlocks_before = deadlocks(server);
    let lock = redlock(&[], std::slice::from_ref(server));
    let ends_at = end_of_run();
    let tasks = (0..16).map(|client| {
        let lock = lock.clone();
        tokio::spawn(async move {
            let mut n = 0;
            while Instant::now() < ends_at {
                lock.acquire(&key(client, n))
                    .await
                    .expect("the lock")
                    .release()
                    .await;
                n += 1;
            }
            n
        })
    });
    let cycles_done = sum(tasks.collect()).await;
    println!(
        "  quorate        {}/s, {} deadlocks",
        cycles_done / 2,
        deadlocks(server) - deadlocks_before
    );
    for (name, uses_centre_rows) in [
        ("centre locks ", true),
        ("first version of quorate-mysql", false),
    ] {
        let deadlocks_before = deadlocks(server);
        let mut seeds = Vec::new();
        for _ in 0..16 {
            seeds.push(ComparedClient::open(server, uses_centre_rows).await);
        }
        let ends_at = end_of_run();
        let tasks = seeds.into_iter().enumerate().map(|(client, mut seed)| {
            let client = client as u64;
            tokio::spawn(async move {
                // Repeated deadlocks can prevent an acquire for ever. So abort the acquire at the time `ends_at`.
                let mut n = 0;
                let end_reached = tokio::time::sleep_until(ends_at.into());
                let compare_cycles = async {
                    loop {
                        seed.cycle(&key(client, n), client, || {}).await;
                        n += 1;
                    }
                };
                tokio::select! { () = compare_cycles => {}, () = end_reached => {} }
                n
            })
        });
        let cycles_done = sum(tasks.collect()).await;
        println!(
            "  {name}  {}/s, {} deadlocks",
            cycles_done / 2,
            deadlocks(server) - deadlocks_before
        );
    }
}

async fn sum(tasks: Vec<tokio::task::JoinHandle<u64>>) -> u64 {
    let mut sum = 0;
    for task in tasks {
        sum += task.await.expect("no panic");
    }
    sum
}

/// Measures 50 tasks that each increment one shared counter 100 times under the same lock.
async fn compare_contended_counter(server: &MariaDb) {
    println!("\none MariaDB, 50 tasks x 100 changes under one lock");
    let changed = Arc::new(AtomicU64::new(0));
    let increment = |changed: &AtomicU64| {
        let old_count = changed.load(Ordering::Relaxed);
        changed.store(old_count + 1, Ordering::Relaxed);
    };
    let lock = redlock(&[], std::slice::from_ref(server));
    let started_at = Instant::now();
    let tasks = (0..50).map(|_| {
        let (lock, changed) = (lock.clone(), changed.clone());
        tokio::spawn(async move {
            for _ in 0..100 {
                let guard = lock
                    .lock("crowd")
                    .wait(quorate::Wait::Forever)
                    .acquire()
                    .await
                    .expect("the lock");
                increment(&changed);
                guard.release().await;
            }
            100
        })
    });
    sum(tasks.collect()).await;
    let quorate_time = started_at.elapsed();
    println!(
        "  quorate        {quorate_time:?}, {} of 5000 changes counted",
        changed.load(Ordering::Relaxed)
    );
    changed.store(0, Ordering::Relaxed);
    let mut seeds = Vec::new();
    for _ in 0..50 {
        seeds.push(ComparedClient::open(server, true).await);
    }
    let started_at = Instant::now();
    let tasks = seeds.into_iter().enumerate().map(|(client, mut seed)| {
        let changed = changed.clone();
        tokio::spawn(async move {
            for _ in 0..10 {
                seed.cycle("crowd", client as u64, || increment(&changed))
                    .await;
            }
            10
        })
    });
    sum(tasks.collect()).await;
    let centre_time = started_at.elapsed() * 10;
    println!(
        "  centre locks   {centre_time:?} (extrapolated from 500 changes, {} of them counted)\n  quorate is {:.1} \
         times as fast, goal: at least 10",
        changed.load(Ordering::Relaxed),
        centre_time.as_secs_f64() / quorate_time.as_secs_f64()
    );
}

/// Measures the hand-over of one lock between ten clients. Each client has its own connections and acquires the lock
/// four times.
async fn measure_hand_over(name: &str, redis: &[Server], mysql: &[MariaDb]) {
    let mut totals = Vec::new();
    let mut gaps = Vec::new();
    for round in 0..5 {
        let released = Arc::new(std::sync::Mutex::new(None::<Instant>));
        let key = format!("hand-over-{round}");
        let locks: Vec<_> = (0..10).map(|_| redlock(redis, mysql)).collect();
        for lock in &locks {
            // Acquire one lock before the measurement, so that the client is connected to every server.
            lock.acquire(&format!("{key}-warm"))
                .await
                .expect("the lock")
                .release()
                .await;
        }
        let started_at = Instant::now();
        let tasks = locks.into_iter().map(|lock| {
            let (key, released) = (key.clone(), released.clone());
            tokio::spawn(async move {
                let mut gaps = Vec::new();
                for _ in 0..4 {
                    let guard = lock.acquire(&key).await.expect("the lock");
                    let released_at = released.lock().expect("no panic").take();
                    gaps.extend(released_at.map(|at| at.elapsed()));
                    *released.lock().expect("no panic") = Some(Instant::now());
                    guard.release().await;
                }
                gaps
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            gaps.extend(task.await.expect("no panic"));
        }
        totals.push(started_at.elapsed());
    }
    gaps.sort_unstable();
    println!(
        "\n{name}: 10 clients x 4 acquisitions {:?} (worst {:?}); hand-over p50 {:?}, p99 {:?}",
        median(totals.clone()),
        totals.iter().max().expect("some"),
        gaps[gaps.len() / 2],
        gaps[gaps.len() * 99 / 100]
    );
}

/// With 16 concurrent tasks and one lock per task, measures the time to acquire and release a lock over three sets of
/// servers:
///
/// - three Redis servers,
/// - two Redis servers and a MariaDB server,
/// - two Redis servers and a MariaDB server that is stopped.
async fn measure_mixed_masters(redis: &[Server], mysql: &[MariaDb]) {
    println!("\n16 tasks, each with its own lock: lock + unlock, p50");
    let only_redis = redlock(redis, &[]);
    let mixed_client = redlock(&redis[..2], &mysql[..1]);
    let mut best_medians = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        for (best, lock) in best_medians.iter_mut().zip([&only_redis, &mixed_client]) {
            *best = (*best).min(median_with_own_keys(lock).await);
        }
    }
    println!(
        "  3 Redis {:?}, 2 Redis + 1 MariaDB {:?}: {:.2} times as long, goal: at most 1.25",
        best_medians[0],
        best_medians[1],
        best_medians[1].as_secs_f64() / best_medians[0].as_secs_f64()
    );
    mysql[0].stop().expect("stopped");
    let stalled = median_with_own_keys(&mixed_client).await;
    mysql[0].cont().expect("going on");
    println!("  2 Redis + 1 stopped MariaDB {stalled:?}");
}

async fn median_with_own_keys(lock: &Redlock) -> Duration {
    let tasks = (0..16).map(|task| {
        let lock = lock.clone();
        tokio::spawn(async move {
            let key = format!("own-{task}");
            let mut times = Vec::new();
            for _ in 0..100 {
                let started_at = Instant::now();
                lock.acquire(&key).await.expect("the lock").release().await;
                times.push(started_at.elapsed());
            }
            times
        })
    });
    let mut times = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        times.extend(task.await.expect("no panic"));
    }
    median(times)
}
