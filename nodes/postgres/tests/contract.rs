//! Runs the contract suite, which tests all kinds of masters, on a real PostgreSQL server.

#![allow(
    dead_code,
    reason = "the suite also has helpers that only the tests of other masters use"
)]

#[path = "../../../tests/contract/apart.rs"]
mod apart;

use apart::*;
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
async fn database(server: &Server, name: &str) -> arm::Arm {
    let url = server.url(name);
    prepare(&url).await.expect("prepared");
    let open = || Postgres::open(&format!("{url}?timeout=5s")).expect("a URL");
    arm::Arm::store(open(), open())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn postgres_passes_the_contract_of_all_masters() {
    let Some(server) = server("postgres_passes_the_contract_of_all_masters") else {
        return;
    };
    let server = std::sync::Arc::new(server);
    keeps_the_contract(|name| {
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
    let number = std::cell::Cell::new(0);
    let arm = || {
        number.set(number.get() + 1);
        let name = format!("pair_{}", number.get());
        tokio::runtime::Handle::current().block_on(database(&server, &name))
    };
    agrees(arm);
}
