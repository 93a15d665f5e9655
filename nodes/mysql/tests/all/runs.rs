//! Tests of a server's uptime. quorate ignores the vote of a server that was started too recently.

use std::time::{Duration, Instant};

use crate::common::{is_mariadb_missing, start_prepared, start_unprepared};
use quorate::node::store::{Store as _, StoreNode};
use quorate::{Redlock, RestartGuard, TryAcquire};
use quorate_mysql::{MySql, prepare};
use quorate_testbed::{ClockShim, MariaDb, MariaDbOptions, OffsetFile, Skew, not_run};

const HOUR: Duration = Duration::from_secs(3600);

/// Starts and prepares a server whose clock is an hour behind. `flush` is the value of
/// `innodb_flush_log_at_trx_commit`.
///
/// Returns the server, a store that uses it, and the file with the offset of the server's clock. Returns `None` if
/// MariaDB or a C compiler is not installed.
async fn start_an_hour_behind(flush: u8) -> Option<(MariaDb, MySql, OffsetFile)> {
    if is_mariadb_missing() {
        return None;
    }
    let shim = match ClockShim::build() {
        Ok(shim) => shim,
        Err(error) => {
            let test_thread = std::thread::current();
            not_run(test_thread.name().unwrap_or("a test"), &error.to_string());
            return None;
        }
    };
    let offset = shim.offset_file().expect("the offset file must be created");
    offset.set(HOUR, Skew::Behind).expect("set");
    let options = MariaDbOptions::new().flush(flush).clock(&shim, &offset);
    let (server, store) = start_prepared(options).await?;
    Some((server, store, offset))
}

async fn reported_uptime(store: &MySql) -> Duration {
    let (_, greeting) = store.connect().await.expect("connected");
    greeting
        .uptime
        .expect("the store must report an uptime, because it may lose records")
}

#[tokio::test]
async fn server_uptime_does_not_change_when_the_wall_clock_is_set() {
    let started_at = Instant::now();
    let Some((_server, store, offset)) = start_an_hour_behind(2).await else {
        return;
    };
    let second = Duration::from_secs(1);
    assert!(reported_uptime(&store).await <= started_at.elapsed() + second);
    offset
        .clear()
        .expect("the clock must be set to the true time");
    let uptime_after_jump_ahead = reported_uptime(&store).await;
    assert!(
        uptime_after_jump_ahead <= started_at.elapsed() + second,
        "{uptime_after_jump_ahead:?}"
    );
    tokio::time::sleep(3 * second).await;
    offset
        .set(2 * HOUR, Skew::Behind)
        .expect("the clock must be set two hours behind");
    let uptime_after_jump_back = reported_uptime(&store).await;
    assert!(
        uptime_after_jump_back <= started_at.elapsed() + second,
        "{uptime_after_jump_back:?}"
    );
    assert!(
        uptime_after_jump_back >= 3 * second,
        "the uptime must not restart at zero when the clock is set back: {uptime_after_jump_back:?}"
    );
    offset
        .set(24 * HOUR, Skew::Ahead)
        .expect("the clock must be set a day ahead");
    let inspected_uptime = store.inspect().await.uptime.expect("seen");
    assert!(
        inspected_uptime <= started_at.elapsed() + second,
        "{inspected_uptime:?}"
    );
}

#[tokio::test]
async fn restarted_server_does_not_vote_even_if_its_clock_is_set_forward() {
    // With `innodb_flush_log_at_trx_commit = 0`, the restart below loses the lock's record.
    let Some((server, _, offset)) = start_an_hour_behind(0).await else {
        return;
    };
    let redlock = |guard| {
        let url = format!("{}?timeout=2s", server.url("locks"));
        let store = MySql::open(&url).expect("a URL");
        let builder = Redlock::builder().node(StoreNode::new(store));
        // Longer than any busy machine needs for the steps below.
        let ttl = Duration::from_secs(600);
        let builder = builder.ttl(ttl).max_ttl(ttl).restart_guard(guard);
        builder.build().expect("a Redlock")
    };
    // The server flushes the schema to disk within a second, so the schema survives the crash.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let holder = redlock(RestartGuard::Off);
    let lock_result = holder.lock("a").renewal(false).acquire().await;
    let lock_guard = lock_result.expect("the lock");
    server.restart().expect("back");
    offset
        .clear()
        .expect("the clock must be set to the true time");
    let second_outcome = redlock(RestartGuard::On).try_acquire("a").await;
    assert!(
        lock_guard.is_valid(),
        "the machine is too slow for this test"
    );
    let refusal = match second_outcome {
        Ok(TryAcquire::Acquired(_)) => {
            panic!("two clients must not hold the lock at the same time")
        }
        Ok(_) => "held by another".to_owned(),
        Err(error) => error.details(),
    };
    assert!(refusal.contains("restart guard"), "{refusal}");
}

#[tokio::test]
async fn server_counts_as_restarted_when_its_record_table_is_recreated() {
    let Some(server) = start_unprepared(MariaDbOptions::new().flush(2)) else {
        return;
    };
    let url = server.url("locks");
    prepare(&url).await.expect("prepared");
    let store = MySql::open(&format!("{url}?timeout=5s")).expect("a URL");
    let (_, first_greeting) = store.connect().await.expect("connected");
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(reported_uptime(&store).await >= Duration::from_secs(3));
    server
        .sql("DROP TABLE locks.quorate_record")
        .expect("dropped");
    let started_at = Instant::now();
    assert!(prepare(&url).await.expect("prepared").made);
    let (_, greeting) = store.connect().await.expect("connected");
    let reported = greeting
        .uptime
        .expect("the store must report an uptime, because it may lose records");
    assert!(
        reported <= started_at.elapsed(),
        "the reported uptime {reported:?} must not exceed the real uptime {:?}",
        started_at.elapsed()
    );
    assert_ne!(
        greeting.run, first_greeting.run,
        "a server whose records were recreated must report another run"
    );
    // After a restart of the server, the reported uptime must count from the restart.
    let started_at = Instant::now();
    server.restart().expect("back");
    let second = Duration::from_secs(1);
    assert!(reported_uptime(&store).await <= started_at.elapsed() + second);
}

#[tokio::test]
async fn lock_whose_record_was_dropped_is_not_granted_again_before_it_expires() {
    let Some((server, _)) = start_prepared(MariaDbOptions::new().flush(2)).await else {
        return;
    };
    let url = server.url("locks");
    let ttl = Duration::from_secs(8);
    let redlock = || {
        let store = MySql::open(&format!("{url}?timeout=2s&lanes=1")).expect("a URL");
        let builder = Redlock::builder().node(StoreNode::new(store));
        let builder = builder.ttl(ttl).max_ttl(ttl);
        builder.build().expect("a Redlock")
    };
    let (holder, other_client) = (redlock(), redlock());
    // First each client acquires a lock: this opens its session, and waits until the server is old enough to vote.
    for client in [&holder, &other_client] {
        let lock_result = client.acquire("b").await;
        lock_result
            .expect("the server must grant the lock once it is old enough to vote")
            .release()
            .await;
    }
    let lock_result = holder.lock("a").renewal(false).acquire().await;
    let lock_guard = lock_result.expect("the lock");
    server
        .sql("DROP TABLE locks.quorate_record")
        .expect("dropped");
    prepare(&url).await.expect("prepared");
    let outcome = other_client.try_acquire("a").await;
    assert!(
        lock_guard.is_valid(),
        "the machine is too slow for this test"
    );
    let is_acquired = outcome.is_ok_and(|outcome| matches!(outcome, TryAcquire::Acquired(_)));
    assert!(
        !is_acquired,
        "two clients must not hold the lock at the same time"
    );
}
