//! Tests of how long a call waits for masters that never answer, or answer too late. An implementation of [`Node`] must
//! answer within the node timeout. A call must end even if it does not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::stubborn::Stubborn;
use crate::support::stubborn::Treatment::{Late, Unanswered};
use crate::support::{ms, secs, take};
use quorate::Redlock;
use quorate::node::Node;

/// The connect timeout. It is far longer than a call on existing connections may take. Only the first call of a client
/// may wait this long.
const CONNECT_TIMEOUT: Duration = secs(60);

fn client_over(nodes: &[Arc<Stubborn>]) -> Redlock {
    let nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
    Redlock::builder()
        .nodes(nodes.collect())
        .node_timeout(ms(50))
        .connect_timeout(CONNECT_TIMEOUT)
        .ttl(secs(20))
        .build()
        .expect("good settings")
}

#[tokio::test]
async fn acquire_on_existing_connections_does_not_wait_for_the_connect_timeout() {
    let nodes = ["a", "b", "c"].map(Stubborn::honest);
    let redlock = client_over(&nodes);
    take(&redlock, "job").await.release().await;
    for node in &nodes {
        node.set_rule(|_| Unanswered);
    }
    let started_at = Instant::now();
    let outcome = redlock.try_acquire("job").await;
    assert!(
        !matches!(outcome, Ok(quorate::TryAcquire::Acquired(_))),
        "{outcome:?}"
    );
    // The attempt ends soon after the node timeout. The limit of 15 s allows for a busy machine.
    assert!(
        started_at.elapsed() < CONNECT_TIMEOUT / 4,
        "{:?}",
        started_at.elapsed()
    );
}

/// Tests answers that arrive half a second after the request, although the node timeout is 50 ms. This violates the
/// contract of a node, but the answers of a majority must count.
#[tokio::test]
async fn votes_that_arrive_shortly_after_the_node_timeout_are_counted() {
    let nodes = ["a", "b", "c"].map(Stubborn::honest);
    let redlock = client_over(&nodes);
    take(&redlock, "job").await.release().await;
    for node in &nodes {
        node.set_rule(|_| Late(ms(500)));
    }
    take(&redlock, "job").await.release().await;
}

#[tokio::test]
async fn status_waits_for_a_slow_majority() {
    let nodes = ["a", "b", "c"].map(Stubborn::honest);
    let dyn_nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
    let redlock = Redlock::builder().nodes(dyn_nodes.collect());
    let redlock = redlock.node_timeout(secs(1)).ttl(secs(20));
    let redlock = redlock.build().expect("good settings");
    take(&redlock, "job").await.release().await;
    for node in &nodes {
        node.set_rule(|_| Late(ms(1_500)));
    }
    let status = redlock.status("job").await.expect("the name must be valid");
    assert!(
        status.nodes.iter().all(|node| node.state.is_ok()),
        "{status:?}"
    );
}

#[tokio::test]
async fn acquire_completes_its_first_attempt_even_with_a_very_short_wait_limit() {
    let nodes = ["a", "b", "c"].map(|name| Stubborn::new(name, |_| Late(ms(300))));
    let dyn_nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
    let redlock = Redlock::builder().nodes(dyn_nodes.collect());
    let redlock = redlock.node_timeout(secs(2)).ttl(secs(20));
    for redlock in [redlock.clone(), redlock.order(quorate::Order::Unordered)] {
        let redlock = redlock.build().expect("good settings");
        let lock = redlock.lock("job").wait(quorate::Wait::For(ms(10)));
        let guard = lock.acquire().await;
        guard
            .unwrap_or_else(|error| panic!("{error}"))
            .release()
            .await;
    }
}
