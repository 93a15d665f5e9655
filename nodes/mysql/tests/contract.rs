//! Runs the contract suite, which tests all kinds of masters, on a real MariaDB server.

use std::sync::Arc;

use quorate_contract::{TestedMaster, check_cases, compare_with_memory};
use quorate_mysql::{MySql, prepare};
use quorate_testbed::{MariaDb, MariaDbOptions, not_run};

/// Starts a server. Without MariaDB the test is reported as not run.
fn server(test: &str) -> Option<MariaDb> {
    if let Err(why) = MariaDb::available() {
        not_run(test, &why.to_string());
        return None;
    }
    Some(MariaDb::start(MariaDbOptions::new()).unwrap_or_else(|error| panic!("{error}")))
}

/// Creates a database on this server for one case of the suite.
async fn database(server: &MariaDb, name: &str) -> TestedMaster {
    let url = server.url(name);
    let create = format!("CREATE DATABASE {name}");
    server.sql(&create).expect("a database");
    prepare(&url).await.expect("prepared");
    let open_store = || MySql::open(&format!("{url}?timeout=5s")).expect("a URL");
    TestedMaster::store(open_store(), open_store())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn mariadb_passes_the_contract_of_all_masters() {
    let Some(server) = server("mariadb_passes_the_contract_of_all_masters") else {
        return;
    };
    let server = Arc::new(server);
    check_cases(|name| {
        let server = server.clone();
        async move { database(&server, &name).await }
    })
    .await;
}

#[test]
fn mariadb_gives_the_same_replies_as_the_memory_master() {
    let Some(server) = server("mariadb_gives_the_same_replies_as_the_memory_master") else {
        return;
    };
    let server = &server;
    compare_with_memory(|name| async move { database(server, &name).await });
}
