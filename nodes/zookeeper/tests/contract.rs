//! Runs the contract suite, which all kinds of masters share, on a real ZooKeeper.

use quorate_contract::{TestedMaster, check_cases, compare_with_memory};
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
async fn path(url: String) -> TestedMaster {
    let url = format!("{url}?timeout=5s&session=15s");
    prepare(&url).await.expect("prepared");
    let open_store = || ZooKeeper::open(&url).expect("a URL");
    TestedMaster::store(open_store(), open_store()).run_outlives_restarts()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn zookeeper_passes_the_contract_of_all_masters() {
    let Some(server) = server("zookeeper_passes_the_contract_of_all_masters") else {
        return;
    };
    check_cases(|name| path(server.url(&format!("/{name}")))).await;
}

#[test]
fn zookeeper_gives_the_same_replies_as_the_memory_master() {
    let Some(server) = server("zookeeper_gives_the_same_replies_as_the_memory_master") else {
        return;
    };
    compare_with_memory(|name| path(server.url(&format!("/{name}"))));
}
