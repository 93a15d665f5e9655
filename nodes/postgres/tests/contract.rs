//! Runs the contract suite, which tests all kinds of masters, on a real PostgreSQL server.

use std::sync::Arc;

use quorate_contract::{TestedMaster, check_cases, compare_with_memory};
use quorate_postgres::{Postgres, prepare};
use quorate_testbed::{PostgresOptions, not_run};

type Server = quorate_testbed::Postgres;

/// Starts a server. Without PostgreSQL the test is reported as not run.
fn server(test: &str) -> Option<Server> {
    if let Err(why) = Server::available() {
        not_run(test, &why.to_string());
        return None;
    }
    let options = PostgresOptions::new().tcp().set("fsync", "on");
    Some(Server::start_with(options).unwrap_or_else(|error| panic!("{error}")))
}

/// Creates a database on this server for one case of the suite.
async fn database(server: &Server, name: &str) -> TestedMaster {
    let url = server.url(name);
    prepare(&url).await.expect("prepared");
    let open = || Postgres::open(&format!("{url}?timeout=5s")).expect("a URL");
    TestedMaster::store(open(), open())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn postgres_passes_the_contract_of_all_masters() {
    let Some(server) = server("postgres_passes_the_contract_of_all_masters") else {
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
fn postgres_gives_the_same_replies_as_the_memory_master() {
    let Some(server) = server("postgres_gives_the_same_replies_as_the_memory_master") else {
        return;
    };
    let server = &server;
    compare_with_memory(|name| async move { database(server, &name).await });
}
