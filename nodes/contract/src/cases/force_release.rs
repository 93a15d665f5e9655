//! Contract cases: force-releasing a lock on one master.

use std::sync::Arc;
use std::time::Duration;

use quorate::Token;
use quorate::node::{
    Answer, Claim, Class, Ended, Extended, Fairness, Fault, Group, KeyState, Mode, Part,
};

use crate::fixtures::{LONG, assert_about, counter_key, extended, now, token_text};
use crate::requests::{acquire, claim, extend, force_release, token};
use crate::tested_master::TestedMaster;
use crate::time::secs;

const KEY: &[u8] = b"job";
const DAY: Duration = secs(86_400);

/// The key of the break record of a lock.
fn break_record_key(key: &[u8]) -> Vec<u8> {
    [b"quorate:broken:", key].concat()
}

pub async fn forced_release_deletes_the_lock_key_and_returns_its_value(master: &TestedMaster) {
    let counter = master.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    let reply = master.force_release(KEY).await;
    let Ok(Answer::State(state)) = reply else {
        panic!("{reply:?}")
    };
    assert_eq!(state.holder, Some(token_text(1)));
    assert_about(state.ttl_left, LONG);
    assert_eq!(state.counter, Some(counter));
    assert_eq!(master.keys().read(KEY), None);
    assert_eq!(
        master.keys().counter(KEY),
        Some(counter),
        "a forced release must keep the counter, so that tokens keep rising"
    );
}

pub async fn force_released_holder_cannot_renew_after_the_next_holder_is_force_released(
    master: &TestedMaster,
) {
    let holders: Vec<_> = (1..=3).map(|n| claim(KEY, n)).collect();
    for holder in &holders {
        master.granted(acquire(holder, LONG, now())).await;
        master
            .force_release(KEY)
            .await
            .expect("the force-release must succeed");
    }
    for holder in &holders {
        let reply = master.send(extend(&[(holder, LONG)])).await;
        assert_eq!(reply, Ok(extended(&[Extended::NotOurs])));
    }
    assert_eq!(master.keys().read(KEY), None);
}

/// Tests that the break record lasts for two days, regardless of the lock's TTL and the operator's `max_ttl`. Reason:
/// other clients may use TTLs of up to a day.
pub async fn break_record_outlives_the_longest_ttl_of_any_client(master: &TestedMaster) {
    let short_ttl = LONG / 20;
    let number = master
        .granted(acquire(&claim(KEY, 1), short_ttl, now()))
        .await;
    master
        .force_release(KEY)
        .await
        .expect("the force-release must succeed");
    assert_about(master.keys().ttl(&break_record_key(KEY)), 2 * DAY);
    // Set a break record that expires soon. The next forced release must reset its lifetime to two days.
    master
        .keys()
        .put(&break_record_key(KEY), b"\nanother\n", Some(secs(1)));
    let part = Part {
        key: KEY.into(),
        mode: Mode::Class(Class::Shared),
    };
    let group = Group::new(vec![part]);
    group.agreed(number);
    let unqueued_claim = Claim::new("", KEY, token(2), true).with_fairness(Fairness::Fair(None));
    let reader_claim = Arc::new(unqueued_claim.with_group(group));
    master
        .granted(acquire(&reader_claim, short_ttl, now()))
        .await;
    master
        .force_release(KEY)
        .await
        .expect("the force-release must succeed");
    assert_about(master.keys().ttl(&break_record_key(KEY)), 2 * DAY);
    assert!(
        master
            .keys()
            .read(&break_record_key(KEY))
            .is_some_and(|text| text.ends_with(b"\nanother\n"))
    );
}

/// Tests 480 forced releases of one lock.
pub async fn first_of_hundreds_of_force_released_holders_cannot_renew_its_lock(
    master: &TestedMaster,
) {
    for n in 1..=96 {
        let mut bytes = [n; 16];
        for more in 0..5 {
            bytes[0] = more;
            let holder = Claim::new("", KEY, Token::from_bytes(bytes), true);
            master
                .granted(acquire(&Arc::new(holder), LONG, now()))
                .await;
            master
                .force_release(KEY)
                .await
                .expect("the force-release must succeed");
        }
    }
    let first_token = Token::from_bytes([&[0][..], &[1; 15]].concat().try_into().expect("sixteen"));
    let first_claim = Arc::new(Claim::new("", KEY, first_token, true));
    let reply = master.send(extend(&[(&first_claim, LONG)])).await;
    assert_eq!(reply, Ok(extended(&[Extended::NotOurs])));
    let break_record_key = master.keys().read(&break_record_key(KEY)).expect("a mark");
    assert!(
        break_record_key.len() <= 20_000,
        "{} bytes",
        break_record_key.len()
    );
}

/// A break record with room for one more lock, and then for none.
pub async fn force_release_is_refused_if_the_break_record_is_full(master: &TestedMaster) {
    let record_of = |count: u32| -> Vec<u8> {
        let record_line = |n: u32| format!("\n{n:032x}\n").into_bytes();
        (0..count).flat_map(record_line).collect()
    };
    let (max_len, len_of_one) = (65_536, record_of(1).len());
    let count = u32::try_from(max_len / len_of_one).expect("a small number");
    master
        .keys()
        .put(&break_record_key(KEY), &record_of(count - 1), Some(LONG));
    master.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    master
        .force_release(KEY)
        .await
        .expect("there must be room for one lock");
    master.granted(acquire(&claim(KEY, 2), LONG, now())).await;
    let refused_release = master.force_release(KEY).await;
    let reply = refused_release
        .expect_err("the record must be full")
        .to_string();
    assert!(reply.contains("the break record is full"), "{reply}");
    assert!(reply.contains("quorate:broken:job"), "{reply}");
    assert_eq!(master.keys().read(KEY), Some(token_text(2)));
    // A lock that is in the record already can still be deleted.
    master.keys().put(KEY, &token_text(1), Some(LONG));
    master
        .force_release(KEY)
        .await
        .expect("the lock is in the record");
    assert_eq!(master.keys().read(KEY), None);
    // The oldest holder was not forgotten. Its line is the last one.
    let oldest = Token::from_bytes(u128::from(count - 2).to_be_bytes());
    let oldest = Arc::new(Claim::new("", KEY, oldest, true));
    let reply = master.send(extend(&[(&oldest, LONG)])).await;
    assert_eq!(reply, Ok(extended(&[Extended::NotOurs])));
    assert_eq!(master.keys().read(KEY), None);
}

pub async fn forced_release_of_a_foreign_lock_writes_no_break_record(master: &TestedMaster) {
    master.keys().put(KEY, b"somebody", Some(LONG));
    master
        .force_release(KEY)
        .await
        .expect("the force-release must succeed");
    assert_eq!(
        (
            master.keys().read(KEY),
            master.keys().read(&break_record_key(KEY))
        ),
        (None, None)
    );
}

/// Tests a lock whose key has no expiry. A renewal restores a missing key of a lock, but not after a forced release.
pub async fn renewal_does_not_restore_a_force_released_lock_key_that_had_no_expiry(
    master: &TestedMaster,
) {
    let holder = claim(KEY, 1);
    master.granted(acquire(&holder, LONG, now())).await;
    master.keys().put(KEY, &token_text(1), None);
    master
        .force_release(KEY)
        .await
        .expect("the force-release must succeed");
    let reply = master.send(extend(&[(&holder, LONG)])).await;
    assert_eq!(reply, Ok(extended(&[Extended::NotOurs])));
    assert_eq!(master.keys().read(KEY), None);
}

pub async fn forced_release_fails_and_keeps_the_lock_key_if_the_break_record_cannot_be_written(
    master: &TestedMaster,
) {
    master.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    master.keys().put_foreign(&break_record_key(KEY));
    assert_eq!(master.force_release(KEY).await, Err(Fault::WrongType));
    assert_eq!(master.keys().read(KEY), Some(token_text(1)));
}

pub async fn forced_release_of_an_absent_lock_succeeds(master: &TestedMaster) {
    let reply = master.force_release(KEY).await;
    assert_eq!(reply, Ok(Answer::State(KeyState::default())));
}

pub async fn forced_release_does_not_delete_a_lock_key_of_another_data_type(master: &TestedMaster) {
    master.keys().put_foreign(KEY);
    assert_eq!(master.force_release(KEY).await, Err(Fault::WrongType));
    assert_eq!(master.keys().read(KEY).as_deref(), Some(&b"foreign"[..]));
    // If the fencing counter has another data type, a forced release must also fail and keep the lock key.
    master.keys().put(b"second", b"holder", None);
    master.keys().put_foreign(&counter_key(b"second"));
    assert_eq!(master.force_release(b"second").await, Err(Fault::WrongType));
    assert_eq!(
        master.keys().read(b"second").as_deref(),
        Some(&b"holder"[..])
    );
}

/// Tests a master that does not have the lock that is force-released. Its break record must still name the lock.
pub async fn lock_that_only_another_master_has_cannot_be_renewed_after_its_forced_release(
    master: &TestedMaster,
) {
    let ended_lock = |n: u8| Ended::new(&token_text(n), &token_text(n));
    for delete in [false, true] {
        master.keys().clear();
        let reply = master
            .send(force_release(KEY, &[ended_lock(1), ended_lock(2)], delete))
            .await;
        assert_eq!(reply, Ok(Answer::State(KeyState::default())));
        assert_about(master.keys().ttl(&break_record_key(KEY)), 2 * DAY);
        for n in [1, 2] {
            let reply = master.send(extend(&[(&claim(KEY, n), LONG)])).await;
            assert_eq!(reply, Ok(extended(&[Extended::NotOurs])));
        }
        assert_eq!(master.keys().read(KEY), None);
        let reply = master.send(extend(&[(&claim(KEY, 3), LONG)])).await;
        assert_eq!(reply, Ok(extended(&[Extended::Restored])));
    }
}

pub async fn forced_release_of_other_locks_keeps_the_lock_key(master: &TestedMaster) {
    master.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    let ended_lock = [
        Ended::new(&token_text(2), &token_text(2)),
        Ended::new(b"somebody", b""),
    ];
    master
        .send(force_release(KEY, &ended_lock, true))
        .await
        .expect("the force-release must succeed");
    assert_eq!(master.keys().read(KEY), Some(token_text(1)));
    let reply = master.send(extend(&[(&claim(KEY, 1), LONG)])).await;
    assert_eq!(reply, Ok(extended(&[Extended::Kept])));
}

/// Tests an acquire that the network delays until after the force-release of its lock. It sets the lock key again.
pub async fn lock_key_that_a_delayed_acquire_sets_after_a_forced_release_cannot_be_renewed(
    master: &TestedMaster,
) {
    let holder = claim(KEY, 1);
    let ended_lock = Ended::new(&token_text(1), &token_text(1));
    master
        .send(force_release(KEY, &[ended_lock], true))
        .await
        .expect("the force-release must succeed");
    master.granted(acquire(&holder, LONG, now())).await;
    let reply = master.send(extend(&[(&holder, 2 * LONG)])).await;
    assert_eq!(reply, Ok(extended(&[Extended::NotOurs])));
    assert_about(master.keys().ttl(KEY), LONG);
    // If the break record is not readable, a lock whose key exists is renewed.
    master.keys().put_foreign(&break_record_key(KEY));
    let reply = master.send(extend(&[(&holder, LONG)])).await;
    assert_eq!(reply, Ok(extended(&[Extended::Kept])));
}

pub async fn repeated_forced_release_adds_a_lock_to_the_break_record_once(master: &TestedMaster) {
    let ended_lock = |n: u8| Ended::new(&token_text(n), &token_text(n));
    for ended_lock in [ended_lock(1), ended_lock(2), ended_lock(1)] {
        master
            .send(force_release(KEY, &[ended_lock], true))
            .await
            .expect("the force-release must succeed");
    }
    let record = [b"\n", &token_text(2)[..], b"\n\n", &token_text(1), b"\n"].concat();
    assert_eq!(master.keys().read(&break_record_key(KEY)), Some(record));
}
