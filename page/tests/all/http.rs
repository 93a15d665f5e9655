//! Tests of the page over HTTP: its answers, its limits, and bad input.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use quorate::Redlock;
use quorate_page::PageOptions;

use crate::served::{Masters, ServedPage, options, password};

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("no answer")
}

/// Waits until `check` returns a value, for at most 20 s.
pub(crate) fn until<T>(what: &str, check: impl Fn() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < end, "not within 20 s: {what}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

/// Opens a stream of events, and reads its head.
pub(crate) fn watch(page: &ServedPage) -> TcpStream {
    let mut stream = page.connect();
    stream
        .write_all(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("sent");
    let mut head = [0; 12];
    stream.read_exact(&mut head).expect("an answer");
    assert_eq!(&head, b"HTTP/1.1 200");
    stream
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(future)
}

#[test]
fn state_shows_holder_waiters_and_masters() {
    let masters = Masters::new();
    let page = ServedPage::start(&masters, options());
    let _viewer = watch(&page);
    block_on(async {
        let redlock = masters.redlock();
        let guard = redlock
            .lock("a b")
            .note("month end")
            .acquire()
            .await
            .expect("free");
        let other = masters.redlock();
        let waiting = tokio::spawn(async move { other.acquire("a b").await });
        let lock = tokio::task::spawn_blocking(move || {
            let lock = until("the waiter", || {
                let state = page.json("/api/state?search=A%20B&state=waited+for");
                let lock = state["locks"].get(0)?.clone();
                (lock["waiters"].as_array()?.len() == 1 && lock["holders"].get(0).is_some())
                    .then_some(lock)
            });
            let state = page.json("/api/state");
            assert_eq!(state["masters"].as_array().map(Vec::len), Some(3));
            assert_eq!(state["level"], "good", "{state}");
            assert_eq!(state["counts"]["waiters"], 1);
            assert_eq!(page.json("/api/state?search=no")["matching"], 0);
            let past = page.json("/api/history?lock=l%3Aa%20b");
            assert_eq!(past["holds"][0]["lock"], "l:a b");
            lock
        });
        let lock = lock.await.expect("no panic");
        assert_eq!(lock["id"], "l:a b");
        assert_eq!(lock["state"], "held");
        assert_eq!(lock["holders"][0]["note"], "month end");
        assert_eq!(lock["token"], guard.fencing_token().expect("a token"));
        assert_eq!(lock["word"], "'a b'");
        waiting.abort();
    });
}

#[test]
fn page_comes_up_without_any_master_and_says_so() {
    let mut builder = Redlock::builder().masters(["redis://127.0.0.1:1", "redis://127.0.0.1:2"]);
    builder = builder.connect_timeout(Duration::from_millis(200));
    let redlock = builder.build().expect("good settings");
    block_on(async {
        let page = quorate_page::Page::bind(redlock, options())
            .await
            .expect("a page");
        let address = page.address();
        let check = tokio::task::spawn_blocking(move || {
            let get = |path: &str| {
                let mut stream = TcpStream::connect(address).expect("accepted");
                write!(
                    stream,
                    "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                .expect("sent");
                let mut answer = String::new();
                stream.read_to_string(&mut answer).expect("an answer");
                answer
            };
            assert!(get("/api/state").contains("The masters have not answered yet"));
            let mut viewer = TcpStream::connect(address).expect("accepted");
            write!(
                viewer,
                "GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
            )
            .expect("sent");
            until("the sentence", || {
                get("/api/state")
                    .contains("No quorum: 0 of 2 masters vote, 2 are needed")
                    .then_some(())
            });
            assert_eq!(status(&get("/healthz")), "200");
            assert!(get("/metrics").contains("\nquorate_page_quorum 0\n"));
        });
        tokio::select! {
            () = page.serve() => {}
            result = check => result.expect("the checks"),
        }
    });
}

#[test]
fn requests_that_are_not_allowed_get_a_clear_answer() {
    let page = ServedPage::start(&Masters::new(), options());
    for (request, expected, text) in [
        (
            "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            "405",
            "use GET or HEAD",
        ),
        (
            "OPTIONS /api/state HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            "405",
            "use GET or HEAD",
        ),
        (
            "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
            "421",
            "--host",
        ),
        (
            "GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            "404",
            "begin at /",
        ),
        (
            "GET /../Cargo.toml HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            "404",
            "begin at /",
        ),
        (
            "GET /api/state HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\nConnection: close\r\n\r\n",
            "403",
            "another site",
        ),
        (
            "GET /api/history?from=x&to=-1&lock=%ff%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            "200",
            "\"holds\":[]",
        ),
        (
            "GET /api/state?limit=99999999999999999999&offset=99999999999 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            "200",
            "\"locks\":[]",
        ),
        ("nonsense\r\n\r\n", "400", ""),
    ] {
        let answer = page.send(request.as_bytes());
        assert_eq!(status(&answer), expected, "{request}: {answer}");
        assert!(answer.contains(text), "{request}: {answer}");
    }
    let head =
        page.send(b"HEAD /api/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(
        status(&head) == "200" && head.ends_with("\r\n\r\n"),
        "{head}"
    );
}

#[test]
fn every_answer_has_the_headers_that_forbid_foreign_code() {
    let page = ServedPage::start(&Masters::new(), options());
    for path in [
        "/",
        "/page.js",
        "/page.css",
        "/api/state",
        "/metrics",
        "/nowhere",
    ] {
        let answer = page.get(path, "");
        let head = answer
            .split("\r\n\r\n")
            .next()
            .unwrap_or_default()
            .to_lowercase();
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self';",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(head.contains(header), "{path}: {header}: {head}");
        }
        assert!(
            !head.contains("access-control") && !head.contains("unsafe-inline"),
            "{path}: {head}"
        );
    }
}

#[test]
fn password_protects_everything_but_the_health_check() {
    let page = ServedPage::start(
        &Masters::new(),
        PageOptions {
            password: password("secret\n"),
            ..options()
        },
    );
    for path in [
        "/",
        "/page.js",
        "/api/state",
        "/api/events",
        "/api/history",
        "/metrics",
    ] {
        let answer = page.get(path, "");
        assert_eq!(status(&answer), "401", "{path}: {answer}");
        assert!(
            answer.to_lowercase().contains("www-authenticate: basic"),
            "{answer}"
        );
    }
    assert_eq!(status(&page.get("/healthz", "")), "200");
    // "any:secret" and "any:wrong" in base64.
    let answer = page.get("/api/state", "Authorization: Basic YW55OnNlY3JldA==\r\n");
    assert_eq!(status(&answer), "200", "{answer}");
    assert_eq!(
        status(&page.get("/", "Authorization: Basic YW55Ondyb25n\r\n")),
        "401"
    );
}

#[test]
fn header_of_a_megabyte_is_refused_and_the_page_lives_on() {
    let page = ServedPage::start(&Masters::new(), options());
    let request = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
        "x".repeat(1 << 20)
    );
    let answer = page.send(request.as_bytes());
    // The page closes the connection while the client still sends, so the answer can be lost.
    assert!(answer.is_empty() || status(&answer) == "431", "{answer}");
    let long = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
        "x".repeat(20_000)
    );
    assert_eq!(status(&page.send(long.as_bytes())), "431");
    assert_eq!(status(&page.get("/", "")), "200");
}

#[test]
fn thousands_of_idle_connections_do_not_stop_the_page() {
    let page = ServedPage::start(&Masters::new(), options());
    let _viewer = watch(&page);
    // A process may have about a thousand open files by default, so the connections come in groups.
    for _ in 0..20 {
        let idle: Vec<TcpStream> = (0..300)
            .filter_map(|_| TcpStream::connect(page.address).ok())
            .collect();
        assert!(idle.len() > 250, "{}", idle.len());
        assert_eq!(status(&page.get("/healthz", "")), "200");
    }
    assert_eq!(
        page.json("/api/state")["counts"]["viewers"],
        1,
        "the viewer is still there"
    );
}

#[test]
fn viewer_too_many_is_refused_with_a_reason() {
    let page = ServedPage::start(&Masters::new(), options());
    let viewers: Vec<TcpStream> = (0..64).map(|_| watch(&page)).collect();
    let answer = page.get("/api/events", "");
    assert_eq!(status(&answer), "503", "{answer}");
    assert!(answer.contains("64 browsers watch already"), "{answer}");
    drop(viewers);
    until("a free place", || {
        (page.json("/api/state")["counts"]["viewers"] == 0).then_some(())
    });
    watch(&page);
}

#[test]
fn page_without_a_viewer_asks_no_master() {
    let masters = Masters::new();
    let page = ServedPage::start(&masters, options());
    std::thread::sleep(Duration::from_millis(700));
    let answers = || {
        let metrics = page.get("/metrics", "");
        let lines = metrics
            .lines()
            .filter(|line| line.starts_with("quorate_node_replies_total"));
        lines
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum::<u64>()
    };
    assert_eq!(answers(), 0);
    let viewer = watch(&page);
    until("answers", || (answers() > 6).then_some(()));
    drop(viewer);
    until("no viewer", || {
        (page.json("/api/state")["counts"]["viewers"] == 0).then_some(())
    });
    std::thread::sleep(Duration::from_millis(600));
    let before = answers();
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(answers(), before);
}

/// A master that does not answer takes no time of the others. So the page must read locks as often as before.
#[test]
fn page_reads_locks_on_while_a_master_does_not_answer() {
    let masters = Masters::new();
    let page = ServedPage::start(
        &masters,
        PageOptions {
            percent: 1.0,
            ..options()
        },
    );
    let _viewer = watch(&page);
    block_on(async {
        let guard = masters.redlock().acquire("job").await.expect("free");
        let age_ms = || {
            let state = page.json("/api/state");
            let read_ms = state["locks"][0]["read_ms"].as_u64()?;
            Some(state["now_ms"].as_u64()?.saturating_sub(read_ms))
        };
        until("the lock", age_ms);
        masters.set_mute(true);
        std::thread::sleep(Duration::from_secs(4));
        masters.set_mute(false);
        // Without the fault, the page reads the lock every 0.2 s. With it, the page paused for minutes.
        until("a new reading", || (age_ms()? < 1_500).then_some(()));
        guard.release().await;
    });
}

#[test]
fn history_survives_a_restart_of_the_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let masters = Masters::new();
    let with_file = || PageOptions {
        history: Some(folder.path().join("history")),
        ..options()
    };
    let page = ServedPage::start(&masters, with_file());
    let second = ServedPage::try_start(&masters, with_file());
    let error = second
        .err()
        .expect("a second page with the same file is refused");
    assert!(
        error.contains("another page writes the history file"),
        "{error}"
    );
    block_on(async {
        let redlock = masters.redlock();
        let _kept = redlock.acquire("kept").await.expect("free");
        let ended = redlock.acquire("ended").await.expect("free");
        let restarted = tokio::task::spawn_blocking(move || {
            let taken = |page: &ServedPage| {
                page.json("/api/history")["holds"].as_array().map(Vec::len) == Some(2)
            };
            until("two holds", || taken(&page).then_some(()));
            let before = page.json("/api/state?search=kept")["locks"][0]["since_ms"].clone();
            drop(page);
            before
        });
        let since = restarted.await.expect("no panic");
        ended.release().await;
        let page = ServedPage::start(&masters, with_file());
        let check = tokio::task::spawn_blocking(move || {
            until("the end of a hold", || {
                let past = page.json("/api/history");
                let events = past["events"].as_array().expect("events").clone();
                events
                    .iter()
                    .any(|event| event["kind"] == "ended" && event["lock"] == "l:ended")
                    .then_some(())
            });
            until("the other hold", || {
                let state = page.json("/api/state?search=kept");
                (state["locks"][0]["since_ms"] == since).then_some(())
            });
            let gaps = page.json("/api/history")["gaps"].clone();
            assert!(
                gaps.as_array()
                    .expect("gaps")
                    .iter()
                    .any(|gap| gap["why"] == "nobody watched"),
                "{gaps}"
            );
        });
        check.await.expect("the checks");
    });
}

#[test]
fn readers_continue_after_a_restart_of_the_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let masters = Masters::new();
    let with_file = || PageOptions {
        history: Some(folder.path().join("history")),
        ..options()
    };
    let page = ServedPage::start(&masters, with_file());
    block_on(async {
        let redlock = masters.redlock();
        let read = async || redlock.lock("shared").shared().acquire().await;
        let _first = read().await.expect("free");
        let _second = read().await.expect("free");
        let restarted = tokio::task::spawn_blocking(move || {
            until("two readers", || {
                let holds = page.json("/api/history")["holds"].clone();
                (holds.as_array().map(Vec::len) == Some(2)).then_some(())
            });
            page.json("/api/state")["locks"][0]["since_ms"].clone()
        });
        let since = restarted.await.expect("no panic");
        let _third = read().await.expect("free");
        let page = ServedPage::start(&masters, with_file());
        let check = tokio::task::spawn_blocking(move || {
            until("three readers", || {
                let state = page.json("/api/state");
                let lock = &state["locks"][0];
                (lock["holders"].as_array().map(Vec::len) == Some(3)).then_some(())
            });
            assert_eq!(page.json("/api/state")["locks"][0]["since_ms"], since);
            let past = page.json("/api/history");
            let events = past["events"].as_array().expect("events");
            assert!(
                events.iter().all(|event| event["kind"] != "ended"),
                "{past}"
            );
            assert_eq!(past["holds"].as_array().map(Vec::len), Some(3), "{past}");
        });
        check.await.expect("the checks");
    });
}

#[test]
fn origin_of_another_site_gets_no_data() {
    let page = ServedPage::start(&Masters::new(), options());
    let with = |origin: &str| page.get("/api/state", &format!("Origin: {origin}\r\n"));
    assert_eq!(status(&with("http://evil.example")), "403");
    assert_eq!(status(&with("http://localhost:1")), "200");
    let events = page.get("/api/events", "Origin: http://evil.example\r\n");
    assert_eq!(status(&events), "403", "{events}");
}

#[test]
fn port_in_use_is_a_clear_error() {
    let masters = Masters::new();
    let page = ServedPage::start(&masters, options());
    let again = ServedPage::try_start(
        &masters,
        PageOptions {
            listen: page.address,
            ..options()
        },
    );
    let error = again.err().expect("an error");
    assert!(
        error.starts_with(&format!(
            "cannot listen on {}: Address already in use",
            page.address
        )),
        "{error}"
    );
}
