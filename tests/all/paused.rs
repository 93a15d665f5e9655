//! Tests of masters in memory with a paused clock of tokio. The masters follow this clock, so a test can wait for hours
//! without a delay.

use std::time::{Duration, Instant, SystemTime};

use quorate::testing::Masters;
use quorate::{LossCause, OnceOutcome, Redlock, ScopeError};

use crate::support::{PATIENCE, secs};

const LONG: Duration = secs(20 * 60);

fn over(masters: &Masters) -> Redlock {
    let settings = Redlock::builder().in_memory_on(masters);
    let settings = settings.max_ttl(2 * LONG).ttl(LONG);
    settings.build().expect("good settings")
}

#[tokio::test(start_paused = true)]
async fn lease_ends_when_the_paused_clock_reaches_its_deadline() {
    let (really, started_at) = (Instant::now(), tokio::time::Instant::now());
    let masters = Masters::new(3);
    let (here, there) = (over(&masters), over(&masters));
    let lock = here.lock("r").renewal(false);
    let guard = lock.acquire().await.expect("free");
    let lost = guard.lost();
    std::mem::forget(guard);
    assert_eq!(lost.await, LossCause::Expired);
    let told = started_at.elapsed();
    assert!(told > LONG / 2 && told <= LONG, "{told:?}");
    let waits = there.lock("r").wait(quorate::Wait::Forever);
    let next = waits.acquire().await.expect("the waiter must get the lock");
    assert!(
        started_at.elapsed() >= told,
        "the next holder must not get the lock before the lease has ended"
    );
    tokio::time::sleep(10 * LONG).await;
    assert!(next.is_valid(), "the lock must be renewed");
    assert!(really.elapsed() < PATIENCE, "{:?}", really.elapsed());
}

#[tokio::test(start_paused = true)]
async fn advancing_the_paused_clock_acts_like_a_process_pause() {
    let masters = Masters::new(3);
    let redlock = over(&masters);
    let guard = redlock.acquire("r").await.expect("free");
    tokio::time::advance(LONG / 2).await;
    assert!(guard.is_valid());
    tokio::time::advance(2 * LONG).await;
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
async fn stand_still() {
    let (wake, woken) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let _ = wake.send(());
        tokio::time::advance(3 * LONG).await;
    });
    let _ = woken.await;
}

#[tokio::test(start_paused = true)]
async fn error_about_a_lock_lost_while_a_closure_ran_contains_the_closures_result() {
    let masters = Masters::new(3);
    let here = over(&masters);
    let owner = here.owner("order-1").expect("the id must be valid");
    let kinds = || {
        [
            here.lock("r"),
            here.lock("r").shared(),
            owner.lock("r"),
            here.lock_all(["r", "s"]),
            here.semaphore("r", 2),
        ]
    };
    for lock in kinds() {
        let ended = lock
            .scope(async |_| {
                stand_still().await;
                42
            })
            .await;
        let (cause, value) = (LossCause::Expired, Some(42));
        assert_eq!(ended, Err(ScopeError::Lost { cause, value }));
    }
    // This closure ends before the lock expires. The closure below never ends, so `scope` drops it at the expiry.
    assert_eq!(here.scope("r", async |_| 42).await, Ok(42));
    let brief = here.lock("r").renewal(false);
    let dropped = brief.scope(async |_| std::future::pending::<()>().await);
    let (cause, value) = (LossCause::Expired, None);
    assert_eq!(dropped.await, Err(ScopeError::Lost { cause, value }));
}

#[tokio::test(start_paused = true)]
async fn error_of_a_closure_run_under_a_lock_is_returned_even_if_the_lock_is_lost() {
    let here = over(&Masters::new(3));
    let lost = |error: Box<dyn std::error::Error>| {
        matches!(
            error.downcast_ref::<ScopeError>(),
            Some(ScopeError::Lost { value: None, .. })
        )
    };
    let scope = here.try_scope("r", async |_| {
        stand_still().await;
        Ok(42)
    });
    assert!(scope.await.is_err_and(lost));
    let scope = here.try_scope("r", async |_| {
        stand_still().await;
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
    let (here, there) = (over(&masters), over(&masters));
    // The period began 20 minutes ago and lasts for a day, so it does not end during this test.
    let day = secs(24 * 3600);
    let today = SystemTime::now() - LONG;
    let today = today..today + day;
    let nightly = here.once_in("nightly", today.clone());
    nightly.create().await.expect("new");
    let late = nightly.at_most_once(async |_| {
        stand_still().await;
        42
    });
    let outlived = OnceOutcome::Outlived(42, LossCause::Expired);
    assert_eq!(late.await, Ok(outlived));
    let again = there.once_in("nightly", today.clone());
    let again = again.at_most_once(async |_| ()).await;
    assert!(
        matches!(again, Ok(OnceOutcome::AlreadyDone { .. })),
        "{again:?}"
    );
    tokio::time::sleep(day).await;
    let tomorrow = today.start + day..today.end + day;
    let late = here.once_in("nightly", tomorrow);
    let late = late.at_least_once(async |_| {
        stand_still().await;
        Ok::<_, ()>(42)
    });
    let late = late.await;
    assert!(
        matches!(late, Ok(OnceOutcome::NotRecorded(Ok(42), _))),
        "{late:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn daily_job_is_due_again_after_the_paused_clock_moved_by_a_day() {
    let day = secs(24 * 3600);
    let nightly = Redlock::in_memory(3).once("nightly", day);
    nightly.create().await.expect("new");
    let mut done = 0;
    for _ in 0..3 {
        let outcome = nightly.at_most_once(async |_| ()).await.expect("a quorum");
        done += u32::from(outcome == OnceOutcome::Done(()));
        let again = nightly.at_most_once(async |_| ()).await;
        assert!(matches!(again, Ok(OnceOutcome::AlreadyDone { .. })));
        tokio::time::sleep(day).await;
    }
    assert_eq!(done, 3);
}
