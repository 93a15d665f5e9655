//! Contract cases: extending locks on one master.

use quorate::node::{Extended, Fault};

use crate::fixtures::{LONG, assert_about, extended, now, token_text};
use crate::requests::{acquire, claim, extend};
use crate::tested_master::TestedMaster;
use crate::time::secs;

const KEY: &[u8] = b"job";
const SHORT_TTL: std::time::Duration = secs(120);

pub async fn extension_raises_the_expiry_of_the_lock_key(master: &TestedMaster) {
    let claim = claim(KEY, 1);
    master.granted(acquire(&claim, SHORT_TTL, now())).await;
    let reply = master.send(extend(&[(&claim, LONG)])).await;
    assert_eq!(reply, Ok(extended(&[Extended::Kept])));
    assert_about(master.keys().ttl(KEY), LONG);
    assert_eq!(master.keys().read(KEY), Some(token_text(1)));
}

pub async fn extension_never_shortens_the_ttl_of_the_lock_key(master: &TestedMaster) {
    let claim = claim(KEY, 1);
    master.granted(acquire(&claim, LONG, now())).await;
    let reply = master.send(extend(&[(&claim, SHORT_TTL)])).await;
    assert_eq!(reply, Ok(extended(&[Extended::Kept])));
    assert_about(master.keys().ttl(KEY), LONG);
}

pub async fn extension_gives_an_expiry_to_a_lock_key_without_one(master: &TestedMaster) {
    master.keys().put(KEY, &token_text(1), None);
    let reply = master.send(extend(&[(&claim(KEY, 1), LONG)])).await;
    assert_eq!(reply, Ok(extended(&[Extended::Kept])));
    assert_about(master.keys().ttl(KEY), LONG);
}

pub async fn extension_restores_a_missing_lock_key(master: &TestedMaster) {
    let reply = master.send(extend(&[(&claim(KEY, 1), LONG)])).await;
    assert_eq!(reply, Ok(extended(&[Extended::Restored])));
    assert_eq!(master.keys().read(KEY), Some(token_text(1)));
    assert_about(master.keys().ttl(KEY), LONG);
}

pub async fn extension_does_not_change_the_lock_key_of_another_holder(master: &TestedMaster) {
    master
        .granted(acquire(&claim(KEY, 1), SHORT_TTL, now()))
        .await;
    let reply = master.send(extend(&[(&claim(KEY, 2), LONG)])).await;
    assert_eq!(reply, Ok(extended(&[Extended::NotOurs])));
    assert_eq!(master.keys().read(KEY), Some(token_text(1)));
    assert_about(master.keys().ttl(KEY), SHORT_TTL);
}

pub async fn lock_key_of_another_data_type_is_not_extended(master: &TestedMaster) {
    master.keys().put_foreign(KEY);
    let other_claim = claim(b"other", 1);
    let reply = master
        .send(extend(&[(&claim(KEY, 1), LONG), (&other_claim, LONG)]))
        .await;
    assert_eq!(
        reply,
        Ok(extended(&[Extended::NotOurs, Extended::Restored]))
    );
    assert_eq!(master.keys().read(KEY).as_deref(), Some(&b"foreign"[..]));
    assert_eq!(master.keys().ttl(KEY), None);
}

pub async fn extension_does_not_change_the_fencing_counter(master: &TestedMaster) {
    let claim = claim(KEY, 1);
    let counter = master.granted(acquire(&claim, SHORT_TTL, now())).await;
    master.send(extend(&[(&claim, LONG)])).await.expect("kept");
    master.keys().delete(KEY);
    master
        .send(extend(&[(&claim, LONG)]))
        .await
        .expect("restored");
    assert_eq!(master.keys().counter(KEY), Some(counter));
}

pub async fn withdrawn_lock_in_an_extension_of_many_is_not_extended(master: &TestedMaster) {
    let (a, b, c) = (claim(b"a", 1), claim(b"b", 1), claim(b"c", 1));
    master.granted(acquire(&b, SHORT_TTL, now())).await;
    b.withdraw();
    c.withdraw();
    let reply = master
        .send(extend(&[(&a, LONG), (&b, LONG), (&c, LONG)]))
        .await;
    assert_eq!(
        reply,
        Ok(extended(&[
            Extended::Restored,
            Extended::Withdrawn,
            Extended::Withdrawn
        ]))
    );
    assert_about(master.keys().ttl(b"b"), SHORT_TTL);
    assert_eq!(
        master.keys().read(b"c"),
        None,
        "an extension that arrives after the release must not restore the key"
    );
}

pub async fn extension_of_only_withdrawn_locks_is_not_sent(master: &TestedMaster) {
    let claim = claim(KEY, 1);
    claim.withdraw();
    let reply = master.send(extend(&[(&claim, LONG)])).await;
    assert_eq!(reply, Err(Fault::Withdrawn));
    assert_eq!(master.keys().count(), 0);
}

pub async fn extension_of_many_locks_is_answered_in_request_order(master: &TestedMaster) {
    let lock_name = |n: usize| format!("job {n}").into_bytes();
    let claims: Vec<_> = (0..600).map(|n| claim(&lock_name(n), 1)).collect();
    let mut expected = Vec::new();
    for n in 0..600 {
        match n % 3 {
            0 => master
                .keys()
                .put(&lock_name(n), &token_text(1), Some(SHORT_TTL)),
            1 => master
                .keys()
                .put(&lock_name(n), b"another", Some(SHORT_TTL)),
            _ => {}
        }
        expected.push(match n % 3 {
            0 => Extended::Kept,
            1 => Extended::NotOurs,
            _ => Extended::Restored,
        });
    }
    let items: Vec<_> = claims.iter().map(|claim| (claim, LONG)).collect();
    assert_eq!(master.send(extend(&items)).await, Ok(extended(&expected)));
    for n in 0..600 {
        let ttl = if n % 3 == 1 { SHORT_TTL } else { LONG };
        assert_about(master.keys().ttl(&lock_name(n)), ttl);
    }
}
