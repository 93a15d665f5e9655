//! Contract cases: locks that several holders share (readers, or holds of one owner) on one master.

use std::sync::{Arc, Mutex};

use quorate::node::{Answer, Claim, Class, Ended, Extended, Fairness, Fault, Group};
use quorate::node::{Mode, Part, Subscriber, Ticket, WakeSink};

use crate::fixtures::{LONG, assert_about, counter_key, extended, now, token_text};
use crate::requests::{acquire, claim, extend, force_release, queued, release, token};
use crate::tested_master::TestedMaster;
use crate::time::{eventually, secs};

const KEY: &[u8] = b"doc";

fn group(key: &[u8], class: Class, number: u64) -> Group {
    let part = Part {
        key: key.into(),
        mode: Mode::Class(class),
    };
    let group = Group::new(vec![part]);
    group.agreed(number);
    group
}

fn class_claim(key: &[u8], n: u8, class: Class, number: u64) -> Arc<Claim> {
    let claim = Claim::new("", key, token(n), true).with_fairness(Fairness::Fair(None));
    Arc::new(claim.with_group(group(key, class, number)))
}

fn reader(key: &[u8], n: u8) -> Arc<Claim> {
    class_claim(key, n, Class::Shared, 0)
}

/// The claim of a shared hold that already has the fencing number `number`.
fn fenced_reader(key: &[u8], n: u8, number: u64) -> Arc<Claim> {
    class_claim(key, n, Class::Shared, number)
}

pub async fn shared_hold_that_joins_while_the_fencing_counter_is_missing_fails_and_is_not_recorded(
    master: &TestedMaster,
) {
    for class in [Class::Shared, Class::Owner("o".into())] {
        master.keys().clear();
        let hold_claim = |n, number| class_claim(KEY, n, class.clone(), number);
        let number = master
            .granted(acquire(&hold_claim(1, 0), LONG, now()))
            .await;
        master.keys().delete(&counter_key(KEY));
        let reply = master.send(acquire(&hold_claim(2, 0), LONG, now())).await;
        let Err(Fault::Server(why)) = &reply else {
            panic!("{reply:?}")
        };
        assert!(why.contains("is gone"), "{why}");
        assert_eq!(master.status(KEY).await.holds.len(), 1);
        // A renewal by the current holder restores the fencing counter. After that, hold 2 can share the lock, and gets
        // the same fencing number.
        let renewed = master.send(extend(&[(&hold_claim(1, number), LONG)])).await;
        assert_eq!(renewed, Ok(extended(&[Extended::Kept])));
        let joined_number = master
            .granted(acquire(&hold_claim(2, 0), LONG, now()))
            .await;
        assert_eq!(joined_number, number);
    }
}

/// Collects the lock keys for which wake-ups arrive.
#[derive(Clone, Default)]
struct WokenKeys(Arc<Mutex<Vec<Vec<u8>>>>);

impl WakeSink for WokenKeys {
    fn woken(&self, _: usize, key: &[u8]) {
        self.0.lock().expect("no panic").push(key.to_vec());
    }
}

pub async fn repeated_acquire_of_a_shared_hold_does_not_change_its_expiry(master: &TestedMaster) {
    for class in [Class::Shared, Class::Owner("o".into())] {
        master.keys().clear();
        let hold = class_claim(KEY, 1, class, 0);
        let first = master.granted(acquire(&hold, secs(60), now())).await;
        let again = master.granted(acquire(&hold, LONG, now() + 500_000)).await;
        assert_eq!(again, first);
        assert_about(master.keys().ttl(KEY), secs(60));
    }
}

pub async fn reader_queued_behind_a_writer_is_woken_when_the_writer_leaves_the_queue(
    master: &TestedMaster,
) {
    let woken = WokenKeys::default();
    master.node().subscribe(Subscriber {
        process: "0000000000000007".into(),
        node: 0,
        sink: Arc::new(woken.clone()),
    });
    let first_reader = class_claim(KEY, 1, Class::Shared, 0);
    master.granted(acquire(&first_reader, LONG, now())).await;
    // The reader of process 7 is queued behind a writer of another process.
    let writer = queued(KEY, 2, 1);
    let reader = Claim::new("", KEY, token(7), true)
        .with_fairness(queued(KEY, 7, 2).fairness().clone())
        .with_group(group(KEY, Class::Shared, 0));
    for waiter in [writer.clone(), Arc::new(reader)] {
        let reply = master.send(acquire(&waiter, LONG, now())).await;
        assert!(matches!(reply, Ok(Answer::Refused { .. })), "{reply:?}");
    }
    let reply = master.send(release(&writer)).await;
    assert_eq!(reply, Ok(Answer::Released(false)));
    eventually("process 7 must be woken", || {
        // The same wake-up may arrive twice.
        let woken = woken.0.lock().expect("no panic");
        !woken.is_empty() && woken.iter().all(|key| key == KEY)
    })
    .await;
}

pub async fn renewal_of_a_force_released_reader_does_not_join_the_readers_that_came_later(
    master: &TestedMaster,
) {
    let number = master.granted(acquire(&reader(KEY, 1), LONG, now())).await;
    master
        .force_release(KEY)
        .await
        .expect("the force-release must succeed");
    let writer = claim(KEY, 2);
    master.granted(acquire(&writer, LONG, now())).await;
    master.send(release(&writer)).await.expect("released");
    let later_number = master.granted(acquire(&reader(KEY, 3), LONG, now())).await;
    let reply = master
        .send(extend(&[(&fenced_reader(KEY, 1, number), LONG)]))
        .await;
    assert_eq!(reply, Ok(extended(&[Extended::NotOurs])));
    let reply = master
        .send(extend(&[(&fenced_reader(KEY, 3, later_number), LONG)]))
        .await;
    assert_eq!(reply, Ok(extended(&[Extended::Kept])));
    let holds = master.status(KEY).await.holds;
    let values: Vec<_> = holds.iter().map(|hold| hold.value.clone()).collect();
    assert_eq!(values, [token_text(3)]);
}

/// Tests readers, and holds of one owner. For two days after a forced release, earlier holds cannot be renewed. During
/// this time, a renewal must still restore a hold that was acquired after the forced release.
pub async fn shared_hold_acquired_after_a_forced_release_is_restored_by_its_renewal(
    master: &TestedMaster,
) {
    for class in [Class::Shared, Class::Owner("job 7".into())] {
        master.keys().clear();
        let hold = |n, number| class_claim(KEY, n, class.clone(), number);
        let number = master.granted(acquire(&hold(1, 0), LONG, now())).await;
        let joined = master.granted(acquire(&hold(2, 0), LONG, now())).await;
        assert_eq!(joined, number);
        master
            .force_release(KEY)
            .await
            .expect("the force-release must succeed");
        // The renewal must fail for every hold from before the forced release, even if this master has not received its
        // number (hold 2) or its acquire (hold 3).
        for force_released in [hold(1, number), hold(2, number + 7), hold(3, number)] {
            let reply = master.send(extend(&[(&force_released, LONG)])).await;
            assert_eq!(reply, Ok(extended(&[Extended::NotOurs])));
        }
        assert_eq!(master.keys().read(KEY), None);
        let later_hold = hold(4, number + 8);
        let reply = master.send(extend(&[(&later_hold, LONG)])).await;
        assert_eq!(reply, Ok(extended(&[Extended::Restored])));
        // Force-release the lock while it has only the restored hold `later_hold`. After that, no hold can be renewed.
        master
            .force_release(KEY)
            .await
            .expect("the force-release must succeed");
        for force_released in [later_hold, hold(1, number), hold(2, number + 7)] {
            let reply = master.send(extend(&[(&force_released, LONG)])).await;
            assert_eq!(reply, Ok(extended(&[Extended::NotOurs])));
        }
    }
}

pub async fn lock_on_several_resources_is_refused_while_one_lock_key_has_a_foreign_value(
    master: &TestedMaster,
) {
    let part = |key: &[u8]| Part {
        key: key.into(),
        mode: Mode::Exclusive,
    };
    for foreign in [&b"x"[..], b"1", b""] {
        master.keys().clear();
        master.keys().put(KEY, foreign, Some(LONG));
        let group = Group::new(vec![part(KEY), part(b"other")]);
        let claim = Claim::new("", KEY, token(1), true).with_fairness(Fairness::Fair(None));
        let reply = master
            .send(acquire(&Arc::new(claim.with_group(group)), LONG, now()))
            .await;
        assert!(matches!(reply, Ok(Answer::Refused { .. })), "{reply:?}");
        assert_eq!(master.keys().read(KEY).as_deref(), Some(foreign));
    }
}

pub async fn downgrade_of_a_force_released_lock_is_refused_with_the_remaining_ttl_of_the_next_holder(
    master: &TestedMaster,
) {
    master.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    master
        .force_release(KEY)
        .await
        .expect("the force-release must succeed");
    master.granted(acquire(&claim(KEY, 2), LONG, now())).await;
    let reader = Claim::new("", KEY, token(3), true).with_fairness(Fairness::Fair(None));
    let reader_group = group(KEY, Class::Shared, 0).instead_of(token(1));
    let reply = master
        .send(acquire(
            &Arc::new(reader.with_group(reader_group)),
            LONG,
            now(),
        ))
        .await;
    let Ok(Answer::Refused {
        ttl_left: Some(ttl_left),
        ..
    }) = reply
    else {
        panic!("{reply:?}")
    };
    assert!(ttl_left > LONG / 2, "{ttl_left:?}");
}

/// Tests an acquire that the network delays until after the force-release of its lock.
pub async fn hold_that_a_delayed_acquire_takes_after_a_forced_release_cannot_be_renewed(
    master: &TestedMaster,
) {
    let part = |key: &[u8]| Part {
        key: key.into(),
        mode: Mode::Exclusive,
    };
    let claim = Group::new(vec![part(KEY), part(b"other")]);
    claim.agreed(1);
    let claim = Claim::new("", KEY, token(1), true).with_group(claim);
    let ended_lock = |value: &[u8], record: &[u8]| Ended::new(value, record);
    master
        .send(force_release(
            KEY,
            &[ended_lock(&token_text(1), &token_text(1))],
            true,
        ))
        .await
        .expect("the force-release must succeed");
    let claim = Arc::new(claim.with_fairness(Fairness::Fair(None)));
    master.granted(acquire(&claim, LONG, now())).await;
    let renewal = master.send(extend(&[(&claim, LONG)])).await;
    assert_eq!(renewal, Ok(extended(&[Extended::NotOurs, Extended::Kept])));
    for class in [Class::Shared, Class::Owner("job 7".into())] {
        master.keys().clear();
        let marker = class.lock_value();
        let record = [&marker[..], b"\t0\n", &token_text(1)].concat();
        master
            .send(force_release(KEY, &[ended_lock(&marker, &record)], true))
            .await
            .expect("the force-release must succeed");
        let hold = |n, number| class_claim(KEY, n, class.clone(), number);
        let number = master.granted(acquire(&hold(1, 0), LONG, now())).await;
        master.granted(acquire(&hold(2, 0), LONG, now())).await;
        let renewal = |n| master.send(extend(&[(&hold(n, number), LONG)]));
        assert_eq!(renewal(1).await, Ok(extended(&[Extended::NotOurs])));
        assert_eq!(renewal(2).await, Ok(extended(&[Extended::Kept])));
    }
}

/// Tests a reader that joins after the force-release has read the holds, and before it deletes them.
pub async fn forced_release_keeps_a_shared_lock_with_a_hold_that_joined_later(
    master: &TestedMaster,
) {
    let number = master.granted(acquire(&reader(KEY, 1), LONG, now())).await;
    let ended = Ended::all([master.status(KEY).await].iter());
    master.granted(acquire(&reader(KEY, 2), LONG, now())).await;
    master
        .send(force_release(KEY, &ended, true))
        .await
        .expect("the force-release must succeed");
    let renew_hold = |n| master.send(extend(&[(&fenced_reader(KEY, n, number), LONG)]));
    assert_eq!(renew_hold(1).await, Ok(extended(&[Extended::NotOurs])));
    assert_eq!(renew_hold(2).await, Ok(extended(&[Extended::Kept])));
    let ended = Ended::all([master.status(KEY).await].iter());
    master
        .send(force_release(KEY, &ended, true))
        .await
        .expect("the force-release must succeed");
    assert_eq!(master.keys().read(KEY), None);
}

pub async fn downgrade_of_a_force_released_lock_is_refused_even_if_the_lock_key_was_set_again(
    master: &TestedMaster,
) {
    let ended = Ended::new(&token_text(1), &token_text(1));
    master
        .send(force_release(KEY, &[ended], true))
        .await
        .expect("the force-release must succeed");
    master.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    let reader = Claim::new("", KEY, token(3), true).with_fairness(Fairness::Fair(None));
    let reader_group = group(KEY, Class::Shared, 0).instead_of(token(1));
    let reply = master
        .send(acquire(
            &Arc::new(reader.with_group(reader_group)),
            LONG,
            now(),
        ))
        .await;
    assert!(matches!(reply, Ok(Answer::Refused { .. })), "{reply:?}");
}

pub async fn writer_that_becomes_a_reader_leaves_the_queue(master: &TestedMaster) {
    let fairness = || {
        Fairness::Fair(Some(Box::new(Ticket {
            waiter: "0000000000000007:1".into(),
            number: 1,
            heartbeat: LONG,
        })))
    };
    let writer = Claim::new("", KEY, token(1), true).with_fairness(fairness());
    master
        .granted(acquire(&Arc::new(writer), LONG, now()))
        .await;
    let reader = Claim::new("", KEY, token(2), true).with_fairness(fairness());
    let reader_group = group(KEY, Class::Shared, 0).instead_of(token(1));
    master
        .granted(acquire(
            &Arc::new(reader.with_group(reader_group)),
            LONG,
            now(),
        ))
        .await;
    let waiters = master.status(KEY).await.queue;
    assert!(waiters.is_empty(), "no place may be left: {waiters:?}");
}

fn unknown_extension() -> Extended {
    let why = "the lock is not renewed, because another program wrote to one of its keys";
    Extended::Unknown(Fault::Server(why.into()))
}

pub async fn lock_with_a_malformed_fencing_counter_does_not_affect_the_renewal_of_other_locks(
    master: &TestedMaster,
) {
    for malformed in [Some(&b"hello"[..]), None] {
        master.keys().clear();
        let mut items = Vec::new();
        for key in [&b"bad"[..], b"good"] {
            let number = master.granted(acquire(&reader(key, 1), LONG, now())).await;
            items.push(fenced_reader(key, 1, number));
        }
        match malformed {
            Some(text) => master.keys().put(&counter_key(b"bad"), text, None),
            None => master.keys().put_foreign(&counter_key(b"bad")),
        }
        let reply = master
            .send(extend(&[(&items[0], LONG), (&items[1], LONG)]))
            .await;
        assert_eq!(reply, Ok(extended(&[unknown_extension(), Extended::Kept])));
    }
}

pub async fn break_record_of_another_data_type_does_not_affect_the_renewal_of_other_locks(
    master: &TestedMaster,
) {
    let break_record_key = |key: &[u8]| [b"quorate:broken:", key].concat();
    master.keys().put_foreign(&break_record_key(b"bad"));
    let (bad, good) = (claim(b"bad", 1), claim(b"good", 1));
    let reply = master.send(extend(&[(&bad, LONG), (&good, LONG)])).await;
    assert_eq!(
        reply,
        Ok(extended(&[unknown_extension(), Extended::Restored]))
    );
    assert_eq!(
        master.keys().read(b"bad"),
        None,
        "the lock must not be restored, because it may have been force-released"
    );
    let (bad, good) = (fenced_reader(b"bad", 1, 7), fenced_reader(b"good", 1, 7));
    master.keys().delete(b"good");
    let reply = master.send(extend(&[(&bad, LONG), (&good, LONG)])).await;
    assert_eq!(
        reply,
        Ok(extended(&[unknown_extension(), Extended::Restored]))
    );
}
