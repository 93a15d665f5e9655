//! Runs the contract suite, which all kinds of masters share, on a real ZooKeeper.

#![allow(
    dead_code,
    reason = "the suite also has helpers that only the tests of other masters use"
)]

#[path = "../../../tests/contract/apart.rs"]
mod apart;

use apart::*;
use quorate_testbed::{ZooKeeper as Process, not_run};
use quorate_zookeeper::{ZooKeeper, prepare};

/// Starts a ZooKeeper server. If ZooKeeper is not installed, reports the test as not run and returns `None`.
fn server(test: &str) -> Option<Process> {
    if let Err(why) = Process::available() {
        not_run(test, &why);
        return None;
    }
    Some(Process::start().unwrap_or_else(|error| panic!("{error}")))
}

/// Creates the path in this URL on the server. Returns a master that stores its records there, for one case of the
/// suite.
async fn path(url: String) -> arm::Arm {
    let url = format!("{url}?timeout=5s&session=15s");
    prepare(&url).await.expect("prepared");
    let open = || ZooKeeper::open(&url).expect("a URL");
    arm::Arm::store(open(), open())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn zookeeper_passes_the_contract_of_all_masters() {
    let Some(server) = server("zookeeper_passes_the_contract_of_all_masters") else {
        return;
    };
    keeps_the_contract(|name| path(server.url(&format!("/{name}")))).await;
}

#[test]
fn zookeeper_gives_the_same_replies_as_the_memory_master() {
    let Some(server) = server("zookeeper_gives_the_same_replies_as_the_memory_master") else {
        return;
    };
    let number = std::cell::Cell::new(0);
    let arm = || {
        number.set(number.get() + 1);
        let url = server.url(&format!("/pair_{}", number.get()));
        tokio::runtime::Handle::current().block_on(path(url))
    };
    agrees(arm);
}
