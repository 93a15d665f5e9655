//! Random operations on locks, queues and groups of locks.

use proptest::prelude::*;

use super::random_claim::{ClaimKind, KEYS, RandomClaim, SHAPES};
use super::times::{TTLS, WAITERS};

/// One random operation that is applied to both masters.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Acquire(RandomClaim, usize, i64),
    /// Confirms the fencing token that is the sum of the current fencing counter and this `i64`.
    Confirm(RandomClaim, i64),
    Value(ValueOperation),
    Release(RandomClaim, bool),
    Extend(Vec<(RandomClaim, usize)>),
    Status(usize),
    /// One step of a force-release: the index of the key, and bits that select the locks to end, and whether to delete
    /// the lock key.
    Break(usize, u8),
    /// Writes a lock key as another client would: the index of the key, and the index of the TTL (`None`: no expiry).
    Put(usize, Option<usize>),
    Foreign(usize),
    ForeignCounter(usize),
    Counter(usize, i64),
    Delete(usize),
    DeleteCounter(usize),
    /// Sets the fencing counter as a client whose clock is a month ahead would.
    CounterAhead(usize),
    DeleteTicket(usize),
    /// Puts a key of another data type in place of a break record (the record of a forced release).
    ForeignBreakRecord(usize),
    /// Waits for 30 ms, half of the short durations.
    Pause,
    /// Waits until all waiters, and all keys with a short lifetime, have expired.
    PauseUntilExpiry,
    /// Writes notes for the claims of several holders. Some of these claims may be withdrawn.
    Note(Vec<RandomClaim>),
    /// Replaces a note with a key of another data type (`true`) or with another client's text (`false`).
    ForeignNote(usize, bool),
}

/// One operation on the value that is stored under a lock.
#[derive(Clone, Debug)]
pub(super) enum ValueOperation {
    /// Reads the stored value with a fencing token: the sum of the current fencing counter and this `i64`.
    Read(RandomClaim, i64),
    /// Stores this digit, or removes the stored value if it is `None`. The fencing token of the write is the sum of the
    /// current fencing counter and the `i64`.
    Write(RandomClaim, i64, Option<u8>),
    Foreign(usize),
    /// Puts a string that is not a valid stored value under the key of the stored value.
    Malformed(usize),
    Delete(usize),
}

fn claim_kind() -> impl Strategy<Value = ClaimKind> {
    prop_oneof![
        1 => Just(ClaimKind::Classic),
        2 => Just(ClaimKind::Unordered),
        1 => Just(ClaimKind::Try),
        3 => (0..WAITERS).prop_map(ClaimKind::Waiter),
    ]
}

/// A random operation on plain locks, classic locks and their queues.
pub(super) fn single_operation() -> impl Strategy<Value = Operation> {
    let key = || 0..KEYS.len();
    let ttl = || 0..TTLS;
    let claim = || {
        let noted = any::<bool>();
        (
            key(),
            1..4u8,
            claim_kind(),
            prop::bool::weighted(0.1),
            noted,
        )
            .prop_map(|(key, token, kind, withdrawn, noted)| RandomClaim {
                key,
                token,
                kind,
                withdrawn,
                noted,
            })
    };
    // Keep proposed fencing numbers within 400 ms of the clock, so that masters do not change them.
    let shift = || -400_000..400_000i64;
    prop_oneof![
        8 => (claim(), ttl(), shift()).prop_map(|(claim, ttl, shift)| Operation::Acquire(claim, ttl, shift)),
        4 => (claim(), -2..3i64).prop_map(|(claim, shift)| Operation::Confirm(claim, shift)),
        3 => (claim(), -2..3i64).prop_map(|(claim, shift)| Operation::Value(ValueOperation::Read(claim, shift))),
        3 => (claim(), -2..3i64, prop::option::weighted(0.8, 0..9u8))
            .prop_map(|(claim, shift, digit)| Operation::Value(ValueOperation::Write(claim, shift, digit))),
        1 => key().prop_map(|key| Operation::Value(ValueOperation::Foreign(key))),
        1 => key().prop_map(|key| Operation::Value(ValueOperation::Malformed(key))),
        2 => key().prop_map(|key| Operation::Value(ValueOperation::Delete(key))),
        4 => (claim(), any::<bool>()).prop_map(|(claim, leave)| Operation::Release(claim, leave)),
        4 => prop::collection::vec((claim(), ttl()), 1..4).prop_map(Operation::Extend),
        2 => key().prop_map(Operation::Status),
        2 => (key(), any::<u8>()).prop_map(|(key, bits)| Operation::Break(key, bits)),
        1 => (key(), prop::option::of(ttl())).prop_map(|(key, ttl)| Operation::Put(key, ttl)),
        1 => key().prop_map(Operation::Foreign),
        1 => key().prop_map(Operation::ForeignCounter),
        1 => (key(), shift()).prop_map(|(key, shift)| Operation::Counter(key, shift)),
        2 => key().prop_map(Operation::Delete),
        1 => key().prop_map(Operation::DeleteCounter),
        1 => key().prop_map(Operation::CounterAhead),
        1 => key().prop_map(Operation::DeleteTicket),
        1 => key().prop_map(Operation::ForeignBreakRecord),
        3 => Just(Operation::Pause),
        2 => Just(Operation::PauseUntilExpiry),
        4 => prop::collection::vec(claim(), 1..4).prop_map(Operation::Note),
        1 => (key(), any::<bool>()).prop_map(|(key, foreign)| Operation::ForeignNote(key, foreign)),
    ]
}

/// A random operation on a queue: its waiters arrive, send heartbeats, get the lock, leave and die.
pub(super) fn queue_operation() -> impl Strategy<Value = Operation> {
    let waiter = || {
        (1..4u8, 0..WAITERS).prop_map(|(token, waiter)| RandomClaim {
            key: 0,
            token,
            kind: ClaimKind::Waiter(waiter),
            withdrawn: false,
            noted: true,
        })
    };
    let ttl = || 0..TTLS;
    prop_oneof![
        8 => (waiter(), ttl()).prop_map(|(claim, ttl)| Operation::Acquire(claim, ttl, 0)),
        5 => (waiter(), prop::bool::weighted(0.8)).prop_map(|(claim, leave)| Operation::Release(claim, leave)),
        3 => Just(Operation::Delete(0)),
        1 => Just(Operation::DeleteTicket(0)),
        2 => any::<u8>().prop_map(|bits| Operation::Break(0, bits)),
        4 => Just(Operation::Pause),
        1 => Just(Operation::PauseUntilExpiry),
        2 => waiter().prop_map(|claim| Operation::Note(vec![claim])),
    ]
}

/// A random operation on a lock on several resources, a shared lock (readers or holds of one owner), a semaphore, or a
/// plain lock.
pub(super) fn group_operation() -> impl Strategy<Value = Operation> {
    let waiter = || prop::option::weighted(0.6, 0..WAITERS);
    let kind = prop_oneof![
        6 => (0..SHAPES.len(), waiter()).prop_map(|(shape, waiter)| ClaimKind::Group(shape, waiter)),
        1 => Just(ClaimKind::Unordered),
        1 => (0..WAITERS).prop_map(ClaimKind::Waiter),
        4 => (0..3u8, waiter()).prop_map(|(slot, waiter)| ClaimKind::Permit(slot, waiter)),
    ];
    let claim = move || {
        (
            0..KEYS.len(),
            1..5u8,
            kind.clone(),
            prop::bool::weighted(0.05),
        )
            .prop_map(|(key, token, kind, withdrawn)| RandomClaim {
                noted: token == 1,
                key,
                token,
                kind,
                withdrawn,
            })
    };
    let ttl = || 0..TTLS;
    prop_oneof![
        9 => (claim(), ttl(), -400_000..400_000i64).prop_map(|(claim, ttl, shift)| Operation::Acquire(claim, ttl, shift)),
        3 => (claim(), -1..2i64).prop_map(|(claim, shift)| Operation::Confirm(claim, shift)),
        6 => (claim(), any::<bool>()).prop_map(|(claim, leave)| Operation::Release(claim, leave)),
        2 => prop::collection::vec(claim(), 1..3).prop_map(Operation::Note),
        4 => prop::collection::vec((claim(), ttl()), 1..4).prop_map(Operation::Extend),
        1 => (0..KEYS.len()).prop_map(Operation::Status),
        2 => (0..KEYS.len(), any::<u8>()).prop_map(|(key, bits)| Operation::Break(key, bits)),
        1 => (0..KEYS.len()).prop_map(Operation::Foreign),
        1 => (0..KEYS.len()).prop_map(Operation::ForeignCounter),
        2 => (0..KEYS.len()).prop_map(Operation::Delete),
        1 => (0..KEYS.len()).prop_map(Operation::CounterAhead),
        1 => (0..KEYS.len()).prop_map(Operation::DeleteTicket),
        1 => (0..KEYS.len()).prop_map(Operation::ForeignBreakRecord),
        2 => Just(Operation::Pause),
        1 => Just(Operation::PauseUntilExpiry),
    ]
}
