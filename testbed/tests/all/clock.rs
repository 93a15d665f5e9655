//! Tests of clock jumps of one server, and of their effect on its keys.

use std::thread;
use std::time::{Duration, Instant};

use quorate_testbed::{ClockShim, OffsetFile, Reply, Server, ServerOptions, Skew};

const HOUR: Duration = Duration::from_secs(3600);

/// Starts a server whose clock can be shifted.
fn server() -> (Server, OffsetFile) {
    let shim = ClockShim::build()
        .expect("the clock library must be built (it needs Linux and a C compiler)");
    let offset = shim.offset_file().unwrap();
    let server = Server::start(ServerOptions::new().clock(&shim, &offset));
    (server.unwrap_or_else(|error| panic!("{error}")), offset)
}

fn set_for_a_minute(server: &Server) {
    assert!(
        server
            .command(&["SET", "a", "b", "PX", "60000"])
            .unwrap()
            .is_ok()
    );
}

fn pttl(server: &Server) -> i64 {
    server.command(&["PTTL", "a"]).unwrap().int().unwrap()
}

fn eventually(awaited: &str, mut is_done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_done() {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "timed out waiting for: {awaited}"
        );
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn clock_jump_ahead_expires_a_key_immediately() {
    let (server, offset) = server();
    set_for_a_minute(&server);
    assert!((1..=60_000).contains(&pttl(&server)));
    offset.set(HOUR, Skew::Ahead).unwrap();
    eventually("the expiry", || {
        server.command(&["GET", "a"]).unwrap() == Reply::Nil
    });
}

#[test]
fn clock_jump_back_extends_the_lifetime_of_a_key() {
    let (server, offset) = server();
    set_for_a_minute(&server);
    offset.set(HOUR, Skew::Behind).unwrap();
    eventually(
        "a lifetime of the key that includes the clock offset",
        || pttl(&server) > 3_000_000,
    );
    offset.clear().unwrap();
    eventually("the lifetime of the key by the true clock", || {
        pttl(&server) <= 60_000
    });
}

#[test]
fn clock_offset_of_one_server_does_not_change_the_clock_of_another() {
    let shim = ClockShim::build().unwrap();
    let (skewed_offset, true_offset) = (shim.offset_file().unwrap(), shim.offset_file().unwrap());
    let skewed = Server::start(ServerOptions::new().clock(&shim, &skewed_offset)).unwrap();
    let other = Server::start(ServerOptions::new().clock(&shim, &true_offset)).unwrap();
    set_for_a_minute(&skewed);
    set_for_a_minute(&other);
    skewed_offset.set(HOUR, Skew::Ahead).unwrap();
    eventually("the expiry", || pttl(&skewed) == -2);
    assert!(pttl(&other) > 0);
}

#[test]
fn restarted_server_keeps_its_clock_offset() {
    let (server, offset) = server();
    offset.set(HOUR, Skew::Ahead).unwrap();
    server.restart().unwrap();
    let Reply::Array(time) = server.command(&["TIME"]).unwrap() else {
        panic!("the reply to TIME must be an array");
    };
    let server_time = time[0].int().unwrap();
    let true_time = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    assert!(server_time > i64::try_from(true_time).unwrap() + 3_000);
}

#[test]
fn server_whose_clock_offset_file_is_missing_does_not_start() {
    let shim = ClockShim::build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let offset = OffsetFile::create(dir.path()).unwrap();
    drop(dir);
    let error = Server::start(ServerOptions::new().clock(&shim, &offset)).unwrap_err();
    assert!(
        error.to_string().contains("QUORATE_CLOCK_OFFSET_FILE"),
        "{error}"
    );
}

#[test]
fn clock_offset_out_of_range_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let offset = OffsetFile::create(dir.path()).unwrap();
    offset.set(Duration::MAX, Skew::Ahead).unwrap_err();
}
