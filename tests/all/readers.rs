//! Tests of locks that readers share and that a writer holds alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::support::{
    ask_server, count_masters_with, eventually, masters, ms, redlock, secs, settings, take,
};
use quorate::{
    AcquireError, DowngradeError, InvalidResource, LossCause, Redlock, TryAcquire, Wait,
};
use quorate_testbed::{Masters, Server};

fn waiting_client(masters: &Masters) -> Redlock {
    settings(masters.urls())
        .wait(Wait::For(secs(60)))
        .build()
        .expect("good settings")
}

#[tokio::test]
async fn readers_share_the_lock_and_exclude_writers() {
    let masters = masters(3);
    let (first_client, second_client) = (redlock(&masters), redlock(&masters));
    let first_reader = first_client
        .lock("doc")
        .shared()
        .acquire()
        .await
        .expect("free");
    let second_reader = second_client
        .lock("doc")
        .shared()
        .acquire()
        .await
        .expect("the reader must share the lock with the other readers");
    let third_reader = first_client
        .lock("doc")
        .shared()
        .acquire()
        .await
        .expect("the reader must share the lock with the other readers");
    assert!(first_reader.is_valid() && second_reader.is_valid() && third_reader.is_valid());
    let writer_attempt = second_client.try_acquire("doc").await.expect("an answer");
    assert!(matches!(writer_attempt, TryAcquire::Held(_)));
    first_reader.release().await;
    let writer_attempt = second_client.try_acquire("doc").await.expect("an answer");
    assert!(
        matches!(writer_attempt, TryAcquire::Held(_)),
        "the writer must wait while two readers hold the lock"
    );
    second_reader.release().await;
    third_reader.release().await;
    let writer_guard = take(&second_client, "doc").await;
    let reader_attempt = first_client.lock("doc").shared().try_acquire().await;
    assert!(
        matches!(reader_attempt, Ok(TryAcquire::Held(_))),
        "{reader_attempt:?}"
    );
    writer_guard.release().await;
    eventually("no master may have a key left", || {
        count_masters_with(&masters, "doc") == 0
    })
    .await;
}

#[tokio::test]
async fn token_of_a_reader_lies_between_the_tokens_of_earlier_and_later_writers() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let token_of = |guard: &quorate::LockGuard| {
        guard
            .fencing_token()
            .expect("the lock must have a fencing token")
    };
    let writer_guard = take(&redlock, "doc").await;
    let first_token = token_of(&writer_guard);
    writer_guard.release().await;
    let first_reader = redlock.lock("doc").shared().acquire().await.expect("free");
    let second_reader = redlock.lock("doc").shared().acquire().await.expect("free");
    let reader_tokens = [token_of(&first_reader), token_of(&second_reader)];
    first_reader.release().await;
    second_reader.release().await;
    let writer_guard = take(&redlock, "doc").await;
    let last_token = token_of(&writer_guard);
    for reader_token in reader_tokens {
        assert!(
            first_token < reader_token && reader_token < last_token,
            "{first_token} {reader_token} {last_token}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_and_writers_exclude_each_other_under_contention() {
    let masters = masters(3);
    let clients = [waiting_client(&masters), waiting_client(&masters)];
    // The sum of the values of all current holders: 1 for a reader, and 1,000 for a writer.
    let clients_inside = Arc::new(AtomicI64::new(0));
    let mut tasks = Vec::new();
    for task in 0..10 {
        let redlock = clients[task % 2].clone();
        let clients_inside = clients_inside.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..6 {
                if task < 7 {
                    let outcome = redlock.lock("doc").shared().acquire().await;
                    let guard = outcome.unwrap_or_else(|error| panic!("reader: {error}"));
                    assert!(
                        clients_inside.fetch_add(1, Ordering::SeqCst) < 1_000,
                        "a reader and a writer must not hold the lock at the same time"
                    );
                    tokio::time::sleep(ms(3)).await;
                    clients_inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await;
                } else {
                    let result = redlock.acquire("doc").await;
                    let guard = result.unwrap_or_else(|error| panic!("writer: {error}"));
                    assert_eq!(
                        clients_inside.fetch_add(1_000, Ordering::SeqCst),
                        0,
                        "a writer must be the only holder of the lock"
                    );
                    tokio::time::sleep(ms(3)).await;
                    clients_inside.fetch_sub(1_000, Ordering::SeqCst);
                    guard.release().await;
                }
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
}

#[tokio::test]
async fn readers_queued_behind_a_writer_get_the_lock_together() {
    let masters = masters(3);
    let redlock = [(); 3].map(|()| waiting_client(&masters));
    let acquire_result = redlock[0].lock("doc").shared().acquire().await;
    let first_guard = acquire_result.expect("free");
    let queue_length = || {
        let master = masters.iter().next().expect("three");
        ask_server(master, &["ZCARD", "quorate:queue:doc"])
            .int()
            .unwrap_or(0)
    };
    let writer_task = {
        let redlock = redlock[1].clone();
        tokio::spawn(async move {
            redlock
                .acquire("doc")
                .await
                .expect("the waiter must get the lock")
        })
    };
    eventually("the writer must be in the queue", || queue_length() == 1).await;
    let reader_tasks: Vec<_> = (0..4)
        .map(|index| {
            let redlock = redlock[index % 3].clone();
            tokio::spawn(async move { redlock.lock("doc").shared().acquire().await.expect("turn") })
        })
        .collect();
    // One reader uses the writer's client and waits there. So the queue contains the writer and three readers.
    eventually("all readers must be in the queue behind the writer", || {
        queue_length() == 4
    })
    .await;
    assert!(!writer_task.is_finished() && reader_tasks.iter().all(|task| !task.is_finished()));
    first_guard.release().await;
    let writer_guard = tokio::time::timeout(secs(5), writer_task)
        .await
        .expect("soon")
        .expect("no panic");
    tokio::time::sleep(ms(100)).await;
    assert!(
        reader_tasks.iter().all(|task| !task.is_finished()),
        "a reader and a writer must not hold the lock at the same time"
    );
    let released_at = std::time::Instant::now();
    writer_guard.release().await;
    let mut guards = Vec::new();
    for reader_task in reader_tasks {
        let guard = tokio::time::timeout(secs(5), reader_task)
            .await
            .expect("soon");
        guards.push(guard.expect("no panic"));
    }
    // The release of the writer must wake all four readers immediately. Their retry timers alone would take seconds.
    assert!(
        released_at.elapsed() < secs(1),
        "{:?}",
        released_at.elapsed()
    );
    assert!(guards.iter().all(quorate::LockGuard::is_valid));
}

#[tokio::test]
async fn renewed_readers_exclude_a_client_that_locks_with_set_nx() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let short_reader = redlock
        .lock("doc")
        .shared()
        .ttl(secs(2))
        .acquire()
        .await
        .expect("free");
    let long_reader = redlock
        .lock("doc")
        .shared()
        .ttl(secs(3))
        .acquire()
        .await
        .expect("free");
    tokio::time::sleep(secs(4)).await;
    assert!(
        short_reader.is_valid() && long_reader.is_valid(),
        "both locks must have been renewed"
    );
    let set_reply = ask_server(
        masters.iter().next().expect("three"),
        &["SET", "doc", "x", "NX"],
    );
    assert_eq!(
        set_reply.text(),
        None,
        "a client that sets the lock key with plain SET must be refused"
    );
    short_reader.release().await;
    tokio::time::sleep(secs(2)).await;
    assert!(long_reader.is_valid());
    let set_reply = ask_server(
        masters.iter().next().expect("three"),
        &["SET", "doc", "x", "NX"],
    );
    assert_eq!(
        set_reply.text(),
        None,
        "a client that sets the lock key with plain SET must be refused"
    );
    long_reader.release().await;
    eventually("no master may have a key left", || {
        count_masters_with(&masters, "doc") == 0
    })
    .await;
}

#[tokio::test]
async fn downgrade_of_a_writer_to_a_reader_does_not_admit_a_queued_writer() {
    let masters = masters(3);
    let (first_client, second_client) = (waiting_client(&masters), waiting_client(&masters));
    let writer_guard = take(&first_client, "doc").await;
    let old_token = writer_guard.fencing_token();
    // Queue another writer behind the holder.
    let waiter_task = {
        let second_client = second_client.clone();
        tokio::spawn(async move {
            second_client
                .acquire("doc")
                .await
                .expect("the waiter must get the lock")
        })
    };
    let queue_length = || {
        let master = masters.iter().next().expect("three");
        ask_server(master, &["ZCARD", "quorate:queue:doc"])
            .int()
            .unwrap_or(0)
    };
    eventually("the waiter must be queued", || queue_length() >= 1).await;
    let reader_guard = writer_guard.downgrade().await.expect("still ours");
    assert!(reader_guard.is_valid() && reader_guard.fencing_token() > old_token);
    tokio::time::sleep(ms(200)).await;
    assert!(
        !waiter_task.is_finished(),
        "the next writer must not get the lock while a reader holds it"
    );
    reader_guard.release().await;
    let waiter_task = tokio::time::timeout(secs(5), waiter_task)
        .await
        .expect("soon")
        .expect("no panic");
    assert!(waiter_task.is_valid());
    waiter_task.release().await;
    eventually("no master may have a key left", || {
        count_masters_with(&masters, "doc") == 0
    })
    .await;
}

#[tokio::test]
async fn lost_or_non_exclusive_lock_cannot_be_downgraded() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let reader_guard = redlock.lock("doc").shared().acquire().await.expect("free");
    let refusal = reader_guard.downgrade().await.expect_err("a reader");
    assert_eq!(refusal, DowngradeError::NotAWriter);
    eventually("the lock must be released", || {
        count_masters_with(&masters, "doc") == 0
    })
    .await;
    let lock_request = redlock.lock("doc").ttl(secs(2)).renewal(false);
    let writer_guard = lock_request.acquire().await.expect("free");
    writer_guard.lost().await;
    let refusal = writer_guard.downgrade().await.expect_err("over");
    assert_eq!(refusal, DowngradeError::Lost(LossCause::Expired));
    let writer_guard = take(&redlock, "doc").await;
    for master in masters.iter().take(2) {
        ask_server(master, &["SET", "doc", "a foreign value"]);
    }
    let refusal = writer_guard.downgrade().await.expect_err("taken away");
    assert_eq!(refusal, DowngradeError::Lost(LossCause::TakenAway));
}

#[tokio::test]
async fn shared_mode_is_refused_for_kinds_of_locks_without_readers() {
    let redlock = Redlock::in_memory(3);
    let owner = redlock.owner("order").expect("an id");
    for request in [
        redlock.lock_all(["a", "b"]),
        redlock.semaphore("a", 2),
        owner.lock("a"),
    ] {
        let refusal = request.shared().try_acquire().await;
        assert!(
            matches!(
                refusal,
                Err(AcquireError::InvalidResource(InvalidResource::NoReaders(_)))
            ),
            "{refusal:?}"
        );
    }
    let first_reader = redlock.lock_all(["a"]).shared().acquire().await;
    let _alone = first_reader.expect("free");
    let second_reader = redlock.lock("a").shared().acquire().await;
    let _other_reader =
        second_reader.expect("the reader must share the lock with the other readers");
}

/// The number of connections that a master has ever accepted, including the connection of this `INFO` request.
fn count_connections_ever(master: &Server) -> u64 {
    let reply = ask_server(master, &["INFO", "stats"]);
    let stats = reply.text().expect("text").into_owned();
    let mut lines = stats.lines();
    let count = lines.find_map(|line| line.strip_prefix("total_connections_received:"));
    count.expect("a count").parse().expect("a number")
}

#[tokio::test]
async fn renewal_restores_a_missing_fencing_counter_without_reconnecting() {
    let masters = masters(3);
    let settings = settings(masters.urls()).ttl(secs(6)).build();
    let redlock = settings.expect("good settings");
    let reader_guard = redlock.lock("doc").shared().acquire().await.expect("free");
    let other_guard = redlock.acquire("other").await.expect("free");
    for master in &masters {
        ask_server(master, &["DEL", "quorate:fence:doc"]);
    }
    let connections_before: Vec<_> = masters.iter().map(count_connections_ever).collect();
    let second_reader = redlock.lock("doc").shared().wait(Wait::For(secs(60)));
    let second_reader = second_reader
        .acquire()
        .await
        .expect("the next renewal must restore the fencing counter");
    for (master, count_before) in masters.iter().zip(connections_before) {
        assert_eq!(count_connections_ever(master), count_before + 1);
    }
    assert!(second_reader.fencing_token().is_some());
    assert!(reader_guard.is_valid() && other_guard.is_valid());
}

/// Tests a downgrade after a forced release. The downgrade must fail, because another writer may have held the lock
/// after the forced release.
#[tokio::test]
async fn force_released_writer_cannot_be_downgraded() {
    let masters = masters(3);
    let (first_client, second_client) = (redlock(&masters), redlock(&masters));
    for has_new_reader in [false, true] {
        let guard = take(&first_client, "doc").await;
        second_client
            .break_lock("doc")
            .await
            .expect("the name must be valid");
        take(&second_client, "doc").await.release().await;
        let mut reader_guard = None;
        if has_new_reader {
            let other_reader = second_client.lock("doc").shared().acquire().await;
            reader_guard = Some(other_reader.expect("free"));
        }
        match guard.downgrade().await {
            Err(DowngradeError::Lost(LossCause::TakenAway)) => {}
            odd => panic!("{odd:?}"),
        }
        drop(reader_guard);
        second_client.flush().await;
        first_client.flush().await;
    }
}

#[tokio::test]
async fn downgrade_deletes_the_key_under_which_the_writer_stored_its_note() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let guard = take(&redlock, "doc").await;
    let count_notes = || count_masters_with(&masters, "quorate:note:doc");
    eventually("the note must be written", || count_notes() == 3).await;
    let reader_guard = guard.downgrade().await.expect("held");
    redlock.flush().await;
    assert_eq!(count_notes(), 0);
    drop(reader_guard);
}

#[tokio::test]
async fn forced_release_of_readers_removes_their_notes() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let reader_guard = redlock.lock("doc").shared().acquire().await.expect("free");
    let note_key = format!(
        "quorate:note:quorate:hold:{}:doc",
        String::from_utf8_lossy(&reader_guard.token().to_hex())
    );
    eventually("the note must be written", || {
        count_masters_with(&masters, &note_key) == 3
    })
    .await;
    redlock
        .break_lock("doc")
        .await
        .expect("the name must be valid");
    assert_eq!(count_masters_with(&masters, &note_key), 0);
    drop(reader_guard);
}

#[tokio::test]
async fn writer_without_a_token_cannot_be_downgraded() {
    let redlock = Redlock::builder().in_memory(3).fencing(false);
    let redlock = redlock.build().expect("good settings");
    let writer_guard = redlock.acquire("doc").await.expect("free");
    let refusal = writer_guard
        .downgrade()
        .await
        .expect_err("the lock must have no fencing token");
    assert_eq!(refusal, quorate::DowngradeError::NeedsFencing);
}
