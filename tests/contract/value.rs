//! Contract cases: the value that is stored for a lock on one master. Only the holder can read the value. The fencing
//! number of a write decides whether the master accepts the write.

use quorate::node::{Answer, Claim, Fault, NewValue, Request, ServerRun, StoredValue};
use quorate::{Instant, Token};
use std::sync::Arc;

use crate::arm::{Arm, LONG, Master, assert_about, fence, now};
use crate::support::asking::{acquire, claim, read, remove, write};
use crate::support::secs;

const KEY: &[u8] = b"job";

fn value(key: &[u8]) -> Vec<u8> {
    [b"quorate:value:", key].concat()
}

/// Acquires the lock `job` with a new claim. Returns the claim and its fencing number.
async fn held(arm: &Arm, n: u8) -> (Arc<Claim>, u64) {
    let claim = claim(KEY, n);
    let number = arm.granted(acquire(&claim, LONG, now())).await;
    (claim, number)
}

/// Reads the stored value, which must succeed. Returns the id of the server run (the run of the server process), and
/// the value.
async fn found(arm: &Arm, claim: &Arc<Claim>, number: u64) -> (ServerRun, Option<StoredValue>) {
    match arm.ask(read(claim, number)).await {
        Ok(Answer::Value { run, stored, clock }) => {
            if let Some(clock) = clock {
                let apart = clock.abs_diff(now());
                assert!(
                    apart < 60_000_000,
                    "the master's clock is off by {apart} us"
                );
            }
            (run, stored)
        }
        other => panic!("the value must be read, but: {other:?}"),
    }
}

async fn written(arm: &Arm, request: Request) -> ServerRun {
    match arm.ask(request).await {
        Ok(Answer::Written { run }) => run,
        other => panic!("the value must be written, but: {other:?}"),
    }
}

fn stored(number: u64, bytes: &[u8], trusted: bool) -> StoredValue {
    let bytes = bytes.to_vec();
    StoredValue {
        number,
        bytes,
        trusted,
    }
}

pub(crate) async fn read_of_an_absent_stored_value_returns_nothing(arm: &Arm) {
    let (claim, number) = held(arm, 1).await;
    assert_eq!(found(arm, &claim, number).await.1, None);
    assert_eq!(arm.keys(), 2, "only the lock key and its counter may exist");
}

pub(crate) async fn written_stored_value_is_read_by_the_next_holder(arm: &Arm) {
    let (first, number) = held(arm, 1).await;
    let bytes = b"any \0 bytes\r\n\xff ";
    let wrote = written(arm, write(&first, number, bytes)).await;
    arm.delete(KEY);
    let (second, later) = held(arm, 2).await;
    let (run, there) = found(arm, &second, later).await;
    assert_eq!(there, Some(stored(number, bytes, true)));
    assert_eq!(
        run, wrote,
        "read and write must report the same run of the server process"
    );
    written(arm, write(&second, later, b"")).await;
    assert_eq!(
        found(arm, &second, later).await.1,
        Some(stored(later, b"", true))
    );
}

pub(crate) async fn stored_value_never_expires(arm: &Arm) {
    let (claim, number) = held(arm, 1).await;
    written(arm, write(&claim, number, b"3")).await;
    assert!(arm.read(&value(KEY)).is_some());
    assert_eq!(arm.ttl(&value(KEY)), None);
}

pub(crate) async fn read_of_a_stored_value_sets_the_fencing_counter_to_the_number_of_its_reader(
    arm: &Arm,
) {
    let (claim, number) = held(arm, 1).await;
    arm.put(&fence(KEY), number.to_string().as_bytes(), Some(secs(600)));
    found(arm, &claim, number + 7).await;
    assert_eq!(arm.counter(KEY), Some(number + 7));
    assert_about(arm.ttl(&fence(KEY)), secs(86_400));
    // The read also sets the fencing counter if the counter key is missing.
    arm.delete(&fence(KEY));
    found(arm, &claim, number + 7).await;
    assert_eq!(arm.counter(KEY), Some(number + 7));
}

pub(crate) async fn only_the_holder_of_the_lock_can_read_the_stored_value(arm: &Arm) {
    let (claim_of_holder, number) = held(arm, 1).await;
    written(arm, write(&claim_of_holder, number, b"3")).await;
    let said = arm.ask(read(&claim(KEY, 2), number + 1)).await;
    assert_eq!(said, Ok(Answer::NotOurs));
    let said = arm.ask(read(&claim(b"free", 1), 7)).await;
    assert_eq!(said, Ok(Answer::NotOurs));
    assert_eq!(arm.counter(KEY), Some(number));
    assert_eq!(arm.keys(), 3);
}

pub(crate) async fn read_with_a_number_below_the_fencing_counter_is_refused_with_the_counter(
    arm: &Arm,
) {
    let (claim, number) = held(arm, 1).await;
    let said = arm.ask(read(&claim, number - 1)).await;
    assert_eq!(said, Ok(Answer::CounterAbove(number)));
    assert_eq!(arm.counter(KEY), Some(number));
}

pub(crate) async fn stored_value_with_a_number_ahead_of_its_reader_can_be_read_only_by_a_later_holder(
    arm: &Arm,
) {
    let (first, number) = held(arm, 1).await;
    // Write the value with a fencing number that is a day ahead, as a client with a fast clock would.
    let ahead = number + 86_400_000_000;
    written(arm, write(&first, ahead, b"3")).await;
    arm.put(&fence(KEY), number.to_string().as_bytes(), Some(secs(600)));
    let said = arm.ask(read(&claim(KEY, 2), number)).await;
    assert_eq!(said, Ok(Answer::NotOurs));
    assert_eq!(
        arm.counter(KEY),
        Some(number),
        "a client that does not hold the lock must not change the counter"
    );
    let said = arm.ask(read(&first, number)).await;
    assert_eq!(said, Ok(Answer::CounterAbove(ahead)));
    assert_eq!(arm.counter(KEY), Some(ahead));
    assert_about(arm.ttl(&fence(KEY)), secs(2 * 86_400));
    arm.delete(KEY);
    let (second, later) = held(arm, 2).await;
    assert!(later > ahead, "{later} {ahead}");
    let there = found(arm, &second, later).await.1;
    assert_eq!(there, Some(stored(ahead, b"3", true)));
}

pub(crate) async fn write_with_a_number_below_the_fencing_counter_is_refused(arm: &Arm) {
    let (first, number) = held(arm, 1).await;
    written(arm, write(&first, number, b"3")).await;
    arm.delete(KEY);
    let (second, later) = held(arm, 2).await;
    found(arm, &second, later).await;
    for late in [write(&first, number, b"2"), remove(&first, number)] {
        assert_eq!(arm.ask(late).await, Ok(Answer::CounterAbove(later)));
    }
    assert_eq!(
        found(arm, &second, later).await.1,
        Some(stored(number, b"3", true))
    );
}

pub(crate) async fn write_with_a_number_below_that_of_the_stored_value_is_refused(arm: &Arm) {
    let (claim, number) = held(arm, 1).await;
    written(arm, write(&claim, number, b"3")).await;
    // If the lock is not used for a day, its fencing counter expires, and the stored value remains.
    arm.delete(&fence(KEY));
    let said = arm.ask(write(&claim, number - 1, b"9")).await;
    assert_eq!(said, Ok(Answer::CounterAbove(number)));
    written(arm, write(&claim, number, b"2")).await;
}

pub(crate) async fn write_with_a_number_below_that_of_a_removal_is_refused(arm: &Arm) {
    let (claim, number) = held(arm, 1).await;
    written(arm, write(&claim, number, b"3")).await;
    // A later holder removes the value. This master has not received the acquire of that holder.
    written(arm, remove(&claim, number + 1)).await;
    assert_eq!(arm.counter(KEY), Some(number + 1));
    let late = arm.ask(write(&claim, number, b"3")).await;
    assert_eq!(late, Ok(Answer::CounterAbove(number + 1)));
    assert_eq!(arm.read(&value(KEY)), None);
}

pub(crate) async fn write_is_decided_by_fencing_numbers_and_not_by_the_lock_key(arm: &Arm) {
    let (claim, number) = held(arm, 1).await;
    arm.delete(KEY);
    written(arm, write(&claim, number, b"3")).await;
    assert_eq!(
        arm.counter(KEY),
        Some(number),
        "a write must not raise the fencing counter"
    );
}

pub(crate) async fn removal_of_a_stored_value_keeps_the_lock_key_and_the_fencing_counter(
    arm: &Arm,
) {
    let (claim, number) = held(arm, 1).await;
    written(arm, remove(&claim, number)).await;
    written(arm, write(&claim, number, b"3")).await;
    written(arm, remove(&claim, number)).await;
    assert_eq!(arm.read(&value(KEY)), None);
    assert_eq!(found(arm, &claim, number).await.1, None);
    assert_eq!(arm.counter(KEY), Some(number));
}

pub(crate) async fn stored_value_of_another_server_run_is_trusted_on_durable_servers_only(
    arm: &Arm,
) {
    let (claim, number) = held(arm, 1).await;
    let text = format!("{number} {} 3 of 4", "0".repeat(40));
    arm.put(&value(KEY), text.as_bytes(), None);
    let (run, there) = found(arm, &claim, number).await;
    // After a restart, a client trusts an older value only if the master is durable. In this suite, only the memory
    // master is not durable.
    let lasts = !matches!(arm.master, Master::Memory(_));
    assert_eq!(there, Some(stored(number, b"3 of 4", lasts)));
    assert_ne!(run.as_str(), "0".repeat(40));
}

pub(crate) async fn read_write_and_removal_fail_if_the_key_of_the_value_has_another_data_type(
    arm: &Arm,
) {
    let (claim, number) = held(arm, 1).await;
    arm.put_foreign(&value(KEY));
    for request in [
        read(&claim, number + 1),
        write(&claim, number + 1, b"3"),
        remove(&claim, number + 1),
    ] {
        assert_eq!(arm.ask(request).await, Err(Fault::WrongType));
    }
    assert_eq!(arm.read(&value(KEY)).as_deref(), Some(&b"foreign"[..]));
    assert_eq!(arm.counter(KEY), Some(number));
}

pub(crate) async fn read_write_and_removal_fail_if_the_key_of_the_value_contains_a_foreign_string(
    arm: &Arm,
) {
    let (claim, number) = held(arm, 1).await;
    for strange in [
        "",
        "7",
        "7 run",
        "some text here",
        "-7 run x",
        "0 run x",
        "+7 run x",
    ] {
        arm.put(&value(KEY), strange.as_bytes(), None);
        for request in [
            read(&claim, number),
            write(&claim, number, b"3"),
            remove(&claim, number),
        ] {
            let said = arm.ask(request).await;
            assert!(matches!(said, Err(Fault::Server(_))), "{strange}: {said:?}");
        }
        assert_eq!(arm.read(&value(KEY)), Some(strange.as_bytes().to_vec()));
    }
}

pub(crate) async fn read_of_a_stored_value_does_not_change_a_lock_key_of_another_data_type(
    arm: &Arm,
) {
    arm.put_foreign(KEY);
    let said = arm.ask(read(&claim(KEY, 1), 7)).await;
    assert_eq!(said, Err(Fault::WrongType));
    assert_eq!(arm.read(KEY).as_deref(), Some(&b"foreign"[..]));
    assert_eq!(arm.keys(), 1);
}

pub(crate) async fn read_and_write_of_a_stored_value_fail_if_the_fencing_counter_has_another_data_type(
    arm: &Arm,
) {
    let (claim, number) = held(arm, 1).await;
    arm.put_foreign(&fence(KEY));
    for request in [read(&claim, number), write(&claim, number, b"3")] {
        assert_eq!(arm.ask(request).await, Err(Fault::WrongType));
    }
    assert_eq!(arm.read(&value(KEY)), None);
}

pub(crate) async fn withdrawn_claim_can_neither_read_nor_write_the_stored_value(arm: &Arm) {
    let (claim, number) = held(arm, 1).await;
    claim.withdraw();
    for request in [read(&claim, number), write(&claim, number, b"3")] {
        assert_eq!(arm.ask(request).await, Err(Fault::Withdrawn));
    }
    assert_eq!(arm.read(&value(KEY)), None);
}

pub(crate) async fn write_whose_deadline_has_passed_is_not_sent(arm: &Arm) {
    let (claim, number) = held(arm, 1).await;
    let until = Instant::from_nanos(1);
    let bytes = Some(Arc::from(&b"3"[..]));
    let late = Request::Write {
        claim,
        token: number,
        value: Arc::new(NewValue {
            bytes,
            until,
            run: None,
        }),
    };
    assert_eq!(arm.ask(late).await, Err(Fault::Withdrawn));
    assert_eq!(arm.read(&value(KEY)), None);
}

pub(crate) async fn write_applies_only_to_the_server_run_that_was_read(arm: &Arm) {
    let (claim, number) = held(arm, 1).await;
    let (here, _) = found(arm, &claim, number).await;
    // A release withdraws the claim of the lock. The master must nevertheless accept a late write of this claim if the
    // write contains the id of the current server run.
    claim.withdraw();
    let to = |run: ServerRun| Request::Write {
        claim: claim.clone(),
        token: number,
        value: Arc::new(NewValue {
            bytes: Some(Arc::from(&b"3"[..])),
            until: Instant::now() + secs(60),
            run: Some(run),
        }),
    };
    let said = arm.ask(to(ServerRun::new("another"))).await;
    assert_eq!(said, Err(Fault::Withdrawn));
    assert_eq!(arm.read(&value(KEY)), None);
    assert_eq!(written(arm, to(here.clone())).await, here);
}

pub(crate) async fn stored_values_of_similar_lock_names_are_separate(arm: &Arm) {
    let (claim, number) = held(arm, 1).await;
    written(arm, write(&claim, number, b"3")).await;
    let other = Arc::new(Claim::new("jo", b"bb", Token::from_bytes([3; 16]), true));
    let counter = arm.granted(acquire(&other, LONG, now())).await;
    assert_eq!(found(arm, &other, counter).await.1, None);
}
