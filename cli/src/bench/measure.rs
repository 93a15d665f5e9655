//! Turns of one client and of many tasks, and what they come to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use quorate::{AcquireError, Redlock, Wait};
use quorate_testbed::Server;
use serde::Serialize;

use crate::exit::{self, Failure};

/// What one client saw, in nanoseconds.
#[derive(Default)]
pub(super) struct Samples {
    pub(super) acquire: Vec<u64>,
    pub(super) release: Vec<u64>,
    pub(super) cycle: Vec<u64>,
    pub(super) failed: u64,
}

/// Quantiles in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Latency {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) samples: usize,
}

impl Latency {
    pub(super) fn of(mut nanos: Vec<u64>) -> Self {
        nanos.sort_unstable();
        let at = |share: f64| {
            let last = nanos.len().saturating_sub(1);
            let at = ((nanos.len() as f64 * share) as usize).min(last);
            nanos.get(at).map_or(f64::NAN, |value| *value as f64 / 1e3)
        };
        Self {
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            samples: nanos.len(),
        }
    }
}

/// What many tasks came to in one turn.
pub(super) struct Crowd {
    pub(super) per_second: f64,
    pub(super) client_us: f64,
    /// Not a number where the servers' processes cannot be seen.
    pub(super) server_us: f64,
    pub(super) failed: u64,
}

/// The middle one; not a number when there is none.
pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Three digits that count.
pub(super) fn digits(value: f64) -> String {
    if !value.is_finite() {
        "-".to_owned()
    } else if value >= 100.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// Connects by taking one lock: whether there is a quorum is known before anything is measured.
pub(super) async fn warm_up(redlock: &Redlock, name: &str) -> Result<(), Failure> {
    let resource = format!("quorate-bench:{name}:warm-up");
    let wait = Wait::For(Duration::from_secs(5));
    match redlock.lock(resource).wait(wait).acquire().await {
        Ok(guard) => {
            guard.release().await;
            Ok(())
        }
        Err(error @ AcquireError::HeldByOther(_)) => Err(Failure::new(
            exit::HELD,
            format!("another benchmark runs on these masters: {error}"),
        )),
        Err(error) => Err(Failure::new(exit::UNAVAILABLE, error)),
    }
}

/// One client, one lock after the other, for as long as `time` and at most `cycles` times.
pub(super) async fn alone(
    redlock: &Redlock,
    name: &str,
    time: Duration,
    cycles: usize,
    seen: &mut Samples,
) {
    let resource = format!("quorate-bench:{name}:alone");
    let began = Instant::now();
    let mut done = 0;
    while began.elapsed() < time && done < cycles {
        done += 1;
        let started = Instant::now();
        let Some(guard) = take(redlock, &resource).await else {
            seen.failed += 1;
            continue;
        };
        let acquired = Instant::now();
        guard.release().await;
        let released = Instant::now();
        seen.acquire.push((acquired - started).as_nanos() as u64);
        seen.release.push((released - acquired).as_nanos() as u64);
        seen.cycle.push((released - started).as_nanos() as u64);
    }
}

/// `tasks` tasks, each with a lock of its own, for as long as `time`.
pub(super) async fn crowd(
    redlock: &Redlock,
    name: &str,
    time: Duration,
    tasks: usize,
    servers: Option<&[Server]>,
) -> Crowd {
    let done = Arc::new(AtomicU64::new(0));
    let failed = Arc::new(AtomicU64::new(0));
    let (own, theirs) = (own_cpu(), servers.map(servers_cpu));
    let began = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let (redlock, done, failed) = (redlock.clone(), done.clone(), failed.clone());
        let resource = format!("quorate-bench:{name}:{task}");
        running.spawn(async move {
            while began.elapsed() < time {
                let counter = match take(&redlock, &resource).await {
                    Some(guard) => {
                        guard.release().await;
                        &done
                    }
                    None => &failed,
                };
                counter.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    while running.join_next().await.is_some() {}
    let took = began.elapsed().as_secs_f64();
    let done = done.load(Ordering::Relaxed) as f64;
    let since = |now: Duration, then: Duration| now.saturating_sub(then).as_secs_f64() * 1e6 / done;
    let server_us = match (servers, theirs) {
        (Some(servers), Some(then)) if !then.is_zero() => since(servers_cpu(servers), then),
        _ => f64::NAN,
    };
    Crowd {
        per_second: done / took,
        client_us: since(own_cpu(), own),
        server_us,
        failed: failed.load(Ordering::Relaxed),
    }
}

/// Bounded, so that the whole is bounded.
async fn take(redlock: &Redlock, resource: &str) -> Option<quorate::LockGuard> {
    let wait = Wait::For(Duration::from_secs(1));
    redlock.lock(resource).wait(wait).acquire().await.ok()
}

/// The processor time of this process.
fn own_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// The processor time of spawned servers, as Linux tells it; zero elsewhere.
fn servers_cpu(servers: &[Server]) -> Duration {
    let of = |pid: u32| -> u64 {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
        threads
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).ok())
            .filter_map(|text| text.split(' ').next()?.parse::<u64>().ok())
            .sum()
    };
    Duration::from_nanos(servers.iter().filter_map(Server::pid).map(of).sum())
}
