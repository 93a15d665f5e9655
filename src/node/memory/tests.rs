//! Tests that keys of a master in memory expire at the right microsecond.

use std::sync::Arc;
use std::time::Duration;

use super::items::{Item, ItemId, ItemKind};
use super::{Master, MemoryNode};
use crate::keys::Family;
use crate::node::{
    Answer, Claim, Class, Ended, ExtendItem, Extended, Fairness, Group, Mode, Node as _, NoteItem,
    Part, Permit, Reply, Request, StoredValue, Subscriber, Ticket, Token, WakeSink,
};

/// The time on the master's clock, in microseconds.
const NOW: u64 = 1_700_000_000_000_000;
const SECOND: u64 = 1_000_000;

fn ticket(waiter: &str, number: u64, heartbeat: u64) -> Ticket {
    Ticket {
        waiter: waiter.into(),
        number,
        heartbeat: Duration::from_secs(heartbeat),
    }
}

/// A fair claim on the lock `nightly`. With a ticket, the claim takes a place in the queue if the lock is held.
fn claim(token: u8, ticket: Option<Ticket>) -> Arc<Claim> {
    let claim = Claim::new("", b"nightly", Token::from_bytes([token; 16]), true);
    Arc::new(claim.with_fairness(Fairness::Fair(ticket.map(Box::new))))
}

fn acquire(master: &mut Master, now: u64, claim: &Arc<Claim>, seconds: u64) -> Answer {
    let request = Request::Acquire {
        claim: claim.clone(),
        ttl: Duration::from_secs(seconds),
        proposal: now,
    };
    master
        .apply(now, &request)
        .expect("the master must execute the request")
}

fn release(master: &mut Master, now: u64, claim: &Arc<Claim>) {
    let claim = claim.clone();
    let released = master.apply(now, &Request::Release { claim, leave: true });
    assert_eq!(released, Ok(Answer::Released(true)));
}

/// Acquires the lock `nightly`, and lets a waiter enter its queue and leave it. The ticket of the queue remains.
fn master_with_an_empty_queue() -> Master {
    let mut master = Master::default();
    acquire(&mut master, NOW, &claim(1, None), 600);
    let waiter = claim(2, Some(ticket("aaaaaaaaaaaaaaaa:1", 1, 60)));
    acquire(&mut master, NOW, &waiter, 30);
    let request = Request::Release {
        claim: waiter,
        leave: true,
    };
    assert_eq!(master.apply(NOW, &request), Ok(Answer::Released(false)));
    master
}

fn woken(master: &mut Master) -> Vec<String> {
    let woken = master.take_published().into_iter();
    woken.map(|(process, _)| process.to_string()).collect()
}

#[test]
fn lock_becomes_free_at_the_moment_its_ttl_ends() {
    let mut master = Master::default();
    let (first, second) = (claim(1, None), claim(2, None));
    assert!(matches!(
        acquire(&mut master, NOW, &first, 5),
        Answer::Granted { .. }
    ));
    let expires_at = NOW + 5 * SECOND;
    let refused = acquire(&mut master, expires_at - 1, &second, 5);
    assert!(matches!(refused, Answer::Refused { .. }), "{refused:?}");
    assert_eq!(
        master.peek(expires_at - 1, b"nightly").expires,
        Some(expires_at)
    );
    assert_eq!(master.peek(expires_at, b"nightly").holder, None);
    let granted = acquire(&mut master, expires_at, &second, 5);
    assert!(matches!(granted, Answer::Granted { .. }), "{granted:?}");
}

#[test]
fn release_wakes_the_first_waiter_with_an_unexpired_heartbeat() {
    let holder = claim(1, None);
    let first = claim(2, Some(ticket("aaaaaaaaaaaaaaaa:1", 1, 1)));
    let second = claim(3, Some(ticket("bbbbbbbbbbbbbbbb:1", 2, 60)));
    for (release_after, woken_process) in [
        (SECOND - 1_000, "aaaaaaaaaaaaaaaa"),
        (SECOND, "bbbbbbbbbbbbbbbb"),
    ] {
        let mut master = Master::default();
        acquire(&mut master, NOW, &holder, 30);
        acquire(&mut master, NOW, &first, 30);
        acquire(&mut master, NOW, &second, 30);
        release(&mut master, NOW + release_after, &holder);
        assert_eq!(woken(&mut master), [woken_process]);
    }
}

#[test]
fn key_count_of_a_master_includes_a_queue_until_the_last_waiter_expires() {
    let mut master = Master::default();
    assert!(master.is_empty(NOW));
    acquire(&mut master, NOW, &claim(1, None), 600);
    acquire(
        &mut master,
        NOW,
        &claim(2, Some(ticket("aaaaaaaaaaaaaaaa:1", 1, 10))),
        30,
    );
    assert!(!master.is_empty(NOW));
    // The three keys are the lock, its counter, and its queue.
    assert_eq!(master.len(NOW + 10 * SECOND - 1), 3);
    assert_eq!(master.len(NOW + 10 * SECOND), 2);
}

#[test]
fn extension_reports_a_missing_note_unless_it_also_extends_a_shared_lock() {
    let part = |key: &[u8]| Part {
        key: key.into(),
        mode: Mode::Class(Class::Shared),
    };
    let plain = claim(1, None);
    let group = Claim::new("", b"doc", Token::from_bytes([2; 16]), true);
    let group = Arc::new(group.with_group(Group::new(vec![part(b"doc")])));
    let mut master = Master::default();
    acquire(&mut master, NOW, &plain, 5);
    acquire(&mut master, NOW, &group, 5);
    let mut extend_claims = |claims: &[&Arc<Claim>]| {
        let item = |claim: &&Arc<Claim>| {
            ExtendItem::new((*claim).clone(), Duration::from_secs(9)).note(true)
        };
        let items = claims.iter().map(item).collect::<Vec<_>>().into();
        master.apply(NOW, &Request::Extend { items })
    };
    let plain_only = extend_claims(&[&plain]);
    assert_eq!(plain_only, Ok(Answer::Extended(vec![Extended::Unnoted])));
    let with_group = extend_claims(&[&plain, &group]);
    assert_eq!(with_group, Ok(Answer::Extended(vec![Extended::Kept; 2])));
}

#[test]
fn writer_that_becomes_a_reader_never_takes_a_place_in_the_queue() {
    let part = Part {
        key: b"nightly"[..].into(),
        mode: Mode::Class(Class::Shared),
    };
    let group = Group::new(vec![part]).instead_of(Token::from_bytes([1; 16]));
    let reader = Claim::new("", b"nightly", Token::from_bytes([2; 16]), true);
    let place = ticket("aaaaaaaaaaaaaaaa:1", 1, 10);
    let reader = reader.with_fairness(Fairness::Fair(Some(Box::new(place))));
    let reader = Arc::new(reader.with_group(group));
    let mut master = Master::default();
    acquire(&mut master, NOW, &claim(1, None), 30);
    // The second request is a repetition of the first.
    for _ in 0..2 {
        let answer = acquire(&mut master, NOW, &reader, 30);
        assert!(matches!(answer, Answer::Granted { .. }), "{answer:?}");
        let items = items(&master, NOW);
        assert!(
            items.iter().all(|item| item.id.kind != ItemKind::Place),
            "{items:?}"
        );
    }
}

#[test]
fn first_fencing_number_of_a_value_can_be_one() {
    let mut master = Master::default();
    assert_eq!(master.number_above(NOW, b"a", None, 0), Ok(None));
    let stored = StoredValue {
        number: 1,
        bytes: Vec::new(),
        trusted: true,
    };
    let above = master.number_above(NOW, b"a", Some(&stored), 0);
    assert_eq!(above, Ok(Some(1)));
}

/// All items of the master, sorted by id, because the hash maps of the master have no order.
fn items(master: &Master, now: u64) -> Vec<Item> {
    let mut items = master.items(now);
    items.sort_by(|a, b| a.id.cmp(&b.id));
    items
}

#[test]
fn master_restored_from_stored_items_has_the_same_items_and_expiries() {
    let mut master = Master::default();
    let reader = |token| {
        let mode = Mode::Class(Class::Shared);
        let key = b"doc"[..].into();
        let claim = Claim::new("", b"doc", Token::from_bytes([token; 16]), true);
        Arc::new(claim.with_group(Group::new(vec![Part { key, mode }])))
    };
    acquire(&mut master, NOW, &claim(1, None), 30);
    acquire(
        &mut master,
        NOW,
        &claim(2, Some(ticket("aaaaaaaaaaaaaaaa:1", 1, 10))),
        30,
    );
    acquire(
        &mut master,
        NOW,
        &claim(3, Some(ticket("bbbbbbbbbbbbbbbb:1", 2, 20))),
        30,
    );
    acquire(&mut master, NOW, &reader(4), 5);
    acquire(&mut master, NOW, &reader(5), 6);
    master.put_foreign(b"list");
    let items_before = items(&master, NOW);
    let expiries = |kind: ItemKind| {
        let matching = items_before.iter().filter(|item| item.id.kind == kind);
        matching
            .map(|item| item.until.map(|until| (until - NOW) / SECOND))
            .collect::<Vec<_>>()
    };
    assert_eq!(expiries(ItemKind::Queue), [Some(20)]);
    assert_eq!(expiries(ItemKind::Place), [Some(10), Some(20)]);
    assert_eq!(expiries(ItemKind::Hold), [Some(5), Some(6)]);
    assert_eq!(expiries(ItemKind::Foreign), [None]);
    let mut copy = Master::default();
    items_before.iter().cloned().for_each(|item| copy.put(item));
    assert_eq!(items(&copy, NOW), items_before);
    // The place of the first waiter has expired. It is still listed, because the queue has not expired.
    let later = items(&copy, NOW + 15 * SECOND);
    assert!(
        later
            .iter()
            .any(|item| item.until == Some(NOW + 10 * SECOND))
    );
    let queue = ItemId::new(ItemKind::Queue, b"nightly", b"");
    let has_queue = |now| items(&copy, now).iter().any(|item| item.id == queue);
    assert!(has_queue(NOW + 20 * SECOND - 1) && !has_queue(NOW + 20 * SECOND));
    let count_holds = |now| {
        let items = items(&copy, now);
        items
            .iter()
            .filter(|item| item.id.kind == ItemKind::Hold)
            .count()
    };
    let day = 86_400 * SECOND;
    assert_eq!(count_holds(NOW + day + 5 * SECOND - 1), 2);
    assert_eq!(count_holds(NOW + day + 5 * SECOND), 1);
}

#[test]
fn status_lists_only_the_holds_that_have_not_expired() {
    let mut master = Master::default();
    for (token, seconds) in [(4, 5), (5, 6)] {
        let (mode, key) = (Mode::Class(Class::Shared), b"doc"[..].into());
        let claim = Claim::new("", b"doc", Token::from_bytes([token; 16]), true);
        let claim = Arc::new(claim.with_group(Group::new(vec![Part { key, mode }])));
        acquire(&mut master, NOW, &claim, seconds);
    }
    let mut holds_at = |now| {
        let key = b"doc"[..].into();
        match master.apply(now, &Request::Status { key }) {
            Ok(Answer::State(state)) => state.holds.len(),
            other => panic!("{other:?}"),
        }
    };
    let expiry = NOW + 5 * SECOND;
    assert_eq!([holds_at(expiry - 1_000), holds_at(expiry)], [2, 1]);
}

/// A claim on `keys`, all in the same mode.
fn group_claim(token: u8, keys: &[&[u8]], mode: &Mode, ticket: Option<Ticket>) -> Arc<Claim> {
    let part = |key: &&[u8]| Part {
        key: (*key).into(),
        mode: mode.clone(),
    };
    let group = Group::new(keys.iter().map(part).collect());
    let claim = Claim::new("", keys[0], Token::from_bytes([token; 16]), true);
    let claim = claim.with_fairness(Fairness::Fair(ticket.map(Box::new)));
    Arc::new(claim.with_group(group))
}

fn assert_granted(answer: &Answer) {
    assert!(matches!(answer, Answer::Granted { .. }), "{answer:?}");
}

#[test]
fn end_of_a_writer_wakes_each_process_of_the_readers_ahead_of_the_next_writer_once() {
    let reading = Mode::Class(Class::Shared);
    let mut master = Master::default();
    assert_granted(&acquire(&mut master, NOW, &claim(1, None), 30));
    let waiters = [
        ("aaaaaaaaaaaaaaaa:1", &reading),
        ("aaaaaaaaaaaaaaaa:2", &reading),
        ("bbbbbbbbbbbbbbbb:1", &reading),
        ("cccccccccccccccc:1", &Mode::Exclusive),
        ("dddddddddddddddd:1", &reading),
    ];
    for (number, (waiter, mode)) in (2..).zip(waiters) {
        let place = ticket(waiter, u64::from(number), 60);
        let waiting = group_claim(number, &[b"nightly"], mode, Some(place));
        let answer = acquire(&mut master, NOW, &waiting, 30);
        assert!(matches!(answer, Answer::Refused { .. }), "{answer:?}");
    }
    let writer = group_claim(1, &[b"nightly"], &Mode::Exclusive, None);
    release(&mut master, NOW, &writer);
    assert_eq!(woken(&mut master), ["aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"]);
}

#[test]
fn number_of_a_hold_is_confirmed_only_for_the_single_hold_of_its_owner() {
    let owner = Mode::Class(Class::Owner("me".into()));
    let [first, second] = [1, 2].map(|token| group_claim(token, &[b"nightly"], &owner, None));
    let mut master = Master::default();
    let confirm = |master: &mut Master, claim: &Arc<Claim>, token| {
        let claim = claim.clone();
        master.apply(NOW, &Request::Confirm { claim, token })
    };
    let not_held = confirm(&mut master, &first, NOW);
    assert_eq!(not_held, Ok(Answer::NotOurs));
    assert_granted(&acquire(&mut master, NOW, &first, 30));
    let counter = master.peek(NOW, b"nightly").counter.expect("a counter");
    let too_low = confirm(&mut master, &first, counter - 1);
    assert_eq!(too_low, Ok(Answer::CounterAbove(counter)));
    let alone = confirm(&mut master, &first, counter + 1);
    assert_eq!(alone, Ok(Answer::Confirmed));
    assert_eq!(master.peek(NOW, b"nightly").counter, Some(counter + 1));
    assert_granted(&acquire(&mut master, NOW, &second, 30));
    let with_another = confirm(&mut master, &first, counter + 2);
    assert_eq!(with_another, Ok(Answer::NotAlone));
}

#[test]
fn release_deletes_the_note_of_each_kind_of_lock() {
    let slot = Permit::new(b"seats"[..].into(), 1, 2);
    let permit = Claim::new("", &slot.key(), Token::from_bytes([3; 16]), true);
    let permit = permit.with_fairness(Fairness::Fair(None));
    let kinds = [
        ("plain", claim(1, None)),
        (
            "group",
            group_claim(2, &[b"a", b"b"], &Mode::Exclusive, None),
        ),
        ("permit", Arc::new(permit.with_permit(slot))),
    ];
    for (kind, claim) in kinds {
        let mut master = Master::default();
        assert_granted(&acquire(&mut master, NOW, &claim, 30));
        let count_before = master.len(NOW);
        claim.take_note();
        let note = NoteItem {
            claim: claim.clone(),
            says: "of the holder".into(),
            since: NOW / 1000,
            announce: false,
        };
        let items = [note].into();
        let written = master.apply(NOW, &Request::Note { items });
        assert_eq!(written, Ok(Answer::Noted(vec![true])), "{kind}");
        let key_count = claim.keys().count();
        assert_eq!(master.len(NOW), count_before + key_count, "{kind}");
        release(&mut master, NOW, &claim);
        // Only the fencing counter of each key is left.
        assert_eq!(master.len(NOW), key_count, "{kind}");
    }
}

#[test]
fn force_release_ends_a_lock_if_the_reply_cannot_list_all_its_holds() {
    let reading = Mode::Class(Class::Shared);
    let marker = Class::Shared.lock_value();
    let record = [&marker[..], b"\t", NOW.to_string().as_bytes()].concat();
    for (hold_count, ends) in [(99, false), (100, true), (101, true)] {
        let mut master = Master::default();
        for token in 0..hold_count {
            let reader = group_claim(token, &[b"nightly"], &reading, None);
            assert_granted(&acquire(&mut master, NOW, &reader, 30));
        }
        assert_eq!(
            master.standing(b"nightly").len(),
            usize::from(hold_count),
            "{hold_count} holds"
        );
        // The record contains none of the holds.
        let request = Request::Break {
            key: b"nightly"[..].into(),
            ended: [Ended::new(&marker, &record)].into(),
            delete: true,
        };
        let answer = master.apply(NOW, &request);
        assert!(matches!(answer, Ok(Answer::State(_))), "{answer:?}");
        let is_free = master.peek(NOW, b"nightly").holder.is_none();
        assert_eq!(is_free, ends, "{hold_count} holds");
    }
}

#[test]
fn counter_is_only_raised() {
    let mut master = Master::default();
    for (number, is_raised) in [(0, false), (1, true), (1, false), (5, true), (4, false)] {
        let carried = master.carry(NOW, b"nightly", number);
        assert_eq!(carried, is_raised, "{number}");
    }
    assert_eq!(master.peek(NOW, b"nightly").counter, Some(5));
}

#[test]
fn repeated_request_for_a_held_slot_gets_the_same_number() {
    let permit = Permit::new(b"seats"[..].into(), 0, 1);
    let claim = Claim::new("", &permit.key(), Token::from_bytes([1; 16]), true);
    let claim = claim.with_fairness(Fairness::Fair(None));
    let claim = Arc::new(claim.with_permit(permit));
    let mut master = Master::default();
    let first = acquire(&mut master, NOW, &claim, 30);
    assert_granted(&first);
    assert!(master.queues.is_empty(), "nobody waits");
    assert_eq!(acquire(&mut master, NOW + SECOND, &claim, 30), first);
}

#[test]
fn release_of_a_slot_wakes_the_first_waiter_if_it_made_place_for_it() {
    let slot = |token: u8, place: Option<u64>| {
        let permit = Permit::new(b"seats"[..].into(), 0, 1);
        let place = place.map(|number| ticket(&format!("{number:016}:1"), number, 60));
        let claim = Claim::new("", &permit.key(), Token::from_bytes([token; 16]), true);
        let claim = claim.with_fairness(Fairness::Fair(place.map(Box::new)));
        Arc::new(claim.with_permit(permit))
    };
    let no_place = slot(1, None);
    // The holder, the claim that is released, whether it leaves the queue, and the process that is woken.
    let releases = [
        (&no_place, &no_place, true, Some(2)),
        (&slot(1, Some(1)), &slot(1, Some(1)), false, None),
        (&slot(1, Some(1)), &slot(1, Some(1)), true, Some(2)),
        (&no_place, &slot(2, Some(2)), true, Some(3)),
        (&no_place, &slot(2, Some(2)), false, None),
        (&no_place, &slot(4, Some(4)), true, None),
    ];
    for (holder, released, leave, woken_process) in releases {
        let mut master = Master::default();
        assert_granted(&acquire(&mut master, NOW, holder, 30));
        for number in [2, 3] {
            let waiter = slot(number, Some(number.into()));
            let answer = acquire(&mut master, NOW, &waiter, 30);
            assert!(matches!(answer, Answer::Refused { .. }), "{answer:?}");
        }
        let claim = released.clone();
        let answer = master.apply(NOW, &Request::Release { claim, leave });
        let was_held = released.token() == holder.token();
        assert_eq!(answer, Ok(Answer::Released(was_held)));
        let woken_process = woken_process.map(|number: u64| format!("{number:016}"));
        assert_eq!(
            woken(&mut master),
            Vec::from_iter(woken_process),
            "{released:?} leaves: {leave}"
        );
    }
}

#[test]
fn read_with_a_small_number_raises_the_counter_only_to_the_larger_number_of_the_value() {
    let holder = claim(1, None);
    for (value_number, counter_is_raised) in [(NOW + 4, false), (NOW + 5, false), (NOW + 6, true)] {
        let mut master = Master::default();
        assert_granted(&acquire(&mut master, NOW, &holder, 30));
        assert!(master.carry(NOW, b"nightly", NOW + 5));
        let value = format!("{value_number} 1 text");
        let key = Family::Value.key_of(b"nightly");
        master.put_text(NOW, &key, value.as_bytes(), None);
        let expiry_before = master.peek(NOW, b"nightly").counter_expires;
        let (claim, token) = (holder.clone(), NOW);
        let later = NOW + SECOND;
        let answer = master.apply(later, &Request::Read { claim, token });
        let largest = value_number.max(NOW + 5);
        assert_eq!(answer, Ok(Answer::CounterAbove(largest)));
        let lock = master.peek(later, b"nightly");
        assert_eq!(lock.counter, Some(largest));
        assert_eq!(
            lock.counter_expires != expiry_before,
            counter_is_raised,
            "only a raised counter gets a new expiry"
        );
    }
}

#[test]
fn fencing_counter_is_needed_until_one_day_after_the_time_that_it_shows() {
    let item = |key: &[u8], text: &str| Item {
        id: ItemId::new(ItemKind::Text, key, b""),
        value: text.into(),
        until: None,
    };
    let key = Family::Fence.key_of(b"nightly");
    let counter = item(&key, &NOW.to_string());
    let until = NOW + 86_400 * SECOND;
    assert!(counter.is_counter_needed_at(until - 1));
    assert!(!counter.is_counter_needed_at(until));
    assert!(!item(b"nightly", &NOW.to_string()).is_counter_needed_at(NOW));
    assert!(!item(&key, "no number").is_counter_needed_at(NOW));
}

#[test]
fn expired_key_does_not_count_as_a_key_of_the_master() {
    let mut master = Master::default();
    acquire(&mut master, NOW, &claim(1, None), 30);
    // The two keys are the lock and its counter.
    assert_eq!(master.len(NOW + 30 * SECOND - 1), 2);
    assert_eq!(master.len(NOW + 30 * SECOND), 1);
}

#[test]
fn ticket_of_an_empty_queue_is_a_key_until_it_is_forgotten() {
    let mut master = master_with_an_empty_queue();
    // The three keys are the lock, its counter, and the ticket.
    assert_eq!(master.len(NOW), 3);
    master.forget_ticket(b"nightly");
    assert_eq!(master.len(NOW), 2);
}

#[test]
fn waiter_is_listed_until_its_place_expires_even_if_the_ticket_of_the_queue_lives_longer() {
    let mut master = master_with_an_empty_queue();
    let waiter = claim(3, Some(ticket("bbbbbbbbbbbbbbbb:1", 2, 10)));
    acquire(&mut master, NOW, &waiter, 30);
    let mut listed_at = |now| {
        let key = b"nightly"[..].into();
        match master.apply(now, &Request::Status { key }) {
            Ok(Answer::State(state)) => state.queue.len(),
            other => panic!("the master must show the state of the lock: {other:?}"),
        }
    };
    let expiry = NOW + 10 * SECOND;
    assert_eq!([listed_at(expiry - 1_000), listed_at(expiry)], [1, 0]);
}

/// A claim on the only slot of the semaphore `seats`. With a number, the claim takes a place in the queue for some
/// seconds if the slot is held.
fn slot_claim(token: u8, place: Option<(u64, u64)>) -> Arc<Claim> {
    let permit = Permit::new(b"seats"[..].into(), 0, 1);
    let place = place.map(|(number, seconds)| ticket(&format!("{number:016}:1"), number, seconds));
    let claim = Claim::new("", &permit.key(), Token::from_bytes([token; 16]), true);
    let claim = claim.with_fairness(Fairness::Fair(place.map(Box::new)));
    Arc::new(claim.with_permit(permit))
}

#[test]
fn slot_goes_to_the_first_waiter_whose_place_has_not_expired() {
    let expiry = NOW + 10 * SECOND;
    for (now, first_is_alive) in [(expiry - 1_000, true), (expiry, false)] {
        let mut master = Master::default();
        let holder = slot_claim(1, None);
        assert_granted(&acquire(&mut master, NOW, &holder, 60));
        let (first, second) = (slot_claim(2, Some((2, 10))), slot_claim(3, Some((3, 20))));
        for waiter in [&first, &second] {
            let answer = acquire(&mut master, NOW, waiter, 30);
            assert!(matches!(answer, Answer::Refused { .. }), "{answer:?}");
        }
        release(&mut master, now, &holder);
        let woken_process = if first_is_alive { 2 } else { 3 };
        assert_eq!(woken(&mut master), [format!("{woken_process:016}")]);
        let answer = acquire(&mut master, now, &second, 30);
        let is_granted = matches!(answer, Answer::Granted { .. });
        assert_eq!(is_granted, !first_is_alive, "{answer:?}");
    }
}

#[test]
fn slot_goes_to_a_waiter_after_the_place_of_the_waiter_before_it_has_expired() {
    let mut master = Master::default();
    assert_granted(&acquire(&mut master, NOW, &slot_claim(1, None), 5));
    let (first, second) = (slot_claim(2, Some((2, 10))), slot_claim(3, Some((3, 20))));
    for waiter in [&first, &second] {
        acquire(&mut master, NOW, waiter, 30);
    }
    // The slot is free, but nobody has released it, so nobody has checked the places.
    let answer = acquire(&mut master, NOW + 9 * SECOND, &second, 30);
    assert!(matches!(answer, Answer::Refused { .. }), "{answer:?}");
    assert_granted(&acquire(&mut master, NOW + 10 * SECOND, &second, 30));
}

#[test]
fn release_of_a_slot_for_which_nobody_waits_leaves_no_queue() {
    let mut master = Master::default();
    let holder = slot_claim(1, None);
    assert_granted(&acquire(&mut master, NOW, &holder, 60));
    release(&mut master, NOW, &holder);
    assert!(master.queues.is_empty());
}

#[test]
fn hold_with_a_value_of_a_wrong_length_is_read_without_an_error() {
    for (length, is_complete) in [(31, false), (32, true), (40, true)] {
        let mut master = Master::default();
        master.put(Item {
            id: ItemId::new(ItemKind::Hold, b"doc", &vec![b'7'; length]),
            value: Vec::new(),
            until: Some(NOW + SECOND),
        });
        let [(value, _)] = master.standing(b"doc") else {
            panic!("the master must have one hold");
        };
        assert_eq!(*value == [b'7'; 32], is_complete, "{length} bytes");
    }
}

#[test]
fn end_of_a_long_note_is_not_shown() {
    // The term of a leader is at the end of its note.
    for (length, term) in [(4_000, Some(5)), (4_096, None)] {
        let mut master = Master::default();
        acquire(&mut master, NOW, &claim(1, None), 30);
        let program = "x".repeat(length);
        let note = format!(" 1\t7\thost\t{program}\ttext\t5");
        let note = [&Token::from_bytes([1; 16]).to_hex()[..], note.as_bytes()].concat();
        master.put_text(NOW, &Family::Note.key_of(b"nightly"), &note, None);
        let key = b"nightly"[..].into();
        let Ok(Answer::State(state)) = master.apply(NOW, &Request::Status { key }) else {
            panic!("the master must show the state of the lock");
        };
        assert_eq!(state.term, term, "{length} bytes");
        assert!(state.note.is_some(), "{length} bytes");
    }
}

#[test]
fn text_that_is_no_value_of_this_library_is_neither_read_nor_changed() {
    let holder = claim(1, None);
    for (text, is_value) in [
        ("5 1 text", true),
        ("5 1 ", true),
        ("5  text", false),
        ("5 1", false),
        ("0 1 text", false),
        ("+5 1 text", false),
        ("text", false),
    ] {
        let mut master = Master::default();
        assert_granted(&acquire(&mut master, NOW, &holder, 30));
        let key = Family::Value.key_of(b"nightly");
        master.put_text(NOW, &key, text.as_bytes(), None);
        let (claim, token) = (holder.clone(), NOW);
        let answer = master.apply(NOW, &Request::Read { claim, token });
        assert_eq!(answer.is_ok(), is_value, "{text:?}: {answer:?}");
        let stored = master.text(NOW, &key).expect("a string");
        assert_eq!(stored, Some(text.as_bytes()));
    }
}

#[test]
fn force_release_of_readers_deletes_the_notes_of_their_holds() {
    let reading = Mode::Class(Class::Shared);
    let reader = group_claim(1, &[b"nightly"], &reading, None);
    let value = reader.token().to_hex();
    let mut master = Master::default();
    assert_granted(&acquire(&mut master, NOW, &reader, 30));
    let note_key = crate::keys::hold_note_key(&value, b"nightly");
    master.put_text(NOW, &note_key, b"a note of the reader", None);
    let marker = Class::Shared.lock_value();
    let counter = NOW.to_string();
    let record = [&marker[..], b"\t", counter.as_bytes(), b"\n", &value].concat();
    let request = Request::Break {
        key: b"nightly"[..].into(),
        ended: [Ended::new(&marker, &record)].into(),
        delete: true,
    };
    let answer = master.apply(NOW, &request);
    assert!(matches!(answer, Ok(Answer::State(_))), "{answer:?}");
    assert_eq!(master.peek(NOW, b"nightly").holder, None);
    assert!(!master.exists(NOW, &note_key));
}

#[test]
fn break_record_has_at_most_64_kib() {
    let value = Token::from_bytes([1; 16]).to_hex();
    let line_length = value.len() + 2;
    for (length_before, fits) in [(65_536 - line_length, true), (65_537 - line_length, false)] {
        let mut master = Master::default();
        let key = Family::Broken.key_of(b"nightly");
        master.put_text(NOW, &key, &vec![b'x'; length_before], None);
        let request = Request::Break {
            key: b"nightly"[..].into(),
            ended: [Ended::new(&value, &value)].into(),
            delete: true,
        };
        let answer = master.apply(NOW, &request);
        assert_eq!(answer.is_ok(), fits, "{answer:?}");
        let is_broken = master.is_broken(NOW, b"nightly", &value);
        assert_eq!(is_broken, Ok(fits), "{length_before} bytes before");
    }
}

/// Records the index of the master in each wake-up.
#[derive(Default)]
struct Woken(std::sync::Mutex<Vec<usize>>);

impl WakeSink for Woken {
    fn woken(&self, node: usize, _: &[u8]) {
        self.0.lock().expect("not poisoned").push(node);
    }
}

#[test]
fn wake_up_reaches_only_the_process_of_the_first_waiter() {
    let node = MemoryNode::new("memory-1");
    let woken = Arc::new(Woken::default());
    for (index, process) in ["aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"].iter().enumerate() {
        let (process, sink) = ((*process).into(), woken.clone());
        node.subscribe(Subscriber {
            process,
            node: index,
            sink,
        });
    }
    let holder = claim(1, None);
    node.with_master(|master, now| {
        acquire(master, now, &holder, 30);
        let waiter = claim(2, Some(ticket("bbbbbbbbbbbbbbbb:1", 1, 60)));
        acquire(master, now, &waiter, 30);
    });
    let request = Request::Release {
        claim: holder,
        leave: true,
    };
    node.send(request, Reply::ignored());
    assert_eq!(*woken.0.lock().expect("not poisoned"), [1]);
}

#[test]
fn each_restart_of_a_master_begins_the_next_run() {
    let node = MemoryNode::new("memory-1");
    let run = || node.with_master(|master, _| master.run().as_str().to_owned());
    assert_eq!(run(), "1");
    node.restart();
    assert_eq!(run(), "2");
    node.forget();
    assert_eq!(run(), "3");
}
