//! Tests of masters in memory with a paused clock of tokio. The masters follow this clock, so a test can wait for hours
//! without a delay.

use std::time::{Duration, Instant, SystemTime};

use quorate::testing::Masters;
use quorate::{LossCause, OnceOutcome, Redlock, ScopeError};

use crate::support::{PATIENCE, secs};

const PAUSE: Duration = secs(20 * 60);

fn client_of(masters: &Masters) -> Redlock {
    let settings = Redlock::builder().in_memory_on(masters);
    let settings = settings.max_ttl(2 * PAUSE).ttl(PAUSE);
    settings.build().expect("good settings")
}

#[tokio::test(start_paused = true)]
async fn lease_ends_when_the_paused_clock_reaches_its_deadline() {
    let (real_start, started_at) = (Instant::now(), tokio::time::Instant::now());
    let masters = Masters::new(3);
    let (first_client, second_client) = (client_of(&masters), client_of(&masters));
    let lock = first_client.lock("r").renewal(false);
    let guard = lock.acquire().await.expect("free");
    let lost_future = guard.lost();
    std::mem::forget(guard);
    assert_eq!(lost_future.await, LossCause::Expired);
    let loss_delay = started_at.elapsed();
    assert!(
        loss_delay > PAUSE / 2 && loss_delay <= PAUSE,
        "{loss_delay:?}"
    );
    let acquire = second_client.lock("r").wait(quorate::Wait::Forever);
    let next_guard = acquire
        .acquire()
        .await
        .expect("the waiter must get the lock");
    assert!(
        started_at.elapsed() >= loss_delay,
        "the next holder must not get the lock before the lease has ended"
    );
    tokio::time::sleep(10 * PAUSE).await;
    assert!(next_guard.is_valid(), "the lock must be renewed");
    assert!(
        real_start.elapsed() < PATIENCE,
        "{:?}",
        real_start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn advancing_the_paused_clock_acts_like_a_process_pause() {
    let masters = Masters::new(3);
    let redlock = client_of(&masters);
    let guard = redlock.acquire("r").await.expect("free");
    tokio::time::advance(PAUSE / 2).await;
    assert!(guard.is_valid());
    tokio::time::advance(2 * PAUSE).await;
    assert!(
        !guard.is_valid(),
        "the lock must be lost, because the process was paused for longer than its lease"
    );
    assert!(
        redlock.acquire("r").await.is_ok(),
        "another client must get the lock after the lease of the first holder has ended"
    );
}

/// Advances the clock until all leases of the test have expired. No other task runs, as if the process were paused.
async fn pause_process() {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let _ = sender.send(());
        tokio::time::advance(3 * PAUSE).await;
    });
    let _ = receiver.await;
}

#[tokio::test(start_paused = true)]
async fn error_about_a_lock_lost_while_a_closure_ran_contains_the_closures_result() {
    let masters = Masters::new(3);
    let first_client = client_of(&masters);
    let owner = first_client.owner("order-1").expect("the id must be valid");
    let locks_of_each_kind = || {
        [
            first_client.lock("r"),
            first_client.lock("r").shared(),
            owner.lock("r"),
            first_client.lock_all(["r", "s"]),
            first_client.semaphore("r", 2),
        ]
    };
    for lock in locks_of_each_kind() {
        let outcome = lock
            .scope(async |_| {
                pause_process().await;
                42
            })
            .await;
        let (cause, value) = (LossCause::Expired, Some(42));
        assert_eq!(outcome, Err(ScopeError::Lost { cause, value }));
    }
    // This closure ends before the lock expires. The closure below never ends, so `scope` drops it at the expiry.
    assert_eq!(first_client.scope("r", async |_| 42).await, Ok(42));
    let brief_lock = first_client.lock("r").renewal(false);
    let outcome = brief_lock.scope(async |_| std::future::pending::<()>().await);
    let (cause, value) = (LossCause::Expired, None);
    assert_eq!(outcome.await, Err(ScopeError::Lost { cause, value }));
}

#[tokio::test(start_paused = true)]
async fn error_of_a_closure_run_under_a_lock_is_returned_even_if_the_lock_is_lost() {
    let first_client = client_of(&Masters::new(3));
    let loss_in_error = |error: Box<dyn std::error::Error>| {
        matches!(
            error.downcast_ref::<ScopeError>(),
            Some(ScopeError::Lost { value: None, .. })
        )
    };
    let scope = first_client.try_scope("r", async |_| {
        pause_process().await;
        Ok(42)
    });
    assert!(scope.await.is_err_and(loss_in_error));
    let scope = first_client.try_scope("r", async |_| {
        pause_process().await;
        Err::<(), Box<dyn std::error::Error>>("no paper".into())
    });
    let error = scope
        .await
        .expect_err("the scope must return the error of its body");
    assert_eq!(error.to_string(), "no paper");
}

#[tokio::test(start_paused = true)]
async fn once_job_that_outlives_its_lock_reports_the_loss() {
    let masters = Masters::new(3);
    let (first_client, second_client) = (client_of(&masters), client_of(&masters));
    // The period began 20 minutes ago and lasts for a day, so it does not end during this test.
    let day = secs(24 * 3600);
    let today = SystemTime::now() - PAUSE;
    let today = today..today + day;
    let nightly = first_client.once_in("nightly", today.clone());
    nightly.create().await.expect("new");
    let outcome = nightly.at_most_once(async |_| {
        pause_process().await;
        42
    });
    let outlived = OnceOutcome::Outlived(42, LossCause::Expired);
    assert_eq!(outcome.await, Ok(outlived));
    let second_nightly = second_client.once_in("nightly", today.clone());
    let second_outcome = second_nightly.at_most_once(async |_| ()).await;
    assert!(
        matches!(second_outcome, Ok(OnceOutcome::AlreadyDone { .. })),
        "{second_outcome:?}"
    );
    tokio::time::sleep(day).await;
    let tomorrow = today.start + day..today.end + day;
    let tomorrow_once = first_client.once_in("nightly", tomorrow);
    let outcome = tomorrow_once.at_least_once(async |_| {
        pause_process().await;
        Ok::<_, ()>(42)
    });
    let outcome = outcome.await;
    assert!(
        matches!(outcome, Ok(OnceOutcome::NotRecorded(Ok(42), _))),
        "{outcome:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn daily_job_is_due_again_after_the_paused_clock_moved_by_a_day() {
    let day = secs(24 * 3600);
    let nightly = Redlock::in_memory(3).once("nightly", day);
    nightly.create().await.expect("new");
    let mut run_count = 0;
    for _ in 0..3 {
        let outcome = nightly.at_most_once(async |_| ()).await.expect("a quorum");
        run_count += u32::from(outcome == OnceOutcome::Done(()));
        let second_outcome = nightly.at_most_once(async |_| ()).await;
        assert!(matches!(
            second_outcome,
            Ok(OnceOutcome::AlreadyDone { .. })
        ));
        tokio::time::sleep(day).await;
    }
    assert_eq!(run_count, 3);
}
