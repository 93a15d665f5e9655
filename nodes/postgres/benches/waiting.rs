//! Measures what clients that wait for one lock cost a PostgreSQL server, and how fast the lock is handed over: with
//! `LISTEN` and `NOTIFY`, and with clients that only poll.
//!
//! ```text
//! cargo bench -p quorate-postgres --bench waiting
//! ```
//!
//! Each waiting client has its own connections, as if it were a process of its own. The benchmark counts transactions
//! and CPU time while one client holds the lock. Nearly every statement is a transaction of its own. Then all clients
//! acquire and release the lock in turn.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorate::node::store::{Greeting, Store, StoreNode, Traits};
use quorate::node::{Fault, NodeName};
use quorate::{Inspection, Redlock, RestartGuard, Wait};
use quorate_postgres::{Postgres, PostgresListener, PostgresSession, prepare};
use quorate_testbed::PostgresOptions;
use quorate_testbed::measure::cpu_in_ticks;

type Server = quorate_testbed::Postgres;

/// The benchmark is run once with each of these numbers of waiting clients.
const WAITER_COUNTS: [usize; 3] = [1, 8, 50];
/// The pause between the start of the waiters and the measurement. It is long enough for all waiters to be queued.
const QUEUEING_TIME: Duration = Duration::from_secs(5);
/// How long the benchmark counts the server's transactions and CPU time while the clients wait.
const COUNTING_TIME: Duration = Duration::from_secs(10);
/// The time to live of the lock.
const TTL: Duration = Duration::from_secs(10);
/// The least number of hand-overs that are measured.
const MIN_HAND_OVERS: usize = 100;

/// A PostgreSQL server that wakes nobody, so that waiting clients poll.
#[derive(Clone, Debug)]
struct Mute(Postgres);

impl Store for Mute {
    type Session = PostgresSession;
    type Listener = PostgresListener;

    fn name(&self) -> &NodeName {
        self.0.name()
    }

    fn traits(&self) -> Traits {
        self.0.traits().without_wakes()
    }

    async fn connect(&self) -> Result<(PostgresSession, Greeting), Fault> {
        self.0.connect().await
    }

    async fn listen(&self, _: Arc<str>) -> Result<PostgresListener, Fault> {
        Err(Fault::Unsupported("no client listens to this store".into()))
    }

    async fn inspect(&self) -> Inspection {
        self.0.inspect().await
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    if let Err(error) = Server::available() {
        println!("NOT RUN: {error}");
        return;
    }
    println!("waiters | wake-ups | transactions/s | server CPU | hand-over p50 | p99");
    for waiters in WAITER_COUNTS {
        for listens in [false, true] {
            print_waiting_cost(waiters, listens).await;
        }
    }
}

async fn start() -> Server {
    let options = PostgresOptions::new().tcp().set("fsync", "on");
    let server = tokio::task::spawn_blocking(|| Server::start_with(options));
    let server = server.await.expect("no panic").expect("a PostgreSQL");
    prepare(&server.url("locks")).await.expect("prepared");
    server
}

fn client(server: &Server, listens: bool) -> Redlock {
    let url = format!("{}?timeout=2s&lanes=1", server.url("locks"));
    let store = Postgres::open(&url).expect("a URL");
    let builder = Redlock::builder().ttl(TTL).restart_guard(RestartGuard::Off);
    let builder = if listens {
        builder.node(StoreNode::new(store))
    } else {
        builder.node(StoreNode::new(Mute(store)))
    };
    builder.build().expect("a Redlock")
}

/// The counters of a server at the time `read_at`.
struct Counters {
    transactions: u64,
    /// The CPU time of all processes that serve the server now.
    cpu: Duration,
    read_at: Instant,
}

impl Counters {
    fn read(server: &Server) -> Self {
        let count = "SELECT xact_commit+xact_rollback FROM pg_stat_database WHERE datname='locks'";
        let transactions = server.sql(count).expect("a number");
        let pids = server
            .sql("SELECT pid FROM pg_stat_activity")
            .expect("a list");
        let pids = pids.lines().filter_map(|pid| pid.parse().ok());
        Self {
            transactions: transactions.trim().parse().expect("a number"),
            cpu: pids.map(cpu_in_ticks).sum(),
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
        let guard = client.lock("waited").wait(Wait::Forever).acquire().await;
        let guard = guard.expect("the lock");
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

async fn print_waiting_cost(waiters: usize, listens: bool) {
    let server = start().await;
    let holder = client(&server, listens);
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
        .map(|number| start_waiter(number, client(&server, listens)))
        .collect();
    tokio::time::sleep(QUEUEING_TIME).await;
    let before = Counters::read(&server);
    tokio::time::sleep(COUNTING_TIME).await;
    let after = Counters::read(&server);
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
    let seconds = (after.read_at - before.read_at).as_secs_f64();
    println!(
        "{waiters:>2} | {} | {:.0} | {:.1} % | {:.2?} | {:.2?}",
        if listens { "LISTEN" } else { "polling" },
        (after.transactions - before.transactions) as f64 / seconds,
        100.0 * after.cpu.saturating_sub(before.cpu).as_secs_f64() / seconds,
        gaps[gaps.len() / 2],
        gaps[gaps.len() * 99 / 100],
    );
}
