//! Contract cases: extending locks on one master.

use quorate::node::{Extended, Fault};

use crate::arm::{Arm, LONG, assert_about, each, hex, now};
use crate::support::asking::{acquire, claim, extend};
use crate::support::secs;

const KEY: &[u8] = b"job";
const SHORT: std::time::Duration = secs(120);

pub(crate) async fn extension_raises_the_expiry_of_the_lock_key(arm: &Arm) {
    let claim = claim(KEY, 1);
    arm.granted(acquire(&claim, SHORT, now())).await;
    let said = arm.ask(extend(&[(&claim, LONG)])).await;
    assert_eq!(said, Ok(each(&[Extended::Kept])));
    assert_about(arm.ttl(KEY), LONG);
    assert_eq!(arm.read(KEY), Some(hex(1)));
}

pub(crate) async fn extension_never_shortens_the_ttl_of_the_lock_key(arm: &Arm) {
    let claim = claim(KEY, 1);
    arm.granted(acquire(&claim, LONG, now())).await;
    let said = arm.ask(extend(&[(&claim, SHORT)])).await;
    assert_eq!(said, Ok(each(&[Extended::Kept])));
    assert_about(arm.ttl(KEY), LONG);
}

pub(crate) async fn extension_gives_an_expiry_to_a_lock_key_without_one(arm: &Arm) {
    arm.put(KEY, &hex(1), None);
    let said = arm.ask(extend(&[(&claim(KEY, 1), LONG)])).await;
    assert_eq!(said, Ok(each(&[Extended::Kept])));
    assert_about(arm.ttl(KEY), LONG);
}

pub(crate) async fn extension_restores_a_missing_lock_key(arm: &Arm) {
    let said = arm.ask(extend(&[(&claim(KEY, 1), LONG)])).await;
    assert_eq!(said, Ok(each(&[Extended::Restored])));
    assert_eq!(arm.read(KEY), Some(hex(1)));
    assert_about(arm.ttl(KEY), LONG);
}

pub(crate) async fn extension_does_not_change_the_lock_key_of_another_holder(arm: &Arm) {
    arm.granted(acquire(&claim(KEY, 1), SHORT, now())).await;
    let said = arm.ask(extend(&[(&claim(KEY, 2), LONG)])).await;
    assert_eq!(said, Ok(each(&[Extended::NotOurs])));
    assert_eq!(arm.read(KEY), Some(hex(1)));
    assert_about(arm.ttl(KEY), SHORT);
}

pub(crate) async fn lock_key_of_another_data_type_is_not_extended(arm: &Arm) {
    arm.put_foreign(KEY);
    let other = claim(b"other", 1);
    let said = arm
        .ask(extend(&[(&claim(KEY, 1), LONG), (&other, LONG)]))
        .await;
    assert_eq!(said, Ok(each(&[Extended::NotOurs, Extended::Restored])));
    assert_eq!(arm.read(KEY).as_deref(), Some(&b"foreign"[..]));
    assert_eq!(arm.ttl(KEY), None);
}

pub(crate) async fn extension_does_not_change_the_fencing_counter(arm: &Arm) {
    let claim = claim(KEY, 1);
    let counter = arm.granted(acquire(&claim, SHORT, now())).await;
    arm.ask(extend(&[(&claim, LONG)])).await.expect("kept");
    arm.delete(KEY);
    arm.ask(extend(&[(&claim, LONG)])).await.expect("restored");
    assert_eq!(arm.counter(KEY), Some(counter));
}

pub(crate) async fn withdrawn_lock_in_an_extension_of_many_is_not_extended(arm: &Arm) {
    let (a, b, c) = (claim(b"a", 1), claim(b"b", 1), claim(b"c", 1));
    arm.granted(acquire(&b, SHORT, now())).await;
    b.withdraw();
    c.withdraw();
    let said = arm.ask(extend(&[(&a, LONG), (&b, LONG), (&c, LONG)])).await;
    assert_eq!(
        said,
        Ok(each(&[
            Extended::Restored,
            Extended::Withdrawn,
            Extended::Withdrawn
        ]))
    );
    assert_about(arm.ttl(b"b"), SHORT);
    assert_eq!(
        arm.read(b"c"),
        None,
        "an extension that arrives after the release must not restore the key"
    );
}

pub(crate) async fn extension_of_only_withdrawn_locks_is_not_sent(arm: &Arm) {
    let claim = claim(KEY, 1);
    claim.withdraw();
    let said = arm.ask(extend(&[(&claim, LONG)])).await;
    assert_eq!(said, Err(Fault::Withdrawn));
    assert_eq!(arm.keys(), 0);
}

pub(crate) async fn extension_of_many_locks_is_answered_in_request_order(arm: &Arm) {
    let name = |n: usize| format!("job {n}").into_bytes();
    let claims: Vec<_> = (0..600).map(|n| claim(&name(n), 1)).collect();
    let mut wanted = Vec::new();
    for n in 0..600 {
        match n % 3 {
            0 => arm.put(&name(n), &hex(1), Some(SHORT)),
            1 => arm.put(&name(n), b"another", Some(SHORT)),
            _ => {}
        }
        wanted.push(match n % 3 {
            0 => Extended::Kept,
            1 => Extended::NotOurs,
            _ => Extended::Restored,
        });
    }
    let items: Vec<_> = claims.iter().map(|claim| (claim, LONG)).collect();
    assert_eq!(arm.ask(extend(&items)).await, Ok(each(&wanted)));
    for n in 0..600 {
        let ttl = if n % 3 == 1 { SHORT } else { LONG };
        assert_about(arm.ttl(&name(n)), ttl);
    }
}
