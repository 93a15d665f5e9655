//! Tests of semaphores. A semaphore admits at most N holders at the same time, and each holder has its own slot and
//! fencing token.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::support::{
    PATIENCE, ask_server, eventually, larger_token, masters, ms, redlock, secs, settings, take,
};
use quorate::node::memory::MemoryNode;
use quorate::node::{Node, Reply, Request};
use quorate::runtime::BoxFuture;
use quorate::{
    AcquireError, DowngradeError, InvalidResource, NodeName, Redlock, Retry, TryAcquire, Wait,
};
use quorate_testbed::Masters;

fn waiting_client(masters: &Masters) -> Redlock {
    settings(masters.urls())
        .wait(Wait::For(secs(60)))
        .build()
        .expect("good settings")
}

#[tokio::test]
async fn semaphore_grants_exactly_its_number_of_permits_in_separate_slots() {
    let masters = masters(3);
    let clients = [redlock(&masters), redlock(&masters)];
    let mut permits = Vec::new();
    for index in 0..3 {
        let permit = clients[index % 2].semaphore("api", 3).acquire().await;
        permits.push(permit.unwrap_or_else(|error| panic!("permit {index}: {error}")));
    }
    let slots: BTreeSet<_> = permits
        .iter()
        .map(|permit| permit.slot().expect("one"))
        .collect();
    assert_eq!(slots, BTreeSet::from([0, 1, 2]));
    let extra_attempt = clients[0].semaphore("api", 3).try_acquire().await;
    assert!(
        matches!(extra_attempt, Ok(TryAcquire::Held(_))),
        "{extra_attempt:?}"
    );
    let released_permit = permits.pop().expect("three");
    let slot = released_permit.slot();
    released_permit.release().await;
    let outcome = clients[1].semaphore("api", 3).try_acquire().await;
    let second_attempt = outcome
        .expect("an answer")
        .acquired()
        .expect("the permit that is free must be acquired");
    assert_eq!(second_attempt.slot(), slot);
    // The permit and the plain lock have the same resource name, but different keys. So the plain lock is free.
    assert_eq!(second_attempt.resource(), b"api");
    take(&clients[0], "api").await.release().await;
}

#[tokio::test]
async fn fencing_tokens_rise_within_each_slot_of_a_semaphore() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let mut last_tokens = [0; 2];
    for _ in 0..10 {
        let permit = redlock.semaphore("api", 2).acquire().await.expect("free");
        let slot = permit.slot().expect("one");
        last_tokens[slot] = larger_token(permit.fencing_token(), last_tokens[slot]);
        permit.release().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn semaphore_limits_concurrent_tasks_and_serves_every_task() {
    let masters = masters(3);
    let clients = [
        waiting_client(&masters),
        waiting_client(&masters),
        waiting_client(&masters),
    ];
    let (inside_count, max_inside) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let tasks: Vec<_> = (0..12)
        .map(|task| {
            let redlock = clients[task % 3].clone();
            let (inside_count, max_inside) = (inside_count.clone(), max_inside.clone());
            tokio::spawn(async move {
                for _ in 0..5 {
                    let outcome = redlock.semaphore("api", 3).acquire().await;
                    let permit = outcome.unwrap_or_else(|error| panic!("task {task}: {error}"));
                    let now_inside = inside_count.fetch_add(1, Ordering::SeqCst) + 1;
                    max_inside.fetch_max(now_inside, Ordering::SeqCst);
                    assert!(
                        now_inside <= 3,
                        "{now_inside} tasks hold one of three permits at the same time"
                    );
                    tokio::time::sleep(ms(3)).await;
                    inside_count.fetch_sub(1, Ordering::SeqCst);
                    permit.release().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(
        max_inside.load(Ordering::SeqCst),
        3,
        "all three permits must have been held at the same time"
    );
}

#[tokio::test]
async fn semaphore_keeps_all_permits_while_a_minority_of_masters_is_down() {
    let masters = masters(3);
    let redlock = waiting_client(&masters);
    masters[0].kill().expect("the server must be killed");
    let mut permits = Vec::new();
    for index in 0..4 {
        let permit = redlock.semaphore("api", 4).acquire().await;
        permits.push(permit.unwrap_or_else(|error| panic!("permit {index}: {error}")));
    }
}

#[tokio::test]
async fn semaphore_of_sixty_four_permits_grants_sixty_four_permits() {
    let masters = masters(3);
    let redlock = waiting_client(&masters);
    let mut permits = Vec::new();
    for index in 0..64 {
        let permit = redlock.semaphore("api", 64).acquire().await;
        permits.push(permit.unwrap_or_else(|error| panic!("permit {index}: {error}")));
    }
    let extra_attempt = redlock.semaphore("api", 64).try_acquire().await;
    assert!(
        matches!(extra_attempt, Ok(TryAcquire::Held(_))),
        "{extra_attempt:?}"
    );
}

#[tokio::test]
async fn invalid_number_of_permits_is_refused() {
    let masters = masters(1);
    let redlock = redlock(&masters);
    for permits in [0, 65] {
        let error = redlock.semaphore("api", permits).acquire().await;
        match error.expect_err("no semaphore") {
            AcquireError::InvalidResource(InvalidResource::Permits(permits_in_error)) => {
                assert_eq!(permits_in_error, permits);
            }
            other => panic!("{other}"),
        }
    }
}

/// A master in memory, and the number of acquire requests that it has received.
struct CountingNode(MemoryNode, AtomicUsize);

impl Node for CountingNode {
    fn name(&self) -> &NodeName {
        self.0.name()
    }

    fn send(&self, request: Request, reply: Reply) {
        if let Request::Acquire { .. } = &request {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
        self.0.send(request, reply);
    }

    fn idle(&self) -> BoxFuture<()> {
        self.0.idle()
    }
}

#[tokio::test]
async fn process_does_not_request_a_slot_that_it_already_holds() {
    let node = Arc::new(CountingNode(MemoryNode::new("m"), AtomicUsize::new(0)));
    let build_result = Redlock::builder().nodes(vec![node.clone()]).build();
    let redlock = build_result.expect("good settings");
    let mut permits = Vec::new();
    for _ in 0..8 {
        permits.push(redlock.semaphore("api", 8).acquire().await.expect("free"));
    }
    // In each pass of the loop, exactly one slot is free, and it is a different slot each time.
    for index in 0..8 {
        permits.remove(index % 3).release().await;
        permits.push(redlock.semaphore("api", 8).acquire().await.expect("free"));
    }
    assert_eq!(
        node.1.load(Ordering::Relaxed),
        16,
        "each acquire must have made exactly one attempt"
    );
    // This process holds all slots. A further attempt must nevertheless ask the masters.
    let extra_attempt = redlock.semaphore("api", 8).try_acquire().await;
    assert!(
        matches!(extra_attempt, Ok(TryAcquire::Held(_))),
        "{extra_attempt:?}"
    );
    assert_eq!(node.1.load(Ordering::Relaxed), 17);
}

#[tokio::test]
async fn released_permit_goes_to_a_waiter_that_requested_another_slot() {
    let masters = masters(3);
    let long_lived_builder = || settings(masters.urls()).ttl(secs(30)).heartbeat(secs(30));
    let [holder, waiter] = [long_lived_builder(), long_lived_builder()]
        .map(|builder| builder.build().expect("good settings"));
    // The waiter requests a random slot first, which may be the slot that the holder releases. So test this four times.
    for _ in 0..4 {
        let mut permits = Vec::new();
        for _ in 0..4 {
            permits.push(holder.semaphore("api", 4).acquire().await.expect("free"));
        }
        let waiter = waiter.clone();
        let waiting_client = tokio::spawn(async move {
            let permit_request = waiter.semaphore("api", 4).wait(Wait::For(secs(25)));
            permit_request
                .acquire()
                .await
                .expect("the permit that is free must be acquired")
                .release()
                .await;
            Instant::now()
        });
        let command = ["ZCARD", "quorate:queue:quorate:slot:line:api"];
        let is_queued = || ask_server(&masters[0], &command).int() == Some(1);
        eventually("the task must be waiting for the lock", is_queued).await;
        // Wait until all masters have queued the waiter.
        tokio::time::sleep(ms(200)).await;
        permits.pop().expect("four").release().await;
        let released_at = Instant::now();
        let idle_time = waiting_client
            .await
            .expect("no panic")
            .saturating_duration_since(released_at);
        assert!(
            idle_time < secs(3),
            "the waiter must get a released permit immediately, but the permit stayed free for {idle_time:?}"
        );
        for permit in permits {
            permit.release().await;
        }
    }
}

#[tokio::test]
async fn permit_cannot_be_downgraded() {
    let masters = masters(3);
    let permit = redlock(&masters).semaphore("api", 1).acquire().await;
    let downgrade = permit.expect("free").downgrade().await;
    assert!(
        matches!(downgrade, Err(DowngradeError::NotAWriter)),
        "{downgrade:?}"
    );
}

/// Tests an attempt that is refused because the slot that it requested first is taken. It must request another slot
/// immediately, and not after the retry delay of ten minutes.
#[tokio::test]
async fn refused_permit_request_tries_another_slot_without_a_retry_delay() {
    let masters = masters(3);
    let builder = settings(masters.urls()).order(quorate::Order::Unordered);
    let builder = builder.retry(Retry::new(secs(600), secs(600)));
    let redlocks = [(); 2].map(|()| builder.clone().build().expect("good settings"));
    // Each client first tries one of the two slots at random. So both clients often try the same slot first.
    for _ in 0..12 {
        let (first_request, second_request) = (
            redlocks[0].semaphore("api", 2),
            redlocks[1].semaphore("api", 2),
        );
        let first_request = first_request.acquire().await.expect("free");
        let outcome =
            tokio::time::timeout(PATIENCE, second_request.wait(Wait::Forever).acquire()).await;
        let second_request = outcome.expect("at once").expect("free");
        assert_ne!(first_request.slot(), second_request.slot());
        first_request.release().await;
        second_request.release().await;
    }
}
