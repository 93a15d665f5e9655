//! Measures the time of acquire and release: with a single client, and with many concurrent tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quorate::{AcquireError, LockGuard, OwnedGuard, Redlock, Wait};
use quorate_testbed::Server;
use quorate_testbed::measure::{Samples, Usage, quantile};
use serde::Serialize;

use super::setting::Setting;
use crate::exit::{self, Failure};

/// Quantiles of the measured times, in microseconds.
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

/// The results of a measurement in which many tasks acquired and released locks concurrently.
pub(super) struct Crowd {
    pub(super) per_second: f64,
    pub(super) client_us: f64,
    /// Processor time that the servers used for one acquire and release, in microseconds. NaN if it is unknown, because
    /// the benchmark did not start the servers.
    pub(super) server_us: f64,
    pub(super) failed: u64,
}

/// Acquires and releases one lock before the measurement. This connects the client to all masters, and fails if no
/// majority of them answers.
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
            format!(
                "another benchmark is running on these masters: {}",
                error.details()
            ),
        )),
        Err(error) => Err(Failure::new(exit::UNAVAILABLE, error.details())),
    }
}

/// Acquires and releases the same lock repeatedly with one client, until `time` has elapsed or `cycles` cycles of
/// acquire and release are done.
pub(super) async fn alone(
    redlock: &Redlock,
    setting: Setting,
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
        let acquire = take(redlock, setting, &resource);
        seen.cycle(acquire, Held::release).await;
    }
}

/// Runs `tasks` concurrent tasks for `time`. Each task repeatedly acquires and releases a lock of its own.
pub(super) async fn crowd(
    redlock: &Redlock,
    setting: Setting,
    time: Duration,
    tasks: usize,
    servers: Option<&[Server]>,
    running_tasks: &Arc<()>,
) -> Crowd {
    let done = Arc::new(AtomicU64::new(0));
    let failed = Arc::new(AtomicU64::new(0));
    let work = async {
        let began = Instant::now();
        let mut running = tokio::task::JoinSet::new();
        for task in 0..tasks {
            let (redlock, done, failed) = (redlock.clone(), done.clone(), failed.clone());
            let running_task = running_tasks.clone();
            let resource = format!("quorate-bench:{}:{task}", setting.name());
            running.spawn(async move {
                while began.elapsed() < time {
                    let counter = match take(&redlock, setting, &resource).await {
                        Some(guard) => {
                            guard.release().await;
                            &done
                        }
                        None => &failed,
                    };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
                drop(running_task);
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

/// Acquires one lock; returns `None` on failure. Waits at most one second for the lock, or at most the client's default
/// waiting time with [`Setting::Owner`].
async fn take(redlock: &Redlock, setting: Setting, resource: &str) -> Option<Held> {
    let wait = Wait::For(Duration::from_secs(1));
    let parts = |count| (0..count).map(|part| format!("{resource}:{part}"));
    let request = match setting {
        Setting::Classic | Setting::Fenced | Setting::Default => redlock.lock(resource),
        Setting::Reader => redlock.lock(resource).shared(),
        Setting::Two => redlock.lock_all(parts(2)),
        Setting::Four => redlock.lock_all(parts(4)),
        Setting::Permit => redlock.semaphore(resource, 4),
        Setting::Owner => {
            let owner = redlock.owner("quorate-bench").ok()?;
            return owner.acquire(resource).await.ok().map(Held::Owned);
        }
    };
    request.wait(wait).acquire().await.ok().map(Held::Lock)
}

/// The guard of an acquired lock, for each kind of lock that the benchmark measures.
pub(super) enum Held {
    Lock(LockGuard),
    Owned(OwnedGuard),
}

impl Held {
    pub(super) async fn release(self) {
        match self {
            Self::Lock(guard) => drop(guard.release().await),
            Self::Owned(guard) => drop(guard.release().await),
        }
    }
}
