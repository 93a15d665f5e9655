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
struct World {
    nodes: [Arc<Stubborn>; 3],
    asked: Arc<AtomicUsize>,
}

impl World {
    fn new() -> Self {
        let asked = Arc::<AtomicUsize>::default();
        let nodes = ["a", "b", "c"].map(|name| {
            let asked = asked.clone();
            Stubborn::new(name, move |request| {
                if matches!(request, Request::Acquire { .. }) {
                    asked.fetch_add(1, Ordering::Relaxed);
                }
                Answered
            })
        });
        Self { nodes, asked }
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
    fn process(&self) -> Redlock {
        let patient = self.settings().retry(Retry::new(TEN_MINUTES, TEN_MINUTES));
        patient.build().expect("good settings")
    }

    /// A client that retries every 5 ms, so it notices a release even without a wake-up. It acts as a separate process.
    fn watchful(&self) -> Redlock {
        let watchful = self.settings().retry(Retry::new(ms(5), ms(5)));
        watchful.build().expect("good settings")
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

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

/// Starts a waiter, and waits until its progress callback is called for the first time. From then on the waiter is
/// queued, either in this process or at the masters.
async fn stands(redlock: &Redlock, wait: Wait) -> Waiter {
    let looks = Arc::<AtomicUsize>::default();
    let seen = looks.clone();
    let redlock = redlock.clone();
    let waiter = tokio::spawn(async move {
        let lock = redlock.lock("job").wait(wait);
        let look = move |_: &quorate::Waiting| {
            seen.fetch_add(1, Ordering::Relaxed);
        };
        lock.waiting(look).acquire().await
    });
    eventually("the task must be waiting for the lock", || {
        looks.load(Ordering::Relaxed) > 0
    })
    .await;
    waiter
}

async fn waits(redlock: &Redlock) -> Waiter {
    stands(redlock, Wait::Forever).await
}

async fn all_get_it(waiters: impl IntoIterator<Item = Waiter>) {
    for waiter in waiters {
        wait_for_guard(waiter).await.release().await;
    }
}

async fn leaves(waiter: Waiter) {
    waiter.abort();
    assert!(waiter.await.expect_err("cut off").is_cancelled());
}

#[tokio::test]
async fn dropped_first_waiter_passes_its_turn_to_the_next_waiter() {
    let world = World::new().held_by_another();
    let redlock = world.watchful();
    let front = waits(&redlock).await;
    let behind = [waits(&redlock).await, waits(&redlock).await];
    leaves(front).await;
    world.release_foreign();
    all_get_it(behind).await;
}

#[tokio::test]
async fn timed_out_first_waiter_passes_its_turn_to_the_next_waiter() {
    let world = World::new().held_by_another();
    let redlock = world.watchful();
    let front = stands(&redlock, Wait::For(ms(100))).await;
    let behind = [waits(&redlock).await, waits(&redlock).await];
    front.await.expect("no panic").expect_err("held");
    world.release_foreign();
    all_get_it(behind).await;
}

#[tokio::test]
async fn waiters_that_leave_the_middle_or_end_of_the_queue_are_skipped() {
    let world = World::new();
    let redlock = world.process();
    let guard = take(&redlock, "job").await;
    let next = waits(&redlock).await;
    let middle = waits(&redlock).await;
    let after = waits(&redlock).await;
    let last = waits(&redlock).await;
    leaves(middle).await;
    leaves(last).await;
    guard.release().await;
    all_get_it([next, after]).await;
    // Now the lock is free, and no caller of this process waits for it. So the next caller asks the masters
    // immediately.
    let before = world.asked();
    take(&redlock, "job").await.release().await;
    assert_eq!(world.asked(), before + 3);
}

/// Tests that the holder keeps the local turn until its release. The local turn is the right to ask the masters for
/// this lock, so waiters of the same process send no requests until then.
#[tokio::test]
async fn callers_send_no_request_while_a_task_of_their_process_holds_the_lock() {
    let world = World::new();
    let redlock = world.watchful();
    let guard = take(&redlock, "job").await;
    let before = world.asked();
    let behind = [waits(&redlock).await, waits(&redlock).await];
    // A waiter that had the local turn (the right to ask the masters) would send its request immediately.
    tokio::time::sleep(ms(200)).await;
    assert_eq!(world.asked(), before);
    drop(guard);
    all_get_it(behind).await;
    assert_eq!(
        world.asked(),
        before + 6,
        "each waiter must have made exactly one attempt"
    );
}

#[tokio::test]
async fn local_waiters_send_no_request_while_their_process_is_queued_on_the_masters() {
    let world = World::new().held_by_another();
    let redlock = world.process();
    let front = waits(&redlock).await;
    // The waiter joins the queue of the masters with its second attempt. Each attempt sends three requests.
    eventually("the waiter must be queued", || world.asked() == 6).await;
    let behind = [waits(&redlock).await, waits(&redlock).await];
    tokio::time::sleep(ms(200)).await;
    assert_eq!(world.asked(), 6);
    for waiter in behind.into_iter().chain([front]) {
        leaves(waiter).await;
    }
}

#[tokio::test]
async fn waiters_of_the_same_process_are_served_in_order() {
    let world = World::new();
    let redlock = world.process();
    let guard = take(&redlock, "job").await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..6 {
        let (waiter, order) = (waits(&redlock).await, order.clone());
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
        let world = World::new();
        let redlock = world.process();
        let guard = take(&redlock, "job").await;
        let waiting = [waits(&redlock).await, waits(&redlock).await];
        if released {
            guard.release().await;
        } else {
            drop(guard);
        }
        let before = world.asked();
        let tried = redlock.try_acquire("job").await.expect("an answer");
        assert!(matches!(tried, TryAcquire::Held(_)), "{tried:?}");
        assert_eq!(
            world.asked(),
            before,
            "a try must send no request while a task of the same process holds the lock"
        );
        all_get_it(waiting).await;
        let tried = redlock.try_acquire("job").await.expect("an answer");
        tried.acquired().expect("free").release().await;
    }
}

#[tokio::test]
async fn try_acquire_sends_no_request_while_other_tasks_of_its_process_wait() {
    let world = World::new().held_by_another();
    let redlock = world.process();
    let front = waits(&redlock).await;
    let behind = waits(&redlock).await;
    eventually("the waiter must be queued", || world.asked() == 6).await;
    let tried = redlock.try_acquire("job").await.expect("an answer");
    let TryAcquire::Held(refusal) = tried else {
        panic!("{tried:?}");
    };
    assert!(!refusal.held_here);
    assert_eq!(world.asked(), 6);
    for waiter in [behind, front] {
        leaves(waiter).await;
    }
}

/// Tests a wake-up that arrives after the first waiter has left the queue. The wake-up must wake the next waiter, which
/// is then the first in the queue.
#[tokio::test]
async fn wake_up_addressed_to_a_departed_waiter_wakes_the_next_waiter() {
    let world = World::new();
    let (ours, other) = (world.process(), world.process());
    let guard = take(&other, "job").await;
    let first = waits(&ours).await;
    let second = waits(&ours).await;
    eventually("the waiter must be queued", || world.asked() == 9).await;
    leaves(first).await;
    eventually("the next waiter must ask the masters", || {
        world.asked() == 15
    })
    .await;
    guard.release().await;
    wait_for_guard(second).await.release().await;
}

/// After a wake-up, a waiter may find the lock held again. Tests that it then asks the masters only once.
#[tokio::test]
async fn waiter_asks_the_masters_only_once_after_a_spurious_wake_up() {
    let world = World::new();
    let (ours, other) = (world.process(), world.process());
    let guard = take(&other, "job").await;
    let waiter = waits(&ours).await;
    eventually("the waiter must be queued", || world.asked() == 9).await;
    // Let another client take the lock before any other task runs. So the woken waiter finds the lock held.
    guard.release().await;
    for node in &world.nodes {
        node.clone().held_by_another("job");
    }
    eventually("the woken waiter must ask for the lock", || {
        world.asked() == 12
    })
    .await;
    tokio::time::sleep(ms(200)).await;
    assert_eq!(world.asked(), 12);
    leaves(waiter).await;
}

/// Tests waiters on a runtime with several threads. They start to wait, give up and are dropped at random times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_waiters_are_served_although_other_waiters_give_up_or_are_dropped() {
    let world = World::new();
    let redlock = world.process();
    let mut tasks = Vec::new();
    for number in 0..200_u64 {
        let redlock = redlock.clone();
        tasks.push(tokio::spawn(async move {
            let brief = Duration::from_micros(number * 37 % 500);
            match number % 3 {
                // The timeout drops this waiter at some await point.
                0 => drop(tokio::time::timeout(brief, redlock.acquire("job")).await),
                1 => drop(redlock.try_acquire("job").await),
                _ => {
                    let outcome = redlock.acquire("job").await;
                    let guard = outcome.unwrap_or_else(|error| panic!("{error}"));
                    tokio::time::sleep(brief).await;
                    drop(guard);
                }
            }
        }));
    }
    for task in tasks {
        let done = tokio::time::timeout(PATIENCE, task).await;
        done.expect("the waiter must get the lock")
            .expect("no panic");
    }
    take(&redlock, "job").await.release().await;
}

#[tokio::test]
async fn progress_of_a_waiter_counts_the_callers_ahead_in_its_process() {
    let world = World::new();
    let redlock = world.process();
    let guard = take(&redlock, "job").await;
    let seen = Arc::<Mutex<Vec<(usize, Option<u64>)>>>::default();
    let mut waiters = Vec::new();
    for number in 0..3 {
        let (redlock, notes) = (redlock.clone(), seen.clone());
        waiters.push(tokio::spawn(async move {
            let see = move |waiting: &quorate::Waiting| {
                let mut notes = notes.lock().expect("no panic");
                notes.push((number, waiting.ahead));
            };
            redlock.lock("job").waiting(see).acquire().await
        }));
        let notes = seen.clone();
        eventually("the task must be waiting for the lock", || {
            notes.lock().expect("no panic").len() > number
        })
        .await;
    }
    let told = [(0, Some(1)), (1, Some(2)), (2, Some(3))];
    assert_eq!(*seen.lock().expect("no panic"), told);
    guard.release().await;
    all_get_it(waiters).await;
}
