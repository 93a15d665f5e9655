//! Tests of acquiring, holding and releasing one lock on real masters. Some tests kill or stop masters.

use std::time::Duration;

use quorate::{AcquireError, LossCause, Redlock, RestartGuard, TryAcquire, Wait};
use quorate_testbed::Masters;

fn redlock(masters: &Masters) -> Redlock {
    Redlock::builder()
        .masters(masters.urls())
        .restart_guard(RestartGuard::Off)
        // The node timeout is 500 ms, ten times the default. On a busy machine, even a healthy master sometimes needs
        // more than the default of 50 ms.
        .node_timeout(Duration::from_millis(500))
        .build()
        .expect("good settings")
}

#[tokio::test]
async fn held_lock_is_refused_to_another_caller_until_it_is_released() {
    let masters = Masters::start(5).expect("five masters");
    let redlock = redlock(&masters);
    let guard = redlock.acquire("nightly").await.expect("free");
    assert!(guard.is_valid());
    assert!(guard.fencing_token().is_some());
    let other = redlock.try_acquire("nightly").await.expect("a quorum");
    assert!(matches!(other, TryAcquire::Held(_)), "{other:?}");
    let released = guard.release().await;
    assert_eq!(released.unreachable, 0, "{released:?}");
    redlock.flush().await;
    for master in &masters {
        let reply = master
            .command(&["EXISTS", "nightly"])
            .expect("the server must answer EXISTS");
        assert_eq!(reply.int(), Some(0));
    }
    let again = redlock
        .acquire("nightly")
        .await
        .expect("the acquire after the release must succeed");
    drop(again);
}

#[tokio::test]
async fn acquire_succeeds_with_two_of_five_masters_down_and_fails_with_three_down() {
    let masters = Masters::start(5).expect("five masters");
    let redlock = redlock(&masters);
    drop(
        redlock
            .acquire("job")
            .await
            .expect("the acquire must succeed, because all masters are up"),
    );
    masters[0].kill().expect("killed");
    masters[1].stop().expect("stopped");
    for n in 0..5 {
        let guard = redlock
            .acquire("job")
            .await
            .unwrap_or_else(|error| panic!("{n}: {error}"));
        guard.release().await;
    }
    masters[2].kill().expect("killed");
    let error = redlock
        .lock("job")
        .wait(Wait::For(Duration::from_millis(300)))
        .acquire()
        .await
        .expect_err("no quorum");
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    println!("{error}");
}

#[tokio::test]
async fn holder_is_notified_that_its_lock_was_force_released() {
    let masters = Masters::start(3).expect("three masters");
    let redlock = redlock(&masters);
    let guard = redlock
        .lock("x")
        .ttl(Duration::from_secs(3))
        .acquire()
        .await
        .expect("free");
    redlock
        .break_lock("x")
        .await
        .expect("the name must be valid");
    let thief = redlock
        .acquire("x")
        .await
        .expect("the lock must be granted after its force-release");
    let cause = guard.lost().await;
    assert_eq!(cause, LossCause::TakenAway);
    assert!(thief.fencing_token() > guard.fencing_token());
}

#[tokio::test]
async fn debug_text_of_an_acquire_error_contains_each_master_name_and_the_majority() {
    let masters = quorate::testing::Masters::new(3);
    let redlock = || {
        let redlock = Redlock::builder().in_memory_on(&masters).build();
        redlock.expect("good settings")
    };
    let (here, there) = (redlock(), redlock());
    let _held = here.acquire("job").await.expect("free");
    let waiting = there.lock("job").wait(Wait::For(Duration::from_millis(50)));
    let error = waiting.acquire().await.expect_err("held");
    let text = format!("{error:?}");
    assert!(text.contains("majority: 2 of 3"), "{text}");
    for name in there.masters() {
        assert!(text.contains(&format!("node: \"{name}\"")), "{text}");
    }
}
