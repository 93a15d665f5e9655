//! A master that talks without a pause shares the only thread of `quorate run` with all others.

mod common;

use std::io::Write as _;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use common::{end, masters, run};

/// Says `words` as fast as they are taken, over every connection, until that ends.
fn talkative(words: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("redis://{}", listener.local_addr().expect("bound"));
    // Ends with the process of the tests.
    std::thread::spawn(move || {
        let words = words.repeat(16);
        for mut connection in listener.incoming().flatten() {
            let words = words.clone();
            connection.set_nodelay(true).expect("a setting");
            std::thread::spawn(move || while connection.write_all(words.as_bytes()).is_ok() {});
        }
    });
    url
}

#[test]
fn a_master_that_never_stops_talking_delays_nobody() {
    let masters = masters(2);
    let urls = [&masters.urls()[..], &[talkative(">1\r\n+x\r\n")]].concat();
    let mut command = run(&masters, &["--ttl", "3s", "r"], &["sleep", "6"]);
    command.env("QUORATE_MASTERS", urls.join(","));
    command.env("QUORATE_CONNECT_TIMEOUT", "500ms");
    command.env("QUORATE_NODE_TIMEOUT", "50ms");
    let mut child = command.spawn().expect("starts");
    let late = Instant::now() + Duration::from_secs(20);
    while child.try_wait().expect("ours").is_none() && Instant::now() < late {
        std::thread::sleep(Duration::from_millis(50));
    }
    // Has an effect only where it still runs.
    let _ = child.kill();
    let done = end(child);
    assert_eq!(done.code, Some(0), "{done:?}");
}
