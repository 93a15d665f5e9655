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
    let client_with_wait = |wait| {
        let nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
        let settings = Redlock::builder().nodes(nodes.collect()).ttl(secs(30));
        let settings = settings.wait(Wait::For(wait));
        settings.build().expect("good settings")
    };
    let acquire_order: Arc<Mutex<Vec<&str>>> = Arc::default();
    let start_waiter = |name: &'static str, wait| {
        let (client_with_wait, acquire_order) = (client_with_wait(wait), acquire_order.clone());
        tokio::spawn(async move {
            if let Ok(guard) = client_with_wait.acquire("x").await {
                acquire_order.lock().expect("no panic").push(name);
                guard.release().await;
            }
        })
    };
    let observer = client_with_wait(secs(1));
    let wait_until_queued = |expected: usize| {
        let observer = &observer;
        async move {
            let started_at = Instant::now();
            loop {
                let status = observer.status("x").await.expect("the name must be valid");
                let is_expected = |queue: usize| queue == expected;
                let mut states = status.nodes.iter().map(|node| node.state.as_ref());
                if states.all(|state| state.is_ok_and(|state| is_expected(state.queue.len()))) {
                    return;
                }
                assert!(
                    started_at.elapsed() < PATIENCE,
                    "timed out: {expected} waiters must be in the queue: {observer:?}"
                );
                tokio::time::sleep(ms(5)).await;
            }
        }
    };
    // The waiter `first` stops waiting after 2 s. Then `old_waiter` is alone in the queue.
    let first_waiter = start_waiter("first", secs(2));
    wait_until_queued(1).await;
    let old_waiter = start_waiter("old", secs(60));
    wait_until_queued(2).await;
    first_waiter.await.expect("no panic");
    wait_until_queued(1).await;
    // Two of the three masters answer acquires with a fault. At its next heartbeat, the waiter `old_waiter` gets these answers
    // and leaves the queue.
    for node in &nodes[..2] {
        node.set_rule(|request| match request {
            Request::Acquire { .. } => Fails(Fault::Stalled, Duration::ZERO),
            _ => Answered,
        });
    }
    wait_until_queued(0).await;
    for node in &nodes {
        node.set_rule(|_| Answered);
    }
    let young_waiter = start_waiter("young", secs(60));
    wait_until_queued(2).await;
    for node in &nodes {
        node.release_foreign("x");
    }
    old_waiter.await.expect("no panic");
    young_waiter.await.expect("no panic");
    assert_eq!(*acquire_order.lock().expect("no panic"), ["old", "young"]);
}

/// A master that receives a request late if `must_wait` returns true for this request. The order of such requests stays the
/// same. If the client withdraws a request during the delay, the request never arrives.
struct DelaysRequests {
    node: MemoryNode,
    must_wait: fn(&Request) -> bool,
    delayed_requests: UnboundedSender<(Request, Reply)>,
}

impl DelaysRequests {
    fn new(node: &MemoryNode, late_client: Duration, must_wait: fn(&Request) -> bool) -> Arc<Self> {
        let (delayed_requests, mut receiver) = unbounded_channel::<(Request, Reply)>();
        let sender = node.clone();
        tokio::spawn(async move {
            while let Some((request, reply)) = receiver.recv().await {
                tokio::time::sleep(late_client).await;
                sender.send(request, reply);
            }
        });
        let node = node.clone();
        Arc::new(Self {
            node,
            must_wait,
            delayed_requests,
        })
    }
}

impl Node for DelaysRequests {
    fn name(&self) -> &NodeName {
        self.node.name()
    }

    fn send(&self, request: Request, reply: Reply) {
        if (self.must_wait)(&request) {
            let _ = self.delayed_requests.send((request, reply));
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
    let client_with_second = |second: Arc<dyn Node>| {
        let nodes: Vec<Arc<dyn Node>> = vec![Arc::new(masters[0].clone()), second];
        let settings = Redlock::builder().nodes(nodes).ttl(secs(30));
        settings
            .wait(Wait::For(PATIENCE))
            .build()
            .expect("good settings")
    };
    let direct = || client_with_second(Arc::new(masters[1].clone()));
    let late_client = DelaysRequests::new(&masters[1], ms(5), |_| true);
    let (holder, late_client, next) = (direct(), client_with_second(late_client), direct());
    let acquire_order = Arc::new(Mutex::new(Vec::new()));
    let start_waiter = |name: &'static str, client_with_wait: Redlock| {
        let acquire_order = acquire_order.clone();
        tokio::spawn(async move {
            let guard = client_with_wait
                .acquire("job")
                .await
                .expect("the waiter must get the lock");
            acquire_order.lock().expect("no panic").push(name);
            guard.release().await;
        })
    };
    let guard = holder.acquire("job").await.expect("free");
    let first_waiter = start_waiter("first", late_client);
    tokio::time::sleep(ms(500)).await;
    let second_waiter = start_waiter("second", next);
    tokio::time::sleep(ms(500)).await;
    guard.release().await;
    first_waiter.await.expect("no panic");
    second_waiter.await.expect("no panic");
    assert_eq!(
        *acquire_order.lock().expect("no panic"),
        ["first", "second"]
    );
}

/// The first of two masters refuses an acquire, so the attempt fails, and the client releases its lock on the second
/// master. But the second master receives the release before the acquire, and so grants the acquire. The client must
/// release this late grant, even if the caller has dropped the attempt.
#[tokio::test]
async fn late_grant_of_a_failed_attempt_is_released() {
    for is_dropped in [false, true] {
        let masters = [MemoryNode::new("n1"), MemoryNode::new("n2")];
        let client_of = |nodes: Vec<Arc<dyn Node>>| {
            let settings = Redlock::builder().nodes(nodes).ttl(secs(30));
            settings.build().expect("good settings")
        };
        let first_client = client_of(vec![Arc::new(masters[0].clone())]);
        let _held = first_client.acquire("job").await.expect("free");
        // The second master receives an acquire only after the release of the same attempt.
        let is_acquire = |request: &Request| matches!(request, Request::Acquire { .. });
        let late_node: Arc<dyn Node> = DelaysRequests::new(&masters[1], ms(20), is_acquire);
        let joint_client = client_of(vec![Arc::new(masters[0].clone()), late_node]);
        let attempt = tokio::time::timeout(ms(5), joint_client.try_acquire("job"));
        if is_dropped {
            assert!(
                attempt.await.is_err(),
                "the attempt must be cut short before the second master answers"
            );
        } else {
            drop(joint_client.try_acquire("job").await);
        }
        tokio::time::sleep(ms(100)).await;
        let second_client = client_of(vec![Arc::new(masters[1].clone())]);
        let status = second_client
            .status("job")
            .await
            .expect("the name must be valid");
        assert_eq!(
            status.verdict(),
            StatusVerdict::Free,
            "the lock must be free at the end (waits cut short: {is_dropped})"
        );
    }
}
