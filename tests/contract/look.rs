//! Contract cases: looking at a lock on one master, and force-releasing it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quorate::Token;
use quorate::node::{
    Answer, Claim, Class, Ended, Extended, Fairness, Fault, Group, KeyState, Mode, Part, Ticket,
    Waiter,
};

use crate::arm::{Arm, LONG, assert_about, each, fence, hex, now};
use crate::support::asking::{acquire, claim, extend, look, smash, token};
use crate::support::secs;

const KEY: &[u8] = b"job";
const DAY: Duration = secs(86_400);

/// The key of the break record of a lock.
fn mark(key: &[u8]) -> Vec<u8> {
    [b"quorate:broken:", key].concat()
}

async fn state(arm: &Arm) -> KeyState {
    match arm.ask(look(KEY)).await {
        Ok(Answer::State(state)) => state,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn status_request_for_an_absent_lock_returns_an_empty_state(arm: &Arm) {
    assert_eq!(state(arm).await, KeyState::default());
}

pub(crate) async fn status_request_returns_the_holder_the_remaining_ttl_and_the_fencing_counter(
    arm: &Arm,
) {
    let counter = arm.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    let found = state(arm).await;
    assert_eq!(found.holder, Some(hex(1)));
    assert_about(found.ttl_left, LONG);
    assert_eq!(found.counter, Some(counter));
    arm.delete(KEY);
    let found = state(arm).await;
    assert_eq!((found.holder, found.ttl_left), (None, None));
    assert_eq!(
        found.counter,
        Some(counter),
        "the counter must still exist after the lock key is deleted"
    );
    arm.put(KEY, b"somebody", None);
    let found = state(arm).await;
    assert_eq!(found.holder.as_deref(), Some(&b"somebody"[..]));
    assert_eq!(found.ttl_left, None);
}

/// Queues a waiter behind the holder of the lock. The waiter is a reader if `reads` is true, and a writer otherwise.
async fn queue(arm: &Arm, waiter: &str, number: u64, reads: bool) {
    let ticket = Ticket {
        waiter: waiter.into(),
        number,
        heartbeat: LONG,
    };
    let claim = Claim::new("", KEY, token(9), true);
    let mut claim = claim.with_fairness(Fairness::Fair(Some(Box::new(ticket))));
    if reads {
        claim = claim.with_group(Group::new(vec![Part {
            key: KEY.into(),
            mode: Mode::Class(Class::Shared),
        }]));
    }
    let said = arm.ask(acquire(&Arc::new(claim), LONG, now())).await;
    assert!(matches!(said, Ok(Answer::Refused { .. })), "{said:?}");
}

pub(crate) async fn status_request_returns_each_waiter_with_the_time_at_which_its_wait_began(
    arm: &Arm,
) {
    arm.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    let since = SystemTime::UNIX_EPOCH + Duration::from_millis(1_763_000_000_500);
    let longest = "h".repeat(64);
    let largest = format!("{}:{}/{longest}:{}", "f".repeat(16), u64::MAX, u32::MAX);
    let latest = SystemTime::UNIX_EPOCH + Duration::from_millis(253_402_300_799_999);
    let unknown = (None, None, None);
    for (number, (waiter, reads, id, shown)) in [
        (
            "00000000000000a1:1/web-3:4711:1763000000500",
            false,
            "00000000000000a1:1",
            (Some("web-3"), Some(4711), Some(since)),
        ),
        (
            "00000000000000a2:10/web-3:1:1763000000500",
            true,
            "00000000000000a2:10:r",
            (Some("web-3"), Some(1), Some(since)),
        ),
        // These three waiter ids contain no valid host, process id and start time.
        ("00000000000000a3:7", false, "00000000000000a3:7", unknown),
        ("00000000000000a4:7", true, "00000000000000a4:7:r", unknown),
        (
            "00000000000000a5:7/h",
            false,
            "00000000000000a5:7/h",
            unknown,
        ),
        (
            &format!("{largest}:253402300799999"),
            true,
            &format!("{}:{}:r", "f".repeat(16), u64::MAX),
            (Some(&*longest), Some(u32::MAX), Some(latest)),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        queue(arm, waiter, number as u64 + 1, reads).await;
        let line = state(arm).await.queue;
        assert_eq!(line.len(), number + 1, "{line:?}");
        let Some(Waiter {
            id: short,
            host,
            pid,
            since,
            ..
        }) = line.last()
        else {
            unreachable!("the waiter must be in the queue");
        };
        assert_eq!(short, id);
        assert_eq!((host.as_deref(), *pid, *since), shown, "{waiter}");
    }
}

pub(crate) async fn status_request_changes_no_key(arm: &Arm) {
    arm.put(KEY, b"somebody", Some(LONG));
    let before = (arm.read(KEY), arm.keys());
    state(arm).await;
    assert_eq!((arm.read(KEY), arm.keys()), before);
}

pub(crate) async fn status_request_fails_if_the_lock_key_has_another_data_type(arm: &Arm) {
    arm.put_foreign(KEY);
    assert_eq!(arm.ask(look(KEY)).await, Err(Fault::WrongType));
}

pub(crate) async fn forced_release_deletes_the_lock_key_and_returns_its_value(arm: &Arm) {
    let counter = arm.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    let said = arm.smash(KEY).await;
    let Ok(Answer::State(was)) = said else {
        panic!("{said:?}")
    };
    assert_eq!(was.holder, Some(hex(1)));
    assert_about(was.ttl_left, LONG);
    assert_eq!(was.counter, Some(counter));
    assert_eq!(arm.read(KEY), None);
    assert_eq!(
        arm.counter(KEY),
        Some(counter),
        "a forced release must keep the counter, so that tokens keep rising"
    );
}

pub(crate) async fn force_released_holder_cannot_renew_after_the_next_holder_is_force_released(
    arm: &Arm,
) {
    let holders: Vec<_> = (1..=3).map(|n| claim(KEY, n)).collect();
    for holder in &holders {
        arm.granted(acquire(holder, LONG, now())).await;
        arm.smash(KEY)
            .await
            .expect("the force-release must succeed");
    }
    for holder in &holders {
        let said = arm.ask(extend(&[(holder, LONG)])).await;
        assert_eq!(said, Ok(each(&[Extended::NotOurs])));
    }
    assert_eq!(arm.read(KEY), None);
}

/// Tests that the break record lasts for two days, regardless of the lock's TTL and the operator's `max_ttl`. Reason:
/// other clients may use TTLs of up to a day.
pub(crate) async fn break_record_outlives_the_longest_ttl_of_any_client(arm: &Arm) {
    let short = LONG / 20;
    let number = arm.granted(acquire(&claim(KEY, 1), short, now())).await;
    arm.smash(KEY)
        .await
        .expect("the force-release must succeed");
    assert_about(arm.ttl(&mark(KEY)), 2 * DAY);
    // Set a break record that expires soon. The next forced release must reset its lifetime to two days.
    arm.put(&mark(KEY), b"\nanother\n", Some(secs(1)));
    let part = Part {
        key: KEY.into(),
        mode: Mode::Class(Class::Shared),
    };
    let group = Group::new(vec![part]);
    group.agreed(number);
    let reader = Claim::new("", KEY, token(2), true).with_fairness(Fairness::Fair(None));
    let reader = Arc::new(reader.with_group(group));
    arm.granted(acquire(&reader, short, now())).await;
    arm.smash(KEY)
        .await
        .expect("the force-release must succeed");
    assert_about(arm.ttl(&mark(KEY)), 2 * DAY);
    assert!(
        arm.read(&mark(KEY))
            .is_some_and(|text| text.ends_with(b"\nanother\n"))
    );
}

/// Tests 480 forced releases of one lock.
pub(crate) async fn first_of_hundreds_of_force_released_holders_cannot_renew_its_lock(arm: &Arm) {
    for n in 1..=96 {
        let mut bytes = [n; 16];
        for more in 0..5 {
            bytes[0] = more;
            let holder = Claim::new("", KEY, Token::from_bytes(bytes), true);
            arm.granted(acquire(&Arc::new(holder), LONG, now())).await;
            arm.smash(KEY)
                .await
                .expect("the force-release must succeed");
        }
    }
    let first = Token::from_bytes([&[0][..], &[1; 15]].concat().try_into().expect("sixteen"));
    let first = Arc::new(Claim::new("", KEY, first, true));
    let said = arm.ask(extend(&[(&first, LONG)])).await;
    assert_eq!(said, Ok(each(&[Extended::NotOurs])));
    let mark = arm.read(&mark(KEY)).expect("a mark");
    assert!(mark.len() <= 20_000, "{} bytes", mark.len());
}

/// A break record with room for one more lock, and then for none.
pub(crate) async fn force_release_is_refused_if_the_break_record_is_full(arm: &Arm) {
    let lines = |count: u32| -> Vec<u8> {
        let line = |n: u32| format!("\n{n:032x}\n").into_bytes();
        (0..count).flat_map(line).collect()
    };
    let (most, of_one) = (65_536, lines(1).len());
    let count = u32::try_from(most / of_one).expect("a small number");
    arm.put(&mark(KEY), &lines(count - 1), Some(LONG));
    arm.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    arm.smash(KEY)
        .await
        .expect("there must be room for one lock");
    arm.granted(acquire(&claim(KEY, 2), LONG, now())).await;
    let refused = arm.smash(KEY).await;
    let said = refused.expect_err("the record must be full").to_string();
    assert!(said.contains("the break record is full"), "{said}");
    assert!(said.contains("quorate:broken:job"), "{said}");
    assert_eq!(arm.read(KEY), Some(hex(2)));
    // A lock that is in the record already can still be deleted.
    arm.put(KEY, &hex(1), Some(LONG));
    arm.smash(KEY).await.expect("the lock is in the record");
    assert_eq!(arm.read(KEY), None);
    // The oldest holder was not forgotten. Its line is the last one.
    let oldest = Token::from_bytes(u128::from(count - 2).to_be_bytes());
    let oldest = Arc::new(Claim::new("", KEY, oldest, true));
    let said = arm.ask(extend(&[(&oldest, LONG)])).await;
    assert_eq!(said, Ok(each(&[Extended::NotOurs])));
    assert_eq!(arm.read(KEY), None);
}

pub(crate) async fn forced_release_of_a_foreign_lock_writes_no_break_record(arm: &Arm) {
    arm.put(KEY, b"somebody", Some(LONG));
    arm.smash(KEY)
        .await
        .expect("the force-release must succeed");
    assert_eq!((arm.read(KEY), arm.read(&mark(KEY))), (None, None));
}

/// Tests a lock whose key has no expiry. A renewal restores a missing key of a lock, but not after a forced release.
pub(crate) async fn renewal_does_not_restore_a_force_released_lock_key_that_had_no_expiry(
    arm: &Arm,
) {
    let holder = claim(KEY, 1);
    arm.granted(acquire(&holder, LONG, now())).await;
    arm.put(KEY, &hex(1), None);
    arm.smash(KEY)
        .await
        .expect("the force-release must succeed");
    let said = arm.ask(extend(&[(&holder, LONG)])).await;
    assert_eq!(said, Ok(each(&[Extended::NotOurs])));
    assert_eq!(arm.read(KEY), None);
}

pub(crate) async fn forced_release_fails_and_keeps_the_lock_key_if_the_break_record_cannot_be_written(
    arm: &Arm,
) {
    arm.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    arm.put_foreign(&mark(KEY));
    assert_eq!(arm.smash(KEY).await, Err(Fault::WrongType));
    assert_eq!(arm.read(KEY), Some(hex(1)));
}

pub(crate) async fn forced_release_of_an_absent_lock_succeeds(arm: &Arm) {
    let said = arm.smash(KEY).await;
    assert_eq!(said, Ok(Answer::State(KeyState::default())));
}

pub(crate) async fn forced_release_does_not_delete_a_lock_key_of_another_data_type(arm: &Arm) {
    arm.put_foreign(KEY);
    assert_eq!(arm.smash(KEY).await, Err(Fault::WrongType));
    assert_eq!(arm.read(KEY).as_deref(), Some(&b"foreign"[..]));
    // If the fencing counter has another data type, a forced release must also fail and keep the lock key.
    arm.put(b"second", b"holder", None);
    arm.put_foreign(&fence(b"second"));
    assert_eq!(arm.smash(b"second").await, Err(Fault::WrongType));
    assert_eq!(arm.read(b"second").as_deref(), Some(&b"holder"[..]));
}

/// Tests a master that does not have the lock that is force-released. Its break record must still name the lock.
pub(crate) async fn lock_that_only_another_master_has_cannot_be_renewed_after_its_forced_release(
    arm: &Arm,
) {
    let ended = |n: u8| Ended::new(&hex(n), &hex(n));
    for delete in [false, true] {
        arm.clear();
        let said = arm.ask(smash(KEY, &[ended(1), ended(2)], delete)).await;
        assert_eq!(said, Ok(Answer::State(KeyState::default())));
        assert_about(arm.ttl(&mark(KEY)), 2 * DAY);
        for n in [1, 2] {
            let said = arm.ask(extend(&[(&claim(KEY, n), LONG)])).await;
            assert_eq!(said, Ok(each(&[Extended::NotOurs])));
        }
        assert_eq!(arm.read(KEY), None);
        let said = arm.ask(extend(&[(&claim(KEY, 3), LONG)])).await;
        assert_eq!(said, Ok(each(&[Extended::Restored])));
    }
}

pub(crate) async fn forced_release_of_other_locks_keeps_the_lock_key(arm: &Arm) {
    arm.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    let ended = [Ended::new(&hex(2), &hex(2)), Ended::new(b"somebody", b"")];
    arm.ask(smash(KEY, &ended, true))
        .await
        .expect("the force-release must succeed");
    assert_eq!(arm.read(KEY), Some(hex(1)));
    let said = arm.ask(extend(&[(&claim(KEY, 1), LONG)])).await;
    assert_eq!(said, Ok(each(&[Extended::Kept])));
}

/// Tests an acquire that the network delays until after the force-release of its lock. It sets the lock key again.
pub(crate) async fn lock_key_that_a_delayed_acquire_sets_after_a_forced_release_cannot_be_renewed(
    arm: &Arm,
) {
    let holder = claim(KEY, 1);
    let ended = Ended::new(&hex(1), &hex(1));
    arm.ask(smash(KEY, &[ended], true))
        .await
        .expect("the force-release must succeed");
    arm.granted(acquire(&holder, LONG, now())).await;
    let said = arm.ask(extend(&[(&holder, 2 * LONG)])).await;
    assert_eq!(said, Ok(each(&[Extended::NotOurs])));
    assert_about(arm.ttl(KEY), LONG);
    // If the break record is not readable, a lock whose key exists is renewed.
    arm.put_foreign(&mark(KEY));
    let said = arm.ask(extend(&[(&holder, LONG)])).await;
    assert_eq!(said, Ok(each(&[Extended::Kept])));
}

pub(crate) async fn repeated_forced_release_adds_a_lock_to_the_break_record_once(arm: &Arm) {
    let ended = |n: u8| Ended::new(&hex(n), &hex(n));
    for ended in [ended(1), ended(2), ended(1)] {
        arm.ask(smash(KEY, &[ended], true))
            .await
            .expect("the force-release must succeed");
    }
    let lines = [b"\n", &hex(2)[..], b"\n\n", &hex(1), b"\n"].concat();
    assert_eq!(arm.read(&mark(KEY)), Some(lines));
}
