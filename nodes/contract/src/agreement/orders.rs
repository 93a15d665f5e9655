//! Compares how two masters execute random orders of operators.

use std::cell::Cell;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use quorate::node::{ChangeOrder, ChangeSeen, Class, Fault};

use super::equality::times_agree;
use super::times::BLUR;
use super::{Sequences, run_sequences};
use crate::cases::operator::{AGE_KEY, COUNTER_TTL, MARKER_KEY, carry, raise};
use crate::fixtures::{counter_key, now, token_text};
use crate::key_access::KeyAccess;
use crate::tested_master::TestedMaster;
use crate::time::secs;

/// The locks whose keys the operations use.
const LOCKS: [&[u8]; 3] = [b"a", b"b", b"r*"];

/// The fingerprints in markers, with and without that of a name.
const PRINTS: [&str; 4] = ["aa", "bb", "aa cc", "bb cc"];

/// One random operation that is applied to both masters.
#[derive(Clone, Debug)]
enum Operation {
    ReadState,
    /// Raises the marker to this number, with the fingerprint of this index. The flag says whether a marker was lost.
    Raise(u64, usize, bool),
    /// Raises the counters of these locks, each to a number with this distance to the clock.
    Carry(Vec<(usize, Ahead)>),
    /// Lists the counters that are behind the clock by at most this many seconds.
    Counters(u64),
    Values,
    /// Changes a key as another program or another client would.
    Put(Key, Content),
}

/// A key that an operation changes. The number is the index of its lock.
#[derive(Clone, Copy, Debug)]
enum Key {
    Marker,
    Age,
    Lock(usize),
    Counter(usize),
    Value(usize),
}

/// The new content of a key.
#[derive(Clone, Debug)]
enum Content {
    Nothing,
    /// A value of another type than string.
    Foreign,
    Text(String),
    /// A lock value of an owner.
    Owner,
    /// A lock value of an exclusive lock.
    Token,
    /// A number with this distance to the clock, as a fencing counter contains it.
    Number(Ahead),
}

/// A distance to the clock, in seconds and microseconds. The clock is the same in the whole sequence.
#[derive(Clone, Copy, Debug)]
struct Ahead(i64, i64);

impl Ahead {
    fn number(self, clock: u64) -> u64 {
        clock.saturating_add_signed(self.0 * 1_000_000 + self.1)
    }
}

fn ahead() -> impl Strategy<Value = Ahead> {
    // All distances are far from those at which an operation depends on the time at which it is executed: the limits of
    // `Counters`, and a second ahead of the clock.
    let seconds =
        prop_oneof![6 => Just(0), 1 => Just(-500), 1 => Just(-5_000), 1 => Just(86_400 * 30)];
    (seconds, -2..3i64).prop_map(|(seconds, micros)| Ahead(seconds, micros))
}

fn lock() -> std::ops::Range<usize> {
    0..LOCKS.len()
}

fn put() -> impl Strategy<Value = Operation> {
    let marker_text = (0..9u64, 0..PRINTS.len())
        .prop_map(|(number, print)| Content::Text(format!("{number} {}", PRINTS[print])));
    let text = prop_oneof![
        Just("x"),
        Just(""),
        Just("1"),
        Just("1 aa bb cc"),
        Just("5 XY")
    ]
    .prop_map(|text| Content::Text(text.to_owned()));
    let text = move || text.clone();
    let gone = || Just(Content::Nothing);
    let foreign = || Just(Content::Foreign);
    let marker = prop_oneof![3 => gone(), 1 => foreign(), 2 => text(), 3 => marker_text];
    let lock_content = prop_oneof![
        3 => gone(), 1 => foreign(), 1 => text(), 4 => Just(Content::Owner), 2 => Just(Content::Token)
    ];
    let number = ahead().prop_map(Content::Number);
    let counter = prop_oneof![2 => gone(), 1 => foreign(), 1 => text(), 6 => number];
    prop_oneof![
        3 => marker.prop_map(|content| Operation::Put(Key::Marker, content)),
        1 => prop_oneof![gone(), foreign()].prop_map(|content| Operation::Put(Key::Age, content)),
        3 => (lock(), lock_content).prop_map(|(lock, content)| Operation::Put(Key::Lock(lock), content)),
        4 => (lock(), counter).prop_map(|(lock, content)| Operation::Put(Key::Counter(lock), content)),
        2 => (lock(), prop_oneof![gone(), foreign(), text()])
            .prop_map(|(lock, content)| Operation::Put(Key::Value(lock), content)),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let counters = prop::collection::vec((lock(), ahead()), 1..4);
    prop_oneof![
        1 => Just(Operation::ReadState),
        6 => (0..9u64, 0..PRINTS.len(), any::<bool>())
            .prop_map(|(number, print, restores)| Operation::Raise(number, print, restores)),
        6 => counters.prop_map(Operation::Carry),
        2 => prop_oneof![Just(60), Just(1_000), Just(100_000)].prop_map(Operation::Counters),
        1 => Just(Operation::Values),
        10 => put(),
    ]
}

impl Key {
    fn name(self) -> Vec<u8> {
        match self {
            Self::Marker => MARKER_KEY.to_vec(),
            Self::Age => AGE_KEY.to_vec(),
            Self::Lock(lock) => LOCKS[lock].to_vec(),
            Self::Counter(lock) => counter_key(LOCKS[lock]),
            Self::Value(lock) => [b"quorate:value:", LOCKS[lock]].concat(),
        }
    }

    fn all() -> impl Iterator<Item = Self> {
        let of_locks =
            lock().flat_map(|lock| [Self::Lock(lock), Self::Counter(lock), Self::Value(lock)]);
        [Self::Marker, Self::Age].into_iter().chain(of_locks)
    }
}

impl Content {
    fn put(&self, keys: &dyn KeyAccess, key: Key, clock: u64) {
        let key_name = key.name();
        let text = match self {
            Self::Nothing => return keys.delete(&key_name),
            Self::Foreign => return keys.put_foreign(&key_name),
            Self::Text(text) => text.clone().into_bytes(),
            Self::Owner => Class::Owner("me".into()).lock_value(),
            Self::Token => token_text(1),
            Self::Number(ahead) => ahead.number(clock).to_string().into_bytes(),
        };
        let ttl = matches!(self, Self::Number(_)).then_some(COUNTER_TTL / 2);
        keys.put(&key_name, &text, ttl);
    }
}

/// The parts of the state of a master that must be equal on two masters: all except those that depend on the server, its
/// clock and its connections.
#[derive(Debug, PartialEq)]
struct Seen {
    fault: Option<std::mem::Discriminant<Fault>>,
    mark: Option<String>,
    counters: Vec<(Vec<u8>, u64)>,
    owned: Vec<(Vec<u8>, Vec<u8>)>,
    values: usize,
    names: Vec<Vec<u8>>,
}

impl From<ChangeSeen> for Seen {
    fn from(seen: ChangeSeen) -> Self {
        Self {
            fault: seen.fault.as_ref().map(std::mem::discriminant),
            mark: seen.mark,
            counters: seen.counters,
            owned: seen.owned,
            values: seen.values,
            names: seen.names,
        }
    }
}

/// The content of a key, and its remaining time. Of an age record, only the age and whether the record was restored: the
/// run id and the life differ.
fn key_state(master: &TestedMaster, key: Key) -> (Option<Vec<u8>>, Option<Duration>) {
    let (text, ttl) = master.keys().read_with_ttl(&key.name());
    let Key::Age = key else { return (text, ttl) };
    let words = text.map(|text| {
        let text = String::from_utf8_lossy(&text).into_owned();
        let is_restored = text.contains(" 0 lost-");
        format!("{} words, restored: {is_restored}", text.split(' ').count()).into_bytes()
    });
    (words, ttl)
}

struct Orders {
    masters: [TestedMaster; 2],
    compared: Cell<usize>,
}

impl Orders {
    async fn carry_out(&self, operation: &Operation, clock: u64) -> Option<[Seen; 2]> {
        let order = match operation {
            Operation::ReadState => ChangeOrder::ReadState,
            Operation::Raise(number, print, restores) => raise(*number, PRINTS[*print], *restores),
            Operation::Carry(counters) => {
                let counters = counters
                    .iter()
                    .map(|(lock, ahead)| (LOCKS[*lock], ahead.number(clock)));
                carry(&counters.collect::<Vec<_>>())
            }
            Operation::Counters(within) => ChangeOrder::Counters(secs(*within)),
            Operation::Values => ChangeOrder::Values,
            Operation::Put(key, content) => {
                for master in &self.masters {
                    content.put(master.keys(), *key, clock);
                }
                return None;
            }
        };
        let [first, second] = &self.masters;
        let first = first.order(order.clone()).await;
        Some([first.into(), second.order(order).await.into()])
    }

    async fn compare_sequence(&self, operations: &[Operation]) -> Result<(), TestCaseError> {
        let clock = now();
        for master in &self.masters {
            master.keys().clear();
        }
        for (step, operation) in operations.iter().enumerate() {
            if let Some([first, second]) = self.carry_out(operation, clock).await {
                prop_assert_eq!(first, second, "step {}: {:?}", step, operation);
            }
            for key in Key::all() {
                let [first, second] = &self.masters;
                let (first, second) = (key_state(first, key), key_state(second, key));
                let is_equal = first.0 == second.0 && times_agree(first.1, second.1, BLUR);
                prop_assert!(
                    is_equal,
                    "step {step}: {operation:?}: {key:?}: {first:?}, {second:?}"
                );
            }
            self.compared.set(self.compared.get() + 1);
        }
        Ok(())
    }
}

/// Compares how the masters that `open_first` and `open_second` open execute the orders of operators, in random
/// sequences. The functions run in a new Tokio runtime, so this function must be called outside of a runtime.
///
/// # Panics
///
/// If a reply or a key differs. The message contains the shortest failing sequence that was found, and the seed
/// ([`seed`](crate::seed)).
pub fn compare_orders(
    open_first: impl FnOnce() -> TestedMaster,
    open_second: impl FnOnce() -> TestedMaster,
    sequences: Sequences,
) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let masters = runtime.block_on(async { [open_first(), open_second()] });
    let orders = Orders {
        masters,
        compared: Cell::new(0),
    };
    let strategy = prop::collection::vec(operation(), 1..40);
    run_sequences(sequences, strategy, |operations| {
        runtime.block_on(orders.compare_sequence(&operations))
    });
    println!("{} steps compared", orders.compared.get());
}
