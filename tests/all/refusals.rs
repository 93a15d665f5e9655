//! Tests of refusals. If only a change of the configuration can repair a refusal, it ends an endless wait, with a text that
//! says what to change, and an inspection reports the same text. A client waits for the end of all other refusals.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{self, PATIENCE, ms, secs};
use quorate::{AcquireError, Redlock, RestartGuard, Wait};
use quorate_testbed::{AfterHandshake, Hostile, Masters, Script, ServerOptions};

/// A client of one master that waits for a lock without end.
fn waiter(url: &str) -> Redlock {
    let settings = support::settings([url]).wait(Wait::Forever);
    settings.build().expect("good settings")
}

/// The text with which an endless wait ends.
async fn error_of_wait(redlock: &Redlock, label: &str) -> String {
    let result = tokio::time::timeout(PATIENCE, redlock.acquire("x")).await;
    let outcome = result.unwrap_or_else(|_| panic!("the wait must end: {label}"));
    let Err(error) = outcome else {
        panic!("the lock must not be acquired: {label}");
    };
    let AcquireError::NoQuorum(refusal) = &error else {
        panic!("{label}: {error}");
    };
    assert!(!refusal.passes_by_itself(), "{label}: {error}");
    error.details()
}

/// Checks that the endless wait ends with `remedy`, and that an inspection reports it as well.
async fn assert_wait_ends_with(redlock: &Redlock, label: &str, remedy: &str) {
    let details = error_of_wait(redlock, label).await;
    assert!(details.contains(remedy), "{label}: {details}");
    let inspection = redlock.inspect().await.remove(0);
    let fault = inspection.fault.map(|fault| fault.to_string());
    let fault = fault.unwrap_or_else(|| panic!("the inspection must report {label}"));
    assert!(fault.contains(remedy), "{label}: {fault}");
}

/// Checks that the wait goes on.
async fn assert_wait_goes_on(redlock: &Redlock, label: &str) {
    let outcome = tokio::time::timeout(ms(700), redlock.acquire("x")).await;
    let outcome = outcome.map(|outcome| outcome.map(drop).map_err(|error| error.details()));
    assert!(outcome.is_err(), "{label}: {outcome:?}");
}

/// Errors that only a change of the configuration repairs, and a part of the text that says what to change.
const LASTING_ERRORS: [(&str, &str); 17] = [
    (
        "NOAUTH Authentication required.",
        "put a user and a password into the URL",
    ),
    (
        "WRONGPASS invalid username-password pair or user is disabled.",
        "correct the user",
    ),
    (
        "NOPERM this user has no permissions to run the 'hello' command",
        "`quorate doctor`",
    ),
    (
        "DENIED Redis is running in protected mode because ..",
        "protected-mode no",
    ),
    (
        "ERR Client sent AUTH, but no password is set",
        "remove the password from the URL",
    ),
    ("NOPROTO unsupported protocol version", "Redis 6"),
    (
        "ERR unknown command 'HELLO', with args beginning with: '3'",
        "Redis 6",
    ),
    ("MOVED 3999 127.0.0.1:6381", "cluster-enabled no"),
    ("ASK 3999 127.0.0.1:6381", "cluster-enabled no"),
    (
        "CROSSSLOT Keys in request don't hash to the same slot",
        "cluster-enabled no",
    ),
    ("CLUSTERDOWN The cluster is down", "cluster-enabled no"),
    (
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "cluster-enabled no",
    ),
    (
        "ERR Script attempted to access a non local key in a cluster node",
        "cluster-enabled no",
    ),
    ("ERR DB index is out of range", "the database in the URL"),
    (
        "ERR SELECT is not allowed in cluster mode",
        "the database in the URL",
    ),
    ("ERR unsupported command 'hello'", "rename-command"),
    (
        "ERR unknown subcommand 'LOAD'. Try SCRIPT HELP.",
        "the command LOAD",
    ),
];

/// Errors that time can repair.
const PASSING_ERRORS: [&str; 9] = [
    "LOADING Redis is loading the dataset in memory",
    "READONLY You can't write against a read only replica.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "MISCONF Redis is configured to save RDB snapshots, but it is currently unable to persist on disk.",
    "BUSY Redis is busy running a script.",
    "NOREPLICAS Not enough good replicas to write.",
    "ERR max number of clients reached",
    "ERR an error that nobody knows",
];

#[tokio::test]
async fn refusal_that_only_the_configuration_can_repair_ends_an_endless_wait() {
    for (error, remedy) in LASTING_ERRORS {
        let error_line = format!("-{error}\r\n");
        let greeting = Hostile::start(Script::Say(error_line.as_str().into())).expect("a server");
        assert_wait_ends_with(&waiter(&greeting.url()), error, remedy).await;
        // The server completes the handshake, and refuses the lock itself.
        if !error.contains("HELLO") {
            let then = AfterHandshake::Say(error_line.as_str().into());
            let later_server = Hostile::start(Script::Greet(then)).expect("a server");
            let details = error_of_wait(&waiter(&later_server.url()), error).await;
            assert!(details.contains(remedy), "{error}: {details}");
        }
    }
}

#[tokio::test]
async fn refusal_that_time_can_repair_is_waited_for() {
    for error in PASSING_ERRORS {
        let error_line = format!("-{error}\r\n");
        let server = Hostile::start(Script::Say(error_line.as_str().into())).expect("a server");
        let reaction = AfterHandshake::Say(error_line.as_str().into());
        let later_server = Hostile::start(Script::Greet(reaction)).expect("a server");
        let (first_client, second_client) = (waiter(&server.url()), waiter(&later_server.url()));
        tokio::join!(
            assert_wait_goes_on(&first_client, error),
            assert_wait_goes_on(&second_client, error)
        );
    }
}

#[tokio::test]
async fn server_with_another_protocol_ends_an_endless_wait() {
    for (words, remedy) in [
        (
            "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
            "speaks HTTP",
        ),
        ("SSH-2.0-OpenSSH_9.6\r\n", "correct the host and the port"),
        ("\u{15}\u{3}\u{3}\0\u{2}\u{2}F", "use rediss://"),
    ] {
        let server = Hostile::start(Script::Say(words.into())).expect("a server");
        assert_wait_ends_with(&waiter(&server.url()), words, remedy).await;
    }
}

/// Accepts connections on a free port, and passes each of them to `serve` in a thread of its own. The threads end with
/// the test program.
fn serve_connections(serve: impl Fn(std::net::TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    url
}

/// Answers `srvr`, and closes the connection at any other command, as ZooKeeper does.
fn answer_as_zookeeper(mut stream: std::net::TcpStream) {
    let mut command = [0; 4];
    if stream.read_exact(&mut command).is_ok() && &command == b"srvr" {
        let _ = stream.write_all(b"Zookeeper version: 3.8.0\n");
    }
}

#[tokio::test]
async fn server_of_another_kind_ends_an_endless_wait() {
    // MySQL begins the conversation. The length of its packet may look like the beginning of an answer of Redis.
    for packet in [
        &b"\x6c\0\0\0\x0a5.5.5-10.11.6-MariaDB\0"[..],
        b">\0\0\0\xff\x6a\x04Host '10.0.0.1' is not allowed",
    ] {
        let url = serve_connections(move |mut stream| {
            let _ = stream.write_all(packet);
            while let Ok(1..) = stream.read(&mut [0; 512]) {}
        });
        assert_wait_ends_with(&waiter(&url), "MySQL", "correct the host and the port").await;
    }
    let url = serve_connections(answer_as_zookeeper);
    assert_wait_ends_with(&waiter(&url), "ZooKeeper", "use zk://").await;
    for answer in [b"S", b"N"] {
        let url = serve_connections(move |stream| answer_as_postgres(stream, answer));
        assert_wait_ends_with(&waiter(&url), "PostgreSQL", "use postgres://").await;
    }
}

/// Answers a request for TLS, and closes the connection at any other request, as PostgreSQL does.
fn answer_as_postgres(mut stream: std::net::TcpStream, answer: &[u8]) {
    let mut request = [0; 8];
    if stream.read_exact(&mut request[..4]).is_err() || request[..4] != [0, 0, 0, 8] {
        return;
    }
    if stream.read_exact(&mut request[4..]).is_ok() && stream.write_all(answer).is_ok() {
        let _ = stream.read(&mut [0; 512]);
    }
}

/// Answers GET, and closes the connection at any other command, as twemproxy does.
fn answer_as_http_proxy(mut stream: std::net::TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        if !bytes[..count].windows(3).any(|command| command == b"GET") || count > 100 {
            return;
        }
        if stream.write_all(b"$-1\r\n").is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn proxy_that_closes_the_connection_at_hello_ends_an_endless_wait() {
    let url = serve_connections(answer_as_http_proxy);
    assert_wait_ends_with(
        &waiter(&url),
        "a proxy",
        "name the servers behind the proxy",
    )
    .await;
}

#[tokio::test]
async fn server_that_closes_every_connection_at_once_is_waited_for() {
    let accepted = Arc::new(AtomicUsize::new(0));
    let counter = accepted.clone();
    let url = serve_connections(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    assert_wait_goes_on(&waiter(&url), "a load balancer without a server").await;
    let accepted_count = accepted.load(Ordering::Relaxed);
    assert!(
        accepted_count > 2,
        "the client must connect again, but connected only {accepted_count} times"
    );
}

/// A server without a free connection answers each connection with an error, and closes it. The client begins with a
/// probe, because a connection was closed before without an answer, for example by a load balancer.
#[tokio::test]
async fn server_with_too_many_clients_is_waited_for_after_a_connection_without_an_answer() {
    let accepted = Arc::new(AtomicUsize::new(0));
    let counter = accepted.clone();
    let url = serve_connections(move |mut stream| {
        if counter.fetch_add(1, Ordering::Relaxed) > 0 {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"-ERR max number of clients reached\r\n");
        }
    });
    assert_wait_goes_on(&waiter(&url), "too many clients").await;
    let accepted_count = accepted.load(Ordering::Relaxed);
    assert!(
        accepted_count > 2,
        "the client connected only {accepted_count} times"
    );
}

#[tokio::test]
async fn cluster_node_ends_an_endless_wait() {
    let options = ServerOptions::new().arg("--cluster-enabled").arg("yes");
    let masters = Masters::start_with(1, |_| options.clone()).expect("a server");
    let redlock = waiter(&masters.urls()[0]);
    assert_wait_ends_with(&redlock, "a cluster node", "cluster-enabled no").await;
}

/// Whether locks need a command of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Necessity {
    /// The handshake or every lock needs the command.
    Always,
    /// Only the restart guard needs the command.
    ByGuard,
    /// The client works without the command.
    Never,
}

const COMMANDS: [(&str, Necessity); 13] = [
    ("EVALSHA", Necessity::Always),
    ("SCRIPT", Necessity::Always),
    ("TIME", Necessity::Always),
    ("GET", Necessity::Always),
    ("SET", Necessity::Always),
    ("PTTL", Necessity::Always),
    ("HELLO", Necessity::Always),
    ("INFO", Necessity::ByGuard),
    ("SUBSCRIBE", Necessity::Never),
    ("PUBLISH", Necessity::Never),
    ("CLIENT", Necessity::Never),
    ("CONFIG", Necessity::Never),
    ("EVAL", Necessity::Never),
];

fn server_without(command: &str) -> Masters {
    let options = ServerOptions::new()
        .arg("--rename-command")
        .arg(command)
        .arg("");
    Masters::start_with(1, |_| options.clone()).expect("a server")
}

#[tokio::test]
async fn command_that_the_server_does_not_have_is_named_unless_no_lock_needs_it() {
    for (command, necessity) in COMMANDS {
        let masters = server_without(command);
        let url = &masters.urls()[0];
        if necessity == Necessity::Always {
            // PTTL is needed only while the lock is held.
            let holding_client = waiter(url);
            let _held = tokio::time::timeout(PATIENCE, holding_client.try_acquire("x")).await;
            let details = error_of_wait(&waiter(url), command).await;
            let is_named = details.contains(command) || details.contains("RESP3");
            assert!(is_named, "{command}: {details}");
            continue;
        }
        let redlock = waiter(url);
        let outcome = tokio::time::timeout(PATIENCE, redlock.acquire("x")).await;
        let guard = outcome
            .expect("the acquire must end")
            .expect("the lock must be free");
        // A client that waits gets the lock, even if it is not notified.
        let second_client = waiter(url);
        let waiting_task = tokio::spawn(async move { second_client.acquire("x").await });
        tokio::time::sleep(ms(100)).await;
        guard.release().await;
        let result = tokio::time::timeout(PATIENCE, waiting_task).await;
        let waiter_outcome =
            result.unwrap_or_else(|_| panic!("the wait without {command} must end"));
        waiter_outcome
            .expect("no panic")
            .expect("the lock must be free")
            .release()
            .await;
        if necessity == Necessity::ByGuard {
            let settings = support::settings([url.as_str()]).restart_guard(RestartGuard::On);
            let guarded = settings.wait(Wait::Forever).build().expect("good settings");
            assert_wait_ends_with(&guarded, command, "turn the restart guard off").await;
        }
    }
}

/// A connection attempt that panics.
fn panicking_dial() -> quorate::node::Dial {
    Arc::new(|_, _| Box::pin(async { panic!("odd weather: s3cret") }))
}

#[tokio::test]
async fn panic_at_every_connection_to_a_master_becomes_a_permanent_fault_of_this_master() {
    let settings = support::settings(["redis://a", "redis://b"]).dial(panicking_dial());
    let redlock = settings.wait(Wait::Forever).build().expect("good settings");
    let details = error_of_wait(&redlock, "panics").await;
    assert!(
        details.contains("internal failure of the client: odd weather"),
        "{details}"
    );
    assert!(!details.contains("s3cret"), "{details}");
    for inspection in redlock.inspect().await {
        let fault = inspection.fault.expect("a fault").to_string();
        assert!(fault.contains("odd weather"), "{fault}");
    }
}

#[tokio::test]
async fn master_is_used_again_after_a_panic() {
    let masters = support::masters(1);
    let address = masters.urls()[0].trim_start_matches("redis://").to_owned();
    let panicked = Arc::new(AtomicUsize::new(0));
    let counter = panicked.clone();
    let dial: quorate::node::Dial = Arc::new(move |_, _| {
        let (address, first) = (
            address.clone(),
            counter.fetch_add(1, Ordering::Relaxed) == 0,
        );
        Box::pin(async move {
            assert!(!first, "odd weather");
            let stream = tokio::net::TcpStream::connect(address).await?;
            Ok(Box::new(stream) as Box<dyn quorate::node::Stream>)
        })
    });
    let settings = support::settings(["redis://a"]).dial(dial);
    let redlock = settings
        .wait(Wait::For(secs(15)))
        .build()
        .expect("good settings");
    let guard = support::take(&redlock, "x").await;
    assert!(panicked.load(Ordering::Relaxed) > 1);
    guard.release().await;
}
