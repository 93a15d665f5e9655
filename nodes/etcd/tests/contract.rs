//! Runs the contract suite, which all kinds of masters share, on a real etcd.

use quorate_contract::{TestedMaster, check_cases, compare_with_memory};
use quorate_etcd::{Etcd, prepare};
use quorate_testbed::{Etcd as Process, TestServer as _, not_run};

/// Starts a cluster. If etcd is not installed, reports the test as not run and returns `None`.
fn cluster(test: &str) -> Option<Process> {
    if let Some(why) = Process::missing() {
        not_run(test, &why);
        return None;
    }
    Some(Process::start().unwrap_or_else(|error| panic!("{error}")))
}

/// Returns a master that stores its records below the prefix in this URL, for one case of the suite.
async fn prefix(url: String) -> TestedMaster {
    let url = format!("{url}?timeout=5s");
    prepare(&url).await.expect("prepared");
    let open = || Etcd::open(&url).expect("a URL");
    TestedMaster::store(open(), open()).run_outlives_restarts()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn etcd_passes_the_contract_of_all_masters() {
    let Some(cluster) = cluster("etcd_passes_the_contract_of_all_masters") else {
        return;
    };
    check_cases(|name| prefix(cluster.url(&name))).await;
}

#[test]
fn etcd_gives_the_same_replies_as_the_memory_master() {
    let Some(cluster) = cluster("etcd_gives_the_same_replies_as_the_memory_master") else {
        return;
    };
    compare_with_memory(|name| prefix(cluster.url(&name)));
}
