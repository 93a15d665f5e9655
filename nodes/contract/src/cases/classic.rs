//! Contract cases: the classic algorithm, which is plain `SET key value NX PX ttl`.

use quorate::node::{Answer, Extended};

use crate::fixtures::{LONG, assert_about, now, token_text};
use crate::requests::{acquire, claim, classic, extend, release};
use crate::tested_master::TestedMaster;
use crate::time::secs;

const KEY: &[u8] = b"job";
const GRANTED: Answer = Answer::Granted { counter: None };
const REFUSED: Answer = Answer::Refused {
    ttl_left: None,
    line: None,
};

pub async fn lock_of_the_classic_algorithm_has_no_fencing_counter(master: &TestedMaster) {
    let reply = master.send(acquire(&classic(KEY, 1), LONG, now())).await;
    assert_eq!(reply, Ok(GRANTED));
    assert_eq!(master.keys().read(KEY), Some(token_text(1)));
    assert_about(master.keys().ttl(KEY), LONG);
    assert_eq!(master.keys().count(), 1);
}

pub async fn acquire_of_a_classic_lock_is_refused_if_the_lock_key_exists_with_any_value(
    master: &TestedMaster,
) {
    let claim = classic(KEY, 1);
    assert_eq!(master.send(acquire(&claim, LONG, 0)).await, Ok(GRANTED));
    // `SET NX` refuses an existing lock key, even if the same claim has set the key.
    assert_eq!(master.send(acquire(&claim, LONG, 0)).await, Ok(REFUSED));
    master.keys().put_foreign(KEY);
    assert_eq!(master.send(acquire(&claim, LONG, 0)).await, Ok(REFUSED));
    assert_eq!(master.keys().read(KEY).as_deref(), Some(&b"foreign"[..]));
}

pub async fn classic_lock_and_lock_with_a_fencing_token_exclude_each_other(master: &TestedMaster) {
    let (plain, fenced) = (classic(KEY, 1), claim(KEY, 2));
    assert_eq!(master.send(acquire(&plain, LONG, 0)).await, Ok(GRANTED));
    let reply = master.send(acquire(&fenced, LONG, now())).await;
    assert!(matches!(reply, Ok(Answer::Refused { .. })), "{reply:?}");
    assert_eq!(
        master.send(release(&plain)).await,
        Ok(Answer::Released(true))
    );
    master.granted(acquire(&fenced, LONG, now())).await;
    assert_eq!(master.send(acquire(&plain, LONG, 0)).await, Ok(REFUSED));
}

pub async fn classic_lock_is_extended_restored_and_released(master: &TestedMaster) {
    let claim = classic(KEY, 1);
    assert_eq!(
        master.send(acquire(&claim, secs(120), 0)).await,
        Ok(GRANTED)
    );
    let reply = master.send(extend(&[(&claim, LONG)])).await;
    assert_eq!(reply, Ok(Answer::Extended(vec![Extended::Kept])));
    assert_about(master.keys().ttl(KEY), LONG);
    master.keys().delete(KEY);
    let reply = master.send(extend(&[(&claim, LONG)])).await;
    assert_eq!(reply, Ok(Answer::Extended(vec![Extended::Restored])));
    assert_eq!(
        master.send(release(&claim)).await,
        Ok(Answer::Released(true))
    );
    assert_eq!(master.keys().count(), 0);
}
