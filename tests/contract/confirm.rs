//! Contract cases: confirming a fencing token on one master.

use quorate::node::{Answer, Fault};

use crate::arm::{Arm, LONG, assert_about, fence, now};
use crate::support::asking::{acquire, claim, confirm};
use crate::support::secs;

const KEY: &[u8] = b"job";

pub(crate) async fn confirmation_by_the_holder_sets_the_fencing_counter_to_the_confirmed_number(
    arm: &Arm,
) {
    let claim = claim(KEY, 1);
    let counter = arm.granted(acquire(&claim, LONG, now())).await;
    let said = arm.ask(confirm(&claim, counter + 7)).await;
    assert_eq!(said, Ok(Answer::Confirmed));
    assert_eq!(arm.counter(KEY), Some(counter + 7));
}

pub(crate) async fn fencing_number_equal_to_the_fencing_counter_is_confirmed(arm: &Arm) {
    let claim = claim(KEY, 1);
    let counter = arm.granted(acquire(&claim, LONG, now())).await;
    for _ in 0..2 {
        let said = arm.ask(confirm(&claim, counter)).await;
        assert_eq!(said, Ok(Answer::Confirmed));
        assert_eq!(arm.counter(KEY), Some(counter));
    }
}

pub(crate) async fn confirmation_of_a_number_below_the_fencing_counter_is_refused_with_the_counter(
    arm: &Arm,
) {
    let claim = claim(KEY, 1);
    let counter = arm.granted(acquire(&claim, LONG, now())).await;
    let said = arm.ask(confirm(&claim, counter - 1)).await;
    assert_eq!(said, Ok(Answer::CounterAbove(counter)));
    assert_eq!(arm.counter(KEY), Some(counter));
}

pub(crate) async fn only_the_holder_can_confirm_its_fencing_token(arm: &Arm) {
    let counter = arm.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    let said = arm.ask(confirm(&claim(KEY, 2), counter + 1)).await;
    assert_eq!(said, Ok(Answer::NotOurs));
    assert_eq!(arm.counter(KEY), Some(counter));
    // The master must refuse every confirmation by a client that does not hold the lock.
    let said = arm.ask(confirm(&claim(KEY, 2), counter)).await;
    assert_eq!(said, Ok(Answer::NotOurs));
    let said = arm.ask(confirm(&claim(b"free", 1), 7)).await;
    assert_eq!(said, Ok(Answer::NotOurs));
    assert_eq!(arm.keys(), 2);
}

pub(crate) async fn confirmation_extends_the_expiry_of_the_fencing_counter_but_not_of_the_lock(
    arm: &Arm,
) {
    let claim = claim(KEY, 1);
    let counter = arm.granted(acquire(&claim, LONG, now())).await;
    arm.put(&fence(KEY), counter.to_string().as_bytes(), Some(secs(600)));
    let said = arm.ask(confirm(&claim, counter + 1)).await;
    assert_eq!(said, Ok(Answer::Confirmed));
    assert_about(arm.ttl(&fence(KEY)), secs(86_400));
    assert_about(arm.ttl(KEY), LONG);
}

pub(crate) async fn confirmation_restores_a_deleted_fencing_counter(arm: &Arm) {
    let claim = claim(KEY, 1);
    let counter = arm.granted(acquire(&claim, LONG, now())).await;
    arm.delete(&fence(KEY));
    let said = arm.ask(confirm(&claim, counter)).await;
    assert_eq!(said, Ok(Answer::Confirmed));
    assert_eq!(arm.counter(KEY), Some(counter));
}

pub(crate) async fn confirmation_fails_if_the_fencing_counter_or_the_lock_key_has_another_data_type(
    arm: &Arm,
) {
    let first = claim(KEY, 1);
    let counter = arm.granted(acquire(&first, LONG, now())).await;
    arm.put_foreign(&fence(KEY));
    let said = arm.ask(confirm(&first, counter)).await;
    assert_eq!(said, Err(Fault::WrongType));
    assert_eq!(arm.read(&fence(KEY)).as_deref(), Some(&b"foreign"[..]));
    let second = claim(b"other", 1);
    arm.put_foreign(b"other");
    let said = arm.ask(confirm(&second, counter)).await;
    assert_eq!(said, Err(Fault::WrongType));
    assert_eq!(arm.counter(b"other"), None);
}

pub(crate) async fn confirmation_for_a_withdrawn_claim_changes_nothing(arm: &Arm) {
    let claim = claim(KEY, 1);
    let counter = arm.granted(acquire(&claim, LONG, now())).await;
    claim.withdraw();
    let said = arm.ask(confirm(&claim, counter + 1)).await;
    assert_eq!(said, Err(Fault::Withdrawn));
    assert_eq!(arm.counter(KEY), Some(counter));
}
