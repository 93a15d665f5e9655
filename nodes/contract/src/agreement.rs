//! Tests that a master gives the same replies as the memory master. Random sequences of operations are carried out on
//! both masters, and their replies and keys are compared after each operation.

mod action;
mod equality;
mod expiry_times;
mod key_states;
mod operation;
mod orders;
mod pair;
mod random_claim;
mod times;
mod wake_ups;

use std::future::Future;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::seed::seed;
use crate::tested_master::TestedMaster;
use operation::{Operation, group_operation, queue_operation, single_operation};
use pair::Pair;

pub use equality::agree;
pub use orders::compare_orders;
pub use times::Times;
pub use wake_ups::{PROCESS, WakeUps};

/// How many random sequences a comparison runs.
#[derive(Clone, Copy)]
pub struct Sequences {
    short_count: u32,
    full_count: u32,
}

impl Sequences {
    /// `full_count` sequences if the variable `QUORATE_TEST_SEQUENCES` is `all`, and otherwise `short_count` sequences.
    pub const fn new(short_count: u32, full_count: u32) -> Self {
        Self {
            short_count,
            full_count,
        }
    }

    /// The number of sequences that this test run compares.
    pub fn count(self) -> u32 {
        match std::env::var("QUORATE_TEST_SEQUENCES").as_deref() {
            Ok("all") => self.full_count,
            _ => self.short_count,
        }
    }
}

/// Which random operations a comparison carries out.
#[derive(Clone, Copy, Debug)]
pub enum Operations {
    /// Operations on plain locks, classic locks and their queues.
    Single,
    /// Operations on locks on several resources, shared locks, semaphores and plain locks.
    Groups,
    /// Operations on one queue: its waiters arrive, send heartbeats, get the lock, leave and die.
    Queue,
}

impl Operations {
    fn strategy(self) -> BoxedStrategy<Operation> {
        match self {
            Self::Single => single_operation().boxed(),
            Self::Groups => group_operation().boxed(),
            Self::Queue => queue_operation().boxed(),
        }
    }
}

/// Compares the master that `open` opens with the memory master, in random sequences of operations. `open` runs in a
/// new Tokio runtime, so this function must be called outside of a runtime.
///
/// # Panics
///
/// If a reply, a key or a wake-up differs. The message contains the shortest failing sequence that was found, and the
/// seed ([`seed`]).
pub fn compare(
    open: impl Future<Output = TestedMaster>,
    times: &Times,
    sequences: Sequences,
    operations: Operations,
) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let pair = runtime.block_on(async { Pair::new(open.await) });
    let strategy = prop::collection::vec(operations.strategy(), 1..40);
    run_sequences(sequences, strategy, |operations| {
        runtime.block_on(pair.compare_sequence(&operations, times))
    });
    let cases = sequences.count();
    let [compared, cut_short] =
        [&pair.compared, &pair.cut_short].map(|count| count.load(Ordering::Relaxed));
    println!("{compared} steps compared, {cut_short} of {cases} sequences cut short");
}

/// Draws random sequences of operations, and calls `compare` with each. Panics with the shortest failing sequence that
/// was found, and the seed.
fn run_sequences<O: std::fmt::Debug>(
    sequences: Sequences,
    strategy: impl Strategy<Value = Vec<O>>,
    compare: impl Fn(Vec<O>) -> Result<(), TestCaseError>,
) {
    let seed = seed();
    let config = Config {
        cases: sequences.count(),
        failure_persistence: None,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let outcome = TestRunner::new_with_rng(config, rng).run(&strategy, compare);
    if let Err(TestError::Fail(why, operations)) = &outcome {
        panic!("QUORATE_SEED={seed}: {why}\n{operations:#?}");
    }
    outcome.unwrap_or_else(|error| panic!("QUORATE_SEED={seed}: {error}"));
}
