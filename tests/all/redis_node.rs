//! Tests of Redis masters under injected faults. The client must name the faulty master and its fault, and the other
//! masters must not become slower.

use std::thread;
use std::time::Instant;

use crate::support::listener::Listener;
use crate::support::{
    self, PATIENCE, ask_server, count_connections, count_masters_with, eventually, has_key,
    masters, ms, redlock, secs, settings, take,
};
use quorate::node::{self, Answer};
use quorate::{AcquireError, Fault, NodeOutcome, Redlock, RedlockBuilder, TryAcquire, Wait};
use quorate_contract::requests::{self, ReplyCollector, claim, send, status};
use quorate_testbed::{Fault as Harm, Masters, Proxy, Server, ServerOptions, Way};

/// Settings with long timeouts, for tests in which the speed of the masters does not matter.
fn patient_builder(masters: &Masters) -> RedlockBuilder {
    settings(masters.urls())
        .node_timeout(secs(2))
        .connect_timeout(secs(5))
}

/// Acquires the lock on a majority of the masters. Returns the outcome at the master with the index `n`, as the guard
/// reports it.
async fn outcome_at(redlock: &Redlock, n: usize) -> NodeOutcome {
    let guard = take(redlock, "job").await;
    eventually("every master must have answered", || {
        guard.report()[n].outcome != NodeOutcome::Silent
    })
    .await;
    let outcome = guard.report()[n].outcome.clone();
    guard.release().await;
    outcome
}

/// Acquires the lock on a majority of the masters, although the master with the index `n` has a fault. Returns the
/// fault of this master, as the guard reports it.
async fn fault_at(redlock: &Redlock, n: usize) -> Fault {
    match outcome_at(redlock, n).await {
        NodeOutcome::Fault(fault) => fault,
        other => panic!("the master must fail, but: {other:?}"),
    }
}

/// Repeats acquires until the master with the index `n` grants one.
async fn wait_until_granted(redlock: &Redlock, n: usize) {
    let started_at = Instant::now();
    while outcome_at(redlock, n).await != NodeOutcome::Yes {
        assert!(
            started_at.elapsed() < PATIENCE,
            "master {n} must grant locks again"
        );
        tokio::time::sleep(ms(10)).await;
    }
}

/// Waits until no master has the key `key` any more.
async fn wait_until_deleted(masters: &Masters, key: &str) {
    eventually("no master may have a key left", || {
        count_masters_with(masters, key) == 0
    })
    .await;
}

#[tokio::test]
async fn client_built_while_all_masters_are_down_works_once_a_majority_is_up() {
    let masters = masters(5);
    for master in &masters {
        master.kill().expect("killed");
    }
    let redlock = redlock(&masters);
    masters[0].restart().expect("restarted");
    tokio::time::sleep(ms(100)).await;
    assert_eq!(count_connections(&masters[0]), 0);
    let error = redlock.lock("job").wait(Wait::None).acquire().await;
    assert!(matches!(error, Err(AcquireError::NoQuorum(_))), "{error:?}");
    let waiting = tokio::spawn({
        let redlock = redlock.clone();
        async move { redlock.lock("job").wait(Wait::Forever).acquire().await }
    });
    masters[1].restart().expect("restarted");
    tokio::time::sleep(ms(100)).await;
    assert!(
        !waiting.is_finished(),
        "the acquire must not succeed with two of five masters"
    );
    masters[2].restart().expect("restarted");
    let outcome = tokio::time::timeout(PATIENCE, waiting).await;
    let guard = outcome
        .expect("the acquire must end in time after the third master is up")
        .expect("no panic")
        .expect("free");
    guard.release().await;
}

#[tokio::test]
async fn restarted_master_grants_locks_again_soon_after_it_accepts_connections() {
    let masters = masters(1);
    let redlock = redlock(&masters);
    take(&redlock, "job").await.release().await;
    for _ in 0..3 {
        masters[0].kill().expect("killed");
        tokio::time::sleep(ms(700)).await; // the pauses between connection attempts are at their maximum
        masters[0].restart().expect("restarted");
        let up_since = Instant::now();
        loop {
            match redlock.try_acquire("job").await {
                Ok(TryAcquire::Acquired(guard)) => {
                    guard.release().await;
                    break;
                }
                Ok(TryAcquire::Held(refusal)) => panic!("{refusal:?}"),
                Err(AcquireError::NoQuorum(_)) => tokio::time::sleep(ms(1)).await,
                Err(error) => panic!("{error}"),
            }
        }
        println!(
            "the master granted a lock {:?} after its start",
            up_since.elapsed()
        );
        // The master should grant locks again 250 ms after it accepts connections. The limit is longer, because the
        // machine may be busy.
        assert!(up_since.elapsed() < secs(3), "{:?}", up_since.elapsed());
    }
}

#[tokio::test]
async fn scripts_that_a_master_has_lost_are_loaded_again() {
    let masters = masters(3);
    let redlock = patient_builder(&masters).build().expect("good settings");
    let flush = || {
        for master in &masters {
            assert!(ask_server(master, &["SCRIPT", "FLUSH"]).is_ok());
        }
    };
    for _ in 0..3 {
        assert_eq!(outcome_at(&redlock, 0).await, NodeOutcome::Yes);
        flush();
        let guard = take(&redlock, "job").await;
        flush();
        guard.extend(secs(30)).await.expect("extended");
        flush();
        let status = redlock.status("job").await.expect("the name must be valid");
        assert!(status.nodes.iter().all(|node| node.state.is_ok()));
        flush();
        let released = guard.release().await;
        assert_eq!(released.unreachable, 0, "{released:?}");
        wait_until_deleted(&masters, "job").await;
        flush();
    }
}

#[tokio::test]
async fn combined_requests_succeed_after_the_scripts_were_flushed() {
    let masters = masters(3);
    let redlock = patient_builder(&masters).build().expect("good settings");
    let flush_repeatedly = async {
        for _ in 0..20 {
            for master in &masters {
                ask_server(master, &["SCRIPT", "FLUSH"]);
            }
            tokio::time::sleep(ms(2)).await;
        }
    };
    let acquires = (0..200).map(|n| {
        let redlock = &redlock;
        async move {
            for _ in 0..5 {
                take(redlock, &format!("job {n}")).await.release().await;
            }
        }
    });
    futures::future::join(flush_repeatedly, futures::future::join_all(acquires)).await;
    redlock.flush().await;
    for master in &masters {
        let keys = ask_server(master, &["KEYS", "job*"]);
        assert_eq!(keys, quorate_testbed::Reply::Array(Vec::new()));
    }
}

#[tokio::test]
async fn client_recovers_when_its_password_is_corrected_on_the_server() {
    let protected_server =
        Server::start(ServerOptions::new().password("new-secret")).expect("a server");
    let open_masters = masters(2);
    let mut urls = open_masters.urls();
    urls.push(format!("redis://:old-secret@{}", protected_server.addr()));
    let redlock = settings(urls).node_timeout(secs(2)).build().expect("good");
    let fault = fault_at(&redlock, 2).await;
    assert!(matches!(fault, Fault::Denied(_)), "{fault:?}");
    let mut control_connection = protected_server
        .connect(PATIENCE)
        .expect("the login must succeed, because the password is right");
    control_connection
        .command(&["CONFIG", "SET", "requirepass", "old-secret"])
        .expect("the server must answer the command");
    wait_until_granted(&redlock, 2).await;
}

/// Sends a slow command to the server, on a separate thread and connection.
fn send_on_thread(server: &Server, command: &'static [&'static str]) -> thread::JoinHandle<()> {
    let mut control_connection = server
        .connect(secs(60))
        .expect("the server must accept the connection");
    thread::spawn(move || {
        // Ignore the reply: it is an error if the test stops the script with `SCRIPT KILL`.
        let _ = control_connection.command(command);
    })
}

/// Waits until the client reports the fault `expected` for the first master. Before that, this master is allowed to grant
/// the lock or to time out.
async fn wait_for_fault(redlock: &Redlock, expected: &Fault) {
    let started_at = Instant::now();
    loop {
        match outcome_at(redlock, 0).await {
            NodeOutcome::Fault(fault) if fault == *expected => return,
            NodeOutcome::Yes | NodeOutcome::Fault(Fault::Timeout(_) | Fault::Stalled) => {}
            other => panic!("{other:?}"),
        }
        assert!(
            started_at.elapsed() < PATIENCE,
            "timed out waiting for the fault {expected:?}"
        );
        tokio::time::sleep(ms(5)).await;
    }
}

#[tokio::test]
async fn only_the_master_that_is_loading_its_data_is_reported_as_faulty() {
    let masters = Masters::start_with(3, |_| {
        ServerOptions::new()
            .arg("--enable-debug-command")
            .arg("yes")
    })
    .expect("three masters");
    let redlock = patient_builder(&masters).build().expect("good settings");
    assert_eq!(outcome_at(&redlock, 0).await, NodeOutcome::Yes);
    for (name, value) in [
        ("loading-process-events-interval-bytes", "1024"),
        ("key-load-delay", "200"),
    ] {
        let set_reply = ask_server(&masters[0], &["CONFIG", "SET", name, value]);
        assert!(set_reply.is_ok(), "{name}: {set_reply:?}");
    }
    ask_server(&masters[0], &["DEBUG", "POPULATE", "8000", "filler", "100"]);
    let reload_thread = send_on_thread(&masters[0], &["DEBUG", "RELOAD"]);
    wait_for_fault(&redlock, &Fault::Loading).await;
    reload_thread.join().expect("no panic");
    wait_until_granted(&redlock, 0).await;
}

#[tokio::test]
async fn only_the_replica_among_the_masters_is_reported_as_faulty() {
    let masters = masters(3);
    let redlock = patient_builder(&masters).build().expect("good settings");
    assert_eq!(outcome_at(&redlock, 0).await, NodeOutcome::Yes);
    ask_server(&masters[0], &["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(fault_at(&redlock, 0).await, Fault::ReadOnly);
    ask_server(&masters[0], &["REPLICAOF", "NO", "ONE"]);
    wait_until_granted(&redlock, 0).await;
}

#[tokio::test]
async fn only_the_master_that_is_out_of_memory_is_reported_as_faulty() {
    let masters = masters(3);
    let redlock = patient_builder(&masters).build().expect("good settings");
    assert_eq!(outcome_at(&redlock, 0).await, NodeOutcome::Yes);
    ask_server(&masters[0], &["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(fault_at(&redlock, 0).await, Fault::OutOfMemory);
    ask_server(&masters[0], &["CONFIG", "SET", "maxmemory", "0"]);
    wait_until_granted(&redlock, 0).await;
}

#[tokio::test]
async fn only_the_master_that_cannot_save_its_data_is_reported_as_faulty() {
    let masters = masters(3);
    let redlock = patient_builder(&masters).build().expect("good settings");
    assert_eq!(outcome_at(&redlock, 0).await, NodeOutcome::Yes);
    let blocking_path = masters[0].dir().join("data/dump.rdb");
    std::fs::create_dir_all(blocking_path.join("x")).expect("a directory");
    ask_server(&masters[0], &["CONFIG", "SET", "save", "3600 1"]);
    ask_server(&masters[0], &["BGSAVE"]);
    wait_for_fault(&redlock, &Fault::Misconf).await;
    ask_server(&masters[0], &["CONFIG", "SET", "save", ""]);
    wait_until_granted(&redlock, 0).await;
}

const ENDLESS_SCRIPT: &[&str] = &["EVAL", "while true do end", "0"];

#[tokio::test]
async fn only_the_master_that_is_busy_with_a_script_is_reported_as_faulty() {
    let masters = masters(3);
    let redlock = patient_builder(&masters).build().expect("good settings");
    assert_eq!(outcome_at(&redlock, 0).await, NodeOutcome::Yes);
    ask_server(&masters[0], &["CONFIG", "SET", "lua-time-limit", "20"]);
    let script_thread = send_on_thread(&masters[0], ENDLESS_SCRIPT);
    wait_for_fault(&redlock, &Fault::Busy).await;
    ask_server(&masters[0], &["SCRIPT", "KILL"]);
    script_thread.join().expect("no panic");
    wait_until_granted(&redlock, 0).await;
}

#[tokio::test]
async fn release_that_a_busy_master_refuses_is_delivered_when_the_master_is_free() {
    let masters = masters(3);
    let redlock = patient_builder(&masters).build().expect("good settings");
    let outcome = redlock.lock("job").ttl(secs(30)).acquire().await;
    let guard = outcome.expect("free");
    eventually("all masters must have the key", || {
        count_masters_with(&masters, "job") == 3
    })
    .await;
    ask_server(&masters[0], &["CONFIG", "SET", "lua-time-limit", "20"]);
    let script_thread = send_on_thread(&masters[0], ENDLESS_SCRIPT);
    // Wait until the master reports that it is busy.
    wait_until_busy(&masters[0]).await;
    guard.release().await;
    redlock.flush().await;
    ask_server(&masters[0], &["SCRIPT", "KILL"]);
    script_thread.join().expect("no panic");
    wait_until_deleted(&masters, "job").await;
}

async fn wait_until_busy(server: &Server) {
    eventually("the server must report that it is busy", || {
        let reply = ask_server(server, &["PING"]);
        reply.text().is_some_and(|text| text.starts_with("BUSY"))
    })
    .await;
}

#[tokio::test]
async fn lock_key_that_does_not_hold_a_string_is_never_deleted() {
    let masters = masters(3);
    let redlock = patient_builder(&masters).build().expect("good settings");
    ask_server(&masters[0], &["RPUSH", "job", "somebody's"]);
    assert_eq!(fault_at(&redlock, 0).await, Fault::WrongType);
    ask_server(&masters[1], &["RPUSH", "job", "somebody's"]);
    let error = redlock.try_acquire("job").await.expect_err("no majority");
    assert!(error.details().contains("WRONGTYPE"), "{error}");
    redlock
        .break_lock("job")
        .await
        .expect("the name must be valid");
    redlock.flush().await;
    for master in masters.iter().take(2) {
        let list_length = ask_server(master, &["LLEN", "job"]).int();
        assert_eq!(list_length, Some(1));
    }
    assert!(!has_key(&masters[2], "job"));
}

#[tokio::test]
async fn error_names_the_missing_right_to_run_scripts() {
    let masters = Masters::start_with(3, |n| match n {
        0 => ServerOptions::new()
            .acl("app on >app-secret ~* &* +@all -evalsha")
            .login("app", "app-secret"),
        _ => ServerOptions::new(),
    })
    .expect("three masters");
    let redlock = patient_builder(&masters).build().expect("good settings");
    let fault = fault_at(&redlock, 0).await;
    assert!(
        matches!(&fault, Fault::Denied(why) if why.contains("evalsha")),
        "{fault:?}"
    );
    assert!(!fault.to_string().contains("app-secret"), "{fault}");
}

#[tokio::test]
async fn user_without_pubsub_rights_can_lock() {
    let masters = Masters::start_with(3, |_| {
        ServerOptions::new()
            .acl("app on >app-secret ~* resetchannels +@all -subscribe -publish")
            .login("app", "app-secret")
    })
    .expect("three masters");
    let redlock = patient_builder(&masters).build().expect("good settings");
    assert_eq!(outcome_at(&redlock, 0).await, NodeOutcome::Yes);
    // Without wake-ups, a waiter notices the release only when its retry timer ends.
    let guard = take(&redlock, "job").await;
    let second_task = tokio::spawn({
        let other_client = patient_builder(&masters).build().expect("good settings");
        async move { take(&other_client, "job").await.fencing_token() }
    });
    tokio::time::sleep(ms(100)).await;
    guard.release().await;
    let second_outcome = tokio::time::timeout(PATIENCE, second_task).await;
    second_outcome
        .expect("the waiter without wake-ups must get the lock in time")
        .expect("no panic")
        .expect("a token");
}

#[tokio::test]
async fn stopped_master_delays_the_calls_of_a_client_by_one_node_timeout_only() {
    let masters = masters(3);
    let node_timeout = secs(1);
    let build_result = settings(masters.urls()).node_timeout(node_timeout).build();
    let redlock = build_result.expect("good settings");
    assert_eq!(outcome_at(&redlock, 0).await, NodeOutcome::Yes);
    masters[0].stop().expect("stopped");
    let started_at = Instant::now();
    for n in 0..100 {
        take(&redlock, &format!("job {n}")).await.release().await;
    }
    // If each acquire waited for the stopped master, each would take a second, and all of them together 100 s.
    assert!(
        started_at.elapsed() < secs(20),
        "{:?}",
        started_at.elapsed()
    );
    let fault = fault_at(&redlock, 0).await;
    assert!(
        matches!(fault, Fault::Timeout(_) | Fault::Stalled | Fault::Down(_)),
        "{fault:?}"
    );
    masters[0].cont().expect("continued");
    wait_until_granted(&redlock, 0).await;
    redlock.flush().await;
    eventually("no master may have a key left", || {
        let keys = ask_server(&masters[0], &["KEYS", "job*"]);
        keys == quorate_testbed::Reply::Array(Vec::new())
    })
    .await;
}

/// The reply to `SCRIPT LOAD`, which is the SHA-1 hash of the script. The hash is the same for every script, because
/// the simulated master runs none.
const SHA_REPLY: &str = "$40\r\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n";

/// The replies of a master to a handshake, in order: to `HELLO`, to three optional commands, to `INFO`, to the read of
/// the generation marker, to `SCRIPT LOAD` for eight scripts, and to `CLIENT ID`.
const GREETING_REPLIES: [&str; 15] = [
    "%1\r\n+proto\r\n:3\r\n",
    "+OK\r\n",
    "+OK\r\n",
    "+OK\r\n",
    "$38\r\nrun_id:a\r\nuptime_in_seconds:99999999\r\n\r\n",
    "_\r\n",
    SHA_REPLY,
    SHA_REPLY,
    SHA_REPLY,
    SHA_REPLY,
    SHA_REPLY,
    SHA_REPLY,
    SHA_REPLY,
    SHA_REPLY,
    ":1\r\n",
];

/// A simulated master that takes half a second to execute a thousand commands. The client reaches it over a pipe in
/// memory.
fn slow_master() -> node::Dial {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let serve = |mut stream: tokio::io::DuplexStream| async move {
        let mut input = vec![0; 1 << 16];
        let mut pending_commands = 0;
        let mut handshakes = 0;
        let mut last_byte = 0;
        while let Ok(count @ 1..) = stream.read(&mut input).await {
            // Count commands by a star followed by a digit. Each command begins with these two characters, and no
            // argument in these tests contains them.
            for &byte in &input[..count] {
                pending_commands += usize::from(last_byte == b'*' && byte.is_ascii_digit());
                last_byte = byte;
            }
            while pending_commands > 0 {
                let is_greeting = handshakes < GREETING_REPLIES.len();
                let batch_len = pending_commands.min(if is_greeting { 1 } else { 10 });
                pending_commands -= batch_len;
                let answer = if is_greeting {
                    GREETING_REPLIES[handshakes].as_bytes().to_vec()
                } else {
                    tokio::time::sleep(ms(5)).await;
                    b"*5\r\n_\r\n:0\r\n_\r\n*0\r\n*0\r\n".repeat(batch_len)
                };
                handshakes += batch_len;
                if stream.write_all(&answer).await.is_err() {
                    return;
                }
            }
        }
    };
    std::sync::Arc::new(move |_: &str, _: u16| {
        Box::pin(async move {
            // The capacity of the pipe in bytes, similar to a socket's send buffer and receive buffer together.
            let (ours, theirs) = tokio::io::duplex(1 << 21);
            tokio::spawn(serve(theirs));
            Ok(Box::new(ours) as Box<dyn node::Stream>)
        })
    })
}

#[tokio::test]
async fn client_queues_excess_requests_to_a_slow_master_so_that_none_times_out() {
    // The master needs at least six seconds for 12,000 requests, but each request times out three seconds after the
    // client sends it. So the client must send them gradually.
    let settings = settings([""; 0]).node_timeout(secs(3)).dial(slow_master());
    let node =
        quorate::testing::connect("redis://pipe", &settings).expect("the address must be valid");
    send(&*node, status(b"warm"))
        .await
        .expect("the master must answer");
    let mut replies = ReplyCollector::new();
    for n in 0..12_000 {
        replies.send(&*node, n, status(b"job"));
    }
    for (n, answer) in replies.collect(12_000).await {
        assert!(answer.is_ok(), "request {n}: {answer:?}");
    }
}

#[tokio::test]
async fn connections_that_a_server_has_killed_are_replaced() {
    let masters = masters(3);
    let redlock = patient_builder(&masters).build().expect("good settings");
    for _ in 0..5 {
        let guard = take(&redlock, "job").await;
        for master in &masters {
            // Close all connections, including those that receive wake-ups.
            ask_server(master, &["CLIENT", "KILL", "TYPE", "normal"]);
            ask_server(master, &["CLIENT", "KILL", "TYPE", "pubsub"]);
        }
        guard.release().await;
        wait_until_deleted(&masters, "job").await;
        wait_until_granted(&redlock, 0).await;
    }
}

/// Starts a proxy in front of the first master. Returns the proxy, and the URLs of all masters. The
/// first URL is that of the proxy.
fn urls_behind_proxy(masters: &Masters) -> (Proxy, Vec<String>) {
    let proxy = Proxy::start(masters[0].addr()).expect("a proxy");
    let mut urls = masters.urls();
    urls[0] = masters[0].url_at(proxy.addr());
    (proxy, urls)
}

#[tokio::test]
async fn half_open_connection_is_replaced() {
    let masters = masters(3);
    let (proxy, urls) = urls_behind_proxy(&masters);
    let redlock = settings(urls).node_timeout(ms(100)).build().expect("good");
    wait_until_granted(&redlock, 0).await;
    let half_open = Harm::HalfOpen.inject(&proxy);
    let fault = fault_at(&redlock, 0).await;
    assert!(matches!(fault, Fault::Timeout(_)), "{fault:?}");
    wait_until_granted(&redlock, 0).await;
    half_open.heal();
    wait_until_deleted(&masters, "job").await;
}

#[tokio::test]
async fn connection_reset_in_the_middle_of_a_reply_leaves_no_lock_key() {
    let masters = masters(3);
    let (proxy, urls) = urls_behind_proxy(&masters);
    let redlock = settings(urls).node_timeout(secs(1)).build().expect("good");
    for bytes in [0, 1, 2, 5, 17, 18, 19, 20, 30, 200, 700, 900] {
        wait_until_granted(&redlock, 0).await;
        let reset = Harm::ResetAfter(bytes).inject(&proxy);
        for _ in 0..3 {
            take(&redlock, "job").await.release().await;
        }
        reset.heal();
        wait_until_deleted(&masters, "job").await;
    }
}

#[tokio::test]
async fn first_acquire_waits_for_a_slow_handshake_up_to_the_connect_timeout() {
    let masters = masters(1);
    let proxy = Proxy::start(masters[0].addr()).expect("a proxy");
    let latency = Harm::latency(Way::Both, ms(30)).inject(&proxy);
    let urls = || [masters[0].url_at(proxy.addr())];
    let builder = settings(urls())
        .node_timeout(secs(2))
        .connect_timeout(secs(5));
    let slow_client = builder.build().expect("good settings");
    let guard = slow_client.try_acquire("job").await.expect("an answer");
    guard.acquired().expect("free").release().await;
    let hasty_builder = settings(urls()).connect_timeout(ms(40));
    let hasty_client = hasty_builder.build().expect("good settings");
    let error = hasty_client
        .try_acquire("job")
        .await
        .expect_err("no handshake");
    assert!(error.details().contains("within 40ms"), "{error}");
    latency.heal();
    let started_at = Instant::now();
    while hasty_client.try_acquire("job").await.is_err() {
        assert!(
            started_at.elapsed() < PATIENCE,
            "the client must be connected in time"
        );
        tokio::time::sleep(ms(10)).await;
    }
}

#[tokio::test]
async fn idle_connection_closed_by_the_server_delays_no_call() {
    let idle = |_| ServerOptions::new().arg("--timeout").arg("1");
    let masters = Masters::start_with(3, idle).expect("three masters");
    // The server never closes an idle connection that listens for wake-ups. Unordered clients do not listen.
    let redlock = patient_builder(&masters)
        .order(quorate::Order::Unordered)
        .build()
        .expect("good settings");
    assert_eq!(outcome_at(&redlock, 0).await, NodeOutcome::Yes);
    tokio::time::sleep(ms(2500)).await;
    for n in 0..3 {
        assert_eq!(outcome_at(&redlock, n).await, NodeOutcome::Yes);
    }
}

#[tokio::test]
async fn server_that_is_configured_under_two_addresses_has_only_one_vote() {
    let masters = masters(2);
    let proxy = Proxy::start(masters[0].addr()).expect("a proxy");
    let again = masters[0].url_at(proxy.addr());
    let urls = [masters[0].url(), again, masters[1].url()];
    let build_result = settings(urls).node_timeout(secs(1)).build();
    let redlock = build_result.expect("good settings");
    let guard = take(&redlock, "job").await;
    let addresses = [masters[0].addr(), proxy.addr()].map(|addr| addr.to_string());
    let refusal_of = |n: usize| match &guard.report()[n].outcome {
        NodeOutcome::Fault(Fault::SameServer(other)) => Some(other.to_string()),
        _ => None,
    };
    eventually("the client must refuse one of the two addresses", || {
        (refusal_of(0), refusal_of(1)) == (None, Some(addresses[0].clone()))
            || (refusal_of(0), refusal_of(1)) == (Some(addresses[1].clone()), None)
    })
    .await;
    guard.release().await;
    // Two of the client's three addresses still work, but both lead to the same server. So there is no majority.
    masters[1].kill().expect("killed");
    let error = redlock.try_acquire("job").await.expect_err("no quorum");
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    assert!(error.details().contains("the same server as"), "{error}");
}

#[tokio::test]
async fn password_never_appears_in_any_output() {
    const SECRET: &str = "s3cret-passw0rd";
    let listener = Listener::default();
    let _listening = listener.listen();
    let options = |_| ServerOptions::new().password(SECRET);
    let masters = Masters::start_with(3, options).expect("three masters");
    let builder = patient_builder(&masters).retry(quorate::Retry::default());
    let mut debug_texts = format!("{builder:?}");
    let mut append = |text: String| {
        debug_texts.push_str(&text);
        debug_texts.push('\n');
    };
    let redlock = builder.build().expect("good settings");
    append(format!("{redlock:?}"));
    let guard = take(&redlock, "job").await;
    append(format!("{guard:?} {:?}", guard.report()));
    let status = redlock.status("job").await;
    append(format!("{status:?}"));
    for master in masters.iter().take(2) {
        ask_server(master, &["CONFIG", "SET", "requirepass", "another"]);
        master.kill().expect("killed");
    }
    append(format!("{:?}", guard.extend(secs(30)).await));
    let released = guard.release().await;
    append(format!("{released:?} {:?}", released.reports()));
    let error = redlock.try_acquire("job").await.expect_err("no quorum");
    append(format!("{error} {error:?}"));
    // Test a wrong password: no message may contain it.
    let wrong_url = masters[2].url().replace(SECRET, "s3cret-wrong");
    let wrong_builder = settings([wrong_url.clone()]).connect_timeout(PATIENCE);
    let wrong_client = wrong_builder.build().expect("good settings");
    let error = wrong_client.try_acquire("job").await.expect_err("denied");
    append(format!("{error} {error:?}"));
    assert!(matches!(
        error.reports()[0].outcome,
        NodeOutcome::Fault(Fault::Denied(_))
    ));
    append(listener.output());
    assert!(
        listener.output().contains("connection lost"),
        "the trace must contain an event for the lost connection"
    );
    assert!(!debug_texts.contains("s3cret"), "{debug_texts}");
}

#[tokio::test]
async fn drop_of_a_redlock_ends_its_tasks_and_connections() {
    let masters = masters(3);
    let task_count = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let count_before = task_count();
    let first_client = patient_builder(&masters).build().expect("good settings");
    let guard = take(&first_client, "job").await;
    eventually("connected", || {
        masters.iter().all(|m| count_connections(m) == 1)
    })
    .await;
    assert!(task_count() > count_before);
    drop(first_client);
    eventually(
        "all masters must have the key, because the guard keeps the client alive",
        || count_masters_with(&masters, "job") == 3,
    )
    .await;
    drop(guard);
    eventually("all tasks must have ended", || task_count() == count_before).await;
    eventually("all connections must be closed", || {
        masters.iter().all(|master| count_connections(master) == 0)
    })
    .await;
    assert_eq!(count_masters_with(&masters, "job"), 0);
}

#[tokio::test]
async fn drop_of_a_redlock_ends_its_tasks_although_a_master_is_stopped() {
    let masters = masters(3);
    let task_count = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let count_before = task_count();
    let redlock = redlock(&masters);
    let guard = take(&redlock, "job").await;
    eventually("all masters must have the key", || {
        count_masters_with(&masters, "job") == 3
    })
    .await;
    masters[0].stop().expect("stopped");
    drop(guard);
    drop(redlock);
    eventually("all tasks must have ended", || task_count() == count_before).await;
    masters[0].cont().expect("continued");
    assert_eq!(
        count_masters_with(&masters, "job"),
        0,
        "the dropped guard must have released the lock on every master"
    );
}

#[test]
fn redlock_continues_to_work_in_another_tokio_runtime() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    for round in 0..5 {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let guard = tokio::time::timeout(support::PATIENCE, take(&redlock, "job"));
            let guard = guard
                .await
                .unwrap_or_else(|_| panic!("round {round}: no answer"));
            guard.release().await;
            // The shutdown of the runtime drops these tasks and the tasks of the client's connections, in any order.
            for n in 0..20 {
                let guard = take(&redlock, &format!("{round} {n}")).await;
                tokio::spawn(async move {
                    std::future::pending::<()>().await;
                    drop(guard);
                });
            }
        });
    }
}

/// Sends an acquire with a TTL above `max_ttl` directly to a master, because the builder would refuse this TTL.
///
/// No lock may last longer than `max_ttl`, because the restart guard ignores a restarted master only for this time.
#[tokio::test]
async fn ttl_above_max_ttl_is_refused_by_the_master_itself() {
    let masters = masters(1);
    let settings = settings([""; 0]).node_timeout(secs(5)).max_ttl(secs(30));
    let node =
        quorate::testing::connect(&masters[0].url(), &settings).expect("the address must be valid");
    for (pending_commands, name) in [
        (claim(b"job", 1), "job"),
        (requests::queued(b"line", 1, 7), "line"),
    ] {
        let too_long = requests::acquire(&pending_commands, secs(30) + ms(1), 0);
        let answer = send(&*node, too_long).await;
        let Err(Fault::Server(why)) = &answer else {
            panic!("{answer:?}");
        };
        assert!(why.contains("ttl above max_ttl"), "{why}");
        let keys = ask_server(&masters[0], &["KEYS", "*"]);
        assert_eq!(keys, quorate_testbed::Reply::Array(Vec::new()), "{name}");
        let answer = send(&*node, requests::acquire(&pending_commands, secs(30), 0)).await;
        assert!(matches!(answer, Ok(Answer::Granted { .. })), "{answer:?}");
        ask_server(&masters[0], &["FLUSHALL"]);
    }
}

/// A proxy delays acquires on an old connection. The client reconnects and releases the locks. The server must never
/// execute the delayed acquires.
#[tokio::test]
async fn delayed_acquire_on_an_abandoned_connection_is_never_executed() {
    let masters = masters(1);
    let proxy = Proxy::start(masters[0].addr()).expect("a proxy");
    let settings = settings([""; 0]).node_timeout(ms(200));
    let url = masters[0].url_at(proxy.addr());
    let node = quorate::testing::connect(&url, &settings).expect("the address must be valid");
    for round in 0..3 {
        wait_for_answer(&*node).await;
        let stranded = Harm::Strand.inject(&proxy);
        let mut replies = ReplyCollector::new();
        let resources: Vec<_> = (0..20).map(|n| format!("job {round} {n}")).collect();
        let claims: Vec<_> = resources
            .iter()
            .map(|name| claim(name.as_bytes(), 1))
            .collect();
        for (n, claim) in claims.iter().enumerate() {
            replies.send(&*node, n, requests::acquire(claim, secs(30), 0));
        }
        for (_, answer) in replies.collect(claims.len()).await {
            assert!(answer.is_err(), "{answer:?}");
        }
        // Send the releases as the first requests on a new connection.
        for claim in &claims {
            claim.withdraw();
            replies.send(&*node, 0, requests::release(claim));
        }
        replies.collect(claims.len()).await;
        wait_for_answer(&*node).await;
        let bytes_before = proxy.counters().to_server;
        assert!(
            bytes_before.received > bytes_before.delivered,
            "the proxy must still delay the acquires, so that they have not reached the server"
        );
        stranded.heal();
        eventually(
            "all delayed requests must have been delivered or dropped",
            || {
                let bytes_now = proxy.counters().to_server;
                bytes_now.received == bytes_now.delivered + bytes_now.dropped
            },
        )
        .await;
        // The server executes requests in the order of their arrival. So a delivered acquire would already have set its
        // key.
        for _ in 0..2 {
            tokio::time::sleep(ms(50)).await;
            let keys = ask_server(&masters[0], &["KEYS", "job*"]);
            assert_eq!(keys, quorate_testbed::Reply::Array(Vec::new()));
        }
    }
}

async fn wait_for_answer(node: &dyn node::Node) {
    let started_at = Instant::now();
    while !matches!(send(node, status(b"warm")).await, Ok(Answer::State(_))) {
        assert!(
            started_at.elapsed() < PATIENCE,
            "the master must answer again when it continues"
        );
        tokio::time::sleep(ms(10)).await;
    }
}

/// Somebody corrects two proxies or tunnels that led to the wrong servers. A process from before this correction must
/// neither count a server twice, nor refuse the two masters for ever.
#[tokio::test]
async fn masters_whose_addresses_were_exchanged_vote_again_after_max_ttl() {
    let masters = masters(3);
    let proxies = [0, 1].map(|n| Proxy::start(masters[n].addr()).expect("a proxy"));
    let mut urls: Vec<String> = masters.urls();
    for (n, proxy) in proxies.iter().enumerate() {
        urls[n] = masters[n].url_at(proxy.addr());
    }
    let builder = settings(urls).ttl(secs(3)).max_ttl(secs(3));
    let redlock = builder.build().expect("good settings");
    for n in 0..3 {
        assert_eq!(outcome_at(&redlock, n).await, NodeOutcome::Yes);
    }
    let exchanged_at = Instant::now();
    for (n, proxy) in proxies.iter().enumerate() {
        proxy.inject(Harm::Detour(masters[1 - n].addr())).keep();
    }
    // The second connection is reset a moment later. Until then, its server must not vote at the first address.
    proxies[0].reset_all();
    tokio::time::sleep(ms(300)).await;
    proxies[1].reset_all();
    let acquire = redlock.lock("job").wait(Wait::For(PATIENCE)).acquire();
    let guard = acquire.await.expect("the masters must vote again");
    let elapsed = exchanged_at.elapsed();
    assert!(
        elapsed >= secs(3),
        "the exchanged masters voted after {elapsed:?}, but their earlier votes count for 3 s"
    );
    guard.release().await;
    for n in 0..3 {
        wait_until_granted(&redlock, n).await;
    }
}
