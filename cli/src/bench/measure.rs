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
    pub(super) fn from_nanos(mut nanos: Vec<u64>) -> Self {
        nanos.sort_unstable();
        let micros_at = |share: f64| quantile(&nanos, share) / 1e3;
        Self {
            p50: micros_at(0.5),
            p99: micros_at(0.99),
            p999: micros_at(0.999),
            samples: nanos.len(),
        }
    }
}

/// The results of a measurement in which many tasks acquired and released locks concurrently.
pub(super) struct Throughput {
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

/// Acquires and releases the same lock repeatedly with one client, until `time` has elapsed or `max_cycles` cycles of
/// acquire and release are done.
pub(super) async fn measure_alone(
    redlock: &Redlock,
    setting: Setting,
    name: &str,
    time: Duration,
    max_cycles: usize,
    samples: &mut Samples,
) {
    let resource = format!("quorate-bench:{name}:alone");
    let started_at = Instant::now();
    let mut cycles_done = 0;
    while started_at.elapsed() < time && cycles_done < max_cycles {
        cycles_done += 1;
        let acquire = acquire_for_setting(redlock, setting, &resource);
        samples.cycle(acquire, AnyGuard::release).await;
    }
}

/// Runs `tasks` concurrent tasks for `time`. Each task repeatedly acquires and releases a lock of its own.
pub(super) async fn measure_throughput(
    redlock: &Redlock,
    setting: Setting,
    time: Duration,
    tasks: usize,
    servers: Option<&[Server]>,
    running_tasks: &Arc<()>,
) -> Throughput {
    let cycles_done = Arc::new(AtomicU64::new(0));
    let failed = Arc::new(AtomicU64::new(0));
    let workload = async {
        let started_at = Instant::now();
        let mut join_set = tokio::task::JoinSet::new();
        for task in 0..tasks {
            let (redlock, cycles_done, failed) =
                (redlock.clone(), cycles_done.clone(), failed.clone());
            let running_task = running_tasks.clone();
            let resource = format!("quorate-bench:{}:{task}", setting.name());
            join_set.spawn(async move {
                while started_at.elapsed() < time {
                    let counter = match acquire_for_setting(&redlock, setting, &resource).await {
                        Some(guard) => {
                            guard.release().await;
                            &cycles_done
                        }
                        None => &failed,
                    };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
                drop(running_task);
            });
        }
        while join_set.join_next().await.is_some() {}
    };
    let ((), usage) = Usage::of(servers.unwrap_or_default(), workload).await;
    let cycles_done = cycles_done.load(Ordering::Relaxed) as f64;
    let micros_per_cycle = |time: Duration| time.as_secs_f64() * 1e6 / cycles_done;
    Throughput {
        per_second: cycles_done / usage.took.as_secs_f64(),
        client_us: micros_per_cycle(usage.client),
        server_us: if usage.servers.is_zero() {
            f64::NAN
        } else {
            micros_per_cycle(usage.servers)
        },
        failed: failed.load(Ordering::Relaxed),
    }
}

/// Acquires one lock; returns `None` on failure. Waits at most one second for the lock, or at most the client's default
/// waiting time with [`Setting::Owner`].
async fn acquire_for_setting(
    redlock: &Redlock,
    setting: Setting,
    resource: &str,
) -> Option<AnyGuard> {
    let wait = Wait::For(Duration::from_secs(1));
    let part_names = |count| (0..count).map(|part| format!("{resource}:{part}"));
    let request = match setting {
        Setting::Classic | Setting::Fenced | Setting::Default => redlock.lock(resource),
        Setting::Reader => redlock.lock(resource).shared(),
        Setting::Two => redlock.lock_all(part_names(2)),
        Setting::Four => redlock.lock_all(part_names(4)),
        Setting::Permit => redlock.semaphore(resource, 4),
        Setting::Owner => {
            let owner = redlock.owner("quorate-bench").ok()?;
            return owner.acquire(resource).await.ok().map(AnyGuard::Owned);
        }
    };
    request.wait(wait).acquire().await.ok().map(AnyGuard::Lock)
}

/// The guard of an acquired lock, for each kind of lock that the benchmark measures.
pub(super) enum AnyGuard {
    Lock(LockGuard),
    Owned(OwnedGuard),
}

impl AnyGuard {
    pub(super) async fn release(self) {
        match self {
            Self::Lock(guard) => drop(guard.release().await),
            Self::Owned(guard) => drop(guard.release().await),
        }
    }
}
