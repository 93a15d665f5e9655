//! Turns of one client and of many tasks, and what they come to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quorate::{AcquireError, LockGuard, Redlock, Wait};
use quorate_testbed::Server;
use quorate_testbed::measure::{Samples, Usage, quantile};
use serde::Serialize;

use crate::exit::{self, Failure};

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
        let at = |share: f64| quantile(&nanos, share) / 1e3;
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
        let acquire = take(redlock, &resource);
        seen.cycle(acquire, LockGuard::release).await;
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
    let work = async {
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
    };
    let ((), usage) = Usage::of(servers.unwrap_or_default(), work).await;
    let done = done.load(Ordering::Relaxed) as f64;
    let each = |time: Duration| time.as_secs_f64() * 1e6 / done;
    Crowd {
        per_second: done / usage.took.as_secs_f64(),
        client_us: each(usage.client),
        server_us: if usage.servers.is_zero() {
            f64::NAN
        } else {
            each(usage.servers)
        },
        failed: failed.load(Ordering::Relaxed),
    }
}

/// Bounded, so that the whole is bounded.
async fn take(redlock: &Redlock, resource: &str) -> Option<LockGuard> {
    let wait = Wait::For(Duration::from_secs(1));
    redlock.lock(resource).wait(wait).acquire().await.ok()
}
