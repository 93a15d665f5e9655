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
use crate::contender::{Addresses, Name, builder_for};
use crate::goal::Bound;

/// The number of cycles per turn.
const CYCLES: usize = 60;

/// The number of nested holds that are timed as one group, because one hold takes far less than a microsecond. A nested
/// hold needs no command: the client already holds the lock for the same owner.
const NESTED_HOLDS: usize = 2_000;

/// The operations that are measured, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
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

const OPERATIONS: [Operation; 8] = [
    Operation::Plain,
    Operation::Together(2),
    Operation::InTurn(2),
    Operation::Together(4),
    Operation::InTurn(4),
    Operation::Reader,
    Operation::Further,
    Operation::Take,
];

/// The results of all turns of one operation.
#[derive(Default)]
struct OperationResults {
    /// The median duration of a cycle in each round, in nanoseconds.
    cycle: Vec<f64>,
    acquire: Vec<f64>,
    /// The number of commands sent per cycle, to all masters together.
    commands_per_cycle: f64,
}

/// The measured client, and a second client that holds a reentrant lock.
struct Bench {
    redlock: Redlock,
    quota: Quota,
    /// The handle of the reentrant lock's owner in the measured client.
    owner: Owner,
    /// The handle of the same owner in the second client.
    local_owner: Owner,
    held_guard: OwnedGuard,
}

impl Bench {
    async fn new(addresses: &Addresses) -> Self {
        let client = || builder_for(Name::Default, &addresses.urls).build();
        let (redlock, second_client) = (
            client().expect("the settings must be valid"),
            client().expect("the settings must be valid"),
        );
        let quota = redlock.quota("kinds:quota");
        quota
            .create(u64::MAX)
            .await
            .expect("the quota must be created");
        let local_owner = second_client.owner("order").expect("the id must be valid");
        let guard = local_owner
            .acquire("kinds:order")
            .await
            .expect("the lock must be free");
        Self {
            quota,
            owner: redlock.owner("order").expect("the id must be valid"),
            redlock,
            local_owner,
            held_guard: guard,
        }
    }

    /// Runs a series of cycles of this operation. If `is_counted` is true, waits before each release until all
    /// masters have answered the acquire. A release can withdraw requests that are still queued, and these would not be
    /// counted.
    async fn run_cycles(&self, operation: Operation, is_counted: bool) -> Samples {
        let await_all_answers = async || {
            if is_counted {
                self.redlock.flush().await;
            }
        };
        let mut samples = Samples::default();
        for cycle in 0..CYCLES {
            let release = async |guard: LockGuard| {
                await_all_answers().await;
                guard.release().await;
            };
            let name = format!("kinds:{}", cycle % 64);
            let names = |count| (0..count).map(move |part| format!("kinds:{cycle}:{part}"));
            match operation {
                Operation::Plain => {
                    let acquire = async { self.redlock.acquire(&name).await.ok() };
                    samples.cycle(acquire, release).await;
                }
                Operation::Together(count) => {
                    let joint_lock = self.redlock.lock_all(names(count));
                    let acquire = async { joint_lock.acquire().await.ok() };
                    samples.cycle(acquire, release).await;
                }
                Operation::InTurn(count) => {
                    let acquire = self.in_turn(names(count));
                    let release = async |guard: Vec<LockGuard>| {
                        await_all_answers().await;
                        release_all(guard).await;
                    };
                    samples.cycle(acquire, release).await;
                }
                Operation::Reader => {
                    let shared = self.redlock.lock(&name).shared();
                    let acquire = async { shared.acquire().await.ok() };
                    samples.cycle(acquire, release).await;
                }
                Operation::Further => {
                    let acquire = async { self.owner.acquire("kinds:order").await.ok() };
                    let release = async |guard: OwnedGuard| {
                        await_all_answers().await;
                        guard.release().await;
                    };
                    samples.cycle(acquire, release).await;
                }
                Operation::Take => {
                    let take = async { self.quota.take(1).await.ok() };
                    samples.cycle(take, async |_: Take| {}).await;
                }
            }
        }
        assert_eq!(samples.failed, 0, "{operation:?}");
        samples.sort();
        samples
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
        let started_at = Instant::now();
        for _ in 0..NESTED_HOLDS {
            let hold = self.local_owner.acquire("kinds:order").await;
            drop(black_box(hold).expect("the owner must acquire its lock again"));
        }
        started_at.elapsed().as_secs_f64() * 1e6 / NESTED_HOLDS as f64
    }
}

async fn release_all(guards: Vec<LockGuard>) {
    for guard in guards {
        guard.release().await;
    }
}

/// Measures all operations in turn and returns their figures.
pub(super) async fn measure(
    masters: &Masters,
    addresses: &Addresses,
    rounds: usize,
) -> Vec<Figure> {
    let bench = Bench::new(addresses).await;
    let mut results: [OperationResults; OPERATIONS.len()] = Default::default();
    // The first turn of each operation is a warm-up, in which the masters load the scripts. Only the commands of later
    // turns are counted.
    for (operation, result) in OPERATIONS.into_iter().zip(&mut results) {
        bench.run_cycles(operation, false).await;
        // In some turns, the client also renews the lock of `held_guard`, which adds commands. So take the turn with
        // the fewest.
        let mut fewest_sent = u64::MAX;
        for _ in 0..4 {
            bench.redlock.flush().await;
            let counts_before = Counts::read(masters, false);
            bench.run_cycles(operation, true).await;
            bench.redlock.flush().await;
            fewest_sent = fewest_sent.min(Counts::read(masters, false).since(counts_before).sent);
        }
        result.commands_per_cycle = fewest_sent as f64 / CYCLES as f64;
    }
    let counts_before = Counts::read(masters, false);
    let mut local_times = vec![bench.local_hold().await];
    let local_commands = Counts::read(masters, false).since(counts_before).sent;
    for round in 0..rounds {
        for turn in 0..OPERATIONS.len() {
            let index = (round + turn) % OPERATIONS.len();
            let samples = bench.run_cycles(OPERATIONS[index], false).await;
            results[index].cycle.push(quantile(&samples.cycle, 0.5));
            results[index].acquire.push(quantile(&samples.acquire, 0.5));
        }
        local_times.push(bench.local_hold().await);
    }
    assert!(
        bench.held_guard.is_valid(),
        "the lock must stay held during the whole measurement"
    );
    figures(&results, local_times, local_commands)
}

fn result_of(results: &[OperationResults], operation: Operation) -> &OperationResults {
    let index = OPERATIONS
        .iter()
        .position(|candidate| *candidate == operation);
    &results[index.expect("`OPERATIONS` must contain the operation")]
}

/// Divides the values of two operations, round by round.
fn ratios(values: &[f64], base: &[f64]) -> Vec<f64> {
    let pairs = values.iter().zip(base);
    pairs.map(|(value, base)| value / base).collect()
}

fn figures(
    results: &[OperationResults],
    local_times: Vec<f64>,
    local_commands: u64,
) -> Vec<Figure> {
    let result_of = |operation| result_of(results, operation);
    let plain = result_of(Operation::Plain);
    let cycle_ratios =
        |operation, base| ratios(&result_of(operation).cycle, &result_of(base).cycle);
    let further_ratios = ratios(&result_of(Operation::Further).acquire, &plain.acquire);
    let take_pairs = result_of(Operation::Take).cycle.iter().zip(&plain.cycle);
    let additional_trips = take_pairs.map(|(take, plain)| (take - plain) / (plain / 2.0));
    let sent_ratio =
        |operation| [result_of(operation).commands_per_cycle / plain.commands_per_cycle];
    let mut figures = vec![Figure::without_goal(
        "plain lock: time to acquire and release",
        "us",
        plain.cycle.iter().map(|nanos| nanos / 1e3),
    )];
    for (count, bound) in [(2, 0.6), (4, 0.35)] {
        let (together, in_turn) = (Operation::Together(count), Operation::InTurn(count));
        let time = format!(
            "one lock on {count} resources: cycle time, ratio to {count} plain locks in sequence"
        );
        let time_ratios = cycle_ratios(together, in_turn);
        figures.push(Figure::new(time, Bound::AtMost(bound), time_ratios));
        let messages = format!("one lock on {count} resources: messages, ratio to one plain lock");
        let message_ratio = sent_ratio(together);
        figures.push(Figure::new(messages, Bound::AtMost(1.0), message_ratio));
    }
    let reader = cycle_ratios(Operation::Reader, Operation::Plain);
    figures.extend([
        Figure::new(
            "reader: cycle time, ratio to a plain lock",
            Bound::AtMost(1.25),
            reader,
        ),
        Figure::new(
            "owner acquires its lock again in the same client: time",
            Bound::AtMost(1.0),
            local_times,
        )
        .in_unit("us"),
        Figure::new(
            "owner acquires its lock again in the same client: messages",
            Bound::AtMost(0.0),
            [local_commands as f64],
        ),
        Figure::new(
            "owner acquires its lock again in another client: time, ratio to a plain lock",
            Bound::AtMost(1.1),
            further_ratios,
        ),
        Figure::new(
            "take from a quota: round trips in addition to those of a plain lock",
            Bound::AtMost(2.0),
            additional_trips,
        ),
        Figure::without_goal(
            "take from a quota: messages, ratio to a plain lock",
            "",
            sent_ratio(Operation::Take),
        ),
    ]);
    figures
}
