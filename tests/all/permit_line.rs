//! Tests of concurrent tasks in one process that request permits of the same semaphore. Tasks get permits in the order
//! of their arrival. A task that cancels its request must not block other tasks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::polled::poll_then_drop;
use crate::support::slow::SlowNode;
use crate::support::waiter::{Waiter, wait_for_guard};
use crate::support::{PATIENCE, eventually, ms, secs};
use quorate::node::memory::MemoryNode;
use quorate::node::{Answer, Node, NodeName, Reply, Request, Subscriber};
use quorate::runtime::BoxFuture;
use quorate::{LockGuard, Redlock, RedlockBuilder, Retry, Wait};
use quorate_contract::requests::{send, status};

/// Ten minutes, which is longer than any test of this file waits.
const TEN_MINUTES: Duration = secs(600);

/// The time that a request or a reply takes between the process and a distant master.
const DELAY: Duration = ms(3);

/// A master that counts acquire requests. If `passes_wake_ups` is false, it suppresses the wake-ups that it would send.
struct CountingNode {
    node: Arc<dyn Node>,
    acquire_count: Arc<AtomicUsize>,
    passes_wake_ups: bool,
}

impl Node for CountingNode {
    fn name(&self) -> &NodeName {
        self.node.name()
    }

    fn send(&self, request: Request, reply: Reply) {
        if matches!(request, Request::Acquire { .. }) {
            self.acquire_count.fetch_add(1, Ordering::Relaxed);
        }
        self.node.send(request, reply);
    }

    fn subscribe(&self, subscriber: Subscriber) {
        if self.passes_wake_ups {
            self.node.subscribe(subscriber);
        }
    }

    fn idle(&self) -> BoxFuture<()> {
        self.node.idle()
    }
}

/// Three masters. Counts the acquire requests of the process under test in one total for all masters.
struct CountedMasters {
    masters: Vec<Arc<dyn Node>>,
    acquire_count: Arc<AtomicUsize>,
}

impl CountedMasters {
    /// Three masters that answer immediately.
    fn without_delay() -> Self {
        let memory_master = |name| Arc::new(MemoryNode::new(name)) as Arc<dyn Node>;
        Self::new(["a", "b", "c"].map(memory_master).into())
    }

    /// Three masters that delay each request by `delay`, and each reply by `delay`.
    fn with_delay(delay: Duration) -> Self {
        let slow_master = |name| SlowNode::new(name, delay, delay) as Arc<dyn Node>;
        Self::new(["a", "b", "c"].map(slow_master).into())
    }

    fn new(masters: Vec<Arc<dyn Node>>) -> Self {
        Self {
            masters,
            acquire_count: Arc::default(),
        }
    }

    fn settings(nodes: Vec<Arc<dyn Node>>) -> RedlockBuilder {
        // All timers are far in the future, so a waiter that is never woken would wait forever.
        Redlock::builder()
            .nodes(nodes)
            .max_ttl(TEN_MINUTES)
            .ttl(TEN_MINUTES)
            .heartbeat(TEN_MINUTES)
            .wait(Wait::Forever)
            .retry(Retry::new(TEN_MINUTES, TEN_MINUTES))
    }

    fn counted_builder(&self, passes_wake_ups: bool, is_fair: bool) -> RedlockBuilder {
        let counting_node = |node: &Arc<dyn Node>| {
            let (node, acquire_count) = (node.clone(), self.acquire_count.clone());
            Arc::new(CountingNode {
                node,
                acquire_count,
                passes_wake_ups,
            }) as Arc<dyn Node>
        };
        let settings = Self::settings(self.masters.iter().map(counting_node).collect());
        if is_fair {
            settings
        } else {
            settings.order(quorate::Order::Unordered)
        }
    }

    /// A client whose acquire requests are counted. It acts as the process under test.
    fn counted_client(&self) -> Redlock {
        self.counted_builder(true, true)
            .build()
            .expect("good settings")
    }

    /// A client whose acquire requests are not counted. It acts as another process.
    fn uncounted_client(&self) -> Redlock {
        let settings = Self::settings(self.masters.clone());
        settings.build().expect("good settings")
    }

    /// The number of waiters for the semaphore `api` that are queued on the first master.
    async fn queue_length(&self) -> usize {
        let request = status(b"quorate:slot:line:api");
        match send(&*self.masters[0], request).await {
            Ok(Answer::State(state)) => state.queue.len(),
            uncounted_client => panic!("{uncounted_client:?}"),
        }
    }

    /// The number of attempts that the process under test has made. Each attempt sends one acquire request to each
    /// master.
    fn attempt_count(&self) -> usize {
        self.acquire_count.load(Ordering::Relaxed) / self.masters.len()
    }
}

async fn take_permit(redlock: &Redlock, permits: usize) -> LockGuard {
    let acquire_result =
        tokio::time::timeout(PATIENCE, redlock.semaphore("api", permits).acquire());
    acquire_result
        .await
        .expect("the waiter must get a permit")
        .expect("a permit")
}

async fn all_permits(redlock: &Redlock, permits: usize) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for _ in 0..permits {
        guards.push(take_permit(redlock, permits).await);
    }
    guards
}

/// Starts a waiter, and waits until its progress callback is called for the first time. From then on the waiter is
/// queued, either in this process or at the masters.
async fn start_waiter(redlock: &Redlock, permits: usize) -> Waiter {
    let progress_count = Arc::<AtomicUsize>::default();
    let counter = progress_count.clone();
    let redlock = redlock.clone();
    let waiter = tokio::spawn(async move {
        let count_progress = move |_: &quorate::Waiting| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        let permit_request = redlock.semaphore("api", permits).waiting(count_progress);
        permit_request.acquire().await
    });
    eventually("the task must be waiting for the lock", || {
        progress_count.load(Ordering::Relaxed) > 0
    })
    .await;
    waiter
}

#[tokio::test(start_paused = true)]
async fn tasks_of_one_process_request_all_slots_of_a_semaphore_at_the_same_time() {
    for is_fair in [true, false] {
        let masters = CountedMasters::with_delay(DELAY);
        let redlock = masters
            .counted_builder(true, is_fair)
            .build()
            .expect("good settings");
        for _ in 0..3 {
            let before = masters.attempt_count();
            let permit_guards = futures::future::join_all((0..5).map(|_| take_permit(&redlock, 5)));
            let counted_progress = async {
                tokio::time::sleep(DELAY).await;
                masters.attempt_count() - before
            };
            let (permit_guards, acquire_count) =
                futures::future::join(permit_guards, counted_progress).await;
            assert_eq!(
                acquire_count, 5,
                "five requests must have been sent before the first answer; in order: {is_fair}"
            );
            assert_eq!(
                masters.attempt_count(),
                before + 5,
                "each acquire must have made exactly one attempt"
            );
            for permit in permit_guards {
                permit.release().await;
            }
        }
    }
}

/// Releases the permits in `held` one after the other, and checks that waiters get them in the order of their arrival.
/// Each waiter keeps its permit.
async fn assert_served_in_order(our_permits: &Redlock, mut held: Vec<LockGuard>) {
    let permit_count = held.len();
    let acquire_order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..4 * permit_count {
        let (waiter, acquire_order) = (
            start_waiter(our_permits, permit_count).await,
            acquire_order.clone(),
        );
        tasks.push(tokio::spawn(async move {
            let permit_guard = wait_for_guard(waiter).await;
            acquire_order.lock().expect("no panic").push(number);
            permit_guard
        }));
    }
    let mut tasks = tasks.into_iter();
    for number in 0..4 * permit_count {
        held.remove(number * 7 % permit_count).release().await;
        let next = tokio::time::timeout(PATIENCE, tasks.next().expect("one each")).await;
        held.push(
            next.expect("the first waiter of the queue must get the permit")
                .expect("no panic"),
        );
        assert_eq!(acquire_order.lock().expect("no panic").len(), number + 1);
    }
    let acquire_order = acquire_order.lock().expect("no panic");
    assert!(acquire_order.is_sorted(), "{acquire_order:?}");
}

#[tokio::test]
async fn permits_released_in_this_process_go_to_its_waiting_tasks_in_order() {
    let masters = CountedMasters::without_delay();
    let redlock = masters.counted_client();
    assert_served_in_order(&redlock, all_permits(&redlock, 3).await).await;
}

#[tokio::test]
async fn permits_released_by_another_process_go_to_waiting_tasks_in_order() {
    let masters = CountedMasters::without_delay();
    let redlock = masters.counted_client();
    assert_served_in_order(&redlock, all_permits(&masters.uncounted_client(), 3).await).await;
}

/// Tests six tasks of one process that send their requests at the same time. All of them are refused, because no permit
/// is free.
#[tokio::test]
async fn tasks_get_permits_in_order_after_their_concurrent_requests_were_refused() {
    let masters = CountedMasters::with_delay(DELAY);
    let redlock = masters.counted_client();
    let mut held = all_permits(&masters.uncounted_client(), 3).await;
    let acquire_order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..6 {
        let (redlock, acquire_order) = (redlock.clone(), acquire_order.clone());
        tasks.push(tokio::spawn(async move {
            let permit_guard = take_permit(&redlock, 3).await;
            acquire_order.lock().expect("no panic").push(number);
            permit_guard.release().await;
        }));
    }
    // Wait until the tasks have sent some requests. All are refused, because no permit is free.
    eventually("the tasks must have sent requests", || {
        masters.attempt_count() >= 4
    })
    .await;
    tokio::time::sleep(40 * DELAY).await;
    assert_eq!(
        masters.queue_length().await,
        1,
        "the tasks must have only one waiter in the queue of the masters"
    );
    held.pop().expect("three").release().await;
    for task in tasks {
        tokio::time::timeout(PATIENCE, task)
            .await
            .expect("each refused task must get a permit in its turn")
            .expect("no panic");
    }
    assert_eq!(*acquire_order.lock().expect("no panic"), [0, 1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn waiter_notices_a_release_in_its_own_process_without_asking_the_masters() {
    let masters = CountedMasters::without_delay();
    let client_without_wake_ups = masters
        .counted_builder(false, true)
        .build()
        .expect("good settings");
    for is_released in [true, false] {
        let mut held = all_permits(&client_without_wake_ups, 2).await;
        let waiters = [
            start_waiter(&client_without_wake_ups, 2).await,
            start_waiter(&client_without_wake_ups, 2).await,
        ];
        for waiter in waiters {
            let released_permit = held.remove(0);
            if is_released {
                released_permit.release().await;
            } else {
                drop(released_permit);
            }
            held.push(wait_for_guard(waiter).await);
        }
    }
}

#[tokio::test]
async fn permit_released_by_another_process_makes_one_local_waiter_ask_the_masters() {
    let masters = CountedMasters::with_delay(DELAY);
    let redlock = masters.counted_client();
    let mut held = all_permits(&masters.uncounted_client(), 8).await;
    let mut waiters = Vec::new();
    for _ in 0..20 {
        waiters.push(start_waiter(&redlock, 8).await);
    }
    let mut waiters = waiters.into_iter();
    let mut our_permits = Vec::new();
    for number in 0..3 {
        tokio::time::sleep(40 * DELAY).await;
        let before = masters.attempt_count();
        held.pop()
            .expect("a permit that can be released must be left")
            .release()
            .await;
        our_permits.push(
            wait_for_guard(
                waiters
                    .next()
                    .expect("a waiter that can get the released permit must be left"),
            )
            .await,
        );
        // Wait until the next waiter is queued at the masters.
        tokio::time::sleep(40 * DELAY).await;
        let attempts = masters.attempt_count() - before;
        assert!(
            attempts <= 5,
            "a release must cause at most five attempts (to take the slot and to queue the next waiter), but \
             release {number} caused {attempts}"
        );
    }
}

/// Checks that `redlock` can acquire one permit while `uncounted_client` holds the other permit. Checks this once for each of the
/// two slots.
async fn assert_no_slot_is_marked(redlock: &Redlock, uncounted_client: &Redlock, what: &str) {
    redlock.flush().await;
    for slot in 0..2 {
        let mut held = all_permits(uncounted_client, 2).await;
        held.sort_by_key(LockGuard::slot);
        held.remove(1 - slot).release().await;
        uncounted_client.flush().await;
        let tried = redlock.semaphore("api", 2).try_acquire().await;
        let guard = tried
            .unwrap_or_else(|error| panic!("{what}: {error}"))
            .acquired();
        let guard =
            guard.unwrap_or_else(|| panic!("{what}: the free slot {} must be granted", 1 - slot));
        assert_eq!(guard.slot(), Some(1 - slot), "{what}");
        guard.release().await;
        for permit in held {
            permit.release().await;
        }
    }
}

/// Two processes that use the same semaphore of two permits. `held` contains the permits of the second process.
struct TwoProcesses {
    redlock: Redlock,
    other_client: Redlock,
    held: Vec<LockGuard>,
}

impl TwoProcesses {
    async fn new(is_fair: bool, held_count: usize) -> Self {
        let masters = CountedMasters::with_delay(DELAY);
        let settings = masters
            .counted_builder(true, is_fair)
            .retry(Retry::new(ms(1), ms(3)));
        let redlock = settings.build().expect("good settings");
        let other_client = masters.uncounted_client();
        let mut held = Vec::new();
        while held.len() < held_count {
            held.push(take_permit(&other_client, 2).await);
        }
        Self {
            redlock,
            other_client,
            held,
        }
    }

    async fn request_permit(&self, is_try: bool) {
        let semaphore = self.redlock.semaphore("api", 2);
        if is_try {
            drop(semaphore.try_acquire().await.expect("an answer"));
        } else {
            drop(semaphore.wait(Wait::For(5 * DELAY)).acquire().await);
        }
    }
}

#[tokio::test]
async fn dropped_permit_request_leaves_no_slot_marked_as_requested() {
    for (is_fair, held_count, is_try) in [
        (true, 0, false),
        (true, 1, false),
        (true, 2, false),
        (true, 1, true),
        (false, 1, false),
        (false, 1, true),
    ] {
        for polls in 1.. {
            let processes = TwoProcesses::new(is_fair, held_count).await;
            // Two tasks request a permit. The request of the first task is dropped after `polls` polls.
            let dropped_request = poll_then_drop(processes.request_permit(is_try), polls);
            let (outcome, ()) =
                futures::future::join(dropped_request, processes.request_permit(is_try)).await;
            for permit in processes.held {
                permit.release().await;
            }
            let what = format!(
                "ordered: {is_fair}, held by another process: {held_count}, try_acquire: {is_try}, dropped after \
                 {polls} polls"
            );
            assert_no_slot_is_marked(&processes.redlock, &processes.other_client, &what).await;
            if outcome.is_some() {
                assert!(
                    polls > 1,
                    "the request must await something, so that the test can drop it before it completes"
                );
                break;
            }
            assert!(
                polls < 400,
                "the request must complete within 400 polls: {what}"
            );
        }
    }
}

/// Tests tasks on a runtime with several threads. The tasks ask for permits, give up and are dropped at random times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_permits_are_free_after_concurrent_tasks_gave_up_or_were_dropped() {
    let masters = CountedMasters::without_delay();
    let redlock = masters.counted_client();
    let mut tasks = Vec::new();
    for number in 0..200_u64 {
        let redlock = redlock.clone();
        tasks.push(tokio::spawn(async move {
            let short_wait = Duration::from_micros(number * 37 % 500);
            let semaphore = redlock.semaphore("api", 2);
            match number % 3 {
                // The timeout drops the request of this task at some await point.
                0 => drop(tokio::time::timeout(short_wait, semaphore.acquire()).await),
                1 => drop(semaphore.try_acquire().await),
                _ => {
                    let outcome = semaphore.acquire().await;
                    let permit_guard = outcome.unwrap_or_else(|error| panic!("{error}"));
                    tokio::time::sleep(short_wait).await;
                    drop(permit_guard);
                }
            }
        }));
    }
    for task in tasks {
        let outcome = tokio::time::timeout(PATIENCE, task).await;
        outcome
            .expect("the waiter must get a permit")
            .expect("no panic");
    }
    assert_no_slot_is_marked(&redlock, &masters.uncounted_client(), "after the burst").await;
}
