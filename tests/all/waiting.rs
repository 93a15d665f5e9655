//! Tests that waiters get a lock in the order of their arrival. The waiters are tasks of one process, or use separate
//! `Redlock`s, which act as separate processes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use crate::support::stubborn::{Stubborn, Treatment};
use crate::support::{ms, secs};
use quorate::node::Node;
use quorate::{AcquireError, Redlock, RestartGuard, TryAcquire, Wait, Waiter};
use quorate_testbed::Masters;

/// A waiter that sends no heartbeat for this time loses its place in the queue. To check that a waiter leaves the queue
/// by itself, tests wait only half of this time.
const HEARTBEAT: Duration = Duration::from_secs(8);

/// The time limit for each event that a test waits for. It is generous, because the machine may be busy with other
/// work.
const PATIENCE: Duration = Duration::from_secs(40);

/// Waits until `is_met` returns true. If it has not returned true after `limit`, the test fails with the message `what`.
async fn wait_at_most(limit: Duration, what: &str, mut is_met: impl FnMut() -> bool) {
    let started_at = Instant::now();
    while !is_met() {
        assert!(
            started_at.elapsed() < limit,
            "timed out after {limit:?}: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The number of waiters for a resource, on the master with the fewest such waiters.
fn queue_length(masters: &Masters, resource: &str) -> i64 {
    let queue_key = format!("quorate:queue:{resource}");
    let count_queued = |master: &quorate_testbed::Server| {
        let reply = master
            .command(&["ZCARD", &queue_key])
            .expect("the server must answer the command");
        reply.int().expect("a number")
    };
    masters.iter().map(count_queued).min().unwrap_or(0)
}

fn redlock(masters: &Masters) -> Redlock {
    Redlock::builder()
        .masters(masters.urls())
        .restart_guard(RestartGuard::Off)
        .ttl(2 * HEARTBEAT)
        .heartbeat(HEARTBEAT)
        // Use ten times the default node timeout, because a healthy master on a busy machine sometimes needs more than
        // 50 ms.
        .node_timeout(Duration::from_millis(500))
        .wait(Wait::For(PATIENCE))
        .build()
        .expect("good settings")
}

/// The number of queue keys on all running masters together. The keys `quorate:ticket:*` are not counted, because no
/// client deletes them before they expire.
fn queue_keys(masters: &Masters) -> usize {
    masters
        .into_iter()
        .filter(|master| master.is_alive())
        .map(|master| {
            ["quorate:queue:*", "quorate:alive:*"]
                .iter()
                .map(|pattern| match master.command(&["KEYS", pattern]) {
                    Ok(quorate_testbed::Reply::Array(keys)) => keys.len(),
                    other => panic!("KEYS must be answered with a list, but: {other:?}"),
                })
                .sum::<usize>()
        })
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_one_process_are_served_in_order() {
    let masters = Masters::start(3).expect("three masters");
    let redlock = redlock(&masters);
    let first_guard = redlock.acquire("one").await.expect("free");
    let acquire_order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for n in 0..10 {
        let (redlock, acquire_order) = (redlock.clone(), acquire_order.clone());
        let is_waiting = Arc::new(AtomicBool::new(false));
        let waiting_flag = is_waiting.clone();
        tasks.push(tokio::spawn(async move {
            let lock = redlock.lock("one");
            let lock = lock.waiting(move |_| waiting_flag.store(true, Ordering::Relaxed));
            let guard = lock.acquire().await.expect("the waiter must get the lock");
            acquire_order.lock().expect("not poisoned").push(n);
            guard.release().await;
        }));
        wait_at_most(PATIENCE, "the waiter must be queued", || {
            is_waiting.load(Ordering::Relaxed)
        })
        .await;
    }
    first_guard.release().await;
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(
        *acquire_order.lock().expect("not poisoned"),
        (0..10).collect::<Vec<_>>()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_many_processes_are_served_in_order() {
    let masters = Masters::start(5).expect("five masters");
    let holder = redlock(&masters);
    let first_guard = holder.acquire("many").await.expect("free");
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for n in 0..8 {
        let redlock = redlock(&masters);
        let shared_order = order.clone();
        tasks.push(tokio::spawn(async move {
            let guard = redlock
                .acquire("many")
                .await
                .expect("the waiter must get the lock");
            shared_order
                .lock()
                .expect("not poisoned")
                .push((n, guard.fencing_token()));
            tokio::time::sleep(Duration::from_millis(3)).await;
            guard.release().await;
            redlock.flush().await;
        }));
        wait_at_most(PATIENCE, "the waiter must be queued", || {
            queue_length(&masters, "many") > n
        })
        .await;
    }
    let status = holder.status("many").await.expect("the name must be valid");
    let states = status
        .nodes
        .iter()
        .filter_map(|node| node.state.as_ref().ok());
    assert_eq!(
        states.map(|state| state.queue.len()).max(),
        Some(8),
        "{status:?}"
    );
    let started_at = Instant::now();
    first_guard.release().await;
    for task in tasks {
        task.await.expect("no panic");
    }
    println!("8 hand-overs in {:?}", started_at.elapsed());
    let order = std::mem::take(&mut *order.lock().expect("not poisoned"));
    assert_eq!(
        order.iter().map(|(n, _)| *n).collect::<Vec<_>>(),
        (0..8).collect::<Vec<_>>()
    );
    assert!(
        order.windows(2).all(|pair| pair[0].1 < pair[1].1),
        "{order:?}"
    );
    holder.flush().await;
    wait_at_most(HEARTBEAT / 2, "no waiter may be left in a queue", || {
        queue_keys(&masters) == 0
    })
    .await;
    // A release does not delete `quorate:ticket:many`. This key must expire within the heartbeat time of the waiters.
    for master in &masters {
        let pttl_reply = master.command(&["PTTL", "quorate:ticket:many"]);
        let remaining_ms = pttl_reply
            .expect("the server must answer the command")
            .int()
            .expect("a number");
        assert!(
            remaining_ms == -2 || (0..=8_000).contains(&remaining_ms),
            "the ticket key must be gone or expire within 8 s, but it expires in {remaining_ms} ms"
        );
    }
}

#[tokio::test]
async fn try_acquire_does_not_overtake_a_queued_waiter() {
    let masters = Masters::start(3).expect("three masters");
    let (holder, waiter, third_client) = (redlock(&masters), redlock(&masters), redlock(&masters));
    let guard = holder.acquire("x").await.expect("free");
    let waiter_task = tokio::spawn(async move { waiter.acquire("x").await });
    wait_at_most(PATIENCE, "the waiter must be queued", || {
        queue_length(&masters, "x") == 1
    })
    .await;
    // Delete the lock key without a wake-up for the waiter.
    for master in &masters {
        master
            .command(&["DEL", "x"])
            .expect("the server must answer the command");
    }
    let third_attempt = third_client.try_acquire("x").await.expect("a quorum");
    assert!(
        matches!(third_attempt, TryAcquire::Held(_)),
        "`try_acquire` must not overtake a live waiter"
    );
    waiter_task.abort();
    let _ = waiter_task.await;
    wait_at_most(HEARTBEAT / 2, "the waiter must have left the queue", || {
        queue_keys(&masters) == 0
    })
    .await;
    let third_attempt = third_client.try_acquire("x").await.expect("a quorum");
    assert!(
        matches!(third_attempt, TryAcquire::Acquired(_)),
        "`try_acquire` must succeed after the waiter has left the queue"
    );
    drop(guard);
}

/// The waiters that are queued for a lock, as the first master reports them.
async fn waiters(redlock: &Redlock, resource: &str) -> Vec<Waiter> {
    let status = redlock.status(resource).await.expect("a good name");
    let state = status.nodes.into_iter().next().expect("a master").state;
    state.expect("an answer").queue
}

#[tokio::test]
async fn status_shows_which_process_waits_and_since_when() {
    let masters = Masters::start(3).expect("three masters");
    let (holder, waiter, client_without_notes) =
        (redlock(&masters), redlock(&masters), redlock(&masters));
    let guard = holder.acquire("x").await.expect("free");
    // The start of the wait is part of the waiter's id, in whole milliseconds. So allow for one millisecond of
    // rounding.
    let started_at = SystemTime::now() - Duration::from_millis(1);
    // The second task waits in the queue of this process, behind the first task.
    let [first_guard, second] = [(); 2].map(|()| tokio::spawn(waiter.lock("x").acquire()));
    wait_at_most(PATIENCE, "the first task must be queued", || {
        queue_length(&masters, "x") == 1
    })
    .await;
    let hidden_waiter = tokio::spawn(client_without_notes.lock("x").note(None).acquire());
    wait_at_most(PATIENCE, "the process without notes must be queued", || {
        queue_length(&masters, "x") == 2
    })
    .await;
    let joined_at = SystemTime::now();
    let queued_waiters = waiters(&holder, "x").await;
    let [shown_waiter, anonymous_waiter] = &queued_waiters[..] else {
        panic!("{queued_waiters:?}");
    };
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    assert_eq!(shown_waiter.host, Some(host));
    assert_eq!(shown_waiter.pid, Some(std::process::id()));
    let waiting_since = shown_waiter.since.expect("a time");
    assert!(
        waiting_since >= started_at && waiting_since <= joined_at,
        "{shown_waiter:?}"
    );
    let description = (
        &anonymous_waiter.host,
        anonymous_waiter.pid,
        anonymous_waiter.since,
    );
    assert_eq!(description, (&None, None, None));

    // Let the task `hidden_waiter` get the lock. It stays in the queue while it holds the lock, and `second` is behind it.
    guard.release().await;
    let guard = first_guard.await.expect("no panic").expect("released");
    guard.release().await;
    let guard = hidden_waiter.await.expect("no panic").expect("released");
    wait_at_most(PATIENCE, "the second task must be queued", || {
        queue_length(&masters, "x") == 2
    })
    .await;
    let queue = waiters(&holder, "x").await;
    let waiting_since = queue.last().and_then(|waiter| waiter.since);
    assert!(
        waiting_since.is_some_and(|waiting_since| waiting_since <= joined_at),
        "the reported start of the wait must include the time in the queue of the process: {queue:?}"
    );
    guard.release().await;
    drop(second.await.expect("no panic").expect("released"));
}

/// Regression test: in an earlier version, the background task that expires locks handled the same expired lock in an
/// endless loop.
#[tokio::test]
async fn lock_whose_fixed_lease_has_ended_can_be_acquired_by_the_same_process() {
    let redlock = Redlock::in_memory(3);
    let ttl = Duration::from_millis(500);
    let guard = redlock
        .lock("x")
        .ttl(ttl)
        .renewal(false)
        .acquire()
        .await
        .expect("free");
    guard.lost().await;
    let second_guard = redlock
        .lock("x")
        .wait(Wait::For(Duration::from_secs(5)))
        .acquire()
        .await;
    assert!(second_guard.expect("expired").fencing_token() > guard.fencing_token());
}

/// A client whose masters answer after 30 ms that another client holds the lock. Two tasks of this client wait for the
/// lock. The wait of the second task ends before the masters have answered the first.
async fn two_local_tasks() -> (Redlock, tokio::task::JoinHandle<Result<(), AcquireError>>) {
    let nodes = ["a", "b", "c"].map(|name| Stubborn::honest(name).held_by_another("job"));
    for node in &nodes {
        node.set_rule(|_| Treatment::Late(ms(30)));
    }
    let nodes: Vec<Arc<dyn Node>> = nodes.into_iter().map(|node| node as _).collect();
    let builder = Redlock::builder().nodes(nodes).node_timeout(ms(50));
    let redlock = builder.build().expect("good settings");
    let first_request = redlock.lock("job").wait(Wait::For(secs(10)));
    let first_task = tokio::spawn(async move { first_request.acquire().await.map(drop) });
    tokio::task::yield_now().await;
    (redlock, first_task)
}

#[tokio::test(start_paused = true)]
async fn waiter_behind_a_local_task_reports_the_answers_to_that_task() {
    let (redlock, first_task) = two_local_tasks().await;
    let outcome = redlock.lock("job").wait(Wait::For(ms(10))).acquire().await;
    let error = outcome.expect_err("another client holds the lock");
    assert!(matches!(error, AcquireError::HeldByOther(_)), "{error:?}");
    assert_eq!(error.reports().len(), 3, "{error:?}");
    first_task.abort();
}

#[tokio::test(start_paused = true)]
async fn waiter_whose_wait_has_ended_asks_the_masters_when_the_local_task_ahead_of_it_ends() {
    let (redlock, first_task) = two_local_tasks().await;
    let started_at = tokio::time::Instant::now();
    let second_task = tokio::spawn(async move {
        let outcome = redlock.lock("job").wait(Wait::For(ms(10))).acquire().await;
        outcome.map(drop)
    });
    tokio::time::sleep(ms(20)).await;
    first_task.abort();
    let outcome = second_task.await.expect("the task must not panic");
    let error = outcome.expect_err("another client holds the lock");
    assert_eq!(error.reports().len(), 3, "{error:?}");
    // The second task asked when the first task ended, and the answers took 30 ms.
    let elapsed = started_at.elapsed();
    assert!(elapsed >= ms(50) && elapsed < ms(200), "{elapsed:?}");
}

/// Tests a task that is second in the local queue. Its wait limit ends while the first task makes an attempt.
#[tokio::test(start_paused = true)]
async fn waiter_behind_a_local_task_times_out_soon_after_that_tasks_attempt() {
    let nodes = ["a", "b", "c"].map(|name| Stubborn::honest(name).held_by_another("job"));
    for node in &nodes {
        node.set_rule(|_| Treatment::Late(ms(200)));
    }
    let nodes: Vec<Arc<dyn Node>> = nodes.into_iter().map(|node| node as _).collect();
    let builder = Redlock::builder().nodes(nodes).node_timeout(ms(50));
    let redlock = builder.build().expect("good settings");
    let lock_request = redlock.lock("job").wait(Wait::For(secs(10)));
    let waiting_task = tokio::spawn(async move { lock_request.acquire().await.map(drop) });
    tokio::task::yield_now().await;
    let started_at = tokio::time::Instant::now();
    let second_outcome = redlock.lock("job").wait(Wait::For(ms(10))).acquire().await;
    second_outcome.expect_err("another client holds the lock");
    let elapsed = started_at.elapsed();
    assert!(
        elapsed < ms(400),
        "the waiter must return soon after the first attempt has ended, but returned after {elapsed:?}"
    );
    waiting_task.abort();
}
