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
const SLOW_ANSWER: Duration = ms(400);

fn eager_builder(nodes: &[Arc<Stubborn>]) -> RedlockBuilder {
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
    fn record(&self) {
        self.0.lock().expect("no panic").push(Instant::now());
    }

    fn times(&self) -> Vec<Instant> {
        self.0.lock().expect("no panic").clone()
    }
}

/// A failed attempt withdraws its claim before it sends releases. After that, the client sends no acquire of this
/// claim, even if one is still in the client's queue.
#[tokio::test]
async fn failed_attempt_withdraws_its_lock_request_before_it_sends_releases() {
    let leave_flags = Arc::<Mutex<Vec<bool>>>::default();
    let leave_log = leave_flags.clone();
    let granting_node = Stubborn::new("a", move |request| {
        if let Request::Release { claim, .. } = request {
            leave_log
                .lock()
                .expect("no panic")
                .push(claim.is_withdrawn());
        }
        Answered
    });
    let held_nodes = ["b", "c"].map(|name| Stubborn::honest(name).held_by_another("job"));
    let [b, c] = held_nodes;
    let nodes = [granting_node, b, c];
    for settings in [
        eager_builder(&nodes),
        eager_builder(&nodes).order(quorate::Order::Unordered),
    ] {
        let redlock = settings.build().expect("good settings");
        let outcome = redlock.try_acquire("job").await.expect("an answer");
        assert!(
            matches!(outcome, quorate::TryAcquire::Held(_)),
            "{outcome:?}"
        );
    }
    assert_eq!(*leave_flags.lock().expect("no panic"), [true, true]);
}

/// A release first withdraws the claim of the lock. After that, the client sends no extension of this lock, which could
/// restore the deleted lock key.
#[tokio::test]
async fn lock_request_is_withdrawn_before_its_lock_is_released() {
    let leave_flags = Arc::<Mutex<Vec<bool>>>::default();
    let nodes = ["a", "b", "c"].map(|name| {
        let leave_log = leave_flags.clone();
        Stubborn::new(name, move |request| {
            if let Request::Release { claim, .. } = request {
                leave_log
                    .lock()
                    .expect("no panic")
                    .push(claim.is_withdrawn());
            }
            Answered
        })
    });
    let redlock = eager_builder(&nodes).build().expect("good settings");
    let guard = redlock.acquire("job").await.expect("free");
    guard.release().await;
    assert_eq!(*leave_flags.lock().expect("no panic"), [true; 3]);
    drop(redlock.acquire("job").await.expect("free"));
    assert_eq!(*leave_flags.lock().expect("no panic"), [true; 6]);
}

/// If one master kept a key of the failed attempt, this key could block the attempts of other waiters.
#[tokio::test]
async fn next_attempt_is_made_only_after_every_master_has_undone_the_failed_attempt() {
    for is_unordered in [false, true] {
        let (attempt_times, release_times) = (Times::default(), Times::default());
        let late_fault = || Fault::Timeout(ms(1));
        let (attempt_log, release_log) = (attempt_times.clone(), release_times.clone());
        let slow_node = Stubborn::new("c", move |request| match request {
            Request::Acquire { .. } => {
                attempt_log.record();
                Fails(late_fault(), Duration::ZERO)
            }
            Request::Release { leave: false, .. } => {
                release_log.record();
                Late(SLOW_ANSWER)
            }
            _ => Answered,
        });
        let quick_node = Stubborn::new("b", move |request| match request {
            Request::Acquire { .. } => Fails(late_fault(), Duration::ZERO),
            _ => Answered,
        });
        let settings = eager_builder(&[Stubborn::honest("a"), quick_node, slow_node]);
        let settings = if is_unordered {
            settings.order(quorate::Order::Unordered)
        } else {
            settings
        };
        let redlock = settings.build().expect("good settings");
        let waiting_task = tokio::spawn(async move { redlock.acquire("job").await.map(drop) });
        eventually("the waiter must make several attempts", || {
            attempt_times.times().len() >= 3
        })
        .await;
        waiting_task.abort();
        for (released_at, next_at) in release_times
            .times()
            .iter()
            .zip(&attempt_times.times()[1..])
        {
            let pause = next_at.saturating_since(*released_at);
            assert!(pause >= SLOW_ANSWER, "{pause:?}");
        }
    }
}

/// Tests a waiter that leaves the queue and then tries again. It must not ask for the lock before every master has
/// removed it from the queue.
#[tokio::test]
async fn waiter_retries_only_after_all_masters_removed_it_from_the_queue() {
    let nodes = ["a", "b", "c"].map(|name| Stubborn::honest(name).held_by_another("job"));
    let (attempt_times, leave_times) = (Times::default(), Times::default());
    let redlock = eager_builder(&nodes).build().expect("good settings");
    let waiting_task = tokio::spawn(async move { redlock.acquire("job").await.map(drop) });
    let queue_length = || {
        let request = requests::status(b"job");
        let answer = nodes[0]
            .master
            .with_master(|master, now| master.apply(now, &request));
        match answer.expect("the master must answer") {
            quorate::node::Answer::State(state) => state.queue.len(),
            other => panic!("{other:?}"),
        }
    };
    eventually("the waiter must be queued", || queue_length() == 1).await;
    for node in &nodes[1..] {
        let fail_acquires = |request: &Request| -> Treatment {
            match request {
                Request::Acquire { .. } => Fails(Fault::Down("off".into()), Duration::ZERO),
                _ => Answered,
            }
        };
        node.set_rule(fail_acquires);
    }
    let (attempt_log, leave_log) = (attempt_times.clone(), leave_times.clone());
    nodes[0].set_rule(move |request| match request {
        Request::Acquire { .. } => {
            attempt_log.record();
            Answered
        }
        Request::Release { leave: true, .. } => {
            leave_log.record();
            Late(SLOW_ANSWER)
        }
        _ => Answered,
    });
    eventually("the waiter must be in the queue again", || {
        let leave_times = leave_times.times();
        let returns_after = |left_at: &Instant| {
            attempt_times
                .times()
                .iter()
                .any(|attempted_at| attempted_at > left_at)
        };
        leave_times.first().is_some_and(returns_after)
    })
    .await;
    waiting_task.abort();
    let left_at = leave_times.times()[0];
    let returned_at = attempt_times
        .times()
        .into_iter()
        .find(|attempted_at| *attempted_at > left_at);
    let return_pause = returned_at
        .expect("the waiter must have asked for the lock again")
        .saturating_since(left_at);
    assert!(return_pause >= SLOW_ANSWER, "{return_pause:?}");
}
