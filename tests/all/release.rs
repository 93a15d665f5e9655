//! Tests of releases through a shared reference: a second release, and a release while other calls use the guard.

use std::sync::Arc;

use quorate::{ExtendError, LockGuard, LossCause, Redlock, ScopeError, Wait};

use crate::support::{count_masters_with, eventually, masters, ms, redlock, secs, take};

/// Acquires the lock again, to check that nobody holds it.
async fn assert_is_free(redlock: &Redlock, resource: &str) {
    let guard = redlock.lock(resource).wait(Wait::None).acquire().await;
    assert!(guard.is_ok(), "{guard:?}");
}

#[tokio::test]
async fn second_release_of_a_guard_reports_that_the_lock_was_not_valid() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let guard = take(&redlock, "r").await;
    let first = guard.release().await;
    assert!(first.was_valid && first.on >= 2, "{first:?}");
    assert_eq!(guard.loss(), Some(LossCause::Released));
    redlock.flush().await;
    let next_guard = take(&redlock, "r").await;
    let second = guard.release().await;
    assert!(!second.was_valid && second.on == 0, "{second:?}");
    assert!(second.expired_on >= 2, "{second:?}");
    let extension = guard.extend(secs(20)).await;
    assert_eq!(extension, Err(ExtendError::Lost(LossCause::Released)));
    drop(guard);
    redlock.flush().await;
    assert_eq!(
        count_masters_with(&masters, "r"),
        3,
        "neither a second release nor the drop may delete the keys of the next holder"
    );
    assert!(next_guard.is_valid());
}

#[tokio::test]
async fn release_whose_future_is_never_polled_releases_the_lock() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let guard = take(&redlock, "r").await;
    drop(guard.release());
    assert!(!guard.is_valid());
    redlock.flush().await;
    assert_eq!(count_masters_with(&masters, "r"), 0);
}

#[tokio::test]
async fn release_ends_an_extension_that_waits_for_its_answers() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let guard = Arc::new(take(&redlock, "r").await);
    masters[0].stop().expect("stopped");
    masters[1].stop().expect("stopped");
    let extended_guard = guard.clone();
    let extension = tokio::spawn(async move { extended_guard.extend(secs(20)).await });
    tokio::time::sleep(ms(50)).await;
    let release = guard.release();
    let result = extension.await.expect("no panic");
    assert_eq!(result, Err(ExtendError::Lost(LossCause::Released)));
    for stopped in &masters.iter().collect::<Vec<_>>()[..2] {
        stopped.cont().expect("continued");
    }
    assert!(release.await.was_valid);
    eventually("no master may have the key", || {
        count_masters_with(&masters, "r") == 0
    })
    .await;
}

#[tokio::test]
async fn every_kind_of_lock_can_be_released_while_its_guard_is_shared() {
    let redlock = Redlock::in_memory(3);
    let acquire = async |request: quorate::LockRequest| request.acquire().await.expect("free");
    let guards = [
        acquire(redlock.lock("plain")).await,
        acquire(redlock.lock("readers").shared()).await,
        acquire(redlock.lock_all(["a", "b"])).await,
        acquire(redlock.semaphore("seats", 1)).await,
    ];
    for guard in guards.map(Arc::new) {
        let shared_guard: Arc<LockGuard> = guard.clone();
        let lost = tokio::spawn(async move { shared_guard.lost().await });
        assert!(guard.release().await.was_valid);
        assert_eq!(lost.await.expect("no panic"), LossCause::Released);
    }
    for resource in ["plain", "readers", "a", "b"] {
        assert_is_free(&redlock, resource).await;
    }
    drop(acquire(redlock.semaphore("seats", 1)).await);
    let election = redlock.election("leader");
    let leadership = election.campaign("here").await.expect("elected");
    assert!(leadership.resign().await.was_valid);
    assert!(!leadership.is_valid());
    assert!(!leadership.resign().await.was_valid);
    let successor = election.wait(Wait::None).campaign("here").await;
    assert!(successor.is_ok(), "{successor:?}");
}

#[tokio::test]
async fn hold_of_an_owner_ends_when_each_clone_was_released_or_dropped() {
    let redlock = Redlock::in_memory(3);
    let owner = redlock.owner("worker").expect("a valid id");
    let first = owner.acquire("r").await.expect("free");
    let (second, third) = (first.clone(), first.clone());
    assert!(first.release().await.is_none());
    assert!(
        first.release().await.is_none(),
        "a second release counts nothing"
    );
    let copy_of_released = first.clone();
    drop(third);
    assert!(first.is_valid() && second.is_valid());
    let again = owner.acquire("r").await.expect("joined");
    assert_eq!(again.token(), second.token());
    assert!(second.release().await.is_none());
    let released = again.release().await.expect("the last one");
    assert!(released.was_valid);
    assert!(!first.is_valid() && !copy_of_released.is_valid());
    let next_hold = owner.acquire("r").await.expect("free");
    assert_ne!(next_hold.token(), first.token());
    // The released guards still exist while the last one that counts is dropped.
    let released_clone = next_hold.clone();
    assert!(released_clone.release().await.is_none());
    drop(next_hold);
    assert_eq!(released_clone.loss(), Some(LossCause::Released));
    redlock.flush().await;
    assert_is_free(&redlock, "r").await;
}

#[tokio::test]
async fn scope_whose_body_releases_its_lock_reports_the_release() {
    let redlock = Redlock::in_memory(3);
    let outcome = redlock
        .scope("r", async |guard| {
            drop(guard.release());
            std::future::pending::<()>().await;
        })
        .await;
    let (cause, value) = (LossCause::Released, None);
    assert_eq!(outcome, Err(ScopeError::Lost { cause, value }));
    assert_is_free(&redlock, "r").await;
}

#[tokio::test]
async fn release_all_releases_what_is_held_and_nothing_of_later_holders() {
    let masters = masters(3);
    let (client, other_client) = (redlock(&masters), redlock(&masters));
    assert_eq!(client.release_all().await, 0);
    let plain = take(&client, "plain").await;
    let fixed = client.lock("fixed").renewal(false).acquire().await;
    let fixed = fixed.expect("free");
    let permit = client.semaphore("seats", 1).acquire().await.expect("free");
    let of_other_client = take(&other_client, "other").await;
    drop(take(&client, "dropped").await);
    assert_eq!(client.release_all().await, 3);
    for guard in [&plain, &fixed, &permit] {
        assert_eq!(guard.loss(), Some(LossCause::Released));
    }
    assert!(of_other_client.is_valid());
    assert_eq!(count_masters_with(&masters, "plain"), 0);
    assert_eq!(count_masters_with(&masters, "fixed"), 0);
    assert_eq!(client.release_all().await, 0);
    let next_guard = take(&client, "plain").await;
    drop((plain, fixed, permit));
    client.flush().await;
    assert!(next_guard.is_valid());
    assert_eq!(count_masters_with(&masters, "plain"), 3);
    assert!(next_guard.release().await.was_valid);
}
