//! Tests of holds that share a key, on a master in memory: places in queues, expiries, and wake-ups.

use super::*;
use crate::keys::Family;
use crate::node::{Ended, ExtendItem, Fairness, Mode, Request};

/// The time on the master's clock, in microseconds.
const NOW: u64 = 1_700_000_000_000_000;
const SECOND: u64 = 1_000_000;

fn token(n: u8) -> Token {
    Token::from_bytes([n; 16])
}

/// The ticket of the waiter of process `n`, whose place expires 10 s after each request.
fn ticket(n: u8) -> Ticket {
    Ticket {
        waiter: format!("{n:016x}:1").into(),
        number: u64::from(n),
        heartbeat: Duration::from_secs(10),
    }
}

/// A claim of process `n` on `doc`. If the claim has a ticket, it takes a place in the queue when it is refused.
fn claim(n: u8, class: Option<Class>, has_ticket: bool) -> Arc<Claim> {
    claim_in_group(n, has_ticket, |group| group, class)
}

fn claim_in_group(
    n: u8,
    has_ticket: bool,
    change: impl Fn(Group) -> Group,
    class: Option<Class>,
) -> Arc<Claim> {
    let ticket = has_ticket.then(|| Box::new(ticket(n)));
    let mode = class.map_or(Mode::Exclusive, Mode::Class);
    let key = b"doc"[..].into();
    let group = change(Group::new(vec![Part { key, mode }]));
    let claim = Claim::new("", b"doc", token(n), true).with_fairness(Fairness::Fair(ticket));
    Arc::new(claim.with_group(group))
}

fn reader(n: u8) -> Arc<Claim> {
    claim(n, Some(Class::Shared), true)
}

fn writer(n: u8) -> Arc<Claim> {
    claim(n, None, true)
}

fn owner_hold(n: u8) -> Arc<Claim> {
    claim(n, Some(Class::Owner("order-7".into())), true)
}

/// Whether the master grants the claim at `now` for this number of seconds.
fn acquires(master: &mut Master, now: u64, claim: &Arc<Claim>, seconds: u64) -> bool {
    let request = Request::Acquire {
        claim: claim.clone(),
        ttl: Duration::from_secs(seconds),
        proposal: now,
    };
    let answer = master.apply(now, &request);
    matches!(answer, Ok(Answer::Granted { .. }))
}

/// Releases the claim. Returns the numbers of the processes that the release wakes.
fn release(master: &mut Master, now: u64, claim: &Arc<Claim>) -> Vec<u64> {
    master.take_published();
    let claim = claim.clone();
    let answer = master.apply(now, &Request::Release { claim, leave: true });
    assert!(matches!(answer, Ok(Answer::Released(_))), "{answer:?}");
    woken_processes(master)
}

/// The numbers of the processes that the master has woken since it was last asked.
fn woken_processes(master: &mut Master) -> Vec<u64> {
    let woken = master.take_published().into_iter();
    let number_of = |process: &str| u64::from_str_radix(process, 16).expect("a number");
    woken.map(|(process, _)| number_of(&process)).collect()
}

/// The expiry of the lock key, as seconds after [`NOW`].
fn expiry(master: &mut Master, now: u64) -> Option<u64> {
    let expires = master.peek(now, b"doc").expires?;
    Some((expires - NOW) / SECOND)
}

#[test]
fn key_of_readers_expires_with_the_last_remaining_reader() {
    let mut master = Master::default();
    for (n, seconds) in [(1, 5), (2, 30), (3, 20)] {
        assert!(acquires(&mut master, NOW, &reader(n), seconds));
    }
    assert_eq!(expiry(&mut master, NOW), Some(30));
    release(&mut master, NOW, &reader(2));
    assert_eq!(expiry(&mut master, NOW), Some(20));
    // A release without a hold changes nothing.
    release(&mut master, NOW, &reader(2));
    assert_eq!(expiry(&mut master, NOW), Some(20));
    // A reader whose hold has expired is not listed any more.
    let later = NOW + 6 * SECOND;
    release(&mut master, later, &reader(3));
    assert_eq!(expiry(&mut master, later), None);
}

#[test]
fn repeated_request_of_a_holder_renews_its_place_in_the_queue() {
    let mut master = Master::default();
    assert!(acquires(&mut master, NOW, &owner_hold(1), 30));
    // The repetition takes a place for 10 s, and a later one renews the place.
    assert!(acquires(&mut master, NOW, &owner_hold(1), 30));
    let later = NOW + 8 * SECOND;
    assert!(acquires(&mut master, later, &owner_hold(1), 30));
    assert!(!acquires(&mut master, later, &writer(2), 30));
    let place_expires_in = |master: &mut Master, now: u64| {
        let queue = master.queues.get(&b"doc"[..]).expect("a queue");
        let place = owner_hold(1).ticket().map(|ticket| ticket.waiter.clone());
        let expires = place.and_then(|place| queue.alive.get(&place).copied());
        expires.map(|expires| expires.saturating_sub(now / 1000) / 1000)
    };
    assert_eq!(place_expires_in(&mut master, later), Some(10));
}

#[test]
fn writer_that_becomes_a_reader_leaves_the_queue_and_keeps_no_note_of_the_writer() {
    let mut master = Master::default();
    assert!(acquires(&mut master, NOW, &claim(1, None, false), 30));
    let note_key = Family::Note.key_of(b"doc");
    master.put_text(
        NOW,
        &note_key,
        b"a note of the writer",
        Some(Duration::from_secs(30)),
    );
    // The writer's place in the queue may have outlived its grant.
    let place = ticket(2);
    master
        .queue_of(NOW / 1000, b"doc")
        .keep_place(&place, NOW / 1000);
    master.forget_ticket(b"doc");
    let replacing = |group: Group| group.instead_of(token(1));
    let claim = claim_in_group(2, true, replacing, Some(Class::Shared));
    assert!(acquires(&mut master, NOW, &claim, 30));
    assert!(!master.exists(NOW, &note_key), "the note must be deleted");
    assert!(
        !master.queues.contains_key(&b"doc"[..]),
        "the writer must have left the queue, and the queue has no other waiter and no ticket"
    );
}

#[test]
fn repeated_request_of_a_holder_keeps_the_waiters_of_its_queue_until_they_expire() {
    for (repeated_after, waiter_count) in [(9, 2), (10, 1)] {
        let mut master = Master::default();
        assert!(acquires(&mut master, NOW, &owner_hold(1), 30));
        assert!(!acquires(&mut master, NOW, &writer(2), 30));
        let later = NOW + repeated_after * SECOND;
        assert!(acquires(&mut master, later, &owner_hold(1), 30));
        let queue = master.queues.get(&b"doc"[..]).expect("a queue");
        assert_eq!(
            queue.queue.len(),
            waiter_count,
            "the holder has repeated its request after {repeated_after} s"
        );
    }
}

/// The processes that are woken if the lock `doc` can be granted while these waiters are in its queue. Each waiter is
/// the number of its process, and whether it is a reader.
fn woken_of(waiters: impl IntoIterator<Item = (u64, bool)>) -> Vec<u64> {
    let mut master = Master::default();
    for (number, (process, is_reader)) in (1..).zip(waiters) {
        let mode = if is_reader {
            Mode::Class(Class::Shared)
        } else {
            Mode::Exclusive
        };
        let ticket = Ticket {
            waiter: mode.place(&format!("{process:016x}:{number}").into()),
            number,
            heartbeat: Duration::from_secs(10),
        };
        let queue = master.queue_of(NOW / 1000, b"doc");
        queue.keep_place(&ticket, NOW / 1000);
    }
    master.wake_next(b"doc");
    woken_processes(&mut master)
}

#[test]
fn wake_up_reaches_the_first_writer_or_the_readers_ahead_of_the_first_writer() {
    let (reader, writer) = (true, false);
    let queues: [(&[_], &[u64]); 5] = [
        (&[], &[]),
        (&[(1, writer), (2, reader), (3, writer)], &[1]),
        (&[(1, reader), (2, writer), (3, reader)], &[1]),
        (
            &[(1, reader), (2, reader), (1, reader), (3, writer)],
            &[1, 2],
        ),
        (&[(2, reader), (1, reader)], &[2, 1]),
    ];
    for (waiters, woken) in queues {
        assert_eq!(woken_of(waiters.iter().copied()), woken, "{waiters:?}");
    }
}

#[test]
fn one_wake_up_examines_256_readers_and_reaches_64_processes() {
    let of_many_processes = woken_of((1..=70).map(|process| (process, true)));
    assert_eq!(of_many_processes, (1..=64).collect::<Vec<_>>());
    for (reader_count, woken) in [(255, &[1, 2][..]), (256, &[1])] {
        let readers = std::iter::repeat_n((1, true), reader_count);
        let of_one_process = woken_of(readers.chain([(2, true)]));
        assert_eq!(
            of_one_process, woken,
            "{reader_count} readers are ahead of the other process"
        );
    }
}

/// Extends the claim at `NOW` for 30 s, and returns the result for its only key.
fn extend(master: &mut Master, claim: &Arc<Claim>) -> Extended {
    let item = ExtendItem::new(claim.clone(), Duration::from_secs(30));
    let items = [item].into();
    let answer = master.apply(NOW, &Request::Extend { items });
    let Ok(Answer::Extended(results)) = answer else {
        panic!("the master must execute the extension, but answered {answer:?}");
    };
    let [result] = &results[..] else {
        panic!("there must be one result for one key: {results:?}");
    };
    result.clone()
}

#[test]
fn restored_reader_raises_a_counter_above_its_number_only_if_no_other_reader_holds_the_lock() {
    for (is_shared, raised_by) in [(true, 0), (false, 1)] {
        let mut master = Master::default();
        let agreed = |group: Group| {
            group.agreed(NOW);
            group
        };
        let restored = claim_in_group(2, false, agreed, Some(Class::Shared));
        if is_shared {
            assert!(acquires(&mut master, NOW, &reader(1), 30));
        }
        let counter = NOW + 5;
        assert!(master.carry(NOW, b"doc", counter));
        assert_eq!(extend(&mut master, &restored), Extended::Restored);
        assert_eq!(
            master.peek(NOW, b"doc").counter,
            Some(counter + raised_by),
            "another reader holds the lock: {is_shared}"
        );
        // A renewal of a hold that the master has does not raise the counter.
        assert_eq!(extend(&mut master, &restored), Extended::Kept);
        assert_eq!(
            master.peek(NOW, b"doc").counter,
            Some(counter + raised_by),
            "another reader holds the lock: {is_shared}"
        );
    }
}

#[test]
fn hold_with_a_number_of_an_earlier_force_release_is_not_restored_after_later_force_releases() {
    let marker = Class::Shared.lock_value();
    let counter = NOW + 5;
    let of_readers = [&marker[..], b"\t", counter.to_string().as_bytes()].concat();
    let writer_value = token(9).to_hex();
    let mut master = Master::default();
    for (value, record) in [
        (&marker[..], &of_readers[..]),
        (&writer_value, &writer_value),
    ] {
        let request = Request::Break {
            key: b"doc"[..].into(),
            ended: [Ended::new(value, record)].into(),
            delete: true,
        };
        let answer = master.apply(NOW, &request);
        assert!(matches!(answer, Ok(Answer::State(_))), "{answer:?}");
    }
    for (number, result) in [
        (counter, Extended::NotOurs),
        (counter + 1, Extended::Restored),
    ] {
        let agreed = |group: Group| {
            group.agreed(number);
            group
        };
        let reader = claim_in_group(2, false, agreed, Some(Class::Shared));
        assert_eq!(extend(&mut master, &reader), result, "{number}");
    }
}

#[test]
fn waiter_that_leaves_wakes_the_next_one_only_if_the_key_can_be_granted() {
    // The holder, and whether a waiter that leaves the queue wakes the next waiter.
    for (holder, wakes) in [
        (None, true),
        (Some(claim(1, Some(Class::Shared), false)), true),
        (Some(claim(1, None, false)), false),
        (
            Some(claim(1, Some(Class::Owner("order-7".into())), false)),
            false,
        ),
    ] {
        let mut master = Master::default();
        // A writer that does not wait for the holder keeps the waiters from getting the lock.
        let blocking_writer = writer(9);
        assert!(acquires(&mut master, NOW, &blocking_writer, 30));
        for n in [2, 3] {
            assert!(!acquires(&mut master, NOW, &writer(n), 30));
        }
        let key = crate::keys::lock_of(b"doc").to_vec();
        master.remove(&key);
        if let Some(holder) = &holder {
            master.queues.remove(&b"doc"[..]);
            assert!(acquires(&mut master, NOW, holder, 30));
            for n in [2, 3] {
                assert!(!acquires(&mut master, NOW, &writer(n), 30));
            }
        }
        let woken = release(&mut master, NOW, &writer(2));
        assert_eq!(woken, if wakes { vec![3] } else { vec![] }, "{holder:?}");
        // The second waiter has left already.
        assert_eq!(release(&mut master, NOW, &writer(2)), [0; 0]);
    }
}

#[test]
fn owner_does_not_keep_a_hold_after_a_grant_with_a_larger_number() {
    for (counter_above, result) in [(0, Extended::Kept), (1, Extended::NotOurs)] {
        let mut master = Master::default();
        let hold = owner_hold(1);
        assert!(acquires(&mut master, NOW, &hold, 5));
        let number = master.peek(NOW, b"doc").counter.expect("a counter");
        hold.agreed(Some(number));
        master.carry(NOW, b"doc", number + counter_above);
        assert_eq!(extend(&mut master, &hold), result);
        let seconds = if result == Extended::Kept { 30 } else { 5 };
        assert_eq!(expiry(&mut master, NOW), Some(seconds));
    }
}

#[test]
fn writer_whose_lock_was_force_released_does_not_become_a_reader_and_may_ask_again_at_once() {
    let mut master = Master::default();
    assert!(acquires(&mut master, NOW, &claim(1, None, false), 30));
    let writer_value = token(1).to_hex();
    let request = Request::Break {
        key: b"doc"[..].into(),
        ended: [Ended::new(&writer_value, &writer_value)].into(),
        delete: false,
    };
    let answer = master.apply(NOW, &request);
    assert!(matches!(answer, Ok(Answer::State(_))), "{answer:?}");
    let replacing = |group: Group| group.instead_of(token(1));
    let request = Request::Acquire {
        claim: claim_in_group(2, true, replacing, Some(Class::Shared)),
        ttl: Duration::from_secs(30),
        proposal: NOW,
    };
    let answer = master.apply(NOW, &request);
    let Ok(Answer::Refused { ttl_left, .. }) = answer else {
        panic!("the claim must be refused: {answer:?}");
    };
    assert_eq!(ttl_left, Some(Duration::ZERO));
}

/// The holds of `doc` that the master lists, as the number of each process and its expiry in seconds after [`NOW`].
/// Contains expired holds that the master has not deleted yet.
fn listed_holds(master: &Master) -> Vec<(u8, u64)> {
    let holds = master.standing(b"doc").iter();
    let expiry = |until: &u64| (until - NOW / 1000) / 1000;
    let hold = |(value, until): &([u8; 32], u64)| {
        let number = Token::from_hex(value).expect("the value of a hold");
        (number.to_bytes()[0], expiry(until))
    };
    holds.map(hold).collect()
}

#[test]
fn request_of_a_reader_deletes_the_holds_that_have_expired() {
    for (requested_after, listed) in [(4, &[1, 2, 3][..]), (5, &[2, 3])] {
        let mut master = Master::default();
        assert!(acquires(&mut master, NOW, &reader(1), 5));
        assert!(acquires(&mut master, NOW, &reader(2), 30));
        let later = NOW + requested_after * SECOND;
        assert!(acquires(&mut master, later, &reader(3), 30));
        let holds = listed_holds(&master);
        let numbers: Vec<u8> = holds.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, listed, "after {requested_after} s");
    }
}

#[test]
fn release_of_a_reader_deletes_the_holds_that_have_expired() {
    let mut master = Master::default();
    for (n, seconds) in [(1, 5), (2, 30), (3, 20)] {
        assert!(acquires(&mut master, NOW, &reader(n), seconds));
    }
    release(&mut master, NOW + 6 * SECOND, &reader(3));
    assert_eq!(listed_holds(&master), [(2, 30)]);
}

/// A claim of process 1 on `doc` and `other`, as a reader.
fn reader_of_two() -> Arc<Claim> {
    let part = |key: &[u8]| Part {
        key: key.into(),
        mode: Mode::Class(Class::Shared),
    };
    let group = Group::new(vec![part(b"doc"), part(b"other")]);
    let claim = Claim::new("", b"doc", token(1), true).with_fairness(Fairness::Fair(None));
    Arc::new(claim.with_group(group))
}

/// The master lost one of two keys, so it grants the claim again.
#[test]
fn last_request_of_a_reader_determines_when_its_hold_expires() {
    let mut master = Master::default();
    assert!(acquires(&mut master, NOW, &reader_of_two(), 30));
    assert_eq!(listed_holds(&master), [(1, 30)]);
    master.remove(b"other");
    assert!(acquires(&mut master, NOW, &reader_of_two(), 5));
    assert_eq!(listed_holds(&master), [(1, 5)]);
    assert_eq!(
        expiry(&mut master, NOW),
        Some(30),
        "the key may be of other readers"
    );
}

#[test]
fn renewal_never_shortens_a_hold() {
    let mut master = Master::default();
    assert!(acquires(&mut master, NOW, &reader(1), 60));
    assert_eq!(extend(&mut master, &reader(1)), Extended::Kept);
    assert_eq!(listed_holds(&master), [(1, 60)]);
    assert_eq!(expiry(&mut master, NOW), Some(60));
    let mut master = Master::default();
    assert!(acquires(&mut master, NOW, &reader(1), 5));
    assert_eq!(extend(&mut master, &reader(1)), Extended::Kept);
    assert_eq!(listed_holds(&master), [(1, 30)]);
}

/// The master evicted the lock key, but not yet the list of the holds.
#[test]
fn renewal_of_a_reader_whose_key_is_missing_restores_only_this_reader() {
    let mut master = Master::default();
    for n in [1, 2] {
        assert!(acquires(&mut master, NOW, &reader(n), 60));
    }
    master.remove(b"doc");
    assert_eq!(extend(&mut master, &reader(1)), Extended::Restored);
    assert_eq!(listed_holds(&master), [(1, 30)]);
    assert!(master.peek(NOW, b"doc").holder.is_some());
}

#[test]
fn renewal_leaves_a_counter_as_it_is_that_has_the_number_of_the_hold() {
    for is_missing in [false, true] {
        let mut master = Master::default();
        let agreed = |group: Group| {
            group.agreed(NOW);
            group
        };
        let hold = claim_in_group(1, false, agreed, Some(Class::Shared));
        assert!(acquires(&mut master, NOW, &hold, 60));
        if is_missing {
            master.remove(b"doc");
        }
        let counter_key = Family::Fence.key_of(b"doc");
        let short_expiry = NOW + 100 * SECOND;
        master.expire_at(&counter_key, short_expiry);
        let restores = extend(&mut master, &hold) == Extended::Restored;
        assert_eq!(restores, is_missing);
        let lock = master.peek(NOW, b"doc");
        assert_eq!(lock.counter, Some(NOW), "the key is missing: {is_missing}");
        assert_eq!(
            lock.counter_expires,
            Some(short_expiry),
            "the key is missing: {is_missing}"
        );
    }
}

#[test]
fn waiting_writer_is_woken_by_the_last_hold_that_ends_and_by_no_other_release() {
    let owner_of = |n| claim(n, Some(Class::Owner("order-7".into())), false);
    let reader_of = |n| claim(n, Some(Class::Shared), false);
    for holds in [[1, 2].map(owner_of), [1, 2].map(reader_of)] {
        let mut master = Master::default();
        for hold in &holds {
            assert!(acquires(&mut master, NOW, hold, 30));
        }
        assert!(!acquires(&mut master, NOW, &writer(3), 30));
        let [first, last] = &holds;
        assert_eq!(release(&mut master, NOW, first), [0; 0], "{first:?}");
        assert_eq!(
            release(&mut master, NOW, first),
            [0; 0],
            "not held: {first:?}"
        );
        assert_eq!(release(&mut master, NOW, last), [3], "{last:?}");
        assert_eq!(
            release(&mut master, NOW, last),
            [0; 0],
            "not held: {last:?}"
        );
    }
}

#[test]
fn release_wakes_the_first_waiter_whose_place_has_not_expired() {
    for (released_after, woken) in [(9_999_000, 2), (10 * SECOND, 3)] {
        let mut master = Master::default();
        let holder = claim(1, None, false);
        assert!(acquires(&mut master, NOW, &holder, 60));
        assert!(!acquires(&mut master, NOW, &writer(2), 30));
        assert!(!acquires(&mut master, NOW + 5 * SECOND, &writer(3), 30));
        let released_at = NOW + released_after;
        assert_eq!(
            release(&mut master, released_at, &holder),
            [woken],
            "after {released_after} microseconds"
        );
    }
}

#[test]
fn request_and_release_without_a_place_leave_no_queue() {
    let mut master = Master::default();
    let holder = claim(1, None, false);
    assert!(acquires(&mut master, NOW, &holder, 60));
    assert!(master.queues.is_empty(), "nobody waits");
    release(&mut master, NOW, &holder);
    assert!(master.queues.is_empty(), "nobody waits");
}

/// The refusal of a claim: the time after which the lock may be free, and the state of the queue.
fn refusal(master: &mut Master, now: u64, claim: &Arc<Claim>) -> (Option<Duration>, QueueInfo) {
    let request = Request::Acquire {
        claim: claim.clone(),
        ttl: Duration::from_secs(30),
        proposal: now,
    };
    match master.apply(now, &request) {
        Ok(Answer::Refused { ttl_left, line }) => (ttl_left, *line.expect("a queue")),
        other => panic!("the claim must be refused: {other:?}"),
    }
}

/// A master whose lock is free, but writers 2 and 3 are queued. The place of writer 2 expires 10 s after [`NOW`], and
/// that of writer 3 after 15 s.
fn master_with_two_waiters() -> Master {
    let mut master = Master::default();
    let holder = claim(1, None, false);
    assert!(acquires(&mut master, NOW, &holder, 60));
    assert!(!acquires(&mut master, NOW, &writer(2), 30));
    assert!(!acquires(&mut master, NOW + 5 * SECOND, &writer(3), 30));
    master.remove(b"doc");
    master
}

#[test]
fn claim_on_a_free_lock_waits_for_the_first_waiter_until_its_place_expires() {
    for newcomer in [owner_hold(4), writer(4)] {
        let mut master = master_with_two_waiters();
        let (ttl_left, queue) = refusal(&mut master, NOW + 6 * SECOND, &newcomer);
        assert_eq!(ttl_left, Some(Duration::from_secs(4)), "{newcomer:?}");
        assert_eq!(queue.ahead, 2, "{newcomer:?}");
        // The first waiter is gone, so the claim waits for the second one.
        let (ttl_left, queue) = refusal(&mut master, NOW + 10 * SECOND, &newcomer);
        assert_eq!(ttl_left, Some(Duration::from_secs(5)), "{newcomer:?}");
        assert_eq!(queue.ahead, 1, "{newcomer:?}");
        assert!(acquires(&mut master, NOW + 15 * SECOND, &newcomer, 30));
    }
}

#[test]
fn further_hold_of_an_owner_overtakes_the_waiters_and_keeps_its_place_in_the_queue() {
    let mut master = Master::default();
    assert!(acquires(&mut master, NOW, &owner_hold(1), 30));
    let place = ticket(1).waiter;
    let has_place = |master: &Master| {
        let queue = master.queues.get(&b"doc"[..]);
        queue.is_some_and(|queue| queue.alive.contains_key(&place))
    };
    assert!(has_place(&master), "a grant does not end the place");
    assert!(!acquires(&mut master, NOW, &writer(2), 30));
    assert!(acquires(&mut master, NOW, &owner_hold(3), 30));
    let of_another = claim(4, Some(Class::Owner("order-8".into())), true);
    assert!(!acquires(&mut master, NOW, &of_another, 30));
}

#[test]
fn note_of_a_replaced_writer_is_deleted_only_from_a_key_that_becomes_shared() {
    for (class, is_deleted) in [(Some(Class::Shared), true), (None, false)] {
        let mut master = Master::default();
        assert!(acquires(&mut master, NOW, &claim(1, None, false), 30));
        let note_key = Family::Note.key_of(b"doc");
        master.put_text(NOW, &note_key, b"a note of the writer", None);
        let replacing = |group: Group| group.instead_of(token(1));
        let claim = claim_in_group(2, false, replacing, class);
        assert!(acquires(&mut master, NOW, &claim, 30));
        assert_eq!(!master.exists(NOW, &note_key), is_deleted, "{claim:?}");
    }
}

#[test]
fn refused_claim_sees_the_note_of_the_holder() {
    let mut master = Master::default();
    assert!(acquires(&mut master, NOW, &claim(1, None, false), 30));
    let value = token(1).to_hex();
    let note = [&value[..], b" 1\t7\thost\tprogram\tcleaning"].concat();
    master.put_text(NOW, &Family::Note.key_of(b"doc"), &note, None);
    let (_, queue) = refusal(&mut master, NOW, &reader(2));
    let text = queue.note.and_then(|note| note.text);
    assert_eq!(text.as_deref(), Some("cleaning"));
    assert_eq!(queue.holder.as_deref(), Some(&value[..]));
}

#[test]
fn status_lists_the_100_holds_that_expire_last_in_the_order_of_their_expiry() {
    let mut master = Master::default();
    // The later a reader comes, the sooner its hold expires.
    for n in 0..102 {
        assert!(acquires(&mut master, NOW, &reader(n), 200 - u64::from(n)));
    }
    let key = b"doc"[..].into();
    let Ok(Answer::State(state)) = master.apply(NOW, &Request::Status { key }) else {
        panic!("the master must show the state of the lock");
    };
    let seconds: Vec<u64> = state
        .holds
        .iter()
        .map(|hold| hold.lives.as_secs())
        .collect();
    assert_eq!(seconds, (101..=200).collect::<Vec<_>>());
}

/// The list of the holds can outlive the lock of the readers, for example after a force-release.
#[test]
fn reader_writes_no_note_under_the_lock_of_a_writer() {
    for (has_ended, is_noted) in [(false, true), (true, false)] {
        let mut master = Master::default();
        let reader = claim(1, Some(Class::Shared), false);
        assert!(acquires(&mut master, NOW, &reader, 60));
        if has_ended {
            master.remove(b"doc");
            assert!(acquires(&mut master, NOW, &claim(2, None, false), 60));
            assert_eq!(listed_holds(&master), [(1, 60)]);
        }
        let note = crate::node::NoteItem {
            claim: reader,
            says: "of the reader".into(),
            since: 1,
            announce: false,
        };
        let items = [note].into();
        let written = master.apply(NOW, &Request::Note { items });
        assert_eq!(written, Ok(Answer::Noted(vec![is_noted])));
    }
}
