//! Tests of the queue of callers that wait for the same lock within one process. If the first caller leaves the queue
//! for any reason, the next caller takes its place. No caller overtakes another.
//!
//! All timers are far in the future in these tests, so a waiter that is never woken would wait forever.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::stubborn::Stubborn;
use crate::support::stubborn::Treatment::Answered;
use crate::support::waiter::{Waiter, wait_for_guard};
use crate::support::{PATIENCE, eventually, ms, secs, take};
use quorate::node::{Node, Request};
use quorate::{Redlock, RedlockBuilder, Retry, TryAcquire, Wait};

/// Ten minutes, which is longer than any test of this file waits.
const TEN_MINUTES: Duration = secs(600);

/// Three masters in memory. Counts the acquire requests to all three masters in one total.
struct CountedMasters {
    nodes: [Arc<Stubborn>; 3],
    acquire_count: Arc<AtomicUsize>,
}

impl CountedMasters {
    fn new() -> Self {
        let acquire_count = Arc::<AtomicUsize>::default();
        let nodes = ["a", "b", "c"].map(|name| {
            let acquire_count = acquire_count.clone();
            Stubborn::new(name, move |request| {
                if matches!(request, Request::Acquire { .. }) {
                    acquire_count.fetch_add(1, Ordering::Relaxed);
                }
                Answered
            })
        });
        Self {
            nodes,
            acquire_count,
        }
    }

    fn settings(&self) -> RedlockBuilder {
        let nodes = self.nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
        Redlock::builder()
            .nodes(nodes.collect())
            .max_ttl(TEN_MINUTES)
            .ttl(TEN_MINUTES)
            .heartbeat(TEN_MINUTES)
            .wait(Wait::Forever)
    }

    /// A client that notices a release only by a wake-up, because its retry delay is ten minutes. It acts as a separate
    /// process.
    fn waking_client(&self) -> Redlock {
        let builder = self.settings().retry(Retry::new(TEN_MINUTES, TEN_MINUTES));
        builder.build().expect("good settings")
    }

    /// A client that retries every 5 ms, so it notices a release even without a wake-up. It acts as a separate process.
    fn retrying_client(&self) -> Redlock {
        let retrying_client = self.settings().retry(Retry::new(ms(5), ms(5)));
        retrying_client.build().expect("good settings")
    }

    fn held_by_another(self) -> Self {
        for node in &self.nodes {
            node.clone().held_by_another("job");
        }
        self
    }

    fn release_foreign(&self) {
        for node in &self.nodes {
            node.release_foreign("job");
        }
    }

    fn acquire_count(&self) -> usize {
        self.acquire_count.load(Ordering::Relaxed)
    }
}

/// Starts a waiter, and waits until its progress callback is called for the first time. From then on the waiter is
/// queued, either in this process or at the masters.
async fn start_waiter_with(redlock: &Redlock, wait: Wait) -> Waiter {
    let progress_count = Arc::<AtomicUsize>::default();
    let progress_counter = progress_count.clone();
    let redlock = redlock.clone();
    let waiting_task = tokio::spawn(async move {
        let lock = redlock.lock("job").wait(wait);
        let count_progress = move |_: &quorate::Waiting| {
            progress_counter.fetch_add(1, Ordering::Relaxed);
        };
        lock.waiting(count_progress).acquire().await
    });
    eventually("the task must be waiting for the lock", || {
        progress_count.load(Ordering::Relaxed) > 0
    })
    .await;
    waiting_task
}

async fn start_waiter(redlock: &Redlock) -> Waiter {
    start_waiter_with(redlock, Wait::Forever).await
}

async fn assert_all_acquire(waiters: impl IntoIterator<Item = Waiter>) {
    for waiter in waiters {
        wait_for_guard(waiter).await.release().await;
    }
}

async fn cancel(waiter: Waiter) {
    waiter.abort();
    assert!(waiter.await.expect_err("cut off").is_cancelled());
}

#[tokio::test]
async fn dropped_first_waiter_passes_its_turn_to_the_next_waiter() {
    let masters = CountedMasters::new().held_by_another();
    let redlock = masters.retrying_client();
    let first_waiter = start_waiter(&redlock).await;
    let later_waiters = [start_waiter(&redlock).await, start_waiter(&redlock).await];
    cancel(first_waiter).await;
    masters.release_foreign();
    assert_all_acquire(later_waiters).await;
}

#[tokio::test]
async fn timed_out_first_waiter_passes_its_turn_to_the_next_waiter() {
    let masters = CountedMasters::new().held_by_another();
    let redlock = masters.retrying_client();
    let first_waiter = start_waiter_with(&redlock, Wait::For(ms(100))).await;
    let later_waiters = [start_waiter(&redlock).await, start_waiter(&redlock).await];
    first_waiter.await.expect("no panic").expect_err("held");
    masters.release_foreign();
    assert_all_acquire(later_waiters).await;
}

#[tokio::test]
async fn waiters_that_leave_the_middle_or_end_of_the_queue_are_skipped() {
    let masters = CountedMasters::new();
    let redlock = masters.waking_client();
    let guard = take(&redlock, "job").await;
    let second_waiter = start_waiter(&redlock).await;
    let cancelled_waiter = start_waiter(&redlock).await;
    let third_waiter = start_waiter(&redlock).await;
    let fourth_waiter = start_waiter(&redlock).await;
    cancel(cancelled_waiter).await;
    cancel(fourth_waiter).await;
    guard.release().await;
    assert_all_acquire([second_waiter, third_waiter]).await;
    // Now the lock is free, and no caller of this process waits for it. So the next caller asks the masters
    // immediately.
    let acquires_before = masters.acquire_count();
    take(&redlock, "job").await.release().await;
    assert_eq!(masters.acquire_count(), acquires_before + 3);
}

/// Tests that the holder keeps the local turn until its release. The local turn is the right to ask the masters for
/// this lock, so waiters of the same process send no requests until then.
#[tokio::test]
async fn callers_send_no_request_while_a_task_of_their_process_holds_the_lock() {
    let masters = CountedMasters::new();
    let redlock = masters.retrying_client();
    let guard = take(&redlock, "job").await;
    let acquires_before = masters.acquire_count();
    let later_waiters = [start_waiter(&redlock).await, start_waiter(&redlock).await];
    // A waiter that had the local turn (the right to ask the masters) would send its request immediately.
    tokio::time::sleep(ms(200)).await;
    assert_eq!(masters.acquire_count(), acquires_before);
    drop(guard);
    assert_all_acquire(later_waiters).await;
    assert_eq!(
        masters.acquire_count(),
        acquires_before + 6,
        "each waiter must have made exactly one attempt"
    );
}

#[tokio::test]
async fn local_waiters_send_no_request_while_their_process_is_queued_on_the_masters() {
    let masters = CountedMasters::new().held_by_another();
    let redlock = masters.waking_client();
    let first_waiter = start_waiter(&redlock).await;
    // The waiter joins the queue of the masters with its second attempt. Each attempt sends three requests.
    eventually("the waiter must be queued", || masters.acquire_count() == 6).await;
    let later_waiters = [start_waiter(&redlock).await, start_waiter(&redlock).await];
    tokio::time::sleep(ms(200)).await;
    assert_eq!(masters.acquire_count(), 6);
    for waiter in later_waiters.into_iter().chain([first_waiter]) {
        cancel(waiter).await;
    }
}

#[tokio::test]
async fn waiters_of_the_same_process_are_served_in_order() {
    let masters = CountedMasters::new();
    let redlock = masters.waking_client();
    let guard = take(&redlock, "job").await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..6 {
        let (waiter, order) = (start_waiter(&redlock).await, order.clone());
        tasks.push(tokio::spawn(async move {
            let guard = wait_for_guard(waiter).await;
            order.lock().expect("no panic").push(number);
            guard.release().await;
        }));
    }
    guard.release().await;
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(*order.lock().expect("no panic"), [0, 1, 2, 3, 4, 5]);
}

/// Tests an attempt right after the holder's release. The release has already passed the local turn (the right to ask
/// the masters) to the next waiter of this process, but that waiter has not run yet.
#[tokio::test]
async fn try_acquire_does_not_overtake_the_next_waiter_of_its_process() {
    for released in [true, false] {
        let masters = CountedMasters::new();
        let redlock = masters.waking_client();
        let guard = take(&redlock, "job").await;
        let waiting = [start_waiter(&redlock).await, start_waiter(&redlock).await];
        if released {
            guard.release().await;
        } else {
            drop(guard);
        }
        let acquires_before = masters.acquire_count();
        let outcome = redlock.try_acquire("job").await.expect("an answer");
        assert!(matches!(outcome, TryAcquire::Held(_)), "{outcome:?}");
        assert_eq!(
            masters.acquire_count(),
            acquires_before,
            "a try must send no request while a task of the same process holds the lock"
        );
        assert_all_acquire(waiting).await;
        let outcome = redlock.try_acquire("job").await.expect("an answer");
        outcome.acquired().expect("free").release().await;
    }
}

#[tokio::test]
async fn try_acquire_sends_no_request_while_other_tasks_of_its_process_wait() {
    let masters = CountedMasters::new().held_by_another();
    let redlock = masters.waking_client();
    let first_waiter = start_waiter(&redlock).await;
    let later_waiters = start_waiter(&redlock).await;
    eventually("the waiter must be queued", || masters.acquire_count() == 6).await;
    let outcome = redlock.try_acquire("job").await.expect("an answer");
    let TryAcquire::Held(refusal) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(!refusal.held_here);
    assert_eq!(masters.acquire_count(), 6);
    for waiter in [later_waiters, first_waiter] {
        cancel(waiter).await;
    }
}

/// Tests a wake-up that arrives after the first waiter has left the queue. The wake-up must wake the next waiter, which
/// is then the first in the queue.
#[tokio::test]
async fn wake_up_addressed_to_a_departed_waiter_wakes_the_next_waiter() {
    let masters = CountedMasters::new();
    let (our_client, other) = (masters.waking_client(), masters.waking_client());
    let guard = take(&other, "job").await;
    let first_waiter = start_waiter(&our_client).await;
    let second_waiter = start_waiter(&our_client).await;
    eventually("the waiter must be queued", || masters.acquire_count() == 9).await;
    cancel(first_waiter).await;
    eventually("the next waiter must ask the masters", || {
        masters.acquire_count() == 15
    })
    .await;
    guard.release().await;
    wait_for_guard(second_waiter).await.release().await;
}

/// After a wake-up, a waiter may find the lock held again. Tests that it then asks the masters only once.
#[tokio::test]
async fn waiter_asks_the_masters_only_once_after_a_spurious_wake_up() {
    let masters = CountedMasters::new();
    let (our_client, other) = (masters.waking_client(), masters.waking_client());
    let guard = take(&other, "job").await;
    let waiter = start_waiter(&our_client).await;
    eventually("the waiter must be queued", || masters.acquire_count() == 9).await;
    // Let another client take the lock before any other task runs. So the woken waiter finds the lock held.
    guard.release().await;
    for node in &masters.nodes {
        node.clone().held_by_another("job");
    }
    eventually("the woken waiter must ask for the lock", || {
        masters.acquire_count() == 12
    })
    .await;
    tokio::time::sleep(ms(200)).await;
    assert_eq!(masters.acquire_count(), 12);
    cancel(waiter).await;
}

/// Tests waiters on a runtime with several threads. They start to wait, give up and are dropped at random times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_waiters_are_served_although_other_waiters_give_up_or_are_dropped() {
    let masters = CountedMasters::new();
    let redlock = masters.waking_client();
    let mut tasks = Vec::new();
    for number in 0..200_u64 {
        let redlock = redlock.clone();
        tasks.push(tokio::spawn(async move {
            let short_wait = Duration::from_micros(number * 37 % 500);
            match number % 3 {
                // The timeout drops this waiter at some await point.
                0 => drop(tokio::time::timeout(short_wait, redlock.acquire("job")).await),
                1 => drop(redlock.try_acquire("job").await),
                _ => {
                    let outcome = redlock.acquire("job").await;
                    let guard = outcome.unwrap_or_else(|error| panic!("{error}"));
                    tokio::time::sleep(short_wait).await;
                    drop(guard);
                }
            }
        }));
    }
    for task in tasks {
        let task_result = tokio::time::timeout(PATIENCE, task).await;
        task_result
            .expect("the waiter must get the lock")
            .expect("no panic");
    }
    take(&redlock, "job").await.release().await;
}

#[tokio::test]
async fn progress_of_a_waiter_counts_the_callers_ahead_in_its_process() {
    let masters = CountedMasters::new();
    let redlock = masters.waking_client();
    let guard = take(&redlock, "job").await;
    let notified_waits = Arc::<Mutex<Vec<(usize, Option<u64>)>>>::default();
    let mut waiters = Vec::new();
    for number in 0..3 {
        let (redlock, notes) = (redlock.clone(), notified_waits.clone());
        waiters.push(tokio::spawn(async move {
            let see = move |waiting: &quorate::Waiting| {
                let mut notes = notes.lock().expect("no panic");
                notes.push((number, waiting.ahead));
            };
            redlock.lock("job").waiting(see).acquire().await
        }));
        let notified_waits = notified_waits.clone();
        eventually("the task must be waiting for the lock", || {
            notified_waits.lock().expect("no panic").len() > number
        })
        .await;
    }
    let expected_reports = [(0, Some(1)), (1, Some(2)), (2, Some(3))];
    assert_eq!(*notified_waits.lock().expect("no panic"), expected_reports);
    guard.release().await;
    assert_all_acquire(waiters).await;
}
