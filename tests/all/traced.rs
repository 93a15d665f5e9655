//! Tests of the trace output about a lost lock.

use std::sync::Arc;
use std::time::Duration;

use crate::support::stubborn::Stubborn;
use crate::support::stubborn::Treatment::Fails;
use crate::support::{self, PATIENCE, ms, take};
use quorate::node::Node;
use quorate::{Fault, LossCause, Redlock};

#[tokio::test]
async fn loss_is_traced_with_each_masters_answer() {
    let listener = support::listener::Listener::default();
    let _listening = listener.listen();
    let nodes = ["a", "b", "c"].map(Stubborn::honest);
    let as_nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
    let redlock = Redlock::builder().nodes(as_nodes.collect()).ttl(ms(900));
    let redlock = redlock.build().expect("good settings");
    let guard = take(&redlock, "job").await;
    for node in &nodes[..2] {
        node.change(|_| Fails(Fault::Down("switched off".into()), Duration::ZERO));
    }
    let lost = tokio::time::timeout(PATIENCE, guard.lost()).await;
    assert_eq!(lost, Ok(LossCause::Expired));
    let heard = listener.heard();
    let mut lines = heard.lines();
    let said = lines
        .any(|line| line.contains("no majority for a renewal") && line.contains("switched off"));
    assert!(said, "{heard}");
}
