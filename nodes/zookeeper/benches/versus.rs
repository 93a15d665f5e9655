//! Compares the lock over one ZooKeeper server or ensemble with the lock recipes of other ZooKeeper clients. The
//! benchmark measures all implementations on the same servers, one after another.
//!
//! `scripts/bench-zookeeper` installs the other clients into a temporary folder, and passes to this benchmark one
//! argument for each client: `NAME=COMMAND`. The benchmark runs each client as `COMMAND HOST:PORT MODE COUNT`. The
//! client prints one time per line, in microseconds:
//!
//! - In the mode `cycle`, the time of one lock and unlock.
//! - In the mode `hand`, the time from the start of a release until the next of ten clients holds the lock.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quorate::{Redlock, RestartGuard, Wait};
use quorate_testbed::ZooKeeper;

/// The number of cycles (lock and unlock) that one client measures per round. Before them, the client runs the same
/// number of cycles to warm up.
const CYCLES: usize = 400;
/// The number of clients that acquire the same lock in turn.
const CLIENTS: usize = 10;
/// How many times each of the clients acquires the lock.
const TURNS: usize = 20;
/// The number of rounds. Each round measures every implementation once.
const ROUNDS: usize = 3;

type BenchResult<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> BenchResult<()> {
    let named = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let peers: Vec<(String, String)> = named
        .filter_map(|arg| {
            let (name, command) = arg.split_once('=')?;
            Some((name.to_owned(), command.to_owned()))
        })
        .collect();
    if let Err(why) = ZooKeeper::available() {
        println!("not measured: {why}");
        return Ok(());
    }
    let members = std::env::var("MEMBERS").ok().and_then(|n| n.parse().ok());
    let server = ZooKeeper::ensemble(members.unwrap_or(1))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let url = format!("{}?timeout=2s", server.url("/bench"));
    runtime.block_on(quorate_zookeeper::prepare(&url))?;
    let host = server.addr(0).to_string();
    for mode in ["cycle", "hand"] {
        let mut ours = Vec::new();
        let mut theirs = vec![Vec::new(); peers.len()];
        for _ in 0..ROUNDS {
            ours.push(middle(match mode {
                "cycle" => runtime.block_on(cycles(&url))?,
                _ => runtime.block_on(hands(&url))?,
            }));
            for ((_, command), all) in peers.iter().zip(&mut theirs) {
                all.push(middle(ask(command, &host, mode)?));
            }
        }
        println!("{mode:6} quorate: p50 {}", shown(&mut ours));
        for ((name, _), mut all) in peers.iter().zip(theirs) {
            let text = shown(&mut all);
            let ratio = ours[ROUNDS / 2] as f64 / all[ROUNDS / 2] as f64;
            println!("{mode:6} {name}: p50 {text}; quorate/{name} {ratio:.2}");
        }
    }
    Ok(())
}

/// Formats the median of all rounds of the comparison, followed by the value of each round.
fn shown(rounds: &mut [u64]) -> String {
    rounds.sort_unstable();
    format!(
        "{} us (median of the rounds {rounds:?})",
        rounds[rounds.len() / 2]
    )
}

fn middle(mut all: Vec<u64>) -> u64 {
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or_default()
}

fn client(url: &str) -> BenchResult<Redlock> {
    let redlock = Redlock::builder()
        .node(quorate_zookeeper::node(url)?)
        .restart_guard(RestartGuard::Off)
        .connect_timeout(Duration::from_secs(2))
        .ttl(Duration::from_secs(30))
        .wait(Wait::For(Duration::from_secs(60)));
    Ok(redlock.build()?)
}

async fn cycles(url: &str) -> BenchResult<Vec<u64>> {
    let redlock = client(url)?;
    let mut took = Vec::new();
    for _ in 0..2 * CYCLES {
        let began = Instant::now();
        redlock.acquire("cycle").await?.release().await;
        took.push(began.elapsed().as_micros() as u64);
    }
    Ok(took.split_off(CYCLES))
}

async fn hands(url: &str) -> BenchResult<Vec<u64>> {
    static GIVEN: AtomicU64 = AtomicU64::new(0);
    let taken = Mutex::new(Vec::new());
    let began = Instant::now();
    let now = || began.elapsed().as_micros() as u64;
    GIVEN.store(0, Ordering::SeqCst);
    let one = async || -> BenchResult<()> {
        let redlock = client(url)?;
        for _ in 0..TURNS {
            let guard = redlock.acquire("hand").await?;
            let given = GIVEN.load(Ordering::SeqCst);
            if given > 0 {
                let took = now().saturating_sub(given);
                taken.lock().expect("not poisoned").push(took);
            }
            GIVEN.store(now(), Ordering::SeqCst);
            guard.release().await;
        }
        Ok(())
    };
    let all = futures::future::join_all((0..CLIENTS).map(|_| one())).await;
    all.into_iter().collect::<BenchResult<()>>()?;
    Ok(taken.into_inner()?.split_off(CLIENTS))
}

fn ask(command: &str, host: &str, mode: &str) -> BenchResult<Vec<u64>> {
    let mut words = command.split_whitespace();
    let program = words
        .next()
        .ok_or("the command of the compared program must not be empty")?;
    let count = if mode == "cycle" { CYCLES } else { TURNS };
    let said = Command::new(program)
        .args(words)
        .args([host, mode, &count.to_string()])
        .output()?;
    if !said.status.success() {
        return Err(format!("{command}: {}", String::from_utf8_lossy(&said.stderr)).into());
    }
    let text = String::from_utf8(said.stdout)?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}
