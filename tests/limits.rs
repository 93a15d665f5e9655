//! How long a call waits for masters that say nothing: against the contract of a node, for nothing may
//! hang on a single one.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate::Redlock;
use quorate::node::Node;
use support::stubborn::Stubborn;
use support::stubborn::Treatment::Unanswered;
use support::{ms, secs, take};

/// What the first call may wait for its connections: far more than any later one may take.
const CONNECT: Duration = secs(60);

fn over(nodes: &[Arc<Stubborn>]) -> Redlock {
    let nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
    Redlock::builder()
        .nodes(nodes.collect())
        .node_timeout(ms(50))
        .connect_timeout(CONNECT)
        .ttl(secs(20))
        .build()
        .expect("good settings")
}

#[tokio::test]
async fn only_the_first_attempt_waits_for_connections() {
    let nodes = ["a", "b", "c"].map(Stubborn::honest);
    let redlock = over(&nodes);
    take(&redlock, "job").await.release().await;
    for node in &nodes {
        node.change(|_| Unanswered);
    }
    let began = Instant::now();
    let tried = redlock.try_acquire("job").await;
    assert!(
        !matches!(tried, Ok(quorate::TryAcquire::Acquired(_))),
        "{tried:?}"
    );
    // A node timeout and a second for those that break their contract.
    assert!(began.elapsed() < CONNECT / 4, "{:?}", began.elapsed());
}
