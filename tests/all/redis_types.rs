//! Tests of masters that are given to the builder as clients of the `redis` crate. The library must use the addresses
//! and passwords of these clients.

use quorate::{AcquireError, BuildError, Redlock, Wait};

use crate::support::{ask_server, has_key, masters, settings};

#[tokio::test]
async fn masters_taken_from_redis_clients_keep_their_passwords() {
    let masters = masters(3);
    for server in &*masters {
        ask_server(server, &["CONFIG", "SET", "requirepass", "s3cret"]);
    }
    let clients = |password: &str| {
        let urls = masters.urls().into_iter();
        let urls = urls.map(|url| url.replace("://", &format!("://{password}")));
        let open_client = |url: String| redis::Client::open(url).expect("the URL must be valid");
        urls.map(open_client).collect::<Vec<_>>()
    };
    let client_over = |clients: &[redis::Client]| {
        let builder = settings([""; 0]);
        let builder = clients
            .iter()
            .fold(builder, quorate::RedlockBuilder::redis_client);
        builder.build().expect("good settings")
    };
    let redlock = client_over(&clients(":s3cret@"));
    let guard = redlock
        .acquire("r")
        .await
        .expect("the acquire must succeed, because the password is right");
    drop(guard);
    let client_without_password = client_over(&clients(""));
    let refusal = client_without_password
        .lock("r")
        .wait(Wait::None)
        .acquire()
        .await;
    assert!(
        matches!(refusal, Err(AcquireError::NoQuorum(_))),
        "{refusal:?}"
    );
}

#[tokio::test]
async fn masters_taken_from_redis_clients_keep_their_database() {
    let masters = masters(1);
    let url = format!("{}/3", masters.urls()[0]);
    let client = redis::Client::open(url).expect("the URL must be valid");
    let builder = settings([""; 0]).redis_connection(client.get_connection_info().clone());
    let redlock = builder.build().expect("good settings");
    let guard = redlock.acquire("r").await.expect("free");
    assert!(
        !has_key(&masters[0], "r"),
        "the lock key must be in the database that the URL names"
    );
    drop(guard);
    let build_result = Redlock::builder()
        .redis_client(&client)
        .master(masters.urls()[0].clone());
    assert!(matches!(
        build_result.build(),
        Err(BuildError::SameMasterTwice(_))
    ));
}
