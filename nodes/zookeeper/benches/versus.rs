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
    let arguments = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let peers: Vec<(String, String)> = arguments
        .filter_map(|arg| {
            let (name, command) = arg.split_once('=')?;
            Some((name.to_owned(), command.to_owned()))
        })
        .collect();
    if let Err(error) = ZooKeeper::available() {
        println!("not measured: {error}");
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
        let mut quorate_medians = Vec::new();
        let mut peer_medians = vec![Vec::new(); peers.len()];
        for _ in 0..ROUNDS {
            quorate_medians.push(median(match mode {
                "cycle" => runtime.block_on(measure_cycles(&url))?,
                _ => runtime.block_on(measure_hand_overs(&url))?,
            }));
            for ((_, command), medians) in peers.iter().zip(&mut peer_medians) {
                medians.push(median(run_peer(command, &host, mode)?));
            }
        }
        println!(
            "{mode:6} quorate: p50 {}",
            format_medians(&mut quorate_medians)
        );
        for ((name, _), mut medians) in peers.iter().zip(peer_medians) {
            let text = format_medians(&mut medians);
            let ratio = quorate_medians[ROUNDS / 2] as f64 / medians[ROUNDS / 2] as f64;
            println!("{mode:6} {name}: p50 {text}; quorate/{name} {ratio:.2}");
        }
    }
    Ok(())
}

/// Formats the median of all rounds of the comparison, followed by the value of each round.
fn format_medians(rounds: &mut [u64]) -> String {
    rounds.sort_unstable();
    format!(
        "{} us (median of the rounds {rounds:?})",
        rounds[rounds.len() / 2]
    )
}

fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
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

async fn measure_cycles(url: &str) -> BenchResult<Vec<u64>> {
    let redlock = client(url)?;
    let mut times = Vec::new();
    for _ in 0..2 * CYCLES {
        let started_at = Instant::now();
        redlock.acquire("cycle").await?.release().await;
        times.push(started_at.elapsed().as_micros() as u64);
    }
    Ok(times.split_off(CYCLES))
}

async fn measure_hand_overs(url: &str) -> BenchResult<Vec<u64>> {
    static RELEASED_AT_US: AtomicU64 = AtomicU64::new(0);
    let hand_over_times = Mutex::new(Vec::new());
    let started_at = Instant::now();
    let now_us = || started_at.elapsed().as_micros() as u64;
    RELEASED_AT_US.store(0, Ordering::SeqCst);
    let run_client = async || -> BenchResult<()> {
        let redlock = client(url)?;
        for _ in 0..TURNS {
            let guard = redlock.acquire("hand").await?;
            let released_at_us = RELEASED_AT_US.load(Ordering::SeqCst);
            if released_at_us > 0 {
                let elapsed = now_us().saturating_sub(released_at_us);
                hand_over_times.lock().expect("not poisoned").push(elapsed);
            }
            RELEASED_AT_US.store(now_us(), Ordering::SeqCst);
            guard.release().await;
        }
        Ok(())
    };
    let outcomes = futures::future::join_all((0..CLIENTS).map(|_| run_client())).await;
    outcomes.into_iter().collect::<BenchResult<()>>()?;
    Ok(hand_over_times.into_inner()?.split_off(CLIENTS))
}

fn run_peer(command: &str, host: &str, mode: &str) -> BenchResult<Vec<u64>> {
    let mut command_parts = command.split_whitespace();
    let program = command_parts
        .next()
        .ok_or("the command of the compared program must not be empty")?;
    let count = if mode == "cycle" { CYCLES } else { TURNS };
    let output = Command::new(program)
        .args(command_parts)
        .args([host, mode, &count.to_string()])
        .output()?;
    if !output.status.success() {
        return Err(format!("{command}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}
