//! Turns random operations into actions on both masters.

use std::time::Duration;

use quorate::node::{Claim, Class, Ended, NoteItem, Request};

use super::operation::{Operation, ValueOperation};
use super::random_claim::{KEYS, RandomClaim};
use super::times::{BLINK, Times};
use crate::fixtures::{counter_key, now, token_text};
use crate::key_access::KeyAccess;
use crate::requests;
use crate::tested_master::TestedMaster;
use crate::time::secs;

const MONTH: Duration = secs(30 * 86_400);

fn value_key(key: &[u8]) -> Vec<u8> {
    [b"quorate:value:", key].concat()
}

/// Sets a fencing counter, with the same expiry that a script of the library would give it.
fn put_counter(keys: &dyn KeyAccess, key: &[u8], number: u64) {
    let time_ahead = Duration::from_micros(number.saturating_sub(now()));
    let ttl = secs(86_400 + 1_001) + time_ahead;
    keys.put(&counter_key(key), number.to_string().as_bytes(), Some(ttl));
}

fn clock_shifted_by(shift: i64) -> u64 {
    now().saturating_add_signed(shift)
}

/// An operation that can be applied to both masters: a request, a direct change of the keys, or a pause. `Pause(None)`
/// waits until all short TTLs and heartbeat times have ended.
pub(super) enum Action {
    Send(Request),
    Change(Box<Change>),
    Pause(Option<Duration>),
}

/// A direct change of the keys of a master.
pub(super) type Change = dyn Fn(&dyn KeyAccess);

fn change(change: impl Fn(&dyn KeyAccess) + 'static) -> Action {
    Action::Change(Box::new(change))
}

/// Turns a random operation into an [`Action`]. Its fencing numbers are chosen close to the counters of the master
/// `model`.
pub(super) fn action(operation: &Operation, model: &TestedMaster, times: &Times) -> Action {
    let ttls = times.ttls;
    match operation.clone() {
        Operation::Acquire(random, ttl, shift) => Action::Send(requests::acquire(
            &random.claim(times),
            ttls[ttl],
            clock_shifted_by(shift),
        )),
        Operation::Confirm(random, shift) => {
            let claim = random.claim(times);
            let number = current_counter(model, claim.key()).saturating_add_signed(shift);
            Action::Send(requests::confirm(&claim, number))
        }
        Operation::Value(operation) => value_action(operation, model, times),
        Operation::Release(random, leave) => Action::Send(Request::Release {
            claim: random.claim(times),
            leave,
        }),
        Operation::Extend(items) => extension(&items, model, times),
        Operation::Status(key) => Action::Send(requests::status(KEYS[key])),
        Operation::Break(key, bits) => force_release(KEYS[key], bits, model),
        Operation::Put(key, ttl) => change(move |keys| {
            let value = token_text(1);
            keys.put(KEYS[key], &value, ttl.map(|ttl| ttls[ttl]));
        }),
        Operation::Foreign(key) => change(move |keys| keys.put_foreign(KEYS[key])),
        Operation::ForeignCounter(key) => {
            change(move |keys| keys.put_foreign(&counter_key(KEYS[key])))
        }
        Operation::Counter(key, shift) => {
            let number = clock_shifted_by(shift);
            change(move |keys| put_counter(keys, KEYS[key], number))
        }
        Operation::Delete(key) => change(move |keys| keys.delete(KEYS[key])),
        Operation::DeleteCounter(key) => change(move |keys| keys.delete(&counter_key(KEYS[key]))),
        Operation::CounterAhead(key) => {
            let month_ahead = now() + MONTH.as_micros() as u64;
            change(move |keys| put_counter(keys, KEYS[key], month_ahead))
        }
        Operation::DeleteTicket(key) => change(move |keys| keys.delete_ticket(KEYS[key])),
        Operation::ForeignBreakRecord(key) => change(move |keys| {
            keys.put_foreign(&[b"quorate:broken:", KEYS[key]].concat());
        }),
        Operation::Pause => Action::Pause(Some(BLINK / 2)),
        Operation::PauseUntilExpiry => Action::Pause(None),
        Operation::Note(holders) => {
            let items = holders.iter().map(|random| NoteItem {
                claim: random.claim(times),
                says: format!("{}\thost\tprogram\t", random.token).into(),
                since: 1,
                announce: random.noted,
            });
            let items = items.collect();
            Action::Send(Request::Note { items })
        }
        Operation::ForeignNote(key, foreign) => change(move |keys| {
            let note_key = [b"quorate:note:", KEYS[key]].concat();
            if foreign {
                keys.put_foreign(&note_key);
            } else {
                keys.put(&note_key, b"somebody", Some(ttls[2]));
            }
        }),
    }
}

/// A step of a force-release. Each of the four lowest bits selects a lock to end: the exclusive locks with the tokens 1
/// to 3, and the readers' lock with the holds of the tokens 1 and 2. The next bit says whether the lock key is deleted.
fn force_release(key: &[u8], bits: u8, model: &TestedMaster) -> Action {
    let exclusive = (1..4).map(|n| Ended::new(&token_text(n), &token_text(n)));
    let shared_value = Class::Shared.lock_value();
    let counter_line = format!("\t{}\n", current_counter(model, key));
    let record = [
        &shared_value[..],
        counter_line.as_bytes(),
        &token_text(1),
        b"\n",
        &token_text(2),
    ]
    .concat();
    let ended_locks = exclusive
        .chain([Ended::new(&shared_value, &record)])
        .enumerate();
    let ended = ended_locks.filter(|(bit, _)| bits & 1 << bit != 0);
    let ended: Vec<_> = ended.map(|(_, lock)| lock).collect();
    Action::Send(requests::force_release(key, &ended, bits & 16 != 0))
}

fn extension(items: &[(RandomClaim, usize)], model: &TestedMaster, times: &Times) -> Action {
    let claims: Vec<_> = items
        .iter()
        .map(|(random, _)| random.claim(times))
        .collect();
    for claim in &claims {
        if let Some(group) = claim.group() {
            // Set the claim's fencing number to the current counter, to one less, or to one more.
            let number = current_counter(model, claim.key());
            let shift = i64::from(claim.token().to_hex()[31] % 3) - 1;
            group.agreed(number.saturating_add_signed(shift));
        }
    }
    let items: Vec<_> = claims
        .iter()
        .zip(items)
        .map(|(claim, (_, ttl))| (claim, times.ttls[*ttl]))
        .collect();
    Action::Send(requests::extend(&items))
}

fn value_action(operation: ValueOperation, model: &TestedMaster, times: &Times) -> Action {
    let near_counter = |claim: &Claim, shift: i64| {
        current_counter(model, claim.key()).saturating_add_signed(shift)
    };
    match operation {
        ValueOperation::Read(random, shift) => {
            let claim = random.claim(times);
            Action::Send(requests::read(&claim, near_counter(&claim, shift)))
        }
        ValueOperation::Write(random, shift, digit) => {
            let claim = random.claim(times);
            let number = near_counter(&claim, shift);
            Action::Send(match digit {
                Some(digit) => requests::write(&claim, number, &[b'0' + digit]),
                None => requests::remove(&claim, number),
            })
        }
        ValueOperation::Foreign(key) => change(move |keys| keys.put_foreign(&value_key(KEYS[key]))),
        ValueOperation::Malformed(key) => change(move |keys| {
            keys.put(&value_key(KEYS[key]), b"somebody else's", None);
        }),
        ValueOperation::Delete(key) => change(move |keys| keys.delete(&value_key(KEYS[key]))),
    }
}

/// The fencing counter of a lock on `model`, or the current time if the counter is missing or has another data type.
fn current_counter(model: &TestedMaster, key: &[u8]) -> u64 {
    match model.keys().read(&counter_key(key)).as_deref() {
        None | Some(b"foreign") => now(),
        Some(_) => model.keys().counter(key).unwrap_or_default(),
    }
}
