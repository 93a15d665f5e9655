//! Measures many concurrent tasks of three kinds: readers and writers of a read-write lock, holders of a semaphore's
//! permits, and tasks that take units of one quota.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate::{LockGuard, LockRequest, Redlock, Wait};
use quorate_testbed::measure::{Spread, quantile};

use super::figure::Figure;
use crate::contender::{Addresses, Name, builder_for};
use crate::goal::Bound;

/// The operation that a task repeats. Its argument is the number of the task. Its result is the time for which the task
/// held a lock, or zero if the operation holds no lock.
type Operation = Arc<dyn Fn(usize) -> Pin<Box<dyn Future<Output = Duration> + Send>> + Send + Sync>;

/// The measurements of many concurrent tasks.
struct BurstResult {
    /// The duration of each cycle, including the hold, in nanoseconds; sorted.
    cycles: Vec<u64>,
    per_second: f64,
    /// The average time for which a task held the lock.
    hold: Duration,
    most_cycles: usize,
    fewest_cycles: usize,
}

impl BurstResult {
    fn p50(&self) -> f64 {
        quantile(&self.cycles, 0.5)
    }
}

/// Starts `tasks` tasks. Each task repeats `operation` for `time`.
async fn burst(tasks: usize, time: Duration, operation: &Operation) -> BurstResult {
    let started_at = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let operation = operation.clone();
        running.spawn(async move {
            let (mut cycles, mut held_time) = (Vec::new(), Duration::ZERO);
            while started_at.elapsed() < time {
                let cycle_started_at = Instant::now();
                held_time += operation(task).await;
                cycles.push(cycle_started_at.elapsed().as_nanos() as u64);
            }
            (cycles, held_time)
        });
    }
    let results = running.join_all().await;
    let elapsed = started_at.elapsed();
    let cycle_counts = || results.iter().map(|(cycles, _)| cycles.len());
    let (most_cycles, fewest_cycles) = (cycle_counts().max(), cycle_counts().min());
    let held_time: Duration = results.iter().map(|(_, held_time)| *held_time).sum();
    let mut cycles: Vec<u64> = results.into_iter().flat_map(|(cycles, _)| cycles).collect();
    cycles.sort_unstable();
    BurstResult {
        per_second: cycles.len() as f64 / elapsed.as_secs_f64(),
        hold: held_time / u32::try_from(cycles.len().max(1)).unwrap_or(u32::MAX),
        most_cycles: most_cycles.unwrap_or(0),
        fewest_cycles: fewest_cycles.unwrap_or(0),
        cycles,
    }
}

/// Returns an operation for [`burst`]: it acquires a lock, holds it for `hold`, and releases it. `request_for` creates
/// the lock request from the number of the task.
fn hold_lock(
    redlock: &Redlock,
    hold: Duration,
    request_for: impl Fn(&Redlock, usize) -> LockRequest + Clone + Send + Sync + 'static,
) -> Operation {
    let redlock = redlock.clone();
    Arc::new(move |task| {
        let (redlock, request_for) = (redlock.clone(), request_for.clone());
        Box::pin(async move {
            let guard: LockGuard = request_for(&redlock, task)
                .acquire()
                .await
                .expect("the lock must be granted before the wait times out");
            let acquired_at = Instant::now();
            if !hold.is_zero() {
                tokio::time::sleep(hold).await;
            }
            let held_time = acquired_at.elapsed();
            guard.release().await;
            held_time
        })
    })
}

fn take_unit(redlock: &Redlock) -> Operation {
    let quota = redlock.quota("burst:quota");
    Arc::new(move |_| {
        let quota = quota.clone();
        Box::pin(async move {
            let _ = quota
                .take(1)
                .await
                .expect("the lock must be granted before the wait times out");
            Duration::ZERO
        })
    })
}

fn lock_of_task(redlock: &Redlock, task: usize) -> LockRequest {
    redlock.lock(format!("burst:{task}"))
}

const NO_HOLD: Duration = Duration::ZERO;

/// The operations that are measured, one after the other.
struct Bursts {
    readers: Operation,
    writers: Operation,
    permits: Operation,
    own_locks: Operation,
    busy_permits: Operation,
    one_lock: Operation,
    takers: Operation,
}

impl Bursts {
    async fn new(addresses: &Addresses) -> Self {
        let builder =
            builder_for(Name::Default, &addresses.urls).wait(Wait::For(Duration::from_secs(60)));
        let redlock = builder.build().expect("the settings must be valid");
        let quota = redlock.quota("burst:quota");
        quota
            .create(u64::MAX)
            .await
            .expect("the quota must be created");
        let (ms, five_ms) = (Duration::from_millis(1), Duration::from_millis(5));
        Self {
            readers: hold_lock(&redlock, ms, |redlock, _| {
                redlock.lock("burst:read").shared()
            }),
            writers: hold_lock(&redlock, ms, |redlock, _| redlock.lock("burst:write")),
            permits: hold_lock(&redlock, NO_HOLD, |redlock, _| {
                redlock.semaphore("burst:s", 5)
            }),
            own_locks: hold_lock(&redlock, NO_HOLD, lock_of_task),
            busy_permits: hold_lock(&redlock, five_ms, |redlock, _| {
                redlock.semaphore("burst:b", 5)
            }),
            one_lock: hold_lock(&redlock, NO_HOLD, |redlock, _| redlock.lock("burst:one")),
            takers: take_unit(&redlock),
        }
    }

    async fn round(&self, rounds: &mut Rounds) {
        let duration = Duration::from_millis(400);
        let readers = burst(64, 2 * duration, &self.readers).await;
        let writers = burst(64, 2 * duration, &self.writers).await;
        rounds.readers.push(readers.per_second / writers.per_second);
        rounds.read_ms.push(readers.hold.as_secs_f64() * 1e3);
        rounds.write_ms.push(writers.hold.as_secs_f64() * 1e3);

        // Measure permits and plain locks alternately, so that other load on the machine affects both equally.
        let alternations = 4;
        let (mut permits, mut locks) = (Vec::new(), Vec::new());
        for _ in 0..alternations {
            permits.push(burst(5, duration / alternations, &self.permits).await.p50());
            locks.push(
                burst(5, duration / alternations, &self.own_locks)
                    .await
                    .p50(),
            );
        }
        let permit_p50 = Spread::of(permits).median;
        rounds.permits.push(permit_p50 / Spread::of(locks).median);

        let busy = burst(50, 4 * duration, &self.busy_permits).await;
        let ideal = 5.0 / busy.hold.as_secs_f64();
        rounds.busy.push(busy.per_second / ideal);
        rounds.busy_ms.push(busy.hold.as_secs_f64() * 1e3);
        rounds
            .shares
            .push(busy.most_cycles as f64 / busy.fewest_cycles as f64);

        let one_lock = burst(64, duration, &self.one_lock).await;
        let takers = burst(64, duration, &self.takers).await;
        let lock_p50 = burst(1, duration / 2, &self.own_locks).await.p50();
        let take_p50 = burst(1, duration / 2, &self.takers).await.p50();
        // `best_rate` is the best rate that takers can reach: the rate of 64 tasks that share one lock, slowed by
        // `additional_s`. `additional_s` is the additional time, in seconds, that one take needs compared with one lock
        // cycle.
        let additional_s = (take_p50 - lock_p50).max(0.0) / 1e9;
        let best_rate = 1.0 / (1.0 / one_lock.per_second + additional_s);
        rounds.takers.push(takers.per_second / best_rate);
        rounds.takes.push(takers.per_second);
    }
}

/// The figures of the concurrent tasks. Each list has one value per round.
#[derive(Default)]
struct Rounds {
    readers: Vec<f64>,
    read_ms: Vec<f64>,
    write_ms: Vec<f64>,
    permits: Vec<f64>,
    busy: Vec<f64>,
    busy_ms: Vec<f64>,
    shares: Vec<f64>,
    takers: Vec<f64>,
    takes: Vec<f64>,
}

/// Measures all operations and returns their figures.
pub(super) async fn measure(addresses: &Addresses, rounds: usize) -> Vec<Figure> {
    let bursts = Bursts::new(addresses).await;
    bursts.round(&mut Rounds::default()).await;
    let mut measured = Rounds::default();
    for _ in 0..rounds {
        bursts.round(&mut measured).await;
    }
    let median = |rounds: &[f64]| Spread::of(rounds.iter().copied()).median;
    let readers_title = format!(
        "acquisitions per second of 64 readers, ratio to 64 writers; hold time 1 ms (measured: {:.1} and {:.1} ms)",
        median(&measured.read_ms),
        median(&measured.write_ms)
    );
    let busy_title = format!(
        "50 tasks with 5 permits: acquisitions per second, ratio to 5 permits / hold time (5 ms; measured: {:.1} ms)",
        median(&measured.busy_ms)
    );
    vec![
        Figure::new(readers_title, Bound::AtLeast(20.0), measured.readers),
        Figure::new(
            "5 tasks that share 5 permits: cycle time, ratio to 5 tasks with a plain lock each",
            Bound::AtMost(1.25),
            measured.permits,
        ),
        Figure::new(busy_title, Bound::AtLeast(0.85), measured.busy),
        Figure::new(
            "50 tasks with 5 permits: most acquisitions by one task, ratio to the fewest",
            Bound::AtMost(1.3),
            measured.shares,
        ),
        Figure::new(
            "64 tasks that take from one quota: units per second, ratio to the maximum estimated from lock cycles",
            Bound::AtLeast(0.8),
            measured.takers,
        ),
        Figure::without_goal(
            "64 tasks that take from one quota: units per second",
            "/s",
            measured.takes,
        ),
    ]
}
