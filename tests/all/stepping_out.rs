//! Tests of a waiter that leaves the queue for a time, because it reaches no majority of the masters. Later it returns
//! to its place in front of all later waiters.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::stubborn::Stubborn;
use crate::support::stubborn::Treatment::{Answered, Fails};
use crate::support::{PATIENCE, ms, secs};
use quorate::node::memory::MemoryNode;
use quorate::node::{Node, NodeName, Reply, Request, Subscriber};
use quorate::runtime::BoxFuture;
use quorate::{Fault, Redlock, StatusVerdict, Wait};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

#[tokio::test]
async fn waiter_that_left_the_queue_temporarily_gets_its_old_place_back() {
    let nodes = ["a", "b", "c"].map(|name| Stubborn::honest(name).held_by_another("x"));
    let redlock = |wait| {
        let nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
        let settings = Redlock::builder().nodes(nodes.collect()).ttl(secs(30));
        let settings = settings.wait(Wait::For(wait));
        settings.build().expect("good settings")
    };
    let order: Arc<Mutex<Vec<&str>>> = Arc::default();
    let waiting = |name: &'static str, wait| {
        let (redlock, order) = (redlock(wait), order.clone());
        tokio::spawn(async move {
            if let Ok(guard) = redlock.acquire("x").await {
                order.lock().expect("no panic").push(name);
                guard.release().await;
            }
        })
    };
    let status = redlock(secs(1));
    let queued = |wanted: usize| {
        let status = &status;
        async move {
            let started_at = Instant::now();
            loop {
                let seen = status.status("x").await.expect("the name must be valid");
                let stands = |queue: usize| queue == wanted;
                let mut states = seen.nodes.iter().map(|node| node.state.as_ref());
                if states.all(|state| state.is_ok_and(|state| stands(state.queue.len()))) {
                    return;
                }
                assert!(
                    started_at.elapsed() < PATIENCE,
                    "timed out: {wanted} waiters must be in the queue: {seen:?}"
                );
                tokio::time::sleep(ms(5)).await;
            }
        }
    };
    // The waiter `first` stops waiting after 2 s. Then `old` is alone in the queue.
    let first = waiting("first", secs(2));
    queued(1).await;
    let old = waiting("old", secs(60));
    queued(2).await;
    first.await.expect("no panic");
    queued(1).await;
    // Two of the three masters answer acquires with a fault. At its next heartbeat, the waiter `old` gets these answers
    // and leaves the queue.
    for node in &nodes[..2] {
        node.set_rule(|request| match request {
            Request::Acquire { .. } => Fails(Fault::Stalled, Duration::ZERO),
            _ => Answered,
        });
    }
    queued(0).await;
    for node in &nodes {
        node.set_rule(|_| Answered);
    }
    let young = waiting("young", secs(60));
    queued(2).await;
    for node in &nodes {
        node.release_foreign("x");
    }
    old.await.expect("no panic");
    young.await.expect("no panic");
    assert_eq!(*order.lock().expect("no panic"), ["old", "young"]);
}

/// A master that receives a request late if `waits` returns true for this request. The order of such requests stays the
/// same. If the client withdraws a request during the delay, the request never arrives.
struct LeavesLate {
    node: MemoryNode,
    waits: fn(&Request) -> bool,
    post: UnboundedSender<(Request, Reply)>,
}

impl LeavesLate {
    fn over(node: &MemoryNode, late: Duration, waits: fn(&Request) -> bool) -> Arc<Self> {
        let (post, mut letters) = unbounded_channel::<(Request, Reply)>();
        let sender = node.clone();
        tokio::spawn(async move {
            while let Some((request, reply)) = letters.recv().await {
                tokio::time::sleep(late).await;
                sender.send(request, reply);
            }
        });
        let node = node.clone();
        Arc::new(Self { node, waits, post })
    }
}

impl Node for LeavesLate {
    fn name(&self) -> &NodeName {
        self.node.name()
    }

    fn send(&self, request: Request, reply: Reply) {
        if (self.waits)(&request) {
            let _ = self.post.send((request, reply));
        } else {
            self.node.send(request, reply);
        }
    }

    fn subscribe(&self, subscriber: Subscriber) {
        self.node.subscribe(subscriber);
    }

    fn idle(&self) -> BoxFuture<()> {
        self.node.idle()
    }
}

/// One of two masters refuses an attempt, so the attempt fails before the other master has answered. The waiter must
/// not treat the missing answer as a fault, and must not leave the queue.
#[tokio::test]
async fn waiter_stays_queued_if_one_of_two_masters_refuses_before_the_other_answers() {
    let masters = [MemoryNode::new("n1"), MemoryNode::new("n2")];
    let client = |second: Arc<dyn Node>| {
        let nodes: Vec<Arc<dyn Node>> = vec![Arc::new(masters[0].clone()), second];
        let settings = Redlock::builder().nodes(nodes).ttl(secs(30));
        settings
            .wait(Wait::For(PATIENCE))
            .build()
            .expect("good settings")
    };
    let direct = || client(Arc::new(masters[1].clone()));
    let late = LeavesLate::over(&masters[1], ms(5), |_| true);
    let (holder, late, next) = (direct(), client(late), direct());
    let served = Arc::new(Mutex::new(Vec::new()));
    let waits = |who: &'static str, redlock: Redlock| {
        let served = served.clone();
        tokio::spawn(async move {
            let guard = redlock
                .acquire("job")
                .await
                .expect("the waiter must get the lock");
            served.lock().expect("no panic").push(who);
            guard.release().await;
        })
    };
    let guard = holder.acquire("job").await.expect("free");
    let first = waits("first", late);
    tokio::time::sleep(ms(500)).await;
    let second = waits("second", next);
    tokio::time::sleep(ms(500)).await;
    guard.release().await;
    first.await.expect("no panic");
    second.await.expect("no panic");
    assert_eq!(*served.lock().expect("no panic"), ["first", "second"]);
}

/// The first of two masters refuses an acquire, so the attempt fails, and the client releases its lock on the second
/// master. But the second master receives the release before the acquire, and so grants the acquire. The client must
/// release this late grant, even if the caller has dropped the attempt.
#[tokio::test]
async fn late_grant_of_a_failed_attempt_is_released() {
    for cut_short in [false, true] {
        let masters = [MemoryNode::new("n1"), MemoryNode::new("n2")];
        let client = |nodes: Vec<Arc<dyn Node>>| {
            let settings = Redlock::builder().nodes(nodes).ttl(secs(30));
            settings.build().expect("good settings")
        };
        let first = client(vec![Arc::new(masters[0].clone())]);
        let _held = first.acquire("job").await.expect("free");
        // The second master receives an acquire only after the release of the same attempt.
        let acquires = |request: &Request| matches!(request, Request::Acquire { .. });
        let again: Arc<dyn Node> = LeavesLate::over(&masters[1], ms(20), acquires);
        let both = client(vec![Arc::new(masters[0].clone()), again]);
        let tried = tokio::time::timeout(ms(5), both.try_acquire("job"));
        if cut_short {
            assert!(
                tried.await.is_err(),
                "the attempt must be cut short before the second master answers"
            );
        } else {
            drop(both.try_acquire("job").await);
        }
        tokio::time::sleep(ms(100)).await;
        let second = client(vec![Arc::new(masters[1].clone())]);
        let status = second.status("job").await.expect("the name must be valid");
        assert_eq!(
            status.verdict(),
            StatusVerdict::Free,
            "the lock must be free at the end (waits cut short: {cut_short})"
        );
    }
}
