//! Contract cases: a queue of waiters on one master after its ticket key was deleted or evicted, or after waiters have
//! died.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate::node::{
    Answer, Claim, Class, Fairness, Group, Mode, Part, Permit, Request, Subscriber, Ticket,
    WakeSink,
};

use crate::fixtures::{LONG, now};
use crate::requests::{ReplyCollector, acquire, queued, release, status, token};
use crate::tested_master::TestedMaster;
use crate::time::{eventually, ms, secs};

const KEY: &[u8] = b"job";

/// A short heartbeat time. It is long enough for the requests of a test, and short enough to wait for its end.
const SHORT_HEARTBEAT: Duration = ms(300);

/// A claim from a client that uses queues but is not queued.
fn unqueued_claim(key: &[u8], n: u8) -> Arc<Claim> {
    let claim = Claim::new("", key, token(n), true);
    Arc::new(claim.with_fairness(Fairness::Fair(None)))
}

/// The largest ticket in the answer to a refused acquire.
async fn largest_ticket(master: &TestedMaster, request: Request) -> u64 {
    match master.send(request).await {
        Ok(Answer::Refused {
            line: Some(line), ..
        }) => line.ticket,
        other => panic!("{other:?}"),
    }
}

/// The name of a kind of lock, the key of its queue, and two claims that wait in that queue.
type QueuedPair = (&'static str, Vec<u8>, [Arc<Claim>; 2]);

/// Claims with the tickets 5 and 8 that wait for four kinds of locks: a plain lock, a lock on several resources, a lock
/// with readers, and a semaphore.
fn queued_pairs() -> [QueuedPair; 4] {
    let claim_pair = |with: &dyn Fn(Claim) -> Claim, key: &[u8]| {
        [(3, 5), (4, 8)].map(|(n, number)| {
            let fairness = queued(KEY, n, number).fairness().clone();
            let claim = Claim::new("", key, token(n), true).with_fairness(fairness);
            Arc::new(with(claim))
        })
    };
    let with_mode = |mode: Mode| {
        move |claim: Claim| {
            let key = KEY.into();
            let mode = mode.clone();
            claim.with_group(Group::new(vec![Part { key, mode }]))
        }
    };
    let permit = || Permit::new(KEY.into(), 0, 1);
    let with_permit = |claim: Claim| claim.with_permit(permit());
    let shared = Mode::Class(Class::Shared);
    [
        ("plain", KEY.to_vec(), claim_pair(&|claim| claim, KEY)),
        (
            "several",
            KEY.to_vec(),
            claim_pair(&with_mode(Mode::Exclusive), KEY),
        ),
        ("readers", KEY.to_vec(), claim_pair(&with_mode(shared), KEY)),
        (
            "permits",
            permit().line().to_vec(),
            claim_pair(&with_permit, &permit().key()),
        ),
    ]
}

pub async fn heartbeat_restores_a_missing_ticket_key(master: &TestedMaster) {
    for (kind, queue_key, [first, last]) in queued_pairs() {
        master.keys().clear();
        // Let another client hold the lock, so that the claims have to wait.
        master
            .keys()
            .put(first.key(), b"another client", Some(LONG));
        assert_eq!(
            largest_ticket(master, acquire(&first, LONG, now())).await,
            5,
            "{kind}"
        );
        assert_eq!(
            largest_ticket(master, acquire(&last, LONG, now())).await,
            8,
            "{kind}"
        );
        master.keys().delete_ticket(&queue_key);
        // The answer contains the largest ticket of all waiters, so that the next waiter is queued behind them.
        assert_eq!(
            largest_ticket(master, acquire(&first, LONG, now())).await,
            8,
            "{kind}"
        );
        let ticket_ttl = master
            .keys()
            .ttl(&[b"quorate:ticket:", &queue_key[..]].concat());
        let queue_ttl = master
            .keys()
            .ttl(&[b"quorate:queue:", &queue_key[..]].concat());
        assert!(
            ticket_ttl >= queue_ttl,
            "{kind}: the ticket key must not expire before the queue: {ticket_ttl:?} {queue_ttl:?}"
        );
    }
}

/// Tests a waiter whose request arrives after the request of a waiter with a larger ticket.
pub async fn missing_ticket_key_is_restored_to_the_largest_ticket_even_by_a_waiter_with_a_smaller_one(
    master: &TestedMaster,
) {
    for (kind, queue_key, [first, last]) in queued_pairs() {
        master.keys().clear();
        master
            .keys()
            .put(first.key(), b"another client", Some(LONG));
        assert_eq!(
            largest_ticket(master, acquire(&last, LONG, now())).await,
            8,
            "{kind}"
        );
        master.keys().delete_ticket(&queue_key);
        assert_eq!(
            largest_ticket(master, acquire(&first, LONG, now())).await,
            8,
            "{kind}"
        );
    }
}

/// Collects the lock keys for which process 7 is woken.
#[derive(Clone, Default)]
struct WokenKeys(Arc<Mutex<Vec<Vec<u8>>>>);

impl WakeSink for WokenKeys {
    fn woken(&self, _: usize, key: &[u8]) {
        self.0.lock().expect("no panic").push(key.to_vec());
    }
}

impl WokenKeys {
    /// Collects the wake-ups that this master sends to process `n`.
    fn subscribe(master: &TestedMaster, n: u8) -> Self {
        let woken = Self::default();
        master.node().subscribe(Subscriber {
            process: format!("{n:016x}").into(),
            node: 0,
            sink: Arc::new(woken.clone()),
        });
        woken
    }

    fn contains(&self, lock: &[u8]) -> bool {
        let woken = self.0.lock().expect("no panic");
        woken.iter().any(|key| key == lock)
    }
}

/// A claim of process `n` with the ticket `number`, whose place in the queue expires after `heartbeat`.
fn queued_with_heartbeat(n: u8, number: u64, heartbeat: Duration) -> Arc<Claim> {
    queued_with_heartbeat_on(KEY, n, number, heartbeat)
}

/// The same for any lock key.
fn queued_with_heartbeat_on(key: &[u8], n: u8, number: u64, heartbeat: Duration) -> Arc<Claim> {
    let ticket = Ticket {
        waiter: format!("{n:016x}:1").into(),
        number,
        heartbeat,
    };
    let claim = Claim::new("", key, token(n), true);
    Arc::new(claim.with_fairness(Fairness::Fair(Some(Box::new(ticket)))))
}

pub async fn release_wakes_the_first_waiter_whose_heartbeat_time_has_not_ended(
    master: &TestedMaster,
) {
    let live_wake_ups = WokenKeys::subscribe(master, 7);
    // A queue with a single waiter, and a queue whose first waiter is dead.
    for (key, dead_waiter) in [(b"alone", None), (b"first", Some(6))] {
        let holder = unqueued_claim(key, 1);
        master.granted(acquire(&holder, LONG, now())).await;
        let queued_on_key = |n, number, heartbeat| {
            let claim = queued_with_heartbeat_on(key, n, number, heartbeat);
            acquire(&claim, LONG, now())
        };
        largest_ticket(master, queued_on_key(7, 5, secs(240))).await;
        if let Some(n) = dead_waiter {
            largest_ticket(master, queued_on_key(n, 3, SHORT_HEARTBEAT)).await;
            tokio::time::sleep(2 * SHORT_HEARTBEAT).await;
        }
        let reply = master.send(release(&holder)).await;
        assert_eq!(reply, Ok(Answer::Released(true)));
        eventually("the waiter that is alive must be woken", || {
            live_wake_ups.contains(key)
        })
        .await;
    }
}

pub async fn forced_release_wakes_the_first_waiter_whose_heartbeat_time_has_not_ended(
    master: &TestedMaster,
) {
    let live_wake_ups = WokenKeys::subscribe(master, 7);
    master.keys().put(KEY, b"another client", Some(LONG));
    largest_ticket(
        master,
        acquire(&queued_with_heartbeat(7, 5, secs(240)), LONG, now()),
    )
    .await;
    largest_ticket(
        master,
        acquire(&queued_with_heartbeat(6, 3, SHORT_HEARTBEAT), LONG, now()),
    )
    .await;
    tokio::time::sleep(2 * SHORT_HEARTBEAT).await;
    // The waiter with ticket 3 is dead, but is still the first in the queue, because no request has removed dead
    // waiters.
    let reply = master.force_release(KEY).await;
    assert!(matches!(reply, Ok(Answer::State(_))), "{reply:?}");
    eventually("the waiter that is alive must be woken", || {
        live_wake_ups.contains(KEY)
    })
    .await;
}

pub async fn ticket_key_of_a_new_queue_expires_with_its_only_waiter(master: &TestedMaster) {
    master.keys().put(KEY, b"another client", Some(LONG));
    // The waiter `first` has left. Its long heartbeat time must not affect the ticket key that `second` creates.
    let first_claim = queued_with_heartbeat(7, 5, secs(240));
    largest_ticket(master, acquire(&first_claim, LONG, now())).await;
    let release_reply = master.send(release(&first_claim)).await;
    assert_eq!(release_reply, Ok(Answer::Released(false)));
    master.keys().delete_ticket(KEY);
    let second_claim = queued_with_heartbeat(6, 3, SHORT_HEARTBEAT);
    assert_eq!(
        largest_ticket(master, acquire(&second_claim, LONG, now())).await,
        3
    );
    tokio::time::sleep(2 * SHORT_HEARTBEAT).await;
    let third_claim = queued_with_heartbeat(5, 1, secs(240));
    assert_eq!(
        largest_ticket(master, acquire(&third_claim, LONG, now())).await,
        1
    );
}

pub async fn batched_release_wakes_the_first_waiter_of_a_queue_whose_ticket_key_was_restored(
    master: &TestedMaster,
) {
    let woken = WokenKeys::subscribe(master, 7);
    let held_claims: Vec<_> = (1..=6)
        .map(|n| unqueued_claim(&[KEY, &[b'0' + n]].concat(), n))
        .collect();
    for holder in &held_claims {
        master.granted(acquire(holder, LONG, now())).await;
    }
    let lock_key = held_claims[3].key();
    let waiting_claim = queued(lock_key, 7, 3);
    largest_ticket(master, acquire(&waiting_claim, LONG, now())).await;
    master.keys().delete_ticket(lock_key);
    largest_ticket(master, acquire(&waiting_claim, LONG, now())).await;
    // Another waiter has a smaller ticket, and dies. No request removes it from the queue before the releases.
    let dying_claim = queued_with_heartbeat_on(lock_key, 6, 1, SHORT_HEARTBEAT);
    largest_ticket(master, acquire(&dying_claim, LONG, now())).await;
    tokio::time::sleep(2 * SHORT_HEARTBEAT).await;
    // While this status request runs, the node collects the following releases, and sends them together as one call.
    let mut replies = ReplyCollector::new();
    replies.send(master.node(), 0, status(lock_key));
    for (n, holder) in held_claims.iter().enumerate() {
        replies.send(master.node(), 1 + n, release(holder));
    }
    for (n, reply) in replies.collect(1 + held_claims.len()).await {
        assert!(
            n == 0 || reply == Ok(Answer::Released(true)),
            "{n}: {reply:?}"
        );
    }
    eventually("the first living waiter of the queue must be woken", || {
        woken.contains(lock_key)
    })
    .await;
    // Even in a batch with other acquires, an acquire that is not queued must not overtake the queued waiter.
    let claims: Vec<_> = (0..12)
        .map(|n| unqueued_claim(&[KEY, &[b'0' + n]].concat(), 20 + n))
        .collect();
    for (n, claim) in claims.iter().enumerate() {
        replies.send(master.node(), n, acquire(claim, LONG, now()));
    }
    for (n, reply) in replies.collect(claims.len()).await {
        let is_granted = matches!(reply, Ok(Answer::Granted { .. }));
        assert_eq!(is_granted, claims[n].key() != lock_key, "{n}: {reply:?}");
    }
    master.granted(acquire(&waiting_claim, LONG, now())).await;
}
