//! Measures many concurrent tasks of three kinds: readers and writers of a read-write lock, holders of a semaphore's
//! permits, and tasks that take units of one quota.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate::{LockGuard, LockRequest, Redlock, Wait};
use quorate_testbed::measure::{Spread, quantile};

use super::figure::Figure;
use crate::contender::{Addresses, Name, settings};
use crate::goal::Bound;

/// The operation that a task repeats. Its argument is the number of the task. Its result is the time for which the task
/// held a lock, or zero if the operation holds no lock.
type Once = Arc<dyn Fn(usize) -> Pin<Box<dyn Future<Output = Duration> + Send>> + Send + Sync>;

/// The measurements of many concurrent tasks.
struct Seen {
    /// The duration of each cycle, including the hold, in nanoseconds; sorted.
    cycles: Vec<u64>,
    per_second: f64,
    /// The average time for which a task held the lock.
    hold: Duration,
    most: usize,
    fewest: usize,
}

impl Seen {
    fn p50(&self) -> f64 {
        quantile(&self.cycles, 0.5)
    }
}

/// Starts `tasks` tasks. Each task repeats the operation `once` for `time`.
async fn burst(tasks: usize, time: Duration, once: &Once) -> Seen {
    let started = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let once = once.clone();
        running.spawn(async move {
            let (mut cycles, mut held) = (Vec::new(), Duration::ZERO);
            while started.elapsed() < time {
                let began = Instant::now();
                held += once(task).await;
                cycles.push(began.elapsed().as_nanos() as u64);
            }
            (cycles, held)
        });
    }
    let done = running.join_all().await;
    let took = started.elapsed();
    let counts = || done.iter().map(|(cycles, _)| cycles.len());
    let (most, fewest) = (counts().max(), counts().min());
    let held: Duration = done.iter().map(|(_, held)| *held).sum();
    let mut cycles: Vec<u64> = done.into_iter().flat_map(|(cycles, _)| cycles).collect();
    cycles.sort_unstable();
    Seen {
        per_second: cycles.len() as f64 / took.as_secs_f64(),
        hold: held / u32::try_from(cycles.len().max(1)).unwrap_or(u32::MAX),
        most: most.unwrap_or(0),
        fewest: fewest.unwrap_or(0),
        cycles,
    }
}

/// Returns an operation for [`burst`]: it acquires a lock, holds it for `hold`, and releases it. `ask` creates the lock
/// request from the number of the task.
fn holding(
    redlock: &Redlock,
    hold: Duration,
    ask: impl Fn(&Redlock, usize) -> LockRequest + Clone + Send + Sync + 'static,
) -> Once {
    let redlock = redlock.clone();
    Arc::new(move |task| {
        let (redlock, ask) = (redlock.clone(), ask.clone());
        Box::pin(async move {
            let guard: LockGuard = ask(&redlock, task)
                .acquire()
                .await
                .expect("the lock must be granted before the wait times out");
            let held = Instant::now();
            if !hold.is_zero() {
                tokio::time::sleep(hold).await;
            }
            let held = held.elapsed();
            guard.release().await;
            held
        })
    })
}

fn taking(redlock: &Redlock) -> Once {
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

fn own(redlock: &Redlock, task: usize) -> LockRequest {
    redlock.lock(format!("burst:{task}"))
}

const AT_ONCE: Duration = Duration::ZERO;

/// The operations that are measured, one after the other.
struct Bursts {
    readers: Once,
    writers: Once,
    permits: Once,
    own_locks: Once,
    busy_permits: Once,
    one_lock: Once,
    takers: Once,
}

impl Bursts {
    async fn new(at: &Addresses) -> Self {
        let settings = settings(Name::Default, &at.urls).wait(Wait::For(Duration::from_secs(60)));
        let redlock = settings.build().expect("the settings must be valid");
        let quota = redlock.quota("burst:quota");
        quota
            .create(u64::MAX)
            .await
            .expect("the quota must be created");
        let (ms, five_ms) = (Duration::from_millis(1), Duration::from_millis(5));
        Self {
            readers: holding(&redlock, ms, |redlock, _| {
                redlock.lock("burst:read").shared()
            }),
            writers: holding(&redlock, ms, |redlock, _| redlock.lock("burst:write")),
            permits: holding(&redlock, AT_ONCE, |redlock, _| {
                redlock.semaphore("burst:s", 5)
            }),
            own_locks: holding(&redlock, AT_ONCE, own),
            busy_permits: holding(&redlock, five_ms, |redlock, _| {
                redlock.semaphore("burst:b", 5)
            }),
            one_lock: holding(&redlock, AT_ONCE, |redlock, _| redlock.lock("burst:one")),
            takers: taking(&redlock),
        }
    }

    async fn round(&self, seen: &mut Rounds) {
        let short = Duration::from_millis(400);
        let readers = burst(64, 2 * short, &self.readers).await;
        let writers = burst(64, 2 * short, &self.writers).await;
        seen.readers.push(readers.per_second / writers.per_second);
        seen.read_ms.push(readers.hold.as_secs_f64() * 1e3);
        seen.write_ms.push(writers.hold.as_secs_f64() * 1e3);

        // Measure permits and plain locks alternately, so that other load on the machine affects both equally.
        let turns = 4;
        let (mut permits, mut locks) = (Vec::new(), Vec::new());
        for _ in 0..turns {
            permits.push(burst(5, short / turns, &self.permits).await.p50());
            locks.push(burst(5, short / turns, &self.own_locks).await.p50());
        }
        let (permits, locks) = (Spread::of(permits).median, Spread::of(locks).median);
        seen.permits.push(permits / locks);

        let busy = burst(50, 4 * short, &self.busy_permits).await;
        let ideal = 5.0 / busy.hold.as_secs_f64();
        seen.busy.push(busy.per_second / ideal);
        seen.busy_ms.push(busy.hold.as_secs_f64() * 1e3);
        seen.shares.push(busy.most as f64 / busy.fewest as f64);

        let one = burst(64, short, &self.one_lock).await;
        let takers = burst(64, short, &self.takers).await;
        let lock = burst(1, short / 2, &self.own_locks).await.p50();
        let take = burst(1, short / 2, &self.takers).await.p50();
        // `allowed` is the best rate that takers can reach: the rate of 64 tasks that share one lock, slowed by
        // `beyond`. `beyond` is the additional time, in seconds, that one take needs compared with one lock cycle.
        let beyond = (take - lock).max(0.0) / 1e9;
        let allowed = 1.0 / (1.0 / one.per_second + beyond);
        seen.takers.push(takers.per_second / allowed);
        seen.takes.push(takers.per_second);
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
pub(super) async fn measure(at: &Addresses, rounds: usize) -> Vec<Figure> {
    let bursts = Bursts::new(at).await;
    bursts.round(&mut Rounds::default()).await;
    let mut seen = Rounds::default();
    for _ in 0..rounds {
        bursts.round(&mut seen).await;
    }
    let median = |rounds: &[f64]| Spread::of(rounds.iter().copied()).median;
    let readers = format!(
        "acquisitions per second of 64 readers, ratio to 64 writers; hold time 1 ms (measured: {:.1} and {:.1} ms)",
        median(&seen.read_ms),
        median(&seen.write_ms)
    );
    let busy = format!(
        "50 tasks with 5 permits: acquisitions per second, ratio to 5 permits / hold time (5 ms; measured: {:.1} ms)",
        median(&seen.busy_ms)
    );
    vec![
        Figure::new(readers, Bound::Least(20.0), seen.readers),
        Figure::new(
            "5 tasks that share 5 permits: cycle time, ratio to 5 tasks with a plain lock each",
            Bound::Most(1.25),
            seen.permits,
        ),
        Figure::new(busy, Bound::Least(0.85), seen.busy),
        Figure::new(
            "50 tasks with 5 permits: most acquisitions by one task, ratio to the fewest",
            Bound::Most(1.3),
            seen.shares,
        ),
        Figure::new(
            "64 tasks that take from one quota: units per second, ratio to the maximum estimated from lock cycles",
            Bound::Least(0.8),
            seen.takers,
        ),
        Figure::stated(
            "64 tasks that take from one quota: units per second",
            "/s",
            seen.takes,
        ),
    ]
}
