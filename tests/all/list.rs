//! Tests of listing the locks that are held at the time of the call, on real masters.

use crate::support::{
    ask_server, count_masters_with, eventually, masters, ms, redlock, secs, settings, take,
};
use quorate::{Listing, NodeStatus, Redlock, StatusVerdict};

fn resource_names(listing: &Listing) -> Vec<String> {
    let resource_names = listing.locks.iter();
    let resource_names =
        resource_names.map(|lock| String::from_utf8_lossy(&lock.resource).into_owned());
    resource_names.collect()
}

#[tokio::test]
async fn list_shows_the_holder_and_the_waiters_of_each_lock() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let hold_result = redlock.lock("deploy:web").note("by hand").acquire().await;
    let _held = hold_result.expect("free");
    let _other = take(&redlock, "deploy:api").await;
    let _elsewhere = take(&redlock, "nightly").await;
    drop(take(&redlock, "deploy:done").await);
    redlock.flush().await;
    let client = settings(masters.urls()).build().expect("good settings");
    let waiting_task = tokio::spawn(async move { client.acquire("deploy:web").await });
    eventually(
        "the waiter must be in the queue, and the holder's note must be written",
        || {
            count_masters_with(&masters, "quorate:queue:deploy:web") == 3
                && count_masters_with(&masters, "quorate:note:deploy:web") == 3
        },
    )
    .await;
    // Write a lock key directly, like another program.
    for master in &masters {
        ask_server(master, &["SET", "deploy:db", "foreign", "PX", "60000"]);
    }
    let listing = redlock.list("deploy:").await;
    assert_eq!(
        resource_names(&listing),
        ["deploy:api", "deploy:db", "deploy:web"]
    );
    assert!(listing.complete && listing.faults.is_empty(), "{listing:?}");
    let web_status = &listing.locks[2].status;
    assert_eq!(
        web_status.note().and_then(|note| note.text.as_deref()),
        Some("by hand")
    );
    assert!(
        web_status
            .nodes
            .iter()
            .all(|node| node.state.as_ref().is_ok_and(|s| s.queue.len() == 1))
    );
    let db_status = &listing.locks[1].status;
    // The lock key contains a foreign value. The list shows this value where it otherwise names the holder.
    let verdict = StatusVerdict::Held(b"not a lock of ours".to_vec());
    assert_eq!(db_status.verdict(), verdict);
    assert_eq!(resource_names(&redlock.list("").await).len(), 4);
    assert!(redlock.list("none").await.locks.is_empty());
    waiting_task.abort();
}

#[tokio::test]
async fn list_treats_pattern_characters_in_prefixes_literally() {
    let masters = masters(1);
    let build_result = settings(masters.urls()).prefix("a*b:").build();
    let prefix_client = build_result.expect("good settings");
    let _one = take(&prefix_client, "x[1]").await;
    let _two = take(&redlock(&masters), "aab:x[1]").await;
    ask_server(&masters[0], &["LPUSH", "a*b:list", "x"]);
    assert_eq!(resource_names(&prefix_client.list("").await), ["x[1]"]);
    assert_eq!(resource_names(&prefix_client.list("x[").await), ["x[1]"]);
    assert!(prefix_client.list("x?").await.locks.is_empty());
}

#[tokio::test]
async fn list_shows_the_names_of_unreachable_masters() {
    let masters = masters(3);
    let build_result = settings(masters.urls()).connect_timeout(ms(500)).build();
    let redlock = build_result.expect("good settings");
    let _guard = take(&redlock, "job").await;
    masters[0].kill().expect("killed");
    let listing = redlock.list("").await;
    assert_eq!(resource_names(&listing), ["job"]);
    assert_eq!(listing.faults.len(), 1, "{listing:?}");
    masters[1].stop().expect("stopped");
    let listing = redlock.list("").await;
    assert_eq!(listing.faults.len(), 2, "{listing:?}");
    masters[1].cont().expect("continued");
}

#[tokio::test]
async fn list_that_is_cut_at_1000_locks_is_marked_as_incomplete() {
    let masters = masters(1);
    let build_result = settings(masters.urls()).node_timeout(secs(5)).build();
    let redlock = build_result.expect("good settings");
    let fill_script = "for i = 1, 3000 do redis.call('SET', 'many:' .. i, 'x', 'PX', 600000) end";
    ask_server(&masters[0], &["EVAL", fill_script, "0"]);
    let listing = redlock.list("many:").await;
    assert_eq!(listing.locks.len(), 1000);
    assert!(!listing.complete);
    let listing = redlock.list("many:29").await;
    assert_eq!(listing.locks.len(), 111);
    assert!(listing.complete);
}

#[tokio::test]
async fn list_is_marked_as_incomplete_if_no_majority_of_masters_answers() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    for stopped_count in 0..3 {
        let listing = redlock.list("").await;
        let has_majority = stopped_count < 2;
        assert_eq!(listing.majority_answered, has_majority, "{listing:?}");
        assert_eq!(listing.complete, has_majority, "{listing:?}");
        masters[stopped_count].kill().expect("killed");
    }
    assert!(!redlock.list("").await.complete);
}

#[tokio::test]
async fn list_shows_locks_on_memory_masters() {
    let redlock = Redlock::in_memory(3);
    let _guard = take(&redlock, "job").await;
    assert_eq!(resource_names(&redlock.list("j").await), ["job"]);
    assert!(redlock.list("k").await.locks.is_empty());
}

#[tokio::test]
async fn list_shows_the_slot_the_holder_and_the_waiters_of_each_permit() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let acquire_permit = |note| redlock.semaphore("deploy:api", 2).note(note).acquire();
    let held_permits = [
        acquire_permit("one").await.expect("free"),
        acquire_permit("two").await.expect("free"),
    ];
    let _plain = take(&redlock, "deploy:api").await;
    let client = settings(masters.urls()).build().expect("good settings");
    let waiting_task =
        tokio::spawn(async move { client.semaphore("deploy:api", 2).acquire().await });
    eventually(
        "the waiter must be in the queue, and all notes must be written",
        || {
            count_masters_with(&masters, "quorate:queue:quorate:slot:line:deploy:api") == 3
                && (0..2).all(|slot| {
                    count_masters_with(
                        &masters,
                        &format!("quorate:note:quorate:slot:{slot}:deploy:api"),
                    ) == 3
                })
        },
    )
    .await;
    let note_of_slot = |slot| {
        let mut held_notes = held_permits.iter().zip(["one", "two"]);
        let slot_note = held_notes.find(|(guard, _)| guard.slot() == slot);
        slot_note.map(|(_, text)| text)
    };
    let listing = redlock.list("deploy:").await;
    let slots: Vec<_> = listing.locks.iter().map(|lock| lock.slot).collect();
    assert_eq!(slots, [None, Some(0), Some(1)], "{listing:?}");
    assert_eq!(resource_names(&listing), ["deploy:api"; 3]);
    let result = redlock.semaphore_status("deploy:api").await;
    let status = result.expect("the name must be valid");
    assert_eq!(status.permits.len(), 2, "{status:?}");
    for permit in listing.locks[1..].iter().chain(&status.permits) {
        let note = permit.status.note().and_then(|note| note.text.as_deref());
        assert_eq!(note, note_of_slot(permit.slot), "{permit:?}");
        let has_one_waiter =
            |node: &NodeStatus| node.state.as_ref().is_ok_and(|s| s.queue.len() == 1);
        assert!(permit.status.nodes.iter().all(has_one_waiter));
    }
    // The first listed lock has the same name as the semaphore, but no waiter: the waiter waits for the semaphore.
    assert!(listing.locks[0].status.nodes.iter().all(|node| {
        let state = node.state.as_ref().expect("the master must answer");
        state.queue.is_empty()
    }));
    assert!(redlock.list("api").await.locks.is_empty());
    let [first_guard, second_guard] = held_permits;
    first_guard.release().await;
    let next_guard = waiting_task
        .await
        .expect("no panic")
        .expect("the waiter must get the released slot of the semaphore");
    second_guard.release().await;
    next_guard.release().await;
    redlock.flush().await;
    let status = redlock.semaphore_status("deploy:api").await;
    let status = status.expect("the name must be valid");
    assert!(status.permits.is_empty(), "{status:?}");
    for slot in 0..2 {
        let key = format!("quorate:note:quorate:slot:{slot}:deploy:api");
        eventually("no note of the holder may be left", || {
            count_masters_with(&masters, &key) == 0
        })
        .await;
    }
}

#[tokio::test]
async fn forced_release_of_a_permit_passes_its_slot_to_a_waiter() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let acquire_permit = || redlock.semaphore("api", 2).ttl(secs(6)).acquire();
    let (first_guard, second_guard) = (
        acquire_permit().await.expect("free"),
        acquire_permit().await.expect("free"),
    );
    let client = settings(masters.urls()).build().expect("good settings");
    let waiting_task = tokio::spawn(async move { client.semaphore("api", 2).acquire().await });
    eventually("the task must be waiting for the lock", || {
        count_masters_with(&masters, "quorate:queue:quorate:slot:line:api") == 3
    })
    .await;
    let slot = first_guard.slot().expect("one");
    let status = redlock.break_permit("api", slot).await.expect("a slot");
    let value = first_guard.token().to_string().into_bytes();
    assert_eq!(status.verdict(), StatusVerdict::Held(value));
    let next_guard = tokio::time::timeout(secs(5), waiting_task)
        .await
        .expect("woken");
    let next_guard = next_guard
        .expect("the waiter must get the released slot of the semaphore")
        .expect("the waiter must get the lock");
    assert_eq!(next_guard.slot(), Some(slot));
    assert_eq!(first_guard.lost().await, quorate::LossCause::TakenAway);
    assert!(second_guard.is_valid() && next_guard.is_valid());
    let error = redlock.break_permit("api", 64).await.expect_err("no slot");
    assert_eq!(
        error.to_string(),
        "there is no slot 64: the slots of a semaphore are 0 to 63"
    );
}

#[tokio::test]
async fn permits_on_memory_masters_can_be_listed_and_force_released() {
    let redlock = Redlock::in_memory(3);
    let permit = redlock.semaphore("api", 3).acquire().await.expect("free");
    let listing = redlock.list("a").await;
    assert_eq!(listing.locks.len(), 1);
    assert_eq!(listing.locks[0].slot, permit.slot());
    let slot = permit.slot().expect("one");
    redlock.break_permit("api", slot).await.expect("a slot");
    let status = redlock.semaphore_status("api").await;
    assert!(status.expect("the name must be valid").permits.is_empty());
}

#[tokio::test]
async fn lock_with_a_different_foreign_holder_on_each_master_is_listed_once() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    for (master, value) in masters.iter().zip(["one", "two", "three"]) {
        ask_server(master, &["SET", "stock", value, "PX", "60000"]);
    }
    let status = redlock
        .status("stock")
        .await
        .expect("the name must be valid");
    assert_eq!(status.verdict(), StatusVerdict::Split);
    let listing = redlock.list("").await;
    assert_eq!(listing.locks[0].status.verdict(), StatusVerdict::Split);
    let listing_text = format!("{listing:?}");
    assert!(!listing_text.contains("two"), "{listing_text}");
}
