//! Tests of owner locks. An owner may acquire the same lock several times. All other clients are refused meanwhile.

use crate::support::{
    ask_server, count_masters_with, eventually, masters, ms, redlock, secs, settings, take,
};
use quorate::{AcquireError, InvalidResource, LossCause, TryAcquire, Wait};

#[tokio::test]
async fn holds_of_one_owner_share_one_fencing_token_across_processes() {
    let masters = masters(3);
    let (first_client, second_client) = (redlock(&masters), redlock(&masters));
    let (first_owner, second_owner) = (
        first_client.owner("order-1").expect("an id"),
        second_client.owner("order-1").expect("an id"),
    );
    let outer_guard = first_owner.acquire("stock").await.expect("free");
    let inner_guard = second_owner
        .acquire("stock")
        .await
        .expect("a second hold of the owner must be granted");
    assert_eq!(outer_guard.fencing_token(), inner_guard.fencing_token());
    assert_ne!(outer_guard.token(), inner_guard.token());
    let other_owner = second_client.owner("order-2").expect("an id");
    let other_outcome = other_owner
        .lock("stock")
        .try_acquire()
        .await
        .expect("an answer");
    assert!(matches!(other_outcome, TryAcquire::Held(_)));
    let plain_attempt = second_client.try_acquire("stock").await.expect("an answer");
    assert!(matches!(plain_attempt, TryAcquire::Held(_)));
    outer_guard
        .release()
        .await
        .expect("the release must be sent, because no other clone of this hold exists");
    assert!(
        inner_guard.is_valid(),
        "the release of one hold must not end the owner's other hold"
    );
    let plain_attempt = first_client.try_acquire("stock").await.expect("an answer");
    assert!(matches!(plain_attempt, TryAcquire::Held(_)));
    inner_guard.release().await.expect("the last");
    take(&first_client, "stock").await.release().await;
}

#[tokio::test]
async fn second_hold_of_an_owner_is_granted_before_all_waiters() {
    let masters = masters(3);
    let (first_client, second_client) = (redlock(&masters), redlock(&masters));
    let outer_guard = first_client
        .owner("o")
        .expect("an id")
        .acquire("stock")
        .await
        .expect("free");
    let waiting_task = {
        let second_client = settings(masters.urls())
            .wait(Wait::For(secs(60)))
            .build()
            .expect("good");
        tokio::spawn(async move {
            second_client
                .acquire("stock")
                .await
                .expect("the waiter must get the lock")
        })
    };
    let queue_length = || {
        let master = masters.iter().next().expect("three");
        ask_server(master, &["ZCARD", "quorate:queue:stock"])
            .int()
            .unwrap_or(0)
    };
    eventually("a waiter must be queued", || queue_length() == 1).await;
    let inner_owner = second_client.owner("o").expect("an id");
    let outcome = tokio::time::timeout(secs(5), inner_owner.acquire("stock")).await;
    let inner_guard = outcome
        .expect("at once")
        .expect("a second hold of the owner must be granted");
    assert!(!waiting_task.is_finished());
    drop((outer_guard, inner_guard));
    let waiter_guard = tokio::time::timeout(secs(10), waiting_task)
        .await
        .expect("soon");
    waiter_guard.expect("no panic").release().await;
    eventually("no master may have a key left", || {
        count_masters_with(&masters, "stock") == 0
    })
    .await;
}

#[tokio::test]
async fn clones_of_an_owner_in_one_process_share_one_hold_at_the_masters() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let owner = redlock.owner("o").expect("an id");
    let first_guard = owner.acquire("stock").await.expect("free");
    let hold_count = || {
        let master = masters.iter().next().expect("three");
        ask_server(master, &["ZCARD", "quorate:holds:stock"])
            .int()
            .unwrap_or(0)
    };
    eventually("each master must store one hold of the owner", || {
        hold_count() == 1
    })
    .await;
    let second_guard = owner
        .acquire("stock")
        .await
        .expect("a second hold of the owner must be granted");
    assert_eq!(first_guard.token(), second_guard.token());
    assert_eq!(
        hold_count(),
        1,
        "the second local hold must send no message"
    );
    assert!(
        first_guard.release().await.is_none(),
        "the hold must last while another clone of it exists"
    );
    assert!(second_guard.is_valid());
    // Overwrite the lock key. Both clones of the guard, `second_guard` and `third`, must report the loss.
    let third_guard = second_guard.clone();
    for master in &masters {
        ask_server(master, &["SET", "stock", "a foreign value", "PX", "1000"]);
    }
    let extension = second_guard.extend(secs(20)).await;
    assert!(extension.is_err(), "{extension:?}");
    assert!(!second_guard.is_valid() && !third_guard.is_valid());
    assert_eq!(third_guard.lost().await, LossCause::TakenAway);
    let same_owner = redlock.owner("o").expect("an id");
    tokio::time::sleep(ms(1_100)).await;
    let new_hold = owner
        .acquire("stock")
        .await
        .expect("a new hold must be acquired");
    assert!(new_hold.is_valid() && !third_guard.is_valid());
    assert!(new_hold.fencing_token() > third_guard.fencing_token());
    drop(same_owner);
}

#[tokio::test]
async fn invalid_owner_id_is_refused() {
    let masters = masters(1);
    let redlock = redlock(&masters);
    let long_id = "x".repeat(65);
    for (id, bytes) in [("", 0), (long_id.as_str(), 65), ("a\nb", 3)] {
        let extension = redlock.owner(id).expect_err("no id");
        assert_eq!(extension, InvalidResource::Owner(bytes), "{id:?}");
    }
    let refused_owner = redlock.owner("0123456789abcdef0123456789abcdef");
    assert_eq!(
        refused_owner.expect_err("a value"),
        InvalidResource::OwnerIsValue
    );
    assert!(redlock.owner("0123456789abcdef").is_ok());
}

/// Sets keys as a crashed process leaves them. The owner `o` holds the lock `stock`, and each master has a different
/// fencing counter.
fn leave_a_crashed_hold(masters: &quorate_testbed::Masters) {
    for (index, master) in masters.iter().enumerate() {
        let counter = format!("{}", 1_000 + index);
        ask_server(master, &["SET", "stock", "quorate:owner:o", "PX", "60000"]);
        ask_server(master, &["SET", "quorate:fence:stock", &counter]);
        let holds_key = "quorate:holds:stock";
        let value = "f".repeat(32);
        ask_server(master, &["ZADD", holds_key, "9999999999999", &value]);
        ask_server(master, &["PEXPIRE", holds_key, "60000"]);
    }
}

#[tokio::test]
async fn owner_cannot_join_its_own_hold_if_masters_store_different_tokens() {
    let masters = masters(3);
    leave_a_crashed_hold(&masters);
    let redlock = redlock(&masters);
    let owner = redlock.owner("o").expect("an id");
    let error = match owner.lock("stock").try_acquire().await {
        Err(error) => error,
        other_attempt => panic!("{other_attempt:?}"),
    };
    assert!(matches!(error, AcquireError::NotJoinable(_)), "{error:?}");
    let text = error.details();
    for part in [
        "held by its owner",
        "cannot be acquired again now",
        "nothing is held",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("another"), "{text}");
    let outcome = owner.lock("stock").wait(Wait::For(ms(300))).acquire().await;
    assert!(
        matches!(outcome, Err(AcquireError::NotJoinable(_))),
        "{outcome:?}"
    );
    // Another owner is refused because the lock is held, as any other client would be.
    let other_attempt = redlock.owner("p").expect("an id");
    let other_attempt = other_attempt
        .lock("stock")
        .try_acquire()
        .await
        .expect("an answer");
    assert!(matches!(other_attempt, TryAcquire::Held(_)));
    // The refused attempts must leave no entry in the lock's list of holds.
    let count_holds = |master| ask_server(master, &["ZCARD", "quorate:holds:stock"]).int();
    eventually("the attempts must be undone", || {
        masters.iter().all(|master| count_holds(master) == Some(1))
    })
    .await;
}

#[tokio::test]
async fn owner_pauses_between_attempts_if_masters_store_different_tokens() {
    let masters = masters(3);
    leave_a_crashed_hold(&masters);
    let redlock = settings(masters.urls())
        .node_timeout(secs(2))
        .retry(quorate::Retry::new(ms(200), ms(200)))
        .build()
        .expect("good settings");
    let owner = redlock.owner("o").expect("an id");
    let started_at = std::time::Instant::now();
    let error = owner.lock("stock").try_acquire().await;
    assert!(
        matches!(error, Err(AcquireError::NotJoinable(_))),
        "{error:?}"
    );
    // The client pauses twice, each time for at least half of the retry delay of 200 ms.
    assert!(
        started_at.elapsed() >= ms(200),
        "{:?}",
        started_at.elapsed()
    );
}
