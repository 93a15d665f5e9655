//! Tests of 5,000 locks that are all due for renewal at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, stream};

use crate::support::{masters, ms, secs, settings};
use quorate::node::{Answer, Extended, Node, NodeName, Reply, Request, Subscriber};
use quorate::runtime::BoxFuture;
use quorate::{LockGuard, Redlock, Wait};

/// A master that answers acquires immediately and delays its answers to extensions.
struct SlowToExtend {
    name: NodeName,
    delay: Duration,
    open_batches: Arc<AtomicUsize>,
    max_open_batches: AtomicUsize,
    extended_locks: AtomicUsize,
}

impl SlowToExtend {
    fn new(name: &str, delay: Duration) -> Arc<Self> {
        Arc::new(Self {
            name: NodeName::new(name),
            delay,
            open_batches: Arc::default(),
            max_open_batches: AtomicUsize::new(0),
            extended_locks: AtomicUsize::new(0),
        })
    }
}

impl Node for SlowToExtend {
    fn name(&self) -> &NodeName {
        &self.name
    }

    fn send(&self, request: Request, reply: Reply) {
        let item_count = match request {
            Request::Extend { items } => items.len(),
            Request::Acquire { .. } => {
                return reply.answer(Ok(Answer::Granted { counter: Some(1) }));
            }
            _ => return reply.answer(Ok(Answer::Released(true))),
        };
        self.extended_locks.fetch_add(item_count, Ordering::Relaxed);
        let open_batches = self.open_batches.fetch_add(1, Ordering::Relaxed) + 1;
        self.max_open_batches
            .fetch_max(open_batches, Ordering::Relaxed);
        let (delay, counter) = (self.delay, self.open_batches.clone());
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            counter.fetch_sub(1, Ordering::Relaxed);
            reply.answer(Ok(Answer::Extended(vec![Extended::Kept; item_count])));
        });
    }

    fn subscribe(&self, _: Subscriber) {}

    fn idle(&self) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

async fn take_locks(redlock: &Redlock, count: usize, ttl: Duration) -> Vec<LockGuard> {
    let mut guards = Vec::with_capacity(count);
    for n in 0..count {
        let lock = redlock.lock(format!("job {n}")).ttl(ttl);
        guards.push(lock.acquire().await.expect("free"));
        tokio::task::yield_now().await;
    }
    guards
}

fn count_lost(guards: &[LockGuard]) -> usize {
    guards.iter().filter(|guard| !guard.is_valid()).count()
}

/// Holds 5,000 locks for 8 s. During this time, each lock is due for renewal at least twice. Checks that no lock is
/// lost.
///
/// Each of the three masters answers an extension only after its time in `delay`, in milliseconds. The client sends
/// extensions in batches. Returns how many batches one master had received but not yet answered: the maximum over time
/// and over all masters.
async fn max_open_batches(delays: [u64; 3]) -> usize {
    const LOCKS: usize = 5_000;
    let nodes: Vec<_> = delays
        .iter()
        .enumerate()
        .map(|(n, delays)| SlowToExtend::new(&format!("slow {n}"), ms(*delays)))
        .collect();
    let dyn_nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
    let redlock = Redlock::builder()
        .nodes(dyn_nodes.collect())
        .build()
        .expect("good settings");
    let guards = take_locks(&redlock, LOCKS, secs(6)).await;
    for _ in 0..40 {
        tokio::time::sleep(ms(200)).await;
        assert_eq!(count_lost(&guards), 0);
    }
    let extension_counts = nodes
        .iter()
        .map(|node| node.extended_locks.load(Ordering::Relaxed));
    assert!(extension_counts.min() >= Some(2 * LOCKS));
    let maxima = nodes
        .iter()
        .map(|node| node.max_open_batches.load(Ordering::Relaxed));
    maxima.max().unwrap_or(0)
}

#[tokio::test]
async fn five_thousand_locks_are_kept_while_all_masters_answer_renewals_slowly() {
    // The client must send further batches of renewals to a master that has not answered two batches yet.
    assert!(max_open_batches([400, 400, 400]).await > 2);
}

#[tokio::test]
async fn five_thousand_locks_are_kept_while_one_of_three_masters_answers_renewals_slowly() {
    max_open_batches([0, 0, 900]).await;
}

/// The margins are wide, because all processes of this test together need several seconds of processor time. On a busy
/// machine, they may get only a fraction of a processor. If all locks were acquired at once, most answers would then
/// arrive after the node timeout, and nearly every attempt would be repeated until the wait ends.
#[tokio::test]
async fn five_thousand_locks_are_kept_while_a_master_is_stopped() {
    let masters = masters(5);
    let builder = settings(masters.urls()).node_timeout(secs(2));
    let redlock = builder.wait(Wait::Forever).build().expect("good settings");
    let locks = (0..5_000).map(|n| {
        let lock = redlock.lock(format!("job {n}")).ttl(secs(12));
        lock.acquire()
    });
    let guards = stream::iter(locks).buffer_unordered(100);
    let guards: Vec<_> = guards.map(|guard| guard.expect("free")).collect().await;
    masters[0].stop().expect("stopped");
    for second in 0..9 {
        tokio::time::sleep(secs(1)).await;
        assert_eq!(
            count_lost(&guards),
            0,
            "locks must not be lost, but some were after {second} s"
        );
    }
    masters[0].cont().expect("continued");
    futures::future::join_all(guards.iter().map(LockGuard::release)).await;
}
