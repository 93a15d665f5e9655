//! Tests of the page with a Redis server as the only master: foreign data, secrets, and announcements of leaders.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use quorate::{Redlock, RestartGuard, Wait};
use quorate_page::PageOptions;
use quorate_testbed::{Server, ServerOptions};

use crate::http::{block_on, until, watch};
use crate::served::{ServedPage, options};

fn start_server(options: ServerOptions) -> Server {
    Server::start(options).expect("a Redis server")
}

fn redlock_on(server: &Server) -> Redlock {
    let builder = Redlock::builder().masters([server.url()]);
    let builder = builder.restart_guard(RestartGuard::Off);
    let builder = builder.wait(Wait::Forever).ttl(Duration::from_secs(30));
    builder.build().expect("good settings")
}

/// A page whose only master is this server.
fn page_on(server: &Server, options: PageOptions) -> ServedPage {
    let redlock = redlock_on(server);
    ServedPage::try_start_with(move || redlock, options).expect("the page must start")
}

#[test]
fn key_of_another_type_and_key_of_another_program_are_shown() {
    let server = start_server(ServerOptions::default());
    let of_other_type = ["HSET", "of-another-type", "a", "b"];
    server.command(&of_other_type).expect("an answer");
    let of_other_program = ["SET", "of-another-program", "its secret", "PX", "60000"];
    server.command(&of_other_program).expect("an answer");
    let page = page_on(&server, options());
    let _viewer = watch(&page);
    let state = until("the foreign key", || {
        let state = page.get("/api/state", "");
        state.contains("of-another-program").then_some(state)
    });
    assert!(state.contains("\"kind\":\"foreign\""), "{state}");
    assert!(!state.contains("its secret"), "{state}");
}

#[test]
fn note_of_a_kibibyte_of_bytes_does_not_stop_the_page() {
    let server = start_server(ServerOptions::default());
    let redlock = redlock_on(&server);
    let note = || server.command(&["EXISTS", "quorate:note:noted"]);
    let guard = block_on(async {
        let guard = redlock.acquire("noted").await.expect("free");
        // If the runtime ends before the note is sent, a later renewal sends it, perhaps after 20 s.
        until("the note of the holder", || {
            (note().expect("an answer") == quorate_testbed::Reply::Int(1)).then_some(())
        });
        guard
    });
    let bytes: Vec<u8> = (0..1024_u32).map(|byte| (byte % 256) as u8).collect();
    let overwrite: [&[u8]; 4] = [b"SET", b"quorate:note:noted", &bytes, b"KEEPTTL"];
    server.command(&overwrite).expect("an answer");
    let page = page_on(&server, options());
    let _viewer = watch(&page);
    let lock = until("the lock", || {
        let state = page.json("/api/state");
        (state["locks"][0]["state"] == "held").then(|| state["locks"][0].clone())
    });
    assert_eq!(lock["id"], "l:noted");
    assert_eq!(lock["holders"], serde_json::json!([]), "{lock}");
    drop(guard);
}

#[test]
fn password_of_a_master_is_in_no_answer_and_in_no_line_of_the_history() {
    let secret = "s3cret-of-the-master";
    let server = start_server(ServerOptions::default().password(secret));
    let folder = tempfile::tempdir().expect("a folder");
    let history = folder.path().join("history");
    let page_options = PageOptions {
        history: Some(history.clone()),
        ..options()
    };
    let page = page_on(&server, page_options);
    let mut viewer = watch(&page);
    until("the vote", || {
        (page.json("/api/state")["masters"][0]["votes"] == true).then_some(())
    });
    server.kill().expect("killed");
    until("the fault", || {
        let state = page.json("/api/state");
        let text = state["masters"][0]["text"].as_str()?.to_owned();
        (!text.is_empty()).then_some(())
    });
    for path in ["/", "/api/state", "/api/history", "/metrics", "/healthz"] {
        let answer = page.get(path, "");
        assert!(!answer.contains(secret), "{path}: {answer}");
    }
    drop(page);
    let mut events = Vec::new();
    // The end of the page can reset the connection. The bytes that were read before stay in the buffer.
    let _ = viewer.read_to_end(&mut events);
    let events = String::from_utf8_lossy(&events);
    assert!(events.contains("event: change"), "{events}");
    assert!(!events.contains(secret), "{events}");
    let lines = std::fs::read_to_string(history).expect("the history");
    assert!(lines.contains("master_down"), "{lines}");
    assert!(!lines.contains(secret), "{lines}");
}

#[test]
fn new_leader_is_shown_long_before_the_next_regular_reading() {
    let server = start_server(ServerOptions::default());
    let page_options = PageOptions {
        interval: Duration::from_secs(30),
        ..options()
    };
    let (first, second) = (redlock_on(&server), redlock_on(&server));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let campaign = first.election("scheduler");
    let leadership = runtime.block_on(campaign.campaign("first"));
    let leadership = leadership.expect("the first leader");
    let successor = runtime.spawn(async move {
        let leadership = second.election("scheduler").campaign("second").await;
        let leadership = leadership.expect("the second leader");
        tokio::time::sleep(Duration::from_secs(60)).await;
        leadership.resign().await;
    });
    let page = page_on(&server, page_options);
    let _viewer = watch(&page);
    let note = || {
        let state = page.json("/api/state?search=scheduler");
        let note = &state["locks"][0]["holders"][0]["note"];
        note.as_str().map(str::to_owned)
    };
    until("the first leader", || (note()? == "first").then_some(()));
    // Let the page subscribe to the announcements.
    std::thread::sleep(Duration::from_secs(1));
    let resigned_at = Instant::now();
    runtime.block_on(leadership.resign());
    until("the second leader", || (note()? == "second").then_some(()));
    let elapsed = resigned_at.elapsed();
    // The observer reads the leader three times within the ttl of 30 s, and the page every 30 s.
    assert!(elapsed < Duration::from_secs(7), "{elapsed:?}");
    successor.abort();
}

#[test]
fn connection_that_ends_within_a_request_leaves_the_page_running() {
    let server = start_server(ServerOptions::default());
    let page = page_on(&server, options());
    for bytes in [
        &b""[..],
        b"G",
        b"GET /api/events HTTP/1.1\r\nHost: local",
        b"GET /api/state HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ] {
        for _ in 0..20 {
            page.connect().write_all(bytes).expect("sent");
        }
    }
    let viewers: Vec<_> = (0..10).map(|_| watch(&page)).collect();
    drop(viewers);
    until("no viewer", || {
        (page.json("/api/state")["counts"]["viewers"] == 0).then_some(())
    });
}
