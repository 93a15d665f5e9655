//! The recipes for Redis, on a real server.

use std::sync::Arc;
use std::time::Duration;

use quorate_recipes::recipe;
use quorate_testbed::{Connection, Persistence, Reply, Server, ServerOptions};

use crate::proof::prove;
use crate::{NEW, OLD};

const PATIENCE: Duration = Duration::from_secs(20);

fn server(options: ServerOptions) -> Arc<Server> {
    Arc::new(Server::start(options).unwrap_or_else(|error| panic!("{error}")))
}

fn eval(connection: &mut Connection, keys: [&str; 2], token: &str, value: &str) -> Reply {
    let script = recipe("redis-script");
    let command = ["EVAL", script, "2", keys[0], keys[1], token, value];
    connection.command(&command).unwrap()
}

fn write(connection: &mut Connection, token: u64, value: &str) -> bool {
    let keys = ["{order:7}", "fence:{order:7}"];
    match eval(connection, keys, &token.to_string(), value) {
        reply if reply == Reply::from("OK") => true,
        Reply::Error(text) if text.starts_with("FENCED ") => false,
        other => panic!("{other:?}"),
    }
}

fn read(connection: &mut Connection) -> String {
    let value = connection.command(&["GET", "{order:7}"]).unwrap();
    value.text().unwrap_or_default().into_owned()
}

#[tokio::test]
async fn redis_script_refuses_older_tokens() {
    let server = server(ServerOptions::new().persistence(Persistence::AofAlways));
    let opened = Arc::clone(&server);
    prove(move || opened.connect(PATIENCE).unwrap(), write, read).await;
    server.restart().unwrap();
    let mut connection = server.connect(PATIENCE).unwrap();
    let kept = read(&mut connection);
    assert!(!write(&mut connection, NEW, "old"), "after a restart");
    assert_eq!(read(&mut connection), kept);
}

#[test]
fn redis_holder_that_stores_its_token_before_it_reads_loses_no_write() {
    let server = server(ServerOptions::new());
    let mut connection = server.connect(PATIENCE).unwrap();
    let script = recipe("redis-script");
    let reading = script
        .replace("redis.call('SET', KEYS[1], ARGV[2])\n", "")
        .replace("return 'OK'", "return redis.call('GET', KEYS[1])");
    assert_eq!(reading.matches("'SET'").count(), 1);
    let token = NEW.to_string();
    let command = [
        "EVAL",
        &reading,
        "2",
        "{order:7}",
        "fence:{order:7}",
        &token,
    ];
    assert!(write(&mut connection, OLD, "10 left"));
    let read = connection.command(&command).unwrap();
    assert_eq!(read, Reply::from("10 left"));
    assert!(!write(&mut connection, OLD, "9 left"));
    assert!(write(&mut connection, NEW, "9 left"));
}

#[test]
fn redis_script_keeps_all_digits_of_the_largest_tokens() {
    let server = server(ServerOptions::new());
    let mut connection = server.connect(PATIENCE).unwrap();
    let rising = [9, 10, OLD, NEW, (1 << 53) - 1, 1 << 53];
    for (index, token) in rising.into_iter().enumerate() {
        assert!(write(&mut connection, token, &token.to_string()));
        assert!(write(&mut connection, token, &token.to_string()));
        for older in &rising[..index] {
            assert!(!write(&mut connection, *older, "old"), "{older} {token}");
        }
        assert_eq!(read(&mut connection), token.to_string());
        let fence = connection.command(&["GET", "fence:{order:7}"]).unwrap();
        assert_eq!(fence, Reply::from(token.to_string().as_str()));
    }
}

#[test]
fn redis_script_refuses_what_is_not_a_token() {
    let server = server(ServerOptions::new());
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
        let reply = eval(&mut connection, ["a", "fence:a"], token, "bad");
        assert!(
            matches!(&reply, Reply::Error(text) if text.contains("integer from 1 to 2^53")),
            "{reply:?}"
        );
    }
    assert_eq!(connection.command(&["GET", "a"]).unwrap(), Reply::Nil);
}

#[test]
fn redis_number_of_a_token_loses_digits_as_a_text() {
    let server = server(ServerOptions::new());
    let mut connection = server.connect(PATIENCE).unwrap();
    let mut texts = [OLD, NEW].map(|token| {
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
    let server = server(ServerOptions::new().arg("--cluster-enabled").arg("yes"));
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
    assert!(write(&mut connection, NEW, "new"));
    assert!(!write(&mut connection, OLD, "old"));
    let reply = eval(&mut connection, ["order:7", "fence:order:7"], "7", "x");
    assert!(
        matches!(&reply, Reply::Error(text) if text.starts_with("CROSSSLOT")),
        "{reply:?}"
    );
}
