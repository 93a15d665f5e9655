//! Helpers that many tests share: masters, clients, and checks of the masters' keys.
//!
//! Each test program uses only some of these helpers.
#![allow(dead_code, unused_imports)]

pub(crate) mod listener;
pub(crate) mod polled;
pub(crate) mod slow;
pub(crate) mod stubborn;
pub(crate) mod waiter;

use std::sync::Arc;

use quorate::node::Node;
use quorate::node::memory::MemoryNode;
use quorate::{LockGuard, Redlock, RedlockBuilder, RestartGuard, Wait};
use quorate_testbed::{Masters, Reply, Server};

pub(crate) use quorate_contract::time::{PATIENCE, eventually, ms, secs};

pub(crate) fn masters(n: usize) -> Masters {
    Masters::start(n).unwrap_or_else(|error| panic!("{error}"))
}

/// The kinds of masters that have a crate of their own in `nodes/`, such as `mysql`. The crate of each is
/// `quorate-NAME`, and the feature of the command is `NAME`. The folder `contract` has the tests for all of them.
pub(crate) fn kinds_of_nodes() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/nodes");
    let entries = std::fs::read_dir(folder).expect("a folder");
    let crates = entries
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| entry.path().join("Cargo.toml").is_file())
        .map(|entry| entry.file_name().into_string().expect("a name in UTF-8"))
        .filter(|name| name != "contract");
    let kinds: Vec<String> = crates.collect();
    assert!(
        kinds.len() >= 3,
        "no crates of kinds in {folder}: {kinds:?}"
    );
    kinds
}

/// Settings for newly started masters. The TTL is longer than any test waits, so a lock key disappears only if a client
/// deletes it. The node timeout is long enough for a busy machine.
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

/// `n` masters in memory, and a `Redlock` over them.
pub(crate) fn memory(n: usize) -> (Vec<MemoryNode>, Redlock) {
    let nodes: Vec<_> = (0..n).map(|n| MemoryNode::new(&format!("m{n}"))).collect();
    let dyn_nodes = nodes
        .iter()
        .map(|node| Arc::new(node.clone()) as Arc<dyn Node>);
    let redlock = Redlock::builder()
        .nodes(dyn_nodes.collect())
        .wait(Wait::For(secs(5)));
    (nodes, redlock.build().expect("good settings"))
}

/// Acquires a lock that must be free.
pub(crate) async fn take(redlock: &Redlock, resource: &str) -> LockGuard {
    redlock
        .acquire(resource)
        .await
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Checks that there is a fencing token and that it is larger than the earlier token. Returns the token.
#[track_caller]
pub(crate) fn larger_token(token: Option<u64>, earlier: u64) -> u64 {
    let token = token.expect("the lock must have a fencing token");
    assert!(
        token > earlier,
        "fencing token {token} must be larger than the earlier token {earlier}"
    );
    token
}

/// Sends a command to a server that must be running. Returns the reply.
pub(crate) fn ask_server(server: &Server, command: &[&str]) -> Reply {
    server
        .command(command)
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

pub(crate) fn has_key(server: &Server, key: &str) -> bool {
    ask_server(server, &["EXISTS", key]).int() == Some(1)
}

/// The number of masters that hold `key`.
pub(crate) fn count_masters_with(masters: &Masters, key: &str) -> usize {
    masters.iter().filter(|server| has_key(server, key)).count()
}

/// The number of connections that this library has to a server. All of them use TCP.
pub(crate) fn count_connections(server: &Server) -> usize {
    let list_reply = ask_server(server, &["CLIENT", "LIST"]);
    let list = list_reply.text().unwrap_or_default().into_owned();
    // The connection that sends this command uses the Unix socket, so it is not counted.
    let tcp = |line: &&str| line.contains("addr=127.0.0.1:");
    list.lines().filter(tcp).count()
}
