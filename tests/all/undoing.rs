//! Tests of the releases that a client sends after a failed attempt, or when a waiter leaves the queue. Other tests
//! check which calls wait for the answers to these releases.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::stubborn::Treatment::{Answered, Fails, Late};
use crate::support::stubborn::{Stubborn, Treatment};
use crate::support::{eventually, ms, secs};
use quorate::node::{Node, Request};
use quorate::{Fault, Instant, Redlock, RedlockBuilder, Retry, Wait};
use quorate_contract::requests;

/// Ten minutes, which is longer than any test of this file waits.
const TEN_MINUTES: Duration = secs(600);

/// The delay with which the slowest master answers releases. A waiter's next attempt must wait for these answers.
const SLOW: Duration = ms(400);

fn eager(nodes: &[Arc<Stubborn>]) -> RedlockBuilder {
    let nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
    Redlock::builder()
        .nodes(nodes.collect())
        .max_ttl(TEN_MINUTES)
        .ttl(TEN_MINUTES)
        .heartbeat(TEN_MINUTES)
        .retry(Retry::new(ms(1), ms(1)))
        .wait(Wait::Forever)
}

/// The times at which a master received requests of one kind, in order.
#[derive(Clone, Default)]
struct Times(Arc<Mutex<Vec<Instant>>>);

impl Times {
    fn note(&self) {
        self.0.lock().expect("no panic").push(Instant::now());
    }

    fn all(&self) -> Vec<Instant> {
        self.0.lock().expect("no panic").clone()
    }
}

/// A failed attempt withdraws its claim before it sends releases. After that, the client sends no acquire of this
/// claim, even if one is still in the client's queue.
#[tokio::test]
async fn failed_attempt_withdraws_its_lock_request_before_it_sends_releases() {
    let released = Arc::<Mutex<Vec<bool>>>::default();
    let seen = released.clone();
    let grants = Stubborn::new("a", move |request| {
        if let Request::Release { claim, .. } = request {
            seen.lock().expect("no panic").push(claim.is_withdrawn());
        }
        Answered
    });
    let held = ["b", "c"].map(|name| Stubborn::honest(name).held_by_another("job"));
    let [b, c] = held;
    let nodes = [grants, b, c];
    for settings in [
        eager(&nodes),
        eager(&nodes).order(quorate::Order::Unordered),
    ] {
        let redlock = settings.build().expect("good settings");
        let tried = redlock.try_acquire("job").await.expect("an answer");
        assert!(matches!(tried, quorate::TryAcquire::Held(_)), "{tried:?}");
    }
    assert_eq!(*released.lock().expect("no panic"), [true, true]);
}

/// A release first withdraws the claim of the lock. After that, the client sends no extension of this lock, which could
/// restore the deleted lock key.
#[tokio::test]
async fn lock_request_is_withdrawn_before_its_lock_is_released() {
    let released = Arc::<Mutex<Vec<bool>>>::default();
    let nodes = ["a", "b", "c"].map(|name| {
        let seen = released.clone();
        Stubborn::new(name, move |request| {
            if let Request::Release { claim, .. } = request {
                seen.lock().expect("no panic").push(claim.is_withdrawn());
            }
            Answered
        })
    });
    let redlock = eager(&nodes).build().expect("good settings");
    let guard = redlock.acquire("job").await.expect("free");
    guard.release().await;
    assert_eq!(*released.lock().expect("no panic"), [true; 3]);
    drop(redlock.acquire("job").await.expect("free"));
    assert_eq!(*released.lock().expect("no panic"), [true; 6]);
}

/// If one master kept a key of the failed attempt, this key could block the attempts of other waiters.
#[tokio::test]
async fn next_attempt_is_made_only_after_every_master_has_undone_the_failed_attempt() {
    for unordered in [false, true] {
        let (asked, undone) = (Times::default(), Times::default());
        let late = || Fault::Timeout(ms(1));
        let (attempts, undos) = (asked.clone(), undone.clone());
        let slow = Stubborn::new("c", move |request| match request {
            Request::Acquire { .. } => {
                attempts.note();
                Fails(late(), Duration::ZERO)
            }
            Request::Release { leave: false, .. } => {
                undos.note();
                Late(SLOW)
            }
            _ => Answered,
        });
        let quick = Stubborn::new("b", move |request| match request {
            Request::Acquire { .. } => Fails(late(), Duration::ZERO),
            _ => Answered,
        });
        let settings = eager(&[Stubborn::honest("a"), quick, slow]);
        let settings = if unordered {
            settings.order(quorate::Order::Unordered)
        } else {
            settings
        };
        let redlock = settings.build().expect("good settings");
        let waiting = tokio::spawn(async move { redlock.acquire("job").await.map(drop) });
        eventually("the waiter must make several attempts", || {
            asked.all().len() >= 3
        })
        .await;
        waiting.abort();
        for (undo, next) in undone.all().iter().zip(&asked.all()[1..]) {
            let after = next.saturating_since(*undo);
            assert!(after >= SLOW, "{after:?}");
        }
    }
}

/// Tests a waiter that leaves the queue and then tries again. It must not ask for the lock before every master has
/// removed it from the queue.
#[tokio::test]
async fn waiter_retries_only_after_all_masters_removed_it_from_the_queue() {
    let nodes = ["a", "b", "c"].map(|name| Stubborn::honest(name).held_by_another("job"));
    let (asked, left) = (Times::default(), Times::default());
    let redlock = eager(&nodes).build().expect("good settings");
    let waiting = tokio::spawn(async move { redlock.acquire("job").await.map(drop) });
    let line = || {
        let request = requests::status(b"job");
        let said = nodes[0]
            .master
            .with_master(|master, now| master.apply(now, &request));
        match said.expect("the master must answer") {
            quorate::node::Answer::State(state) => state.queue.len(),
            other => panic!("{other:?}"),
        }
    };
    eventually("the waiter must be queued", || line() == 1).await;
    for node in &nodes[1..] {
        let down = |request: &Request| -> Treatment {
            match request {
                Request::Acquire { .. } => Fails(Fault::Down("off".into()), Duration::ZERO),
                _ => Answered,
            }
        };
        node.set_rule(down);
    }
    let (attempts, leaves) = (asked.clone(), left.clone());
    nodes[0].set_rule(move |request| match request {
        Request::Acquire { .. } => {
            attempts.note();
            Answered
        }
        Request::Release { leave: true, .. } => {
            leaves.note();
            Late(SLOW)
        }
        _ => Answered,
    });
    eventually("the waiter must be in the queue again", || {
        let left = left.all();
        let back = |left: &Instant| asked.all().iter().any(|asked| asked > left);
        left.first().is_some_and(back)
    })
    .await;
    waiting.abort();
    let left = left.all()[0];
    let back = asked.all().into_iter().find(|asked| *asked > left);
    let after = back
        .expect("the waiter must have asked for the lock again")
        .saturating_since(left);
    assert!(after >= SLOW, "{after:?}");
}
