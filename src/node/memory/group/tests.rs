//! Tests of holds that share a key, on a master in memory: places in queues, expiries, and wake-ups.

use super::*;
use crate::keys::Family;
use crate::node::{Fairness, Mode, Request, Token};

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
    let replacing = |group: Group| group.instead_of(token(1));
    let claim = claim_in_group(2, true, replacing, Some(Class::Shared));
    assert!(acquires(&mut master, NOW, &claim, 30));
    assert!(!master.exists(NOW, &note_key), "the note must be deleted");
    let queue = master.queues.get(&b"doc"[..]);
    let waiters = queue.map_or(0, |queue| queue.queue.len());
    assert_eq!(waiters, 0, "the writer must have left the queue");
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
