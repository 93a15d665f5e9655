//! Tests of failed attempts to acquire a lock:
//!
//! - the keys that a failed attempt leaves on the masters
//! - the pause before the next attempt
//! - the time limit of an acquire that does not get the lock

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::stubborn::Treatment::{Answered, Fails, Late};
use crate::support::stubborn::{Stubborn, Treatment};
use crate::support::{self, PATIENCE, eventually, ms, secs};
use quorate::node::{Node, Request};
use quorate::{AcquireError, Fault, Instant, Redlock, RedlockBuilder, Retry, Wait};
use quorate_contract::requests;

/// Ten minutes. Timers with this duration never fire during a test of this file.
const TEN_MINUTES: Duration = secs(600);

fn settings(nodes: &[Arc<Stubborn>]) -> RedlockBuilder {
    let dyn_nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
    Redlock::builder()
        .nodes(dyn_nodes.collect())
        .max_ttl(TEN_MINUTES)
        .ttl(TEN_MINUTES)
        .heartbeat(TEN_MINUTES)
        .wait(Wait::Forever)
}

fn fair_and_unordered(settings: RedlockBuilder) -> [Redlock; 2] {
    [settings.clone(), settings.order(quorate::Order::Unordered)]
        .map(|settings| settings.build().expect("good"))
}

fn holder_of(node: &Stubborn) -> Option<Vec<u8>> {
    node.master.with_master(|master, now| {
        let holder = master.peek(now, b"job").holder;
        holder.map(<[u8]>::to_vec)
    })
}

/// The number of waiters for the lock `job` that are queued on this master.
fn queue_length(node: &Stubborn) -> usize {
    let request = requests::status(b"job");
    let answer = node
        .master
        .with_master(|master, now| master.apply(now, &request));
    match answer.expect("the master must answer") {
        quorate::node::Answer::State(state) => state.queue.len(),
        other => panic!("{other:?}"),
    }
}

fn is_confirm(request: &Request) -> bool {
    matches!(request, Request::Confirm { .. })
}

/// Gives every master a different fencing counter, so that the masters grant different fencing numbers. The client must
/// then send a second request, which asks the masters to confirm the largest number.
fn set_different_counters(nodes: &[Arc<Stubborn>]) {
    for (number, node) in nodes.iter().enumerate() {
        node.master.with_master(|master, now| {
            let counter = now + 500_000 * (number as u64 + 1);
            let counter = counter.to_string();
            master.put_text(now, b"quorate:fence:job", counter.as_bytes(), None);
        });
    }
}

async fn assert_acquire_leaves_nothing(redlock: &Redlock, nodes: &[Arc<Stubborn>]) {
    let outcome = redlock.try_acquire("job").await;
    assert!(
        !matches!(outcome, Ok(quorate::TryAcquire::Acquired(_))),
        "{outcome:?}"
    );
    // The TTL of these keys is ten minutes, far longer than the test waits. So only a release can have deleted them.
    eventually("every key must be deleted", || {
        nodes.iter().all(|node| holder_of(node).is_none())
    })
    .await;
}

#[tokio::test]
async fn acquire_leaves_no_key_if_no_majority_confirms_its_token() {
    for fault in [
        Fault::Server("not now".into()),
        Fault::Disconnected("cut".into()),
        Fault::Timeout(ms(50)),
    ] {
        let nodes = ["a", "b", "c"].map(Stubborn::honest);
        for redlock in fair_and_unordered(settings(&nodes)) {
            set_different_counters(&nodes);
            for node in &nodes[1..] {
                let fault = fault.clone();
                node.set_rule(move |request| {
                    if is_confirm(request) {
                        Fails(fault.clone(), Duration::ZERO)
                    } else {
                        Answered
                    }
                });
            }
            assert_acquire_leaves_nothing(&redlock, &nodes).await;
        }
    }
}

/// A majority of masters loses the lock key between the grant of the lock and the confirmation of its token, like
/// masters that restart without their data.
#[tokio::test]
async fn acquire_leaves_no_key_if_most_masters_lose_the_key_before_the_token_confirmation() {
    let nodes = ["a", "b", "c"].map(Stubborn::honest);
    for redlock in fair_and_unordered(settings(&nodes)) {
        set_different_counters(&nodes);
        for node in &nodes[1..] {
            let master = node.master.clone();
            node.set_rule(move |request| {
                if is_confirm(request) {
                    master.with_master(|master, now| {
                        master.put_text(now, b"job", b"", Some(Duration::ZERO));
                    });
                }
                Answered
            });
        }
        assert_acquire_leaves_nothing(&redlock, &nodes).await;
    }
}

/// Before each confirm request, another client raises the fencing counter above the number in the request. So every
/// master refuses to confirm the number.
#[tokio::test]
async fn acquire_leaves_no_key_if_the_masters_refuse_every_token_as_too_small() {
    let nodes = ["a", "b", "c"].map(Stubborn::honest);
    let raise_count = Arc::<AtomicU64>::default();
    for redlock in fair_and_unordered(settings(&nodes)) {
        set_different_counters(&nodes);
        for node in &nodes {
            let (master, raise_count) = (node.master.clone(), raise_count.clone());
            node.set_rule(move |request| {
                if is_confirm(request) {
                    master.with_master(|master, now| {
                        let distance = 5_000_000 + raise_count.fetch_add(1, Ordering::Relaxed);
                        let counter = (now + distance).to_string();
                        master.put_text(now, b"quorate:fence:job", counter.as_bytes(), None);
                    });
                }
                Answered
            });
        }
        assert_acquire_leaves_nothing(&redlock, &nodes).await;
    }
    let confirm_count = raise_count.load(Ordering::Relaxed);
    // `fair_and_unordered` returns two clients. Each of them asks the three masters three times to confirm: 2 * 3 * 3 = 18.
    assert_eq!(confirm_count, 18);
}

/// A waiter must release its grants before its next attempt. Otherwise several waiters could block each other forever,
/// each with the grants of a minority of the masters.
#[tokio::test]
async fn waiter_starts_its_next_attempt_only_after_its_previous_attempt_is_undone() {
    let undo_delay = ms(400);
    for order in [0, 1] {
        let attempt_times = Arc::<Mutex<Vec<Instant>>>::default();
        let release_times = Arc::<Mutex<Vec<Instant>>>::default();
        // Master `a` grants every attempt, and the two other masters refuse every attempt. So the client must release
        // its grant on `a` after each attempt.
        let (attempt_log, release_log) = (attempt_times.clone(), release_times.clone());
        let granting_node = Stubborn::new("a", move |request| match request {
            Request::Acquire { .. } => {
                attempt_log.lock().expect("no panic").push(Instant::now());
                Answered
            }
            Request::Release { leave: false, .. } => {
                release_log.lock().expect("no panic").push(Instant::now());
                Late(undo_delay)
            }
            _ => Answered,
        });
        let masters = [
            granting_node,
            Stubborn::honest("b").held_by_another("job"),
            Stubborn::honest("c").held_by_another("job"),
        ];
        let eager_builder = settings(&masters).retry(Retry::new(ms(1), ms(1)));
        let [fair, unordered] = fair_and_unordered(eager_builder);
        let redlock = if order == 0 { fair } else { unordered };
        let waiting_task = tokio::spawn(async move { redlock.acquire("job").await.map(drop) });
        eventually("the waiter must make several attempts", || {
            attempt_times.lock().expect("no panic").len() >= 4
        })
        .await;
        waiting_task.abort();
        let attempt_times = attempt_times.lock().expect("no panic").clone();
        let release_times = release_times.lock().expect("no panic").clone();
        for (released_at, next_at) in release_times.iter().zip(&attempt_times[1..]) {
            let pause = next_at.saturating_since(*released_at);
            assert!(
                pause >= undo_delay,
                "the next attempt must begin after the previous attempt is undone, but began {pause:?} after its \
                 release (in order: {order})"
            );
        }
    }
}

#[tokio::test]
async fn waiter_leaves_the_queue_while_only_a_minority_of_masters_is_reachable() {
    let nodes = ["a", "b", "c"].map(|name| Stubborn::honest(name).held_by_another("job"));
    let builder = settings(&nodes).retry(Retry::new(ms(300), ms(300)));
    let redlock = builder.build().expect("good settings");
    let waiting_task = tokio::spawn(async move { redlock.acquire("job").await.map(drop) });
    eventually("the waiter must be queued", || queue_length(&nodes[2]) == 1).await;
    let fail_as_down = || |_: &Request| Fails(Fault::Down("switched off".into()), Duration::ZERO);
    nodes[0].set_rule(fail_as_down());
    nodes[1].set_rule(fail_as_down());
    eventually(
        "a waiter that reaches only a minority must leave the queue",
        || queue_length(&nodes[2]) == 0,
    )
    .await;
    nodes[0].set_rule(|_| Answered);
    nodes[1].set_rule(|_| Answered);
    eventually(
        "the waiter must be in the queue of every master again",
        || nodes.iter().all(|node| queue_length(node) == 1),
    )
    .await;
    for node in &nodes {
        node.release_foreign("job");
    }
    let outcome = tokio::time::timeout(PATIENCE, waiting_task).await;
    outcome
        .expect("the waiting task must end in time")
        .expect("no panic")
        .expect("free");
    assert!(nodes.iter().all(|node| queue_length(node) == 0));
}

/// Every poll, retry and heartbeat of these waiters is due in ten minutes. The wait of 300 ms must nevertheless end on
/// time.
#[tokio::test]
async fn acquire_fails_at_its_wait_limit_even_if_the_next_poll_is_far_away() {
    let fail_as_down =
        |_: &Request| -> Treatment { Fails(Fault::Down("off".into()), Duration::ZERO) };
    let held_nodes = ["a", "b", "c"].map(|name| Stubborn::honest(name).held_by_another("job"));
    let down_nodes = ["a", "b", "c"].map(|name| Stubborn::new(name, fail_as_down));
    for (nodes, are_down) in [(&held_nodes, false), (&down_nodes, true)] {
        let patient_builder = settings(nodes).retry(Retry::new(TEN_MINUTES, TEN_MINUTES));
        for redlock in fair_and_unordered(patient_builder) {
            let started_at = Instant::now();
            let wait = ms(300);
            let lock = redlock.lock("job").wait(Wait::For(wait));
            let outcome = tokio::time::timeout(PATIENCE, lock.acquire()).await;
            let error = outcome
                .expect("the acquire must end at its time limit")
                .map(drop)
                .expect_err("the lock must not be acquired");
            assert!(Instant::now() + ms(5) >= started_at + wait);
            let is_outage = matches!(error, AcquireError::NoQuorum(_));
            assert_eq!(is_outage, are_down, "{error}");
            if let AcquireError::NoQuorum(failed) = &error {
                // Each attempt fails at once, and the pause after the first attempt is longer than the wait.
                assert_eq!(failed.attempts, 1, "{error}");
            }
        }
    }
    // The lock is held by the waiter's own process, so the waiter sends no request to the masters. Its wait must also
    // end on time.
    let nodes = ["a", "b", "c"].map(Stubborn::honest);
    let redlock = settings(&nodes).build().expect("good settings");
    let _guard = support::take(&redlock, "job").await;
    let lock = redlock.lock("job").wait(Wait::For(ms(300)));
    let outcome = tokio::time::timeout(PATIENCE, lock.acquire()).await;
    outcome
        .expect("the acquire must end at its time limit")
        .map(drop)
        .expect_err("held");
}

/// A confirm request of the second hold could arrive after the release. It would then raise the fencing counter of a
/// free lock.
#[tokio::test]
async fn second_hold_of_an_owner_reuses_the_first_fencing_token_without_a_confirm_request() {
    let nodes = ["a", "b", "c"].map(Stubborn::honest);
    let [here, there] = fair_and_unordered(settings(&nodes).node_timeout(secs(5)));
    // The first master is down during the first acquire. Later it answers with a different fencing number.
    nodes[0].set_rule(|_| Fails(Fault::Down("off".into()), Duration::ZERO));
    let outer_owner = here.owner("o").expect("an id");
    let outer_guard = outer_owner.acquire("job").await.expect("free");
    nodes[0].set_rule(|_| Answered);
    let confirm_count = Arc::new(AtomicU64::new(0));
    for (node, delay_ms) in nodes.iter().zip([0, 0, 100]) {
        let confirm_count = confirm_count.clone();
        node.set_rule(move |request| {
            confirm_count.fetch_add(u64::from(is_confirm(request)), Ordering::Relaxed);
            match request {
                Request::Acquire { .. } if delay_ms > 0 => Late(ms(delay_ms)),
                _ => Answered,
            }
        });
    }
    let inner_owner = there.owner("o").expect("an id");
    let outcome = tokio::time::timeout(PATIENCE, inner_owner.acquire("job")).await;
    let inner_guard = outcome
        .expect("the second acquire of the owner must end in time")
        .expect("the second acquire of the owner must be granted");
    assert_eq!(inner_guard.fencing_token(), outer_guard.fencing_token());
    assert_eq!(confirm_count.load(Ordering::Relaxed), 0);
}
