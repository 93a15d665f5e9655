//! Tests of waiting for a lock together with clients that do not know the queue: their releases wake no waiter.

use std::time::{Duration, Instant};

use crate::support::{self, ask_server, eventually, holders, masters, ms, secs, settings, take};
use quorate::{AcquireError, Redlock, RestartGuard, StatusVerdict, Wait};
use quorate_testbed::Masters;

/// The key of the generation marker.
const MARKER: &str = "quorate:masters";

/// A client with default settings, with two exceptions: it trusts masters that have just started, and its timeouts are
/// long enough for a busy machine.
fn fair(masters: &Masters) -> Redlock {
    Redlock::builder()
        .masters(masters.urls())
        .restart_guard(RestartGuard::Off)
        .node_timeout(ms(500))
        .wait(Wait::For(secs(60)))
        .build()
        .expect("good settings")
}

/// Returns how long a waiter needs to get the lock after a foreign client has deleted its lock key. The foreign client
/// holds the lock for `hold`.
async fn after_a_foreign_release(masters: &Masters, resource: String, hold: Duration) -> Duration {
    for master in masters {
        ask_server(
            master,
            &["SET", &resource, "a plain client", "NX", "PX", "30000"],
        );
    }
    let redlock = fair(masters);
    let name = resource.clone();
    let waiting = tokio::spawn(async move {
        let guard = redlock
            .acquire(&name)
            .await
            .expect("the waiter must get the lock");
        (guard, Instant::now())
    });
    tokio::time::sleep(hold).await;
    let released = Instant::now();
    for master in masters {
        ask_server(master, &["DEL", &resource]);
    }
    let (guard, got) = waiting.await.expect("no panic");
    guard.release().await;
    got.saturating_duration_since(released)
}

/// Tests how soon a waiter notices that a foreign client has released the lock. Its fallback timer asks the masters
/// after a third of the heartbeat time, which is 1.7 s at the default TTL. With this timer alone, the waiter would
/// notice the release 0.83 s late on average. With retries, it notices the release at most 250 ms late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_notices_the_release_of_a_foreign_client_by_retrying() {
    let masters = masters(3);
    let mut took = Vec::new();
    // Use holds of different lengths, so that no fixed interval between retries matches them all.
    for round in 0..9 {
        let hold = ms(2_000 + 190 * round);
        took.push(after_a_foreign_release(&masters, format!("x{round}"), hold));
    }
    let mut took = futures::future::join_all(took).await;
    took.sort_unstable();
    assert!(took[took.len() / 2] < ms(450), "{took:?}");
}

/// The number of scripts that a master has been asked to run so far.
fn scripts(masters: &Masters) -> u64 {
    let stats = ask_server(&masters[0], &["INFO", "commandstats"]);
    let stats = stats.text().expect("text").into_owned();
    let line = stats
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha:"));
    let calls = line.and_then(|line| line.split(['=', ',']).nth(1));
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// Tests that a waiter retries only while the holder may be a foreign client, because retries cost messages. The
/// retries stop once the holder is a client that has a ticket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_that_polls_a_foreign_holder_sends_a_bounded_number_of_messages() {
    let masters = masters(3);
    let (first, holder, waiter) = (fair(&masters), fair(&masters), fair(&masters));
    let guard = first.acquire("x").await.expect("free");
    // On a busy machine, a pause of 3 s may last longer. So each limit grows with the time that has passed.
    let looked = |(before, began): (u64, Instant)| (scripts(&masters) - before, began.elapsed());
    let start = (scripts(&masters), Instant::now());
    let holding = tokio::spawn(async move {
        holder
            .acquire("x")
            .await
            .expect("the waiter must get the lock")
    });
    tokio::time::sleep(secs(3)).await;
    // Retries follow after 10 ms, growing by the factor 1.6 up to 250 ms. Each pause is drawn from the upper half of
    // that time, so it is at least 125 ms in the end. The first seven pauses are shorter. The limit has room for these,
    // for the two earlier attempts, and for scripts of the holder's renewal. It is 40 scripts in 3 s.
    let (count, passed) = looked(start);
    let most = passed.as_millis() / ms(125).as_millis() + 16;
    assert!(
        (5..=most).contains(&count.into()),
        "the waiter caused {count} scripts in {passed:?}"
    );
    guard.release().await;
    // The holder was queued before it got the lock. Its ticket shows the waiter that the holder's release will wake it.
    let guard = holding.await.expect("no panic");
    let start = (scripts(&masters), Instant::now());
    let waiting = tokio::spawn(async move { waiter.acquire("x").await.map(drop) });
    tokio::time::sleep(secs(3)).await;
    // The waiter sends a heartbeat every 1.7 s. The limit is 8 scripts in 3 s.
    let (count, passed) = looked(start);
    assert!(
        count <= passed.as_secs() + 5,
        "the waiter caused {count} scripts in {passed:?}"
    );
    guard.release().await;
    waiting
        .await
        .expect("no panic")
        .expect("the waiter must get the lock");
}

#[tokio::test]
async fn large_foreign_value_in_a_lock_key_affects_no_other_lock() {
    let masters = masters(3);
    for master in &masters {
        ask_server(master, &["SETRANGE", "big", "9437184", "x"]);
    }
    let redlock = settings(masters.urls()).ttl(secs(3)).build();
    let redlock = redlock.expect("good settings");
    let good = redlock.acquire("good").await.expect("free");
    let one = redlock.lock("big").wait(Wait::For(secs(5))).acquire();
    let both = redlock
        .lock_all(["big", "beside"])
        .wait(Wait::For(secs(5)))
        .acquire();
    let (one, both) = tokio::join!(one, both);
    for waited in [one, both] {
        assert!(
            matches!(waited, Err(AcquireError::HeldByOther(_))),
            "{waited:?}"
        );
    }
    let status = redlock.status("big").await.expect("a name");
    let verdict = status.verdict();
    assert!(matches!(verdict, StatusVerdict::Held(_)), "{verdict:?}");
    assert!(good.is_valid(), "{:?}", good.report());
}

#[tokio::test]
async fn lock_of_the_classic_algorithm_has_no_fencing_token() {
    let masters = masters(3);
    let classic = settings(masters.urls()).fencing(false).build();
    let guard = take(&classic.expect("good settings"), "job").await;
    assert_eq!(guard.fencing_token(), None);
}

#[tokio::test]
async fn lock_is_stored_in_the_database_that_the_url_names() {
    let masters = masters(3);
    let urls = masters.urls().into_iter().map(|url| format!("{url}/3"));
    let redlock = settings(urls).build().expect("good settings");
    let guard = take(&redlock, "job").await;
    assert_eq!(
        holders(&masters, "job"),
        0,
        "the lock key must not be in database 0, because the URL names another one"
    );
    let stands = |master| {
        let keyspace = ask_server(master, &["INFO", "keyspace"]);
        keyspace.text().unwrap_or_default().contains("db3:")
    };
    eventually("all masters must have the key in database 3", || {
        masters.iter().all(stands)
    })
    .await;
    guard.release().await;
}

#[tokio::test]
async fn foreign_value_in_the_key_of_the_generation_marker_is_named_in_the_error_of_an_acquire() {
    for put in [&["SET", MARKER, "junk"][..], &["RPUSH", MARKER, "junk"]] {
        let masters = masters(1);
        ask_server(&masters[0], put);
        let redlock = support::redlock(&masters);
        let why = redlock.try_acquire("nightly").await.unwrap_err();
        let named = "quorate:masters holds something that is not a generation marker";
        assert!(why.details().contains(named), "{why}");
        assert_eq!(
            ask_server(&masters[0], &["EXISTS", "nightly"]).int(),
            Some(0)
        );
    }
}
