//! Contract cases: confirming a fencing token on one master.

use quorate::node::{Answer, Fault};

use crate::fixtures::{LONG, assert_about, counter_key, now};
use crate::requests::{acquire, claim, confirm};
use crate::tested_master::TestedMaster;
use crate::time::secs;

const KEY: &[u8] = b"job";

pub async fn confirmation_by_the_holder_sets_the_fencing_counter_to_the_confirmed_number(
    master: &TestedMaster,
) {
    let claim = claim(KEY, 1);
    let counter = master.granted(acquire(&claim, LONG, now())).await;
    let reply = master.send(confirm(&claim, counter + 7)).await;
    assert_eq!(reply, Ok(Answer::Confirmed));
    assert_eq!(master.keys().counter(KEY), Some(counter + 7));
}

pub async fn fencing_number_equal_to_the_fencing_counter_is_confirmed(master: &TestedMaster) {
    let claim = claim(KEY, 1);
    let counter = master.granted(acquire(&claim, LONG, now())).await;
    for _ in 0..2 {
        let reply = master.send(confirm(&claim, counter)).await;
        assert_eq!(reply, Ok(Answer::Confirmed));
        assert_eq!(master.keys().counter(KEY), Some(counter));
    }
}

pub async fn confirmation_of_a_number_below_the_fencing_counter_is_refused_with_the_counter(
    master: &TestedMaster,
) {
    let claim = claim(KEY, 1);
    let counter = master.granted(acquire(&claim, LONG, now())).await;
    let reply = master.send(confirm(&claim, counter - 1)).await;
    assert_eq!(reply, Ok(Answer::CounterAbove(counter)));
    assert_eq!(master.keys().counter(KEY), Some(counter));
}

pub async fn only_the_holder_can_confirm_its_fencing_token(master: &TestedMaster) {
    let counter = master.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    let reply = master.send(confirm(&claim(KEY, 2), counter + 1)).await;
    assert_eq!(reply, Ok(Answer::NotOurs));
    assert_eq!(master.keys().counter(KEY), Some(counter));
    // The master must refuse every confirmation by a client that does not hold the lock.
    let reply = master.send(confirm(&claim(KEY, 2), counter)).await;
    assert_eq!(reply, Ok(Answer::NotOurs));
    let reply = master.send(confirm(&claim(b"free", 1), 7)).await;
    assert_eq!(reply, Ok(Answer::NotOurs));
    assert_eq!(master.keys().count(), 2);
}

pub async fn confirmation_extends_the_expiry_of_the_fencing_counter_but_not_of_the_lock(
    master: &TestedMaster,
) {
    let claim = claim(KEY, 1);
    let counter = master.granted(acquire(&claim, LONG, now())).await;
    master.keys().put(
        &counter_key(KEY),
        counter.to_string().as_bytes(),
        Some(secs(600)),
    );
    let reply = master.send(confirm(&claim, counter + 1)).await;
    assert_eq!(reply, Ok(Answer::Confirmed));
    assert_about(master.keys().ttl(&counter_key(KEY)), secs(86_400));
    assert_about(master.keys().ttl(KEY), LONG);
}

pub async fn confirmation_restores_a_deleted_fencing_counter(master: &TestedMaster) {
    let claim = claim(KEY, 1);
    let counter = master.granted(acquire(&claim, LONG, now())).await;
    master.keys().delete(&counter_key(KEY));
    let reply = master.send(confirm(&claim, counter)).await;
    assert_eq!(reply, Ok(Answer::Confirmed));
    assert_eq!(master.keys().counter(KEY), Some(counter));
}

pub async fn confirmation_fails_if_the_fencing_counter_or_the_lock_key_has_another_data_type(
    master: &TestedMaster,
) {
    let first_claim = claim(KEY, 1);
    let counter = master.granted(acquire(&first_claim, LONG, now())).await;
    master.keys().put_foreign(&counter_key(KEY));
    let reply = master.send(confirm(&first_claim, counter)).await;
    assert_eq!(reply, Err(Fault::WrongType));
    assert_eq!(
        master.keys().read(&counter_key(KEY)).as_deref(),
        Some(&b"foreign"[..])
    );
    let second_claim = claim(b"other", 1);
    master.keys().put_foreign(b"other");
    let reply = master.send(confirm(&second_claim, counter)).await;
    assert_eq!(reply, Err(Fault::WrongType));
    assert_eq!(master.keys().counter(b"other"), None);
}

pub async fn confirmation_for_a_withdrawn_claim_changes_nothing(master: &TestedMaster) {
    let claim = claim(KEY, 1);
    let counter = master.granted(acquire(&claim, LONG, now())).await;
    claim.withdraw();
    let reply = master.send(confirm(&claim, counter + 1)).await;
    assert_eq!(reply, Err(Fault::Withdrawn));
    assert_eq!(master.keys().counter(KEY), Some(counter));
}
