//! Giving a lock back on one master.

use quorate::node::{Answer, Fault};

use crate::arm::{Arm, LONG, hex, now};
use crate::support::asking::{acquire, claim, release};
use crate::support::ms;

const KEY: &[u8] = b"job";

pub(crate) async fn a_holder_deletes_its_key_and_keeps_the_counter(arm: &Arm) {
    let claim = claim(KEY, 1);
    let counter = arm.granted(acquire(&claim, LONG, now())).await;
    assert_eq!(arm.ask(release(&claim)).await, Ok(Answer::Released(true)));
    assert_eq!(arm.read(KEY), None);
    assert_eq!(arm.counter(KEY), Some(counter));
}

pub(crate) async fn a_second_release_finds_nothing(arm: &Arm) {
    let claim = claim(KEY, 1);
    arm.granted(acquire(&claim, LONG, now())).await;
    assert_eq!(arm.ask(release(&claim)).await, Ok(Answer::Released(true)));
    assert_eq!(arm.ask(release(&claim)).await, Ok(Answer::Released(false)));
}

pub(crate) async fn another_holders_key_is_left_alone(arm: &Arm) {
    arm.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    let said = arm.ask(release(&claim(KEY, 2))).await;
    assert_eq!(said, Ok(Answer::Released(false)));
    assert_eq!(arm.read(KEY), Some(hex(1)));
    // A value that only begins alike is another's as well.
    let longer = [&hex(3)[..], b"0"].concat();
    arm.put(KEY, &longer, None);
    let said = arm.ask(release(&claim(KEY, 3))).await;
    assert_eq!(said, Ok(Answer::Released(false)));
    assert_eq!(arm.read(KEY), Some(longer));
}

pub(crate) async fn another_type_is_left_alone_by_a_release(arm: &Arm) {
    arm.put_foreign(KEY);
    let said = arm.ask(release(&claim(KEY, 1))).await;
    assert_eq!(said, Err(Fault::WrongType));
    assert_eq!(arm.read(KEY).as_deref(), Some(&b"foreign"[..]));
}

pub(crate) async fn a_withdrawn_claim_is_still_released(arm: &Arm) {
    let claim = claim(KEY, 1);
    arm.granted(acquire(&claim, LONG, now())).await;
    claim.withdraw();
    assert_eq!(arm.ask(release(&claim)).await, Ok(Answer::Released(true)));
    assert_eq!(arm.read(KEY), None);
}

pub(crate) async fn an_expired_lock_is_no_longer_there_to_release(arm: &Arm) {
    let claim = claim(KEY, 1);
    arm.granted(acquire(&claim, ms(20), now())).await;
    tokio::time::sleep(ms(60)).await;
    assert_eq!(arm.ask(release(&claim)).await, Ok(Answer::Released(false)));
}
