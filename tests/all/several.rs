//! Tests of one lock on several resources. The lock gets all of its resources or none, has one fencing token, and
//! cannot deadlock with other such locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{
    ask_server, count_masters_with, larger_token, masters, ms, redlock, secs, settings,
};
use quorate::{AcquireError, InvalidResource, Redlock, Wait};

fn waiting_client(masters: &quorate_testbed::Masters, max_wait: Duration) -> Redlock {
    settings(masters.urls())
        .wait(Wait::For(max_wait))
        .build()
        .expect("good settings")
}

#[tokio::test]
async fn consecutive_locks_that_share_a_resource_have_rising_fencing_tokens() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let mut last_token = 0;
    for round in 0..6 {
        let resources: &[&str] = match round % 3 {
            0 => &["a"],
            1 => &["b", "a"],
            _ => &["b"],
        };
        let guard = redlock.lock_all(resources).acquire().await.expect("free");
        // Each lock shares a resource with the previous lock, so its token must be larger than the previous token.
        last_token = larger_token(guard.fencing_token(), last_token);
        guard.release().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_on_several_resources_never_deadlock() {
    let masters = masters(3);
    let clients = [
        waiting_client(&masters, secs(60)),
        waiting_client(&masters, secs(60)),
    ];
    let counts_inside = Arc::new([const { AtomicU64::new(0) }; 3]);
    let names = ["a", "b", "c"];
    let mut tasks = Vec::new();
    for task in 0..9usize {
        let redlock = clients[task % 2].clone();
        let counts_inside = counts_inside.clone();
        tasks.push(tokio::spawn(async move {
            for round in 0..5 {
                let (first, second) = ((task + round) % 3, (task + 2 * round + 1) % 3);
                let indices: Vec<usize> = if first == second {
                    vec![first]
                } else {
                    vec![first, second]
                };
                let guard = redlock
                    .lock_all(indices.iter().map(|index| names[*index]))
                    .acquire()
                    .await
                    .unwrap_or_else(|error| {
                        panic!("task {task} failed in its round {round}: {error}")
                    });
                for index in &indices {
                    assert_eq!(
                        counts_inside[*index].fetch_add(1, Ordering::SeqCst),
                        0,
                        "two clients must not hold the same resource"
                    );
                }
                tokio::time::sleep(ms(2)).await;
                for index in &indices {
                    counts_inside[*index].fetch_sub(1, Ordering::SeqCst);
                }
                guard.release().await;
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
}

#[tokio::test]
async fn lock_on_an_invalid_list_of_resources_is_refused_before_anything_is_sent() {
    let masters = masters(1);
    let redlock = redlock(&masters);
    let invalid_resources = |error: AcquireError| match error {
        AcquireError::InvalidResource(why) => why,
        other => panic!("{other}"),
    };
    let many_names: Vec<String> = (0..17).map(|n| n.to_string()).collect();
    let error = redlock
        .lock_all(&many_names)
        .acquire()
        .await
        .expect_err("17");
    assert_eq!(invalid_resources(error), InvalidResource::TooMany(17));
    let error = redlock.lock_all(["a", "b", "a"]).acquire().await;
    let refusal_text = invalid_resources(error.expect_err("twice"));
    assert_eq!(refusal_text, InvalidResource::Twice("a".into()));
    let no_names: [&str; 0] = [];
    let error = redlock
        .lock_all(no_names)
        .acquire()
        .await
        .expect_err("none");
    assert_eq!(invalid_resources(error), InvalidResource::Empty);
    let build_result = settings(masters.urls()).fencing(false).build();
    let client_without_fencing = build_result.expect("good settings");
    let error = client_without_fencing.lock_all(["a", "b"]).acquire().await;
    assert!(
        error
            .expect_err("a client without fencing must be refused")
            .to_string()
            .contains("fencing")
    );
    assert_eq!(count_masters_with(&masters, "a"), 0);
}

#[tokio::test]
async fn lock_on_a_list_of_one_resource_stores_an_ordinary_lock_key() {
    let masters = masters(1);
    let redlock = redlock(&masters);
    let guard = redlock.lock_all(["a"]).acquire().await.expect("free");
    let first_master = masters.iter().next().expect("one");
    let value = ask_server(first_master, &["GET", "a"]);
    assert_eq!(value.text().as_deref(), Some(&*guard.token().to_string()));
}

#[tokio::test]
async fn guard_names_each_of_its_resources_without_the_key_prefix() {
    let redlock = Redlock::builder().in_memory(1).prefix("shop:");
    let redlock = redlock.build().expect("good settings");
    let resources_of = |guard: &quorate::LockGuard| -> Vec<Vec<u8>> {
        guard.resources().map(<[u8]>::to_vec).collect()
    };
    let first_guard = redlock.acquire("a").await.expect("free");
    assert_eq!(resources_of(&first_guard), [b"a"]);
    let second_guard = redlock.lock_all(["c", "b"]).acquire().await.expect("free");
    assert_eq!(resources_of(&second_guard), [b"c", b"b"]);
}
