//! Contract cases: the classic algorithm, which is plain `SET key value NX PX ttl`.

use quorate::node::{Answer, Extended};

use crate::arm::{Arm, LONG, assert_about, hex, now};
use crate::support::asking::{acquire, claim, classic, extend, release};
use crate::support::secs;

const KEY: &[u8] = b"job";
const GRANTED: Answer = Answer::Granted { counter: None };
const REFUSED: Answer = Answer::Refused {
    ttl_left: None,
    line: None,
};

pub(crate) async fn lock_of_the_classic_algorithm_has_no_fencing_counter(arm: &Arm) {
    let said = arm.ask(acquire(&classic(KEY, 1), LONG, now())).await;
    assert_eq!(said, Ok(GRANTED));
    assert_eq!(arm.read(KEY), Some(hex(1)));
    assert_about(arm.ttl(KEY), LONG);
    assert_eq!(arm.keys(), 1);
}

pub(crate) async fn acquire_of_a_classic_lock_is_refused_if_the_lock_key_exists_with_any_value(
    arm: &Arm,
) {
    let claim = classic(KEY, 1);
    assert_eq!(arm.ask(acquire(&claim, LONG, 0)).await, Ok(GRANTED));
    // `SET NX` refuses an existing lock key, even if the same claim has set the key.
    assert_eq!(arm.ask(acquire(&claim, LONG, 0)).await, Ok(REFUSED));
    arm.put_foreign(KEY);
    assert_eq!(arm.ask(acquire(&claim, LONG, 0)).await, Ok(REFUSED));
    assert_eq!(arm.read(KEY).as_deref(), Some(&b"foreign"[..]));
}

pub(crate) async fn classic_lock_and_lock_with_a_fencing_token_exclude_each_other(arm: &Arm) {
    let (plain, fenced) = (classic(KEY, 1), claim(KEY, 2));
    assert_eq!(arm.ask(acquire(&plain, LONG, 0)).await, Ok(GRANTED));
    let said = arm.ask(acquire(&fenced, LONG, now())).await;
    assert!(matches!(said, Ok(Answer::Refused { .. })), "{said:?}");
    assert_eq!(arm.ask(release(&plain)).await, Ok(Answer::Released(true)));
    arm.granted(acquire(&fenced, LONG, now())).await;
    assert_eq!(arm.ask(acquire(&plain, LONG, 0)).await, Ok(REFUSED));
}

pub(crate) async fn classic_lock_is_extended_restored_and_released(arm: &Arm) {
    let claim = classic(KEY, 1);
    assert_eq!(arm.ask(acquire(&claim, secs(120), 0)).await, Ok(GRANTED));
    let said = arm.ask(extend(&[(&claim, LONG)])).await;
    assert_eq!(said, Ok(Answer::Extended(vec![Extended::Kept])));
    assert_about(arm.ttl(KEY), LONG);
    arm.delete(KEY);
    let said = arm.ask(extend(&[(&claim, LONG)])).await;
    assert_eq!(said, Ok(Answer::Extended(vec![Extended::Restored])));
    assert_eq!(arm.ask(release(&claim)).await, Ok(Answer::Released(true)));
    assert_eq!(arm.keys(), 0);
}
