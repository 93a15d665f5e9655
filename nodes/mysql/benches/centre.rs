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
    let servers = [mariadb().await, mariadb().await, mariadb().await];
    let redis: Vec<Server> = (0..3)
        .map(|_| Server::start(ServerOptions::new()).expect("a Redis"))
        .collect();
    cycles(&servers[0]).await;
    fresh_keys(&servers[0]).await;
    crowd(&servers[0]).await;
    hand_over("3 Redis", &redis, &[]).await;
    hand_over("2 Redis + 1 MariaDB", &redis[..2], &servers[..1]).await;
    hand_over("3 MariaDB", &[], &servers).await;
    mixed(&redis, &servers).await;
}

async fn mariadb() -> MariaDb {
    let options = MariaDbOptions::new().flush(0).home("/dev/shm");
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
struct Seed {
    conn: Conn,
    /// True for the design in which a client first locks one of 100 shared rows. False for the design of this crate's
    /// first version.
    centre: bool,
}

impl Seed {
    async fn open(server: &MariaDb, centre: bool) -> Self {
        let opts = Opts::from_url(&server.url("seed")).expect("a URL");
        let conn = Conn::new(opts).await.expect("connected");
        Self { conn, centre }
    }

    fn table(&self) -> &'static str {
        if self.centre { "locks" } else { "first" }
    }

    /// Tries once to acquire the lock, and returns whether it was acquired. A deadlock is an error; the transaction is
    /// then rolled back.
    async fn take(&mut self, name: &str, holder: u64) -> Result<bool, Error> {
        let table = self.table();
        let taken = async {
            self.conn.query_drop("BEGIN").await?;
            let for_update = if self.centre {
                let centre =
                    format!("SELECT id FROM centre WHERE id=CRC32('{name}') MOD 100 FOR UPDATE");
                self.conn.query_drop(centre).await?;
                ""
            } else {
                " FOR UPDATE"
            };
            let look = format!(
                "SELECT expires>UTC_TIMESTAMP(6) FROM {table} WHERE name='{name}'{for_update}"
            );
            let held: Option<bool> = self.conn.query_first(look).await?;
            let expires = "UTC_TIMESTAMP(6)+INTERVAL 20 SECOND";
            match held {
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
            Ok(held != Some(true))
        };
        match taken.await {
            Ok(taken) => Ok(taken),
            Err(error) => {
                self.conn.query_drop("ROLLBACK").await?;
                Err(error)
            }
        }
    }

    async fn give(&mut self, name: &str, holder: u64) -> Result<(), Error> {
        let table = self.table();
        let delete = format!("DELETE FROM {table} WHERE name='{name}' AND holder={holder}");
        self.conn.query_drop(delete).await
    }

    /// Tries until the lock is acquired, runs `inside`, and releases the lock. Returns how many deadlocks occurred.
    async fn cycle(&mut self, name: &str, holder: u64, inside: impl FnOnce()) -> u64 {
        let mut deadlocks = 0;
        loop {
            match self.take(name, holder).await {
                Ok(true) => break,
                Ok(false) => tokio::time::sleep(Duration::from_micros(500)).await,
                Err(_) => deadlocks += 1,
            }
        }
        inside();
        while self.give(name, holder).await.is_err() {
            deadlocks += 1;
        }
        deadlocks
    }
}

/// Prints the median time of one lock and unlock by a single client, for each of the three designs.
async fn cycles(server: &MariaDb) {
    println!("\none MariaDB, one client: lock + unlock, p50");
    let lock = redlock(&[], std::slice::from_ref(server));
    let (mut centre, mut first) = (
        Seed::open(server, true).await,
        Seed::open(server, false).await,
    );
    let mut best = [Duration::MAX; 3];
    for _ in 0..ROUNDS {
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..CYCLES {
            let began = Instant::now();
            lock.acquire("cycle")
                .await
                .expect("the lock")
                .release()
                .await;
            times[0].push(began.elapsed());
            let began = Instant::now();
            centre.cycle("cycle", 1, || {}).await;
            times[1].push(began.elapsed());
            let began = Instant::now();
            first.cycle("cycle", 1, || {}).await;
            times[2].push(began.elapsed());
        }
        for (best, times) in best.iter_mut().zip(times) {
            *best = (*best).min(median(times));
        }
    }
    let part = |of: Duration| best[0].as_secs_f64() / of.as_secs_f64();
    println!("  quorate        {:?}", best[0]);
    println!(
        "  centre locks   {:?}  (quorate / centre locks: {:.2}, goal: at most 0.35)",
        best[1],
        part(best[1])
    );
    println!(
        "  first version of quorate-mysql  {:?}  (quorate / first version: {:.2}, goal: at most 0.30)",
        best[2],
        part(best[2])
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
async fn fresh_keys(server: &MariaDb) {
    println!("\none MariaDB, 16 clients, fresh keys, 2 s: locks and unlocks per second, deadlocks");
    let until = || Instant::now() + Duration::from_secs(2);
    let key =
        |client: u64, n: u64| format!("fresh-{}", (n * 16 + client).wrapping_mul(0x9E37_79B9));
    let before = deadlocks(server);
    let lock = redlock(&[], std::slice::from_ref(server));
    let end = until();
    let tasks = (0..16).map(|client| {
        let lock = lock.clone();
        tokio::spawn(async move {
            let mut n = 0;
            while Instant::now() < end {
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
    let done = sum(tasks.collect()).await;
    println!(
        "  quorate        {}/s, {} deadlocks",
        done / 2,
        deadlocks(server) - before
    );
    for (name, centre) in [
        ("centre locks ", true),
        ("first version of quorate-mysql", false),
    ] {
        let before = deadlocks(server);
        let mut seeds = Vec::new();
        for _ in 0..16 {
            seeds.push(Seed::open(server, centre).await);
        }
        let end = until();
        let tasks = seeds.into_iter().enumerate().map(|(client, mut seed)| {
            let client = client as u64;
            tokio::spawn(async move {
                // Repeated deadlocks can prevent an acquire for ever. So abort the acquire at the time `end`.
                let mut n = 0;
                let ended = tokio::time::sleep_until(end.into());
                let cycles = async {
                    loop {
                        seed.cycle(&key(client, n), client, || {}).await;
                        n += 1;
                    }
                };
                tokio::select! { () = cycles => {}, () = ended => {} }
                n
            })
        });
        let done = sum(tasks.collect()).await;
        println!(
            "  {name}  {}/s, {} deadlocks",
            done / 2,
            deadlocks(server) - before
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
async fn crowd(server: &MariaDb) {
    println!("\none MariaDB, 50 tasks x 100 changes under one lock");
    let changed = Arc::new(AtomicU64::new(0));
    let change = |changed: &AtomicU64| {
        let seen = changed.load(Ordering::Relaxed);
        changed.store(seen + 1, Ordering::Relaxed);
    };
    let lock = redlock(&[], std::slice::from_ref(server));
    let began = Instant::now();
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
                change(&changed);
                guard.release().await;
            }
            100
        })
    });
    sum(tasks.collect()).await;
    let ours = began.elapsed();
    println!(
        "  quorate        {ours:?}, {} of 5000 changes counted",
        changed.load(Ordering::Relaxed)
    );
    changed.store(0, Ordering::Relaxed);
    let mut seeds = Vec::new();
    for _ in 0..50 {
        seeds.push(Seed::open(server, true).await);
    }
    let began = Instant::now();
    let tasks = seeds.into_iter().enumerate().map(|(client, mut seed)| {
        let changed = changed.clone();
        tokio::spawn(async move {
            for _ in 0..10 {
                seed.cycle("crowd", client as u64, || change(&changed))
                    .await;
            }
            10
        })
    });
    sum(tasks.collect()).await;
    let centre = began.elapsed() * 10;
    println!(
        "  centre locks   {centre:?} (extrapolated from 500 changes, {} of them counted)\n  quorate is {:.1} times as \
         fast, goal: at least 10",
        changed.load(Ordering::Relaxed),
        centre.as_secs_f64() / ours.as_secs_f64()
    );
}

/// Measures the hand-over of one lock between ten clients. Each client has its own connections and acquires the lock
/// four times.
async fn hand_over(name: &str, redis: &[Server], mysql: &[MariaDb]) {
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
        let began = Instant::now();
        let tasks = locks.into_iter().map(|lock| {
            let (key, released) = (key.clone(), released.clone());
            tokio::spawn(async move {
                let mut gaps = Vec::new();
                for _ in 0..4 {
                    let guard = lock.acquire(&key).await.expect("the lock");
                    let before = released.lock().expect("no panic").take();
                    gaps.extend(before.map(|at| at.elapsed()));
                    *released.lock().expect("no panic") = Some(Instant::now());
                    guard.release().await;
                }
                gaps
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            gaps.extend(task.await.expect("no panic"));
        }
        totals.push(began.elapsed());
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
async fn mixed(redis: &[Server], mysql: &[MariaDb]) {
    println!("\n16 tasks, each with its own lock: lock + unlock, p50");
    let all = redlock(redis, &[]);
    let mix = redlock(&redis[..2], &mysql[..1]);
    let mut best = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        for (best, lock) in best.iter_mut().zip([&all, &mix]) {
            *best = (*best).min(own_keys(lock).await);
        }
    }
    println!(
        "  3 Redis {:?}, 2 Redis + 1 MariaDB {:?}: {:.2} times as long, goal: at most 1.25",
        best[0],
        best[1],
        best[1].as_secs_f64() / best[0].as_secs_f64()
    );
    mysql[0].stop().expect("stopped");
    let stalled = own_keys(&mix).await;
    mysql[0].cont().expect("going on");
    println!("  2 Redis + 1 stopped MariaDB {stalled:?}");
}

async fn own_keys(lock: &Redlock) -> Duration {
    let tasks = (0..16).map(|task| {
        let lock = lock.clone();
        tokio::spawn(async move {
            let key = format!("own-{task}");
            let mut times = Vec::new();
            for _ in 0..100 {
                let began = Instant::now();
                lock.acquire(&key).await.expect("the lock").release().await;
                times.push(began.elapsed());
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
