//! Measures one client that acquires and releases locks, without concurrency.
//!
//! A cycle is an acquire and its release. A turn is a short series of cycles of one operation. In each round, every
//! operation has one turn.

use std::hint::black_box;
use std::time::Instant;

use quorate::{LockGuard, OwnedGuard, Owner, Quota, Redlock, Take};
use quorate_testbed::Masters;
use quorate_testbed::measure::{Counts, Samples, quantile};

use super::figure::Figure;
use crate::contender::{Addresses, Name, settings};
use crate::goal::Bound;

/// The number of cycles per turn.
const CYCLES: usize = 60;

/// The number of nested holds that are timed as one group, because one hold takes far less than a microsecond. A nested
/// hold needs no command: the client already holds the lock for the same owner.
const LOCAL: usize = 2_000;

/// The operations that are measured, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// A cycle of the plain lock.
    Plain,
    /// A cycle of one lock that covers this number of resources.
    Together(usize),
    /// A cycle of this number of separate locks: they are acquired one after the other, held together, and then
    /// released.
    InTurn(usize),
    Reader,
    /// A cycle in which an owner acquires and releases a further hold of a reentrant lock. Another client already holds
    /// this lock for the same owner.
    Further,
    Take,
}

const ALL: [Work; 8] = [
    Work::Plain,
    Work::Together(2),
    Work::InTurn(2),
    Work::Together(4),
    Work::InTurn(4),
    Work::Reader,
    Work::Further,
    Work::Take,
];

/// The results of all turns of one operation.
#[derive(Default)]
struct Turns {
    /// The median duration of a cycle in each round, in nanoseconds.
    cycle: Vec<f64>,
    acquire: Vec<f64>,
    /// The number of commands sent per cycle, to all masters together.
    sent: f64,
}

/// The measured client, and a second client that holds a reentrant lock.
struct Bench {
    redlock: Redlock,
    quota: Quota,
    /// The handle of the reentrant lock's owner in the measured client.
    owner: Owner,
    /// The handle of the same owner in the second client.
    local: Owner,
    held: OwnedGuard,
}

impl Bench {
    async fn new(at: &Addresses) -> Self {
        let client = || settings(Name::Default, &at.urls).build();
        let (redlock, other) = (
            client().expect("the settings must be valid"),
            client().expect("the settings must be valid"),
        );
        let quota = redlock.quota("kinds:quota");
        quota
            .create(u64::MAX)
            .await
            .expect("the quota must be created");
        let local = other.owner("order").expect("the id must be valid");
        let held = local
            .acquire("kinds:order")
            .await
            .expect("the lock must be free");
        Self {
            quota,
            owner: redlock.owner("order").expect("the id must be valid"),
            redlock,
            local,
            held,
        }
    }

    /// Runs a series of cycles of the operation `work`. If `counted` is true, waits before each release until all
    /// masters have answered the acquire. A release can withdraw requests that are still queued, and these would not be
    /// counted.
    async fn turn(&self, work: Work, counted: bool) -> Samples {
        let settled = async || {
            if counted {
                self.redlock.flush().await;
            }
        };
        let mut seen = Samples::default();
        for n in 0..CYCLES {
            let release = async |held: LockGuard| {
                settled().await;
                held.release().await;
            };
            let name = format!("kinds:{}", n % 64);
            let names = |count| (0..count).map(move |part| format!("kinds:{n}:{part}"));
            match work {
                Work::Plain => {
                    let acquire = async { self.redlock.acquire(&name).await.ok() };
                    seen.cycle(acquire, release).await;
                }
                Work::Together(count) => {
                    let all = self.redlock.lock_all(names(count));
                    let acquire = async { all.acquire().await.ok() };
                    seen.cycle(acquire, release).await;
                }
                Work::InTurn(count) => {
                    let acquire = self.in_turn(names(count));
                    let release = async |held: Vec<LockGuard>| {
                        settled().await;
                        release_all(held).await;
                    };
                    seen.cycle(acquire, release).await;
                }
                Work::Reader => {
                    let shared = self.redlock.lock(&name).shared();
                    let acquire = async { shared.acquire().await.ok() };
                    seen.cycle(acquire, release).await;
                }
                Work::Further => {
                    let acquire = async { self.owner.acquire("kinds:order").await.ok() };
                    let release = async |held: OwnedGuard| {
                        settled().await;
                        held.release().await;
                    };
                    seen.cycle(acquire, release).await;
                }
                Work::Take => {
                    let take = async { self.quota.take(1).await.ok() };
                    seen.cycle(take, async |_: Take| {}).await;
                }
            }
        }
        assert_eq!(seen.failed, 0, "{work:?}");
        seen.sort();
        seen
    }

    async fn in_turn(&self, names: impl Iterator<Item = String>) -> Option<Vec<LockGuard>> {
        let mut guards = Vec::new();
        for name in names {
            guards.push(self.redlock.acquire(name).await.ok()?);
        }
        Some(guards)
    }

    /// Measures one additional hold by an owner that already holds the lock in this client, in microseconds.
    async fn local_hold(&self) -> f64 {
        let started = Instant::now();
        for _ in 0..LOCAL {
            let hold = self.local.acquire("kinds:order").await;
            drop(black_box(hold).expect("the owner must acquire its lock again"));
        }
        started.elapsed().as_secs_f64() * 1e6 / LOCAL as f64
    }
}

async fn release_all(guards: Vec<LockGuard>) {
    for guard in guards {
        guard.release().await;
    }
}

/// Measures all operations in turn and returns their figures.
pub(super) async fn measure(masters: &Masters, at: &Addresses, rounds: usize) -> Vec<Figure> {
    let bench = Bench::new(at).await;
    let mut seen: [Turns; ALL.len()] = Default::default();
    // The first turn of each operation is a warm-up, in which the masters load the scripts. Only the commands of later
    // turns are counted.
    for (work, seen) in ALL.into_iter().zip(&mut seen) {
        bench.turn(work, false).await;
        // In some turns, the client also renews the lock `held`, which adds commands. So take the turn with the fewest.
        let mut least = u64::MAX;
        for _ in 0..4 {
            bench.redlock.flush().await;
            let before = Counts::read(masters, false);
            bench.turn(work, true).await;
            bench.redlock.flush().await;
            least = least.min(Counts::read(masters, false).since(before).sent);
        }
        seen.sent = least as f64 / CYCLES as f64;
    }
    let before = Counts::read(masters, false);
    let mut local = vec![bench.local_hold().await];
    let local_sent = Counts::read(masters, false).since(before).sent;
    for round in 0..rounds {
        for turn in 0..ALL.len() {
            let n = (round + turn) % ALL.len();
            let samples = bench.turn(ALL[n], false).await;
            seen[n].cycle.push(quantile(&samples.cycle, 0.5));
            seen[n].acquire.push(quantile(&samples.acquire, 0.5));
        }
        local.push(bench.local_hold().await);
    }
    assert!(
        bench.held.is_valid(),
        "the lock must stay held during the whole measurement"
    );
    figures(&seen, local, local_sent)
}

fn figures(seen: &[Turns], local: Vec<f64>, local_sent: u64) -> Vec<Figure> {
    let of = |work| {
        let n = ALL.iter().position(|other| *other == work);
        &seen[n.expect("`ALL` must contain the operation")]
    };
    let plain = of(Work::Plain);
    let over = |work, base| -> Vec<f64> {
        let pairs = of(work).cycle.iter().zip(&of(base).cycle);
        pairs.map(|(cycle, base)| cycle / base).collect()
    };
    let further = of(Work::Further).acquire.iter().zip(&plain.acquire);
    let further = further.map(|(further, plain)| further / plain);
    let take = of(Work::Take).cycle.iter().zip(&plain.cycle);
    let trips = take.map(|(take, plain)| (take - plain) / (plain / 2.0));
    let sent = |work| [of(work).sent / plain.sent];
    let mut figures = vec![Figure::stated(
        "plain lock: time to acquire and release",
        "us",
        plain.cycle.iter().map(|nanos| nanos / 1e3),
    )];
    for (count, most) in [(2, 0.6), (4, 0.35)] {
        let (together, in_turn) = (Work::Together(count), Work::InTurn(count));
        let what = format!(
            "one lock on {count} resources: cycle time, ratio to {count} plain locks in sequence"
        );
        figures.push(Figure::new(
            what,
            Bound::Most(most),
            over(together, in_turn),
        ));
        let what = format!("one lock on {count} resources: messages, ratio to one plain lock");
        figures.push(Figure::new(what, Bound::Most(1.0), sent(together)));
    }
    let reader = over(Work::Reader, Work::Plain);
    figures.extend([
        Figure::new(
            "reader: cycle time, ratio to a plain lock",
            Bound::Most(1.25),
            reader,
        ),
        Figure::new(
            "owner acquires its lock again in the same client: time",
            Bound::Most(1.0),
            local,
        )
        .in_unit("us"),
        Figure::new(
            "owner acquires its lock again in the same client: messages",
            Bound::Most(0.0),
            [local_sent as f64],
        ),
        Figure::new(
            "owner acquires its lock again in another client: time, ratio to a plain lock",
            Bound::Most(1.1),
            further,
        ),
        Figure::new(
            "take from a quota: round trips in addition to those of a plain lock",
            Bound::Most(2.0),
            trips,
        ),
        Figure::stated(
            "take from a quota: messages, ratio to a plain lock",
            "",
            sent(Work::Take),
        ),
    ]);
    figures
}
