//! Scenes that many tests share: masters, their clients, and what they look like afterwards.
//!
//! Each test program uses a part of it.
#![allow(dead_code)]

pub(crate) mod asking;
pub(crate) mod listener;
pub(crate) mod seed;
pub(crate) mod slow;
pub(crate) mod stubborn;
pub(crate) mod waiter;

use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate::node::Node;
use quorate::node::memory::MemoryNode;
use quorate::{LockGuard, Redlock, RedlockBuilder, RestartGuard, Wait};
use quorate_testbed::{Masters, Reply, Server};

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// How long anything that must come to pass may take, on a machine that does other work as well.
pub(crate) const PATIENCE: Duration = secs(20);

pub(crate) fn masters(n: usize) -> Masters {
    Masters::start(n).unwrap_or_else(|error| panic!("{error}"))
}

/// Settings for `urls`, which are masters that the test has just started. The ttl is longer than
/// any test waits, so that a key that is gone in time has been deleted. A master gets ten times its
/// usual time: on a machine with other work a good one needs more than 50 ms now and then.
pub(crate) fn settings<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> RedlockBuilder {
    Redlock::builder()
        .masters(urls)
        .ttl(secs(30))
        .node_timeout(ms(500))
        .connect_timeout(secs(2))
        .restart_guard(RestartGuard::Off)
}

pub(crate) fn redlock(masters: &Masters) -> Redlock {
    settings(masters.urls()).build().expect("good settings")
}

/// So many masters in memory, and a `Redlock` over them.
pub(crate) fn memory(n: usize) -> (Vec<MemoryNode>, Redlock) {
    let nodes: Vec<_> = (0..n).map(|n| MemoryNode::new(&format!("m{n}"))).collect();
    let as_nodes = nodes
        .iter()
        .map(|node| Arc::new(node.clone()) as Arc<dyn Node>);
    let redlock = Redlock::builder()
        .nodes(as_nodes.collect())
        .wait(Wait::For(secs(5)));
    (nodes, redlock.build().expect("good settings"))
}

/// Takes a lock that must be free.
pub(crate) async fn take(redlock: &Redlock, resource: &str) -> LockGuard {
    redlock
        .acquire(resource)
        .await
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Waits until `seen` is true; a test that waits in vain names `what`.
pub(crate) async fn eventually(what: &str, mut seen: impl FnMut() -> bool) {
    let started = Instant::now();
    while !seen() {
        assert!(started.elapsed() < PATIENCE, "not seen: {what}");
        tokio::time::sleep(ms(5)).await;
    }
}

/// Asks a server that must be alive.
pub(crate) fn ask_server(server: &Server, command: &[&str]) -> Reply {
    server
        .command(command)
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

pub(crate) fn has_key(server: &Server, key: &str) -> bool {
    ask_server(server, &["EXISTS", key]).int() == Some(1)
}

/// How many masters hold `key`.
pub(crate) fn holders(masters: &Masters, key: &str) -> usize {
    masters.iter().filter(|server| has_key(server, key)).count()
}

/// The connections of this library on a server: all over TCP.
pub(crate) fn connections(server: &Server) -> usize {
    let list = ask_server(server, &["CLIENT", "LIST"]);
    let list = list.text().unwrap_or_default().into_owned();
    // The asking connection itself comes over the Unix socket.
    let tcp = |line: &&str| line.contains("addr=127.0.0.1:");
    list.lines().filter(tcp).count()
}
