//! Tests of `quorate demo`, on real masters and on masters in memory.

use std::process::Stdio;
use std::time::Duration;

use crate::common::{self, output_of, quorate_command, send_signal, wait_for_output, wait_until};
use serde_json::Value;

fn assert_sells_ten(masters: &str, messages: &[&str], run: &common::RunOutput) {
    assert_eq!(run.code, Some(0), "{run:?}");
    let result: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(result["prizes_sold"], 10, "{run:?}");
    assert_eq!(result["overlaps"], 0, "{run:?}");
    assert_eq!(result["tokens_rising"], true, "{run:?}");
    assert_eq!(result["masters"], masters);
    for message in messages {
        assert!(run.stderr.contains(message), "{run:?}");
    }
}

fn assert_five_sell_ten(masters: &str, run: &common::RunOutput) {
    let messages = [
        "master 2 is killed",
        "master 4 is killed",
        "master 2 restarts",
    ];
    assert_sells_ten(masters, &messages, run);
}

fn assert_three_sell_ten(masters: &str, run: &common::RunOutput) {
    assert_sells_ten(masters, &["master 2 is killed", "master 2 restarts"], run);
    assert_eq!(run.stderr.matches("is killed").count(), 1, "{run:?}");
}

#[test]
fn demo_on_five_redis_servers_sells_each_of_ten_prizes_once() {
    assert_five_sell_ten(
        &server_name(),
        &output_of(quorate_command().args(["demo", "--json"])),
    );
}

#[test]
fn demo_without_an_installed_server_sells_each_of_ten_prizes_once() {
    let run = output_of(
        quorate_command()
            .args(["demo", "--json"])
            .env("QUORATE_SERVER", "/no/such/server"),
    );
    assert_five_sell_ten("memory", &run);
}

fn server_name() -> String {
    let server =
        quorate_testbed::available().expect("redis-server or valkey-server must be installed");
    let program_name = server.file_name().expect("a name");
    program_name.to_string_lossy().into_owned()
}

#[test]
fn demo_on_two_redis_servers_and_a_database_sells_each_prize_once() {
    if let Err(why) = quorate_testbed::MariaDb::available() {
        quorate_testbed::not_run(
            "demo_on_two_redis_servers_and_a_database_sells_each_prize_once",
            &why.to_string(),
        );
        return;
    }
    let run = output_of(quorate_command().args(["demo", "--json", "--nodes", "redis,redis,mysql"]));
    assert_three_sell_ten(&format!("{0}, {0}, mariadbd", server_name()), &run);
    // Make the MariaDB the second master, because the demo kills and restarts the second master.
    let run =
        output_of(quorate_command().args(["demo", "--json", "--nodes", "redis,mariadb,redis"]));
    assert_three_sell_ten(&format!("{0}, mariadbd, {0}", server_name()), &run);
}

#[test]
fn demo_on_two_redis_servers_and_zookeeper_sells_each_prize_once() {
    if let Err(why) = quorate_testbed::ZooKeeper::available() {
        quorate_testbed::not_run(
            "demo_on_two_redis_servers_and_zookeeper_sells_each_prize_once",
            &why,
        );
        return;
    }
    let run =
        output_of(quorate_command().args(["demo", "--json", "--nodes", "redis,zookeeper,redis"]));
    assert_three_sell_ten(&format!("{0}, zookeeper, {0}", server_name()), &run);
}

#[test]
fn demo_uses_a_memory_master_instead_of_a_server_that_is_not_installed() {
    let server =
        quorate_testbed::available().expect("redis-server or valkey-server must be installed");
    let run = output_of(
        quorate_command()
            .args(["demo", "--json", "--nodes", "redis,redis,mysql"])
            .env("QUORATE_SERVER", server)
            .env("PATH", "/nonexistent"),
    );
    assert_three_sell_ten(&format!("{0}, {0}, memory", server_name()), &run);
    for words in ["master 3", "instead of mysql", "mariadb-server-core"] {
        assert!(run.stderr.contains(words), "{words}: {run:?}");
    }
    for (nodes, words) in [
        ("redis,oracle", "oracle"),
        (
            "redis,redis,redis,redis,redis,redis,redis,redis,redis,redis",
            "between 1 and 9",
        ),
    ] {
        let run = output_of(quorate_command().args(["demo", "--nodes", nodes]));
        assert_eq!(run.code, Some(64), "{run:?}");
        assert!(run.stderr.contains(words), "{run:?}");
    }
}

#[test]
fn demo_prints_the_result_on_stdout_and_progress_on_stderr() {
    let run = output_of(quorate_command().arg("demo"));
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(
        run.stdout.contains("prizes sold") && run.stdout.contains("10 of 10"),
        "{run:?}"
    );
    assert!(
        !run.stdout.contains("is killed") && !run.stderr.contains("RESULT"),
        "{run:?}"
    );
}

#[test]
fn interrupted_demo_stops_its_masters_and_then_dies_of_the_signal() {
    let temporary = tempfile::tempdir().expect("a directory");
    let child = quorate_command()
        .arg("demo")
        .env("TMPDIR", temporary.path())
        .env("QUORATE_SERVER_DATA", temporary.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let count_entries = || std::fs::read_dir(temporary.path()).expect("read").count();
    wait_until("the spawned masters are running", || count_entries() >= 5);
    std::thread::sleep(Duration::from_millis(400));
    send_signal(&child, "INT");
    let run = wait_for_output(child);
    // `demo` must kill itself with SIGINT, so that a shell loop that runs `demo` ends as well.
    assert_eq!((run.code, run.died_of), (Some(130), Some(2)), "{run:?}");
    assert!(
        run.stderr.contains("interrupted") && run.stdout.is_empty(),
        "{run:?}"
    );
    assert_eq!(count_entries(), 0, "{run:?}");
    let help = output_of(quorate_command().args(["demo", "--help"]));
    assert!(
        help.stdout.contains("128+n"),
        "the help must list the exit code 128+n: {help:?}"
    );
}
