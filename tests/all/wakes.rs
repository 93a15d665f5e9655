//! Tests of the wake-ups that real masters send to waiters. All timers are far in the future, so a waiter that gets no
//! wake-up would wait forever.

use std::time::Duration;

use crate::support::waiter::{Waiter, wait_for_guard};
use crate::support::{ask_server, eventually, masters, secs, settings, take};
use quorate::{Redlock, Retry, Wait};
use quorate_testbed::{Masters, Reply};

/// Ten minutes, which is longer than any test of this file waits.
const TEN_MINUTES: Duration = secs(600);

fn client_of(masters: &Masters) -> Redlock {
    let settings = settings(masters.urls())
        .max_ttl(TEN_MINUTES)
        .ttl(TEN_MINUTES)
        .heartbeat(TEN_MINUTES)
        .retry(Retry::new(TEN_MINUTES, TEN_MINUTES))
        .node_timeout(secs(5))
        .wait(Wait::Forever);
    settings.build().expect("good settings")
}

/// Starts a waiter that uses a separate client, and waits until it is queued at the position `position` on every master.
/// The first waiter has the position 1.
async fn start_waiter(masters: &Masters, position: i64) -> Waiter {
    let redlock = client_of(masters);
    let waiting_task = tokio::spawn(async move { redlock.acquire("job").await });
    eventually("the waiter must be queued", || {
        let queue_length = |master| ask_server(master, &["ZCARD", "quorate:queue:job"]);
        masters
            .iter()
            .all(|master| queue_length(master).int() == Some(position))
    })
    .await;
    waiting_task
}

/// The number of clients that listen for wake-ups on the master with the fewest listeners.
fn count_listeners(masters: &Masters) -> usize {
    let channel_count = |master| match ask_server(master, &["PUBSUB", "CHANNELS", "quorate:wake:*"])
    {
        Reply::Array(channel_count) => channel_count.len(),
        other => panic!("{other:?}"),
    };
    masters.iter().map(channel_count).min().unwrap_or(0)
}

#[tokio::test]
async fn each_release_wakes_the_next_waiter() {
    let masters = masters(3);
    let guard = take(&client_of(&masters), "job").await;
    let first_waiter = start_waiter(&masters, 1).await;
    let second_waiter = start_waiter(&masters, 2).await;
    guard.release().await;
    let guard = wait_for_guard(first_waiter).await;
    drop(guard);
    wait_for_guard(second_waiter).await.release().await;
}

#[tokio::test]
async fn waiter_is_woken_after_its_connections_were_replaced() {
    let masters = masters(3);
    let guard = take(&client_of(&masters), "job").await;
    let waiter = start_waiter(&masters, 1).await;
    assert_eq!(count_listeners(&masters), 2);
    for master in &masters {
        ask_server(master, &["CLIENT", "KILL", "TYPE", "normal"]);
        ask_server(master, &["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
    // The clients must listen for wake-ups again immediately, and not only when they send their next request.
    eventually("both clients must listen for wake-ups again", || {
        count_listeners(&masters) == 2
    })
    .await;
    guard.release().await;
    wait_for_guard(waiter).await.release().await;
}

#[tokio::test]
async fn waiter_that_leaves_while_the_lock_is_free_wakes_the_next_waiter() {
    let masters = masters(3);
    let _guard = take(&client_of(&masters), "job").await;
    let first_waiter = start_waiter(&masters, 1).await;
    let second_waiter = start_waiter(&masters, 2).await;
    // Delete the lock key without sending a wake-up, as if the key had expired.
    for master in &masters {
        ask_server(master, &["DEL", "job"]);
    }
    first_waiter.abort();
    wait_for_guard(second_waiter).await.release().await;
}
