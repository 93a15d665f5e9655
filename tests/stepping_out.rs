//! A waiter that steps out of the line for a while keeps its ticket, and so its place before all who came
//! later.

mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorate::node::{Node, Request};
use quorate::{Fault, Redlock, Wait};
use support::stubborn::Stubborn;
use support::stubborn::Treatment::{Fails, Honest};
use support::{PATIENCE, ms, secs};

#[tokio::test]
async fn a_waiter_that_stepped_out_comes_back_to_its_place() {
    let nodes = ["a", "b", "c"].map(|name| Stubborn::honest(name).holding("x"));
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
    let in_line = |wanted: usize| {
        let status = &status;
        async move {
            let began = Instant::now();
            loop {
                let seen = status.status("x").await.expect("a good name");
                let stands = |queue: usize| queue == wanted;
                let mut states = seen.nodes.iter().map(|node| node.state.as_ref());
                if states.all(|state| state.is_ok_and(|state| stands(state.queue.len()))) {
                    return;
                }
                assert!(began.elapsed() < PATIENCE, "{wanted} in line: {seen:?}");
                tokio::time::sleep(ms(5)).await;
            }
        }
    };
    // It draws the first ticket, and gives up: so the line is empty when the next one steps out.
    let first = waiting("first", secs(2));
    in_line(1).await;
    let old = waiting("old", secs(60));
    in_line(2).await;
    first.await.expect("no panic");
    in_line(1).await;
    // A majority does not answer for a moment: its next sign of life finds that, and it steps out.
    for node in &nodes[..2] {
        node.change(|request| match request {
            Request::Acquire { .. } => Fails(Fault::Stalled, Duration::ZERO),
            _ => Honest,
        });
    }
    in_line(0).await;
    for node in &nodes {
        node.change(|_| Honest);
    }
    let young = waiting("young", secs(60));
    in_line(2).await;
    for node in &nodes {
        node.let_go("x");
    }
    old.await.expect("no panic");
    young.await.expect("no panic");
    assert_eq!(*order.lock().expect("no panic"), ["old", "young"]);
}
