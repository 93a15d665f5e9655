//! Compares the lock of `quorate` on one etcd cluster with two other locks on the same cluster:
//!
//! - The lock service of etcd (`v3lock`, the recipe of its `concurrency` package): a key with an etcd lease, over the
//!   same JSON gateway. Each client creates its lease once. Nobody renews it here.
//! - `etcdctl lock`: the same recipe in a process that holds the lock until it gets SIGINT. A cycle starts such a
//!   process and waits for its end.
//!
//! ```text
//! cargo bench -p quorate-etcd --bench versus
//! ```
//!
//! A hand-over is the time from a release until another client holds the lock. The benchmark does not count an acquire
//! of the client that has released the lock last.
//!
//! The cluster has one member, which syncs each write (`fsync`). Its files are in memory, unless `QUORATE_SERVER_DATA`
//! names a folder on a disk. The three locks take turns in each round. The table shows the medians of the rounds, and
//! the ratios of these medians.

use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorate::{Redlock, Wait};
use quorate_etcd::{node, prepare};
use quorate_testbed::{Etcd, EtcdOptions, TestServer as _};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;

/// The number of cycles (lock and unlock) that one client measures in each round, after as many to warm up.
const CYCLES: usize = 200;
/// The same number for processes, which take longer.
const PROCESS_CYCLES: usize = 20;
/// The number of clients that acquire the same lock in turn.
const CLIENTS: usize = 10;
/// How many times each of the clients acquires the lock.
const TURNS: usize = 20;
/// The same number for processes.
const PROCESS_TURNS: usize = 5;
/// The number of rounds. Each round measures every lock once.
const ROUNDS: usize = 7;
/// The name of the lock, in base64.
const NAME: &str = "YmVuY2g=";

type BenchResult<T> = Result<T, Box<dyn std::error::Error>>;

/// The locks that are compared.
#[derive(Clone, Copy, PartialEq)]
enum Contender {
    Quorate,
    Service,
    Process,
}

const CONTENDERS: [(&str, Contender); 3] = [
    ("quorate", Contender::Quorate),
    ("v3lock of the gateway", Contender::Service),
    ("etcdctl lock", Contender::Process),
];

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> BenchResult<()> {
    if let Some(why) = Etcd::missing() {
        println!("NOT RUN: {why}");
        return Ok(());
    }
    let options = EtcdOptions::new().argument("--unsafe-no-fsync=false");
    let cluster = tokio::task::spawn_blocking(move || Etcd::start_with(&options)).await??;
    let cluster = Arc::new(cluster);
    prepare(&cluster.url("locks")).await?;
    println!("lock and unlock | p50 | quorate / this");
    print_table(|contender| measure_cycles(contender, cluster.clone())).await?;
    println!("hand-over among {CLIENTS} clients | p50 | quorate / this");
    print_table(|contender| measure_hand_overs(contender, cluster.clone())).await
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
    Service { gateway: Gateway, lease: String },
    Process(Arc<Etcd>),
}

impl Locker {
    async fn open(contender: Contender, cluster: &Arc<Etcd>) -> BenchResult<Self> {
        Ok(match contender {
            Contender::Quorate => Self::Quorate(redlock(&cluster.url("locks"))?),
            Contender::Service => {
                let mut gateway = Gateway::open(cluster).await?;
                let request = json!({"TTL": "600"});
                let granted = gateway.call("/v3/lease/grant", &request).await?;
                let lease = text(&granted, "ID")?;
                Self::Service { gateway, lease }
            }
            Contender::Process => Self::Process(cluster.clone()),
        })
    }

    /// Acquires the lock, calls `held`, and releases the lock.
    async fn cycle(&mut self, held: impl FnOnce()) -> BenchResult<()> {
        match self {
            Self::Quorate(redlock) => {
                let guard = redlock.acquire("bench").await?;
                held();
                guard.release().await;
            }
            Self::Service { gateway, lease } => {
                let request = json!({"name": NAME, "lease": *lease});
                let answer = gateway.call("/v3/lock/lock", &request).await?;
                held();
                let request = json!({"key": text(&answer, "key")?});
                gateway.call("/v3/lock/unlock", &request).await?;
            }
            Self::Process(cluster) => {
                let mut command = Command::from(cluster.client());
                command.args(["lock", "bench"]).stdout(Stdio::piped());
                let mut process = command.kill_on_drop(true).spawn()?;
                let output = process.stdout.take().ok_or("no output")?;
                // The process prints the key when it has the lock.
                let key = BufReader::new(output).lines().next_line().await?;
                key.ok_or("etcdctl did not get the lock")?;
                held();
                let id = process.id().and_then(|id| i32::try_from(id).ok());
                let pid = id.and_then(rustix::process::Pid::from_raw).ok_or("ended")?;
                rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
                process.wait().await?;
            }
        }
        Ok(())
    }
}

fn redlock(url: &str) -> BenchResult<Redlock> {
    let builder = Redlock::builder()
        .node(node(&format!("{url}?timeout=2s"))?)
        .ttl(Duration::from_secs(30))
        .wait(Wait::For(Duration::from_secs(60)));
    Ok(builder.build()?)
}

/// A connection to the JSON gateway of a cluster.
struct Gateway {
    stream: BufReader<TcpStream>,
}

impl Gateway {
    async fn open(cluster: &Etcd) -> BenchResult<Self> {
        let stream = TcpStream::connect(cluster.addr(0)).await?;
        stream.set_nodelay(true)?;
        let stream = BufReader::new(stream);
        Ok(Self { stream })
    }

    async fn call(&mut self, path: &str, body: &Value) -> BenchResult<Value> {
        let body = body.to_string();
        let length = body.len();
        let request =
            format!("POST {path} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {length}\r\n\r\n{body}");
        self.stream.get_mut().write_all(request.as_bytes()).await?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line).await? == 0 {
                return Err("the gateway has closed the connection".into());
            }
            let line = line.trim().to_ascii_lowercase();
            if let Some(number) = line.strip_prefix("content-length:") {
                length = number.trim().parse()?;
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await?;
        Ok(serde_json::from_slice(&body)?)
    }
}

fn text(answer: &Value, name: &str) -> BenchResult<String> {
    let text = answer.get(name).and_then(Value::as_str);
    Ok(text.ok_or_else(|| format!("{answer}"))?.to_owned())
}

async fn measure_cycles(contender: Contender, cluster: Arc<Etcd>) -> BenchResult<Vec<u64>> {
    let cycles = match contender {
        Contender::Process => PROCESS_CYCLES,
        _ => CYCLES,
    };
    let mut locker = Locker::open(contender, &cluster).await?;
    let mut times = Vec::new();
    for _ in 0..2 * cycles {
        let started_at = Instant::now();
        locker.cycle(|| {}).await?;
        times.push(started_at.elapsed().as_micros() as u64);
    }
    Ok(times.split_off(cycles))
}

/// Measures the times from the begin of a release until the next client holds the lock.
async fn measure_hand_overs(contender: Contender, cluster: Arc<Etcd>) -> BenchResult<Vec<u64>> {
    let turns = match contender {
        Contender::Process => PROCESS_TURNS,
        _ => TURNS,
    };
    let times = Mutex::new(Vec::new());
    // The client that has released the lock last, and the time of the release.
    let last_release: Mutex<Option<(usize, Instant)>> = Mutex::new(None);
    let run_client = async |number| -> BenchResult<()> {
        let mut locker = Locker::open(contender, &cluster).await?;
        for _ in 0..turns {
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
