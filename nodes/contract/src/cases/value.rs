//! Contract cases: the value that is stored for a lock on one master. Only the holder can read the value. The fencing
//! number of a write decides whether the master accepts the write.

use quorate::node::{Answer, Claim, Fault, NewValue, Request, ServerRun, StoredValue};
use quorate::{Instant, Token};
use std::sync::Arc;

use crate::fixtures::{LONG, assert_about, counter_key, now};
use crate::requests::{acquire, claim, read, remove, write};
use crate::tested_master::TestedMaster;
use crate::time::secs;

const KEY: &[u8] = b"job";

fn value_key(key: &[u8]) -> Vec<u8> {
    [b"quorate:value:", key].concat()
}

/// Acquires the lock `job` with a new claim. Returns the claim and its fencing number.
async fn acquire_job(master: &TestedMaster, n: u8) -> (Arc<Claim>, u64) {
    let claim = claim(KEY, n);
    let number = master.granted(acquire(&claim, LONG, now())).await;
    (claim, number)
}

/// Reads the stored value, which must succeed. Returns the id of the server run (the run of the server process), and
/// the value.
async fn read_value(
    master: &TestedMaster,
    claim: &Arc<Claim>,
    number: u64,
) -> (ServerRun, Option<StoredValue>) {
    match master.send(read(claim, number)).await {
        Ok(Answer::Value { run, stored, clock }) => {
            if let Some(clock) = clock {
                let difference = clock.abs_diff(now());
                assert!(
                    difference < 60_000_000,
                    "the master's clock is off by {difference} us"
                );
            }
            (run, stored)
        }
        other => panic!("the value must be read, but: {other:?}"),
    }
}

async fn write_value(master: &TestedMaster, request: Request) -> ServerRun {
    match master.send(request).await {
        Ok(Answer::Written { run }) => run,
        other => panic!("the value must be written, but: {other:?}"),
    }
}

fn stored_value(number: u64, bytes: &[u8], trusted: bool) -> StoredValue {
    let bytes = bytes.to_vec();
    StoredValue {
        number,
        bytes,
        trusted,
    }
}

pub async fn read_of_an_absent_stored_value_returns_nothing(master: &TestedMaster) {
    let (claim, number) = acquire_job(master, 1).await;
    assert_eq!(read_value(master, &claim, number).await.1, None);
    assert_eq!(
        master.keys().count(),
        2,
        "only the lock key and its counter may exist"
    );
}

pub async fn written_stored_value_is_read_by_the_next_holder(master: &TestedMaster) {
    let (first, number) = acquire_job(master, 1).await;
    let bytes = b"any \0 bytes\r\n\xff ";
    let written_run = write_value(master, write(&first, number, bytes)).await;
    master.keys().delete(KEY);
    let (second, later_number) = acquire_job(master, 2).await;
    let (run, stored) = read_value(master, &second, later_number).await;
    assert_eq!(stored, Some(stored_value(number, bytes, true)));
    assert_eq!(
        run, written_run,
        "read and write must report the same run of the server process"
    );
    write_value(master, write(&second, later_number, b"")).await;
    assert_eq!(
        read_value(master, &second, later_number).await.1,
        Some(stored_value(later_number, b"", true))
    );
}

pub async fn stored_value_never_expires(master: &TestedMaster) {
    let (claim, number) = acquire_job(master, 1).await;
    write_value(master, write(&claim, number, b"3")).await;
    assert!(master.keys().read(&value_key(KEY)).is_some());
    assert_eq!(master.keys().ttl(&value_key(KEY)), None);
}

pub async fn read_of_a_stored_value_sets_the_fencing_counter_to_the_number_of_its_reader(
    master: &TestedMaster,
) {
    let (claim, number) = acquire_job(master, 1).await;
    master.keys().put(
        &counter_key(KEY),
        number.to_string().as_bytes(),
        Some(secs(600)),
    );
    read_value(master, &claim, number + 7).await;
    assert_eq!(master.keys().counter(KEY), Some(number + 7));
    assert_about(master.keys().ttl(&counter_key(KEY)), secs(86_400));
    // The read also sets the fencing counter if the counter key is missing.
    master.keys().delete(&counter_key(KEY));
    read_value(master, &claim, number + 7).await;
    assert_eq!(master.keys().counter(KEY), Some(number + 7));
}

pub async fn only_the_holder_of_the_lock_can_read_the_stored_value(master: &TestedMaster) {
    let (claim_of_holder, number) = acquire_job(master, 1).await;
    write_value(master, write(&claim_of_holder, number, b"3")).await;
    let reply = master.send(read(&claim(KEY, 2), number + 1)).await;
    assert_eq!(reply, Ok(Answer::NotOurs));
    let reply = master.send(read(&claim(b"free", 1), 7)).await;
    assert_eq!(reply, Ok(Answer::NotOurs));
    assert_eq!(master.keys().counter(KEY), Some(number));
    assert_eq!(master.keys().count(), 3);
}

pub async fn read_with_a_number_below_the_fencing_counter_is_refused_with_the_counter(
    master: &TestedMaster,
) {
    let (claim, number) = acquire_job(master, 1).await;
    let reply = master.send(read(&claim, number - 1)).await;
    assert_eq!(reply, Ok(Answer::CounterAbove(number)));
    assert_eq!(master.keys().counter(KEY), Some(number));
}

pub async fn stored_value_with_a_number_ahead_of_its_reader_can_be_read_only_by_a_later_holder(
    master: &TestedMaster,
) {
    let (first, number) = acquire_job(master, 1).await;
    // Write the value with a fencing number that is a day ahead, as a client with a fast clock would.
    let number_ahead = number + 86_400_000_000;
    write_value(master, write(&first, number_ahead, b"3")).await;
    master.keys().put(
        &counter_key(KEY),
        number.to_string().as_bytes(),
        Some(secs(600)),
    );
    let reply = master.send(read(&claim(KEY, 2), number)).await;
    assert_eq!(reply, Ok(Answer::NotOurs));
    assert_eq!(
        master.keys().counter(KEY),
        Some(number),
        "a client that does not hold the lock must not change the counter"
    );
    let reply = master.send(read(&first, number)).await;
    assert_eq!(reply, Ok(Answer::CounterAbove(number_ahead)));
    assert_eq!(master.keys().counter(KEY), Some(number_ahead));
    assert_about(master.keys().ttl(&counter_key(KEY)), secs(2 * 86_400));
    master.keys().delete(KEY);
    let (second, later_number) = acquire_job(master, 2).await;
    assert!(later_number > number_ahead, "{later_number} {number_ahead}");
    let stored = read_value(master, &second, later_number).await.1;
    assert_eq!(stored, Some(stored_value(number_ahead, b"3", true)));
}

pub async fn write_with_a_number_below_the_fencing_counter_is_refused(master: &TestedMaster) {
    let (first, number) = acquire_job(master, 1).await;
    write_value(master, write(&first, number, b"3")).await;
    master.keys().delete(KEY);
    let (second, later_number) = acquire_job(master, 2).await;
    read_value(master, &second, later_number).await;
    for late_write in [write(&first, number, b"2"), remove(&first, number)] {
        assert_eq!(
            master.send(late_write).await,
            Ok(Answer::CounterAbove(later_number))
        );
    }
    assert_eq!(
        read_value(master, &second, later_number).await.1,
        Some(stored_value(number, b"3", true))
    );
}

pub async fn write_with_a_number_below_that_of_the_stored_value_is_refused(master: &TestedMaster) {
    let (claim, number) = acquire_job(master, 1).await;
    write_value(master, write(&claim, number, b"3")).await;
    // If the lock is not used for a day, its fencing counter expires, and the stored value remains.
    master.keys().delete(&counter_key(KEY));
    let reply = master.send(write(&claim, number - 1, b"9")).await;
    assert_eq!(reply, Ok(Answer::CounterAbove(number)));
    write_value(master, write(&claim, number, b"2")).await;
}

pub async fn write_with_a_number_below_that_of_a_removal_is_refused(master: &TestedMaster) {
    let (claim, number) = acquire_job(master, 1).await;
    write_value(master, write(&claim, number, b"3")).await;
    // A later holder removes the value. This master has not received the acquire of that holder.
    write_value(master, remove(&claim, number + 1)).await;
    assert_eq!(master.keys().counter(KEY), Some(number + 1));
    let late_write = master.send(write(&claim, number, b"3")).await;
    assert_eq!(late_write, Ok(Answer::CounterAbove(number + 1)));
    assert_eq!(master.keys().read(&value_key(KEY)), None);
}

pub async fn write_is_decided_by_fencing_numbers_and_not_by_the_lock_key(master: &TestedMaster) {
    let (claim, number) = acquire_job(master, 1).await;
    master.keys().delete(KEY);
    write_value(master, write(&claim, number, b"3")).await;
    assert_eq!(
        master.keys().counter(KEY),
        Some(number),
        "a write must not raise the fencing counter"
    );
}

pub async fn removal_of_a_stored_value_keeps_the_lock_key_and_the_fencing_counter(
    master: &TestedMaster,
) {
    let (claim, number) = acquire_job(master, 1).await;
    write_value(master, remove(&claim, number)).await;
    write_value(master, write(&claim, number, b"3")).await;
    write_value(master, remove(&claim, number)).await;
    assert_eq!(master.keys().read(&value_key(KEY)), None);
    assert_eq!(read_value(master, &claim, number).await.1, None);
    assert_eq!(master.keys().counter(KEY), Some(number));
}

pub async fn stored_value_of_another_server_run_is_trusted_on_durable_servers_only(
    master: &TestedMaster,
) {
    let (claim, number) = acquire_job(master, 1).await;
    let text = format!("{number} {} 3 of 4", "0".repeat(40));
    master.keys().put(&value_key(KEY), text.as_bytes(), None);
    let (run, stored) = read_value(master, &claim, number).await;
    // A client trusts a value of another run only if the master keeps its data in a restart, and gets another run id.
    let is_trusted = master.trusts_earlier_runs();
    assert_eq!(stored, Some(stored_value(number, b"3 of 4", is_trusted)));
    assert_ne!(run.as_str(), "0".repeat(40));
}

pub async fn read_write_and_removal_fail_if_the_key_of_the_value_has_another_data_type(
    master: &TestedMaster,
) {
    let (claim, number) = acquire_job(master, 1).await;
    master.keys().put_foreign(&value_key(KEY));
    for request in [
        read(&claim, number + 1),
        write(&claim, number + 1, b"3"),
        remove(&claim, number + 1),
    ] {
        assert_eq!(master.send(request).await, Err(Fault::WrongType));
    }
    assert_eq!(
        master.keys().read(&value_key(KEY)).as_deref(),
        Some(&b"foreign"[..])
    );
    assert_eq!(master.keys().counter(KEY), Some(number));
}

pub async fn read_write_and_removal_fail_if_the_key_of_the_value_contains_a_foreign_string(
    master: &TestedMaster,
) {
    let (claim, number) = acquire_job(master, 1).await;
    for malformed in [
        "",
        "7",
        "7 run",
        "some text here",
        "-7 run x",
        "0 run x",
        "+7 run x",
    ] {
        master
            .keys()
            .put(&value_key(KEY), malformed.as_bytes(), None);
        for request in [
            read(&claim, number),
            write(&claim, number, b"3"),
            remove(&claim, number),
        ] {
            let reply = master.send(request).await;
            assert!(
                matches!(reply, Err(Fault::Server(_))),
                "{malformed}: {reply:?}"
            );
        }
        assert_eq!(
            master.keys().read(&value_key(KEY)),
            Some(malformed.as_bytes().to_vec())
        );
    }
}

pub async fn read_of_a_stored_value_does_not_change_a_lock_key_of_another_data_type(
    master: &TestedMaster,
) {
    master.keys().put_foreign(KEY);
    let reply = master.send(read(&claim(KEY, 1), 7)).await;
    assert_eq!(reply, Err(Fault::WrongType));
    assert_eq!(master.keys().read(KEY).as_deref(), Some(&b"foreign"[..]));
    assert_eq!(master.keys().count(), 1);
}

pub async fn read_and_write_of_a_stored_value_fail_if_the_fencing_counter_has_another_data_type(
    master: &TestedMaster,
) {
    let (claim, number) = acquire_job(master, 1).await;
    master.keys().put_foreign(&counter_key(KEY));
    for request in [read(&claim, number), write(&claim, number, b"3")] {
        assert_eq!(master.send(request).await, Err(Fault::WrongType));
    }
    assert_eq!(master.keys().read(&value_key(KEY)), None);
}

pub async fn withdrawn_claim_can_neither_read_nor_write_the_stored_value(master: &TestedMaster) {
    let (claim, number) = acquire_job(master, 1).await;
    claim.withdraw();
    for request in [read(&claim, number), write(&claim, number, b"3")] {
        assert_eq!(master.send(request).await, Err(Fault::Withdrawn));
    }
    assert_eq!(master.keys().read(&value_key(KEY)), None);
}

pub async fn write_whose_deadline_has_passed_is_not_sent(master: &TestedMaster) {
    let (claim, number) = acquire_job(master, 1).await;
    let until = Instant::from_nanos(1);
    let bytes = Some(Arc::from(&b"3"[..]));
    let late_write = Request::Write {
        claim,
        token: number,
        value: Arc::new(NewValue {
            bytes,
            until,
            run: None,
        }),
    };
    assert_eq!(master.send(late_write).await, Err(Fault::Withdrawn));
    assert_eq!(master.keys().read(&value_key(KEY)), None);
}

pub async fn write_applies_only_to_the_server_run_that_was_read(master: &TestedMaster) {
    let (claim, number) = acquire_job(master, 1).await;
    let (here, _) = read_value(master, &claim, number).await;
    // A release withdraws the claim of the lock. The master must nevertheless accept a late write of this claim if the
    // write contains the id of the current server run.
    claim.withdraw();
    let write_to_run = |run: ServerRun| Request::Write {
        claim: claim.clone(),
        token: number,
        value: Arc::new(NewValue {
            bytes: Some(Arc::from(&b"3"[..])),
            until: Instant::now() + secs(60),
            run: Some(run),
        }),
    };
    let reply = master.send(write_to_run(ServerRun::new("another"))).await;
    assert_eq!(reply, Err(Fault::Withdrawn));
    assert_eq!(master.keys().read(&value_key(KEY)), None);
    assert_eq!(write_value(master, write_to_run(here.clone())).await, here);
}

pub async fn stored_values_of_similar_lock_names_are_separate(master: &TestedMaster) {
    let (claim, number) = acquire_job(master, 1).await;
    write_value(master, write(&claim, number, b"3")).await;
    let other_claim = Arc::new(Claim::new("jo", b"bb", Token::from_bytes([3; 16]), true));
    let counter = master.granted(acquire(&other_claim, LONG, now())).await;
    assert_eq!(read_value(master, &other_claim, counter).await.1, None);
}
