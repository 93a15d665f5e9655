//! Tests of waiting for a lock that a foreign client holds. Foreign clients lock with plain `SET NX` and know no queue,
//! so their releases wake no waiter.

use std::time::{Duration, Instant};

use crate::support::{
    self, ask_server, count_masters_with, eventually, masters, ms, secs, settings, take,
};
use quorate::{AcquireError, Redlock, RestartGuard, StatusVerdict, TryAcquire, Wait};
use quorate_testbed::Masters;

/// The key of a master's generation marker (docs/protocol.md, "Generation markers").
const MARKER_KEY: &str = "quorate:masters";

/// A client with default settings, except that the restart guard is off and the timeouts are long enough for a busy
/// machine.
fn fair_client(masters: &Masters) -> Redlock {
    Redlock::builder()
        .masters(masters.urls())
        .restart_guard(RestartGuard::Off)
        .node_timeout(ms(500))
        .wait(Wait::For(secs(60)))
        .build()
        .expect("good settings")
}

/// A foreign client holds the lock for the time `hold_time` and then deletes the lock key. Returns the time from this
/// deletion until a waiter gets the lock.
async fn delay_after_foreign_release(
    masters: &Masters,
    resource: String,
    hold_time: Duration,
) -> Duration {
    for master in masters {
        ask_server(
            master,
            &["SET", &resource, "a plain client", "NX", "PX", "30000"],
        );
    }
    let redlock = fair_client(masters);
    let name = resource.clone();
    let waiting = tokio::spawn(async move {
        let guard = redlock.acquire(&name).await.expect(
            "the waiter must get the lock after the foreign client has deleted the lock key",
        );
        (guard, Instant::now())
    });
    tokio::time::sleep(hold_time).await;
    let released_at = Instant::now();
    for master in masters {
        ask_server(master, &["DEL", &resource]);
    }
    let (guard, acquired_at) = waiting.await.expect("no panic");
    guard.release().await;
    acquired_at.saturating_duration_since(released_at)
}

/// A waiter for a lock of a foreign client must retry at least every 250 ms, because the release does not wake it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_notices_the_release_by_a_foreign_client_within_450_ms() {
    let masters = masters(3);
    let mut delays = Vec::new();
    // Vary the hold times, so that not every release happens just before a retry of the waiter.
    for round in 0..9 {
        let hold_time = ms(2_000 + 190 * round);
        delays.push(delay_after_foreign_release(
            &masters,
            format!("x{round}"),
            hold_time,
        ));
    }
    let mut delays = futures::future::join_all(delays).await;
    delays.sort_unstable();
    assert!(delays[delays.len() / 2] < ms(450), "{delays:?}");
}

/// The number of script calls (`EVALSHA`) that the first master has received since its start.
fn count_script_calls(masters: &Masters) -> u64 {
    let reply = ask_server(&masters[0], &["INFO", "commandstats"]);
    let stats = reply.text().expect("text").into_owned();
    let evalsha_line = stats
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha:"));
    let call_count = evalsha_line.and_then(|line| line.split(['=', ',']).nth(1));
    call_count.map_or(0, |calls| calls.parse().expect("a number"))
}

/// Each retry costs requests to the masters. So a waiter must retry only while a foreign client may hold the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_retries_only_if_it_cannot_rule_out_a_foreign_holder() {
    let masters = masters(3);
    let (first, holder, waiter) = (
        fair_client(&masters),
        fair_client(&masters),
        fair_client(&masters),
    );
    let guard = first.acquire("x").await.expect("free");
    // On a busy machine, a sleep of 3 s may take longer. So the limits below depend on the measured time.
    let since_start = |(before, started_at): (u64, Instant)| {
        (count_script_calls(&masters) - before, started_at.elapsed())
    };
    let count_and_time = (count_script_calls(&masters), Instant::now());
    let holding = tokio::spawn(async move {
        holder
            .acquire("x")
            .await
            .expect("the waiter must get the lock after its release")
    });
    tokio::time::sleep(secs(3)).await;
    // After its fast retries, the waiter sends at most one request per 125 ms. The limit allows 16 requests before
    // that.
    let (count, elapsed) = since_start(count_and_time);
    let max_calls = elapsed.as_millis() / ms(125).as_millis() + 16;
    assert!(
        (5..=max_calls).contains(&count.into()),
        "the waiter must cause 5 to {max_calls} scripts, but caused {count} in {elapsed:?}"
    );
    guard.release().await;
    // This holder was queued before it got the lock. So the waiter knows that the holder's release will wake it.
    let guard = holding.await.expect("no panic");
    let count_and_time = (count_script_calls(&masters), Instant::now());
    let waiting = tokio::spawn(async move { waiter.acquire("x").await.map(drop) });
    tokio::time::sleep(secs(3)).await;
    // The waiter must send only heartbeats: at most 8 scripts in 3 s. Retries would cause at least 12.
    let (count, elapsed) = since_start(count_and_time);
    assert!(
        count <= elapsed.as_secs() + 5,
        "the waiter must send only heartbeats, but caused {count} scripts in {elapsed:?}"
    );
    guard.release().await;
    waiting
        .await
        .expect("no panic")
        .expect("the waiter must get the lock after its release");
}

#[tokio::test]
async fn foreign_lock_value_of_nine_mebibytes_does_not_affect_other_locks() {
    let masters = masters(3);
    for master in &masters {
        ask_server(master, &["SETRANGE", "big", "9437184", "x"]);
    }
    // Copying the value takes long on a busy machine.
    let build_result = settings(masters.urls())
        .ttl(secs(3))
        .node_timeout(ms(700))
        .build();
    let redlock = build_result.expect("good settings");
    let good = redlock.acquire("good").await.expect("free");
    let big_acquire = redlock.lock("big").wait(Wait::For(secs(5))).acquire();
    let both_acquire = redlock
        .lock_all(["big", "beside"])
        .wait(Wait::For(secs(5)))
        .acquire();
    let (big_acquire, both_acquire) = tokio::join!(big_acquire, both_acquire);
    for waited in [big_acquire, both_acquire] {
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

/// Without this text, an operator looks for a holder that does not exist.
#[tokio::test]
async fn error_says_that_another_program_wrote_the_lock_key_of_a_majority() {
    let masters = masters(3);
    let (redlock, holder) = (fair_client(&masters), fair_client(&masters));
    let expected_text = "is held by another program: the value of the lock key is not from quorate";
    for master in &masters {
        ask_server(master, &["SET", "job", "private"]);
    }
    let refusal_text = |tried: Result<TryAcquire, AcquireError>| match tried {
        Ok(TryAcquire::Held(refusal)) => refusal,
        other => panic!("the lock must be reported as held: {other:?}"),
    };
    let refused = refusal_text(redlock.try_acquire("job").await);
    assert!(refused.foreign, "{refused:?}");
    assert!(refused.to_string().contains(expected_text), "{refused}");
    for wait in [Wait::None, Wait::For(ms(300))] {
        let lock = redlock.lock("job").wait(wait);
        let lock = lock.waiting(|seen| assert!(seen.foreign, "{seen:?}"));
        let error = lock.acquire().await.expect_err("the lock must be held");
        assert!(error.to_string().contains(expected_text), "{error}");
        assert!(!error.details().contains("private"), "{error:?}");
        let is_foreign = matches!(&error, AcquireError::HeldByOther(missed) if missed.foreign);
        assert!(is_foreign, "{error:?}");
    }
    // The value of one master prevents no majority, so a client of quorate holds the lock.
    for master in masters.iter().skip(1) {
        ask_server(master, &["DEL", "job"]);
    }
    let guard = take(&holder, "job").await;
    let refused = refusal_text(redlock.try_acquire("job").await);
    assert!(!refused.foreign, "{refused:?}");
    assert_eq!(refused.to_string(), "the lock is held by another");
    guard.release().await;
}

#[tokio::test]
async fn lock_of_a_client_without_fencing_has_no_fencing_token() {
    let masters = masters(3);
    let classic_client = settings(masters.urls()).fencing(false).build();
    let guard = take(&classic_client.expect("good settings"), "job").await;
    assert_eq!(guard.fencing_token(), None);
}

#[tokio::test]
async fn lock_is_stored_in_the_database_that_the_url_names() {
    let masters = masters(3);
    let urls = masters.urls().into_iter().map(|url| format!("{url}/3"));
    let redlock = settings(urls).build().expect("good settings");
    let guard = take(&redlock, "job").await;
    assert_eq!(
        count_masters_with(&masters, "job"),
        0,
        "the lock key must not be in database 0, because the URL names another one"
    );
    let has_key = |master| {
        let keyspace = ask_server(master, &["INFO", "keyspace"]);
        keyspace.text().unwrap_or_default().contains("db3:")
    };
    eventually("all masters must have the key in database 3", || {
        masters.iter().all(has_key)
    })
    .await;
    guard.release().await;
}

#[tokio::test]
async fn acquire_error_names_a_generation_marker_key_that_holds_a_foreign_value() {
    for command in [
        &["SET", MARKER_KEY, "junk"][..],
        &["RPUSH", MARKER_KEY, "junk"],
    ] {
        let masters = masters(1);
        ask_server(&masters[0], command);
        let redlock = support::redlock(&masters);
        let error = redlock.try_acquire("nightly").await.unwrap_err();
        let expected_text = "quorate:masters holds something that is not a generation marker";
        assert!(error.details().contains(expected_text), "{error}");
        assert_eq!(
            ask_server(&masters[0], &["EXISTS", "nightly"]).int(),
            Some(0)
        );
    }
}
