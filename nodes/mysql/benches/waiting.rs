//! Measures what clients that wait for one lock cost a MariaDB server, and how fast the lock is handed over.
//!
//! ```text
//! cargo bench -p quorate-mysql --bench waiting
//! ```
//!
//! Each waiting client has its own connections, one for the lock and one for wake-ups, as if it were a process of its
//! own. The benchmark counts statements and CPU time while one client holds the lock. Then all clients acquire and
//! release the lock in turn.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorate::node::store::StoreNode;
use quorate::{Redlock, RestartGuard, Wait};
use quorate_mysql::{MySql, prepare};
use quorate_testbed::measure::cpu_in_ticks;
use quorate_testbed::{MariaDb, MariaDbOptions};

/// The benchmark is run once with each of these numbers of waiting clients.
const WAITER_COUNTS: [usize; 3] = [1, 8, 50];
/// The pause between the start of the waiters and the measurement. It is long enough for all waiters to be queued.
const QUEUEING_TIME: Duration = Duration::from_secs(4);
/// How long the benchmark counts the server's statements and CPU time while the clients wait.
const COUNTING_TIME: Duration = Duration::from_secs(10);
/// The least number of hand-overs that are measured.
const MIN_HAND_OVERS: usize = 100;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    if let Err(error) = MariaDb::available() {
        println!("NOT RUN: {error}");
        return;
    }
    println!(
        "waiters | statements sent by clients/s | all executed statements/s | server CPU | binlog | hand-over p50 | p99"
    );
    for ttl in [10, 30] {
        for waiters in WAITER_COUNTS {
            print_waiting_cost(waiters, Duration::from_secs(ttl)).await;
        }
    }
    println!("clients | statements for a lock and its release | binlog");
    for clients in [1, 8] {
        print_cost(clients).await;
    }
}

async fn start_mariadb() -> MariaDb {
    let options = MariaDbOptions::new().flush(0).folder("/dev/shm");
    let options = options.max_connections(300);
    let options = options.arg("--log-bin").arg("--binlog-format=ROW");
    let server = tokio::task::spawn_blocking(|| MariaDb::start(options));
    let server = server.await.expect("no panic").expect("a MariaDB");
    prepare(&server.url("locks")).await.expect("prepared");
    server
}

/// Lets `clients` clients repeatedly acquire and release the same lock. Prints the number of statements, and of bytes
/// in the binary log, per acquire and release.
async fn print_cost(clients: usize) {
    const LOCKS: u32 = 100;
    let server = start_mariadb().await;
    let redlocks: Vec<_> = (0..clients)
        .map(|_| client(&server, Duration::from_secs(10)))
        .collect();
    for client in &redlocks {
        let guard = client.acquire("first").await.expect("the lock");
        guard.release().await;
    }
    let counters_before = Counters::read(&server);
    let tasks = redlocks.into_iter().map(|client| {
        tokio::spawn(async move {
            for _ in 0..LOCKS {
                let lock = client.lock("wanted").wait(Wait::Forever);
                lock.acquire().await.expect("the lock").release().await;
            }
            client
        })
    });
    let mut clients_after = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        clients_after.push(task.await.expect("no panic"));
    }
    let counters_after = Counters::read(&server);
    let lock_count = f64::from(LOCKS) * clients as f64;
    let per_lock = |from: u64, to: u64| (to - from) as f64 / lock_count;
    println!(
        "{clients} | {:.1} | {:.0} B",
        per_lock(counters_before.questions, counters_after.questions),
        per_lock(counters_before.binlog, counters_after.binlog)
    );
}

fn client(server: &MariaDb, ttl: Duration) -> Redlock {
    let url = format!("{}?timeout=2s&lanes=1", server.url("locks"));
    let builder = Redlock::builder().ttl(ttl).restart_guard(RestartGuard::Off);
    let store = MySql::open(&url).expect("a URL");
    let builder = builder.node(StoreNode::new(store));
    builder.build().expect("a Redlock")
}

/// The counters of a server at the time `read_at`: executed statements, bytes of the binary log, and CPU time.
struct Counters {
    questions: u64,
    queries: u64,
    binlog: u64,
    /// The CPU time that the server process has used since its start.
    cpu: Duration,
    read_at: Instant,
}

impl Counters {
    fn read(server: &MariaDb) -> Self {
        let names = "'Questions','Queries','Binlog_bytes_written'";
        let status_query = format!("SHOW GLOBAL STATUS WHERE Variable_name IN ({names})");
        let status = server.sql(&status_query).expect("a status");
        let value_of = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
            number.expect("a number")
        };
        Self {
            questions: value_of("Questions"),
            queries: value_of("Queries"),
            binlog: value_of("Binlog_bytes_written"),
            cpu: cpu_in_ticks(server.pid().expect("it runs")),
            read_at: Instant::now(),
        }
    }
}

/// The number of the client that last released the lock, and the time of that release. `None` if another client has
/// acquired the lock since then.
type Released = Arc<Mutex<Option<(usize, Instant)>>>;

/// Acquires and releases the lock `turns` times. For each acquire that follows another client's release, returns the
/// time between that release and the acquire.
async fn take_turns(
    number: usize,
    client: &Redlock,
    turns: usize,
    released: Released,
) -> Vec<Duration> {
    let mut gaps = Vec::new();
    for _ in 0..turns {
        let acquire_result = client.lock("waited").wait(Wait::Forever).acquire().await;
        let guard = acquire_result.expect("the lock");
        let last_release = released.lock().expect("no panic").take();
        gaps.extend(
            last_release
                .filter(|(releaser, _)| *releaser != number)
                .map(|(_, released_at)| released_at.elapsed()),
        );
        *released.lock().expect("no panic") = Some((number, Instant::now()));
        guard.release().await;
    }
    gaps
}

async fn print_waiting_cost(waiters: usize, ttl: Duration) {
    let server = start_mariadb().await;
    let holder = client(&server, ttl);
    let guard = holder.acquire("waited").await.expect("the lock");
    let released = Released::default();
    let turns = (MIN_HAND_OVERS / (waiters + 1)).max(2);
    let start_waiter = |number: usize, client: Redlock| {
        let released = released.clone();
        tokio::spawn(async move {
            let gaps = take_turns(number, &client, turns, released).await;
            // Keep the client, so that closing its connections is not measured.
            (gaps, client)
        })
    };
    let mut tasks: Vec<_> = (0..waiters)
        .map(|number| start_waiter(number, client(&server, ttl)))
        .collect();
    tokio::time::sleep(QUEUEING_TIME).await;
    let counters_before = Counters::read(&server);
    tokio::time::sleep(COUNTING_TIME).await;
    let counters_after = Counters::read(&server);
    *released.lock().expect("no panic") = Some((waiters, Instant::now()));
    guard.release().await;
    tasks.push(start_waiter(waiters, holder));
    let mut gaps = Vec::new();
    let mut clients = Vec::new();
    for task in tasks {
        let (task_gaps, client) = task.await.expect("no panic");
        gaps.extend(task_gaps);
        clients.push(client);
    }
    gaps.sort_unstable();
    let seconds = (counters_after.read_at - counters_before.read_at).as_secs_f64();
    let rate = |from: u64, to: u64| (to - from) as f64 / seconds;
    println!(
        "{waiters:>2} (ttl {ttl:?}) | {:.0} | {:.0} | {:.1} % | {:.1} kB/s | {:.2?} | {:.2?}",
        rate(counters_before.questions, counters_after.questions),
        rate(counters_before.queries, counters_after.queries),
        100.0
            * counters_after
                .cpu
                .saturating_sub(counters_before.cpu)
                .as_secs_f64()
            / seconds,
        rate(counters_before.binlog, counters_after.binlog) / 1000.0,
        gaps[gaps.len() / 2],
        gaps[gaps.len() * 99 / 100],
    );
}
