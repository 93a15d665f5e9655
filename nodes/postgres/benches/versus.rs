//! Compares the lock of `quorate` on one PostgreSQL server with two other locks on the same server:
//!
//! - `pg_advisory_lock`: a session lock of the server, without a lease and without a fencing token.
//! - `INSERT .. ON CONFLICT`: a row with the end of the lease, as the library ShedLock uses it. It has no fencing token.
//!   ShedLock does not wait for a lock, so a waiting client of this benchmark tries again every 10 ms.
//!
//! ```text
//! cargo bench -p quorate-postgres --bench versus
//! ```
//!
//! A hand-over is the time from a release until another client holds the lock. The benchmark does not count an acquire
//! of the client that has released the lock last.
//!
//! The three locks take turns in each round. The table shows the medians of the rounds, and the ratios of these medians.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use quorate::node::store::StoreNode;
use quorate::{Redlock, RestartGuard, Wait};
use quorate_postgres::{Postgres, prepare};
use quorate_testbed::PostgresOptions;
use tokio::net::TcpStream;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, NoTls, Statement};

/// The number of cycles (lock and unlock) that one client measures in each round, after as many to warm up.
const CYCLES: usize = 400;
/// The number of clients that acquire the same lock in turn.
const CLIENTS: usize = 10;
/// How many times each of the clients acquires the lock.
const TURNS: usize = 20;
/// The number of rounds. Each round measures every lock once.
const ROUNDS: usize = 7;
/// The pause between two tries of a client that waits for a row with the end of a lease.
const PAUSE: Duration = Duration::from_millis(10);

type BenchResult<T> = Result<T, Box<dyn std::error::Error>>;

/// The locks that are compared.
#[derive(Clone, Copy)]
enum Contender {
    Quorate,
    Advisory,
    Row,
}

const CONTENDERS: [(&str, Contender); 3] = [
    ("quorate", Contender::Quorate),
    ("pg_advisory_lock", Contender::Advisory),
    ("INSERT .. ON CONFLICT", Contender::Row),
];

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> BenchResult<()> {
    if let Err(error) = quorate_testbed::Postgres::available() {
        println!("NOT RUN: {error}");
        return Ok(());
    }
    let options = PostgresOptions::new().tcp().set("fsync", "on");
    let server = tokio::task::spawn_blocking(|| quorate_testbed::Postgres::start_with(options));
    let server = server.await??;
    let url = server.url("locks");
    prepare(&url).await?;
    let table = "CREATE TABLE shedlock (name text PRIMARY KEY, lock_until timestamptz NOT NULL, \
                 locked_at timestamptz NOT NULL, locked_by text NOT NULL)";
    server.sql_in("locks", table)?;
    println!("data in {}", server.dir().display());
    println!("lock and unlock | p50 | quorate / this");
    print_table(|contender| measure_cycles(contender, url.clone())).await?;
    println!("hand-over among {CLIENTS} clients | p50 | quorate / this");
    print_table(|contender| measure_hand_overs(contender, url.clone())).await
}

/// Measures every contender in each round, and prints the medians.
async fn print_table<F>(measure: impl Fn(Contender) -> F) -> BenchResult<()>
where
    F: Future<Output = BenchResult<Vec<u64>>>,
{
    let mut rounds = vec![Vec::new(); CONTENDERS.len()];
    for _ in 0..ROUNDS {
        for ((_, contender), medians) in CONTENDERS.iter().zip(&mut rounds) {
            medians.push(median(measure(*contender).await?));
        }
    }
    let quorate = median(rounds[0].clone());
    for ((name, _), medians) in CONTENDERS.iter().zip(rounds) {
        let middle = median(medians.clone());
        let ratio = quorate as f64 / middle as f64;
        println!("{name} | {middle} us | {ratio:.2} | rounds {medians:?}");
    }
    Ok(())
}

fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// A client of one of the locks.
enum Locker {
    Quorate(Redlock),
    /// A lock that consists of two statements. `owner` is a parameter of both, if they have one.
    Statements {
        client: Client,
        lock: Statement,
        unlock: Statement,
        owner: Option<String>,
    },
}

const ROW_LOCK: &str = "INSERT INTO shedlock AS s (name,lock_until,locked_at,locked_by) \
                        VALUES ('bench',clock_timestamp()+'30s',clock_timestamp(),$1) \
                        ON CONFLICT (name) DO UPDATE SET lock_until=EXCLUDED.lock_until,\
                        locked_at=EXCLUDED.locked_at,locked_by=EXCLUDED.locked_by \
                        WHERE s.lock_until<=clock_timestamp()";
const ROW_UNLOCK: &str =
    "UPDATE shedlock SET lock_until=clock_timestamp() WHERE name='bench' AND locked_by=$1";

impl Locker {
    async fn open(contender: Contender, url: &str, number: usize) -> BenchResult<Self> {
        let (lock, unlock, owner) = match contender {
            Contender::Quorate => return Ok(Self::Quorate(redlock(url)?)),
            Contender::Advisory => (
                "SELECT FROM pg_advisory_lock(1)",
                "SELECT FROM pg_advisory_unlock(1)",
                None,
            ),
            Contender::Row => (ROW_LOCK, ROW_UNLOCK, Some(format!("client {number}"))),
        };
        let client = connect(url).await?;
        let (lock, unlock) = (client.prepare(lock).await?, client.prepare(unlock).await?);
        Ok(Self::Statements {
            client,
            lock,
            unlock,
            owner,
        })
    }

    /// Acquires the lock, calls `held`, and releases the lock.
    async fn cycle(&self, held: impl FnOnce()) -> BenchResult<()> {
        match self {
            Self::Quorate(redlock) => {
                let guard = redlock.acquire("bench").await?;
                held();
                guard.release().await;
            }
            Self::Statements {
                client,
                lock,
                unlock,
                owner,
            } => {
                let params: Vec<&(dyn ToSql + Sync)> = owner
                    .iter()
                    .map(|owner| owner as &(dyn ToSql + Sync))
                    .collect();
                // Without an owner, the statement waits in the server until it has the lock.
                while client.execute(lock, &params).await? == 0 {
                    tokio::time::sleep(PAUSE).await;
                }
                held();
                client.execute(unlock, &params).await?;
            }
        }
        Ok(())
    }
}

fn redlock(url: &str) -> BenchResult<Redlock> {
    let store = Postgres::open(&format!("{url}?timeout=2s"))?;
    let builder = Redlock::builder()
        .node(StoreNode::new(store))
        .restart_guard(RestartGuard::Off)
        .ttl(Duration::from_secs(30))
        .wait(Wait::For(Duration::from_secs(60)));
    Ok(builder.build()?)
}

/// Opens a connection with the defaults of the server.
async fn connect(url: &str) -> BenchResult<Client> {
    let config: Config = url.parse()?;
    let authority = url.rsplit('@').next().unwrap_or_default();
    let address = authority.split('/').next().unwrap_or_default();
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (client, connection) = config.connect_raw(stream, NoTls).await?;
    // The task ends when the client is dropped.
    tokio::spawn(connection);
    Ok(client)
}

async fn measure_cycles(contender: Contender, url: String) -> BenchResult<Vec<u64>> {
    let locker = Locker::open(contender, &url, 0).await?;
    let mut times = Vec::new();
    for _ in 0..2 * CYCLES {
        let started_at = Instant::now();
        locker.cycle(|| {}).await?;
        times.push(started_at.elapsed().as_micros() as u64);
    }
    Ok(times.split_off(CYCLES))
}

/// Measures the times from the begin of a release until the next client holds the lock.
async fn measure_hand_overs(contender: Contender, url: String) -> BenchResult<Vec<u64>> {
    let times = Mutex::new(Vec::new());
    // The client that has released the lock last, and the time of the release.
    let last_release: Mutex<Option<(usize, Instant)>> = Mutex::new(None);
    let run_client = async |number| -> BenchResult<()> {
        let locker = Locker::open(contender, &url, number).await?;
        for _ in 0..TURNS {
            let note_hand_over = || {
                let now = (number, Instant::now());
                let released = last_release.lock().expect("no panic").replace(now);
                if let Some((_, at)) = released.filter(|(releaser, _)| *releaser != number) {
                    let gap = at.elapsed().as_micros() as u64;
                    times.lock().expect("no panic").push(gap);
                }
            };
            locker.cycle(note_hand_over).await?;
        }
        Ok(())
    };
    let outcomes = futures::future::join_all((0..CLIENTS).map(run_client)).await;
    outcomes.into_iter().collect::<BenchResult<()>>()?;
    let times = times.into_inner().expect("no panic");
    // The first hand-overs happen while clients still connect.
    let first = CLIENTS.min(times.len() / 2);
    Ok(times[first..].to_vec())
}
