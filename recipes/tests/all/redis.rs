//! The recipes for Redis, on a real server.

use std::sync::Arc;
use std::time::Duration;

use quorate_recipes::recipe;
use quorate_testbed::{Connection, Persistence, Reply, Server, ServerOptions};

use crate::proof::prove;
use crate::{NEW_TOKEN, OLD_TOKEN};

const PATIENCE: Duration = Duration::from_secs(20);

fn start_server(options: ServerOptions) -> Arc<Server> {
    Arc::new(Server::start(options).unwrap_or_else(|error| panic!("{error}")))
}

fn run_script(connection: &mut Connection, keys: [&str; 2], token: &str, value: &str) -> Reply {
    let script = recipe("redis-script");
    let command = ["EVAL", script, "2", keys[0], keys[1], token, value];
    connection.command(&command).unwrap()
}

fn write(connection: &mut Connection, token: u64, value: &str) -> bool {
    let keys = ["{order:7}", "fence:{order:7}"];
    match run_script(connection, keys, &token.to_string(), value) {
        reply if reply == Reply::from("OK") => true,
        Reply::Error(text) if text.starts_with("FENCED ") => false,
        other => panic!("{other:?}"),
    }
}

fn read_value(connection: &mut Connection) -> String {
    let value = connection.command(&["GET", "{order:7}"]).unwrap();
    value.text().unwrap_or_default().into_owned()
}

#[tokio::test]
async fn redis_script_refuses_older_tokens() {
    let server = start_server(ServerOptions::new().persistence(Persistence::AofAlways));
    let shared_server = Arc::clone(&server);
    prove(
        move || shared_server.connect(PATIENCE).unwrap(),
        write,
        read_value,
    )
    .await;
    server.restart().unwrap();
    let mut connection = server.connect(PATIENCE).unwrap();
    let stored = read_value(&mut connection);
    assert!(!write(&mut connection, NEW_TOKEN, "old"), "after a restart");
    assert_eq!(read_value(&mut connection), stored);
}

#[test]
fn redis_holder_that_stores_its_token_before_it_reads_loses_no_write() {
    let server = start_server(ServerOptions::new());
    let mut connection = server.connect(PATIENCE).unwrap();
    let script = recipe("redis-script");
    let read_script = script
        .replace("redis.call('SET', KEYS[1], ARGV[2])\n", "")
        .replace("return 'OK'", "return redis.call('GET', KEYS[1])");
    assert_eq!(read_script.matches("'SET'").count(), 1);
    let token = NEW_TOKEN.to_string();
    let command = [
        "EVAL",
        &read_script,
        "2",
        "{order:7}",
        "fence:{order:7}",
        &token,
    ];
    assert!(write(&mut connection, OLD_TOKEN, "10 left"));
    let reply = connection.command(&command).unwrap();
    assert_eq!(reply, Reply::from("10 left"));
    assert!(!write(&mut connection, OLD_TOKEN, "9 left"));
    assert!(write(&mut connection, NEW_TOKEN, "9 left"));
}

#[test]
fn redis_script_keeps_all_digits_of_the_largest_tokens() {
    let server = start_server(ServerOptions::new());
    let mut connection = server.connect(PATIENCE).unwrap();
    let tokens = [9, 10, OLD_TOKEN, NEW_TOKEN, (1 << 53) - 1, 1 << 53];
    for (index, token) in tokens.into_iter().enumerate() {
        assert!(write(&mut connection, token, &token.to_string()));
        assert!(write(&mut connection, token, &token.to_string()));
        for older_token in &tokens[..index] {
            assert!(
                !write(&mut connection, *older_token, "old"),
                "{older_token} {token}"
            );
        }
        assert_eq!(read_value(&mut connection), token.to_string());
        let stored_token = connection.command(&["GET", "fence:{order:7}"]).unwrap();
        assert_eq!(stored_token, Reply::from(token.to_string().as_str()));
    }
}

#[test]
fn redis_script_refuses_what_is_not_a_token() {
    let server = start_server(ServerOptions::new());
    let mut connection = server.connect(PATIENCE).unwrap();
    for token in [
        "",
        "0",
        "-1",
        "007",
        "1.5",
        "1e20",
        "nil",
        " 7",
        "9007199254740993",
        "9223372036854775807",
    ] {
        let reply = run_script(&mut connection, ["a", "fence:a"], token, "bad");
        assert!(
            matches!(&reply, Reply::Error(text) if text.contains("integer from 1 to 2^53")),
            "{reply:?}"
        );
    }
    assert_eq!(connection.command(&["GET", "a"]).unwrap(), Reply::Nil);
}

#[test]
fn redis_number_of_a_token_loses_digits_as_a_text() {
    let server = start_server(ServerOptions::new());
    let mut connection = server.connect(PATIENCE).unwrap();
    let mut texts = [OLD_TOKEN, NEW_TOKEN].map(|token| {
        let command = ["EVAL", recipe("redis-wrong"), "0", &token.to_string()];
        let reply = connection.command(&command).unwrap();
        reply.text().expect("a text").into_owned()
    });
    assert_eq!(texts[0], "token 1.7958678433608e+15");
    texts.sort();
    assert_eq!(texts[0], texts[1]);
}

#[test]
fn redis_cluster_accepts_the_script_only_for_keys_with_one_hash_tag() {
    let server = start_server(ServerOptions::new().arg("--cluster-enabled").arg("yes"));
    let mut connection = server.connect(PATIENCE).unwrap();
    let slots: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
    let mut command = vec!["CLUSTER", "ADDSLOTS"];
    command.extend(slots.iter().map(String::as_str));
    assert!(connection.command(&command).unwrap().is_ok());
    let is_ready = quorate_testbed::within(PATIENCE, || {
        let info = server.command(&["CLUSTER", "INFO"]).unwrap();
        info.text().expect("a text").contains("cluster_state:ok")
    });
    assert!(is_ready);
    assert!(write(&mut connection, NEW_TOKEN, "new"));
    assert!(!write(&mut connection, OLD_TOKEN, "old"));
    let reply = run_script(&mut connection, ["order:7", "fence:order:7"], "7", "x");
    assert!(
        matches!(&reply, Reply::Error(text) if text.starts_with("CROSSSLOT")),
        "{reply:?}"
    );
}
