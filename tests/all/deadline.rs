//! Tests that every acquire ends at its time limit even if masters never answer, and that its error names the true
//! reason.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::stubborn::Treatment::{Answered, Fails, Unanswered};
use crate::support::stubborn::{Stubborn, Treatment};
use crate::support::{ms, secs};
use quorate::node::{Fault, Node, Phase, Request};
use quorate::{
    AcquireError, ExtendError, LossCause, NodeOutcome, Redlock, RedlockBuilder, Retry, Wait,
};

const WAIT: Duration = ms(900);

/// A result may be late by this much, because the machine may be busy. The bugs that these tests look for delay a
/// result by at least one TTL (30 s).
const TOLERANCE: Duration = secs(3);

fn settings(nodes: &[Arc<Stubborn>]) -> RedlockBuilder {
    let dyn_nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
    Redlock::builder()
        .nodes(dyn_nodes.collect())
        .ttl(secs(30))
        .wait(Wait::For(WAIT))
}

fn fair_and_unordered(nodes: &[Arc<Stubborn>]) -> [Redlock; 2] {
    [
        settings(nodes),
        settings(nodes).order(quorate::Order::Unordered),
    ]
    .map(|settings| settings.build().expect("good"))
}

/// Calls `acquire`, and checks that it fails when [`WAIT`] ends, or at most [`TOLERANCE`] afterwards. Returns the error.
async fn assert_fails_in_time(redlock: &Redlock) -> AcquireError {
    let started_at = Instant::now();
    let outcome = tokio::time::timeout(WAIT + TOLERANCE, redlock.acquire("x")).await;
    let error = outcome
        .expect("the acquire must end in time")
        .map(drop)
        .expect_err("the lock must not be acquired");
    assert!(
        started_at.elapsed() + ms(5) >= WAIT,
        "{:?}",
        started_at.elapsed()
    );
    error
}

fn is_release(request: &Request) -> bool {
    matches!(request, Request::Release { .. })
}

fn is_acquire(request: &Request) -> bool {
    matches!(request, Request::Acquire { .. })
}

fn ignore_requests(must_ignore: fn(&Request) -> bool) -> impl FnMut(&Request) -> Treatment + Send {
    move |request| {
        if must_ignore(request) {
            Unanswered
        } else {
            Answered
        }
    }
}

fn fail_with(fault: &Fault) -> impl FnMut(&Request) -> Treatment + Send + use<> {
    let fault = fault.clone();
    move |_| Fails(fault.clone(), Duration::ZERO)
}

fn down_fault() -> Fault {
    Fault::Down("switched off".into())
}

#[tokio::test]
async fn acquire_fails_at_its_wait_limit_if_a_master_never_answers_the_release_request() {
    let nodes = [
        Stubborn::new("a", ignore_requests(is_release)),
        Stubborn::honest("b").held_by_another("x"),
        Stubborn::honest("c").held_by_another("x"),
    ];
    for redlock in fair_and_unordered(&nodes) {
        let error = assert_fails_in_time(&redlock).await;
        assert!(matches!(error, AcquireError::HeldByOther(_)), "{error}");
    }
}

#[tokio::test]
async fn acquire_fails_at_its_wait_limit_if_the_deciding_vote_never_arrives() {
    let nodes = [
        Stubborn::honest("a"),
        Stubborn::honest("b").held_by_another("x"),
        Stubborn::new("c", ignore_requests(is_acquire)),
    ];
    for redlock in fair_and_unordered(&nodes) {
        assert_fails_in_time(&redlock).await;
    }
}

#[tokio::test]
async fn master_that_never_answers_is_reported_as_timed_out() {
    let nodes = [
        Stubborn::new("a", fail_with(&down_fault())),
        Stubborn::honest("b").held_by_another("x"),
        Stubborn::new("c", ignore_requests(is_acquire)),
    ];
    for redlock in fair_and_unordered(&nodes) {
        let error = assert_fails_in_time(&redlock).await;
        assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
        let outcomes: Vec<_> = error
            .reports()
            .iter()
            .map(|report| &report.outcome)
            .collect();
        assert_eq!(*outcomes[0], NodeOutcome::Fault(down_fault()));
        assert!(matches!(outcomes[2], NodeOutcome::Fault(Fault::Timeout(_))));
    }
}

#[tokio::test]
async fn acquire_fails_at_its_wait_limit_if_no_master_confirms_the_fencing_token() {
    let is_confirm = |request: &Request| matches!(request, Request::Confirm { .. });
    for order in [0, 1] {
        let nodes = ["a", "b", "c"].map(|name| Stubborn::new(name, ignore_requests(is_confirm)));
        // The masters have different fencing counters, so the acquire also sends confirm requests.
        for (n, node) in nodes.iter().enumerate() {
            node.master.with_master(|master, now| {
                let counter = (now + 500_000 * (n as u64 + 1)).to_string();
                master.put_text(now, b"quorate:fence:x", counter.as_bytes(), None);
            });
        }
        let [fair, unordered] = fair_and_unordered(&nodes);
        let redlock = if order == 0 { fair } else { unordered };
        let error = assert_fails_in_time(&redlock).await;
        assert!(matches!(error, AcquireError::TooLate(_)), "{error}");
    }
}

#[tokio::test]
async fn acquire_fails_at_its_wait_limit_if_the_request_to_leave_the_queue_is_unanswered() {
    let nodes = ["a", "b", "c"].map(|name| Stubborn::honest(name).held_by_another("x"));
    let redlock = settings(&nodes).build().expect("good settings");
    let waiting_task = tokio::spawn(async move { assert_fails_in_time(&redlock).await });
    // After 200 ms, the waiter is queued. Then masters `a` and `b` fail, so the waiter gives up and leaves the queue on
    // master `c`. That master never answers the request to leave.
    tokio::time::sleep(ms(200)).await;
    nodes[0].set_rule(fail_with(&down_fault()));
    nodes[1].set_rule(fail_with(&down_fault()));
    nodes[2].set_rule(ignore_requests(is_release));
    let wait_error = waiting_task.await.expect("the waiting task must not panic");
    assert!(
        matches!(wait_error, AcquireError::NoQuorum(_)),
        "{wait_error}"
    );
}

#[tokio::test]
async fn try_acquire_does_not_hang_if_no_master_ever_answers() {
    let nodes = ["a", "b", "c"].map(|name| Stubborn::new(name, ignore_requests(|_| true)));
    for redlock in fair_and_unordered(&nodes) {
        let outcome = tokio::time::timeout(TOLERANCE, redlock.try_acquire("x")).await;
        let error = outcome
            .expect("try_acquire must end in time")
            .expect_err("the call must fail, because no master answers");
        assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
        assert_eq!(error.reports()[0].phase, Phase::Acquire);
    }
}

#[tokio::test]
async fn waiter_without_a_time_limit_gets_the_lock_although_one_master_never_answers() {
    // For 300 ms, two masters grant the lock to another client. The third master never answers the requests of the
    // waiter.
    let nodes = [
        Stubborn::honest("a").held_by_another("x"),
        Stubborn::honest("b").held_by_another("x"),
        Stubborn::new("c", ignore_requests(|_| true)),
    ];
    for redlock in fair_and_unordered(&nodes) {
        let waiting_client = redlock.clone();
        let waiting_task = tokio::spawn(async move {
            let lock_request = waiting_client.lock("x").ttl(secs(1)).wait(Wait::Forever);
            lock_request.acquire().await.map(|guard| guard.release())
        });
        tokio::time::sleep(ms(300)).await;
        for node in &nodes[..2] {
            node.release_foreign("x");
        }
        let outcome = tokio::time::timeout(secs(15), waiting_task).await;
        outcome
            .expect("the waiter must get the lock in time")
            .expect("no panic")
            .expect("free")
            .await;
        for node in &nodes[..2] {
            node.clone().held_by_another("x");
        }
    }
}

/// Two callers of one process wait for the same lock. Both must report an outage, although the second caller is queued
/// behind the first one.
#[tokio::test]
async fn acquire_without_a_reachable_majority_does_not_report_the_lock_as_held() {
    let fail_slowly = |_: &Request| Fails(Fault::Timeout(ms(50)), ms(45));
    let nodes = [
        Stubborn::honest("good"),
        Stubborn::new("dead", fail_with(&down_fault())),
        Stubborn::new("flapping", fail_slowly),
    ];
    for unordered in [false, true] {
        let short_retry = Retry::new(ms(1), ms(1));
        let mut settings = settings(&nodes).wait(Wait::For(ms(400))).retry(short_retry);
        if unordered {
            settings = settings.order(quorate::Order::Unordered);
        }
        let redlock = settings.build().expect("good settings");
        for _ in 0..3 {
            let (first, second) = tokio::join!(redlock.acquire("x"), redlock.acquire("x"));
            for error in [first, second].map(|outcome| outcome.map(drop).expect_err("no quorum")) {
                assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
                let details = error.details();
                assert!(details.contains("dead: down (switched off)"), "{details}");
                assert!(details.contains("flapping: no answer within"), "{details}");
            }
        }
    }
}

/// Two callers start at the same time and wait 1 ms each. Every master fails only after 40 ms.
#[tokio::test]
async fn acquire_reports_an_outage_even_if_its_wait_ends_before_any_master_answers() {
    let fail_slowly = |_: &Request| Fails(Fault::Timeout(ms(50)), ms(40));
    let nodes = ["a", "b", "c"].map(|name| Stubborn::new(name, fail_slowly));
    let redlock = settings(&nodes).build().expect("good settings");
    let brief_acquire = || redlock.lock("x").wait(Wait::For(ms(1)));
    let (first, second) = tokio::join!(brief_acquire().acquire(), brief_acquire().acquire());
    for error in [first, second].map(|outcome| outcome.map(drop).expect_err("no quorum")) {
        assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    }
    let (first, outcome) = tokio::join!(brief_acquire().acquire(), async {
        // Two other callers of this process are ahead of `try_acquire`, so it sends no request.
        let _second = tokio::spawn({
            let redlock = redlock.clone();
            async move {
                redlock
                    .lock("x")
                    .wait(Wait::For(ms(1)))
                    .acquire()
                    .await
                    .map(drop)
            }
        });
        tokio::task::yield_now().await;
        redlock.try_acquire("x").await
    });
    first.map(drop).expect_err("no quorum");
    let error = outcome.expect_err("no quorum");
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
}

#[tokio::test]
async fn wait_for_a_lock_that_is_held_on_a_majority_fails_with_held_by_other() {
    let fail_slowly = |_: &Request| Fails(Fault::Timeout(ms(50)), ms(45));
    let nodes = [
        Stubborn::honest("a").held_by_another("x"),
        Stubborn::honest("b").held_by_another("x"),
        Stubborn::new("c", fail_slowly),
    ];
    for redlock in fair_and_unordered(&nodes) {
        let error = assert_fails_in_time(&redlock).await;
        assert!(matches!(error, AcquireError::HeldByOther(_)), "{error}");
    }
}

#[tokio::test]
async fn status_extend_and_release_do_not_hang_after_all_masters_stop_answering() {
    let nodes = ["a", "b", "c"].map(Stubborn::honest);
    let redlock = settings(&nodes).build().expect("good settings");
    let lock_request = || redlock.lock("x").ttl(secs(1)).renewal(false);
    let (started_at, guard) = (
        Instant::now(),
        lock_request().acquire().await.expect("free"),
    );
    for node in &nodes {
        node.set_rule(ignore_requests(|_| true));
    }
    let outcome = tokio::time::timeout(TOLERANCE, redlock.status("x")).await;
    let status = outcome
        .expect("the status request must end in time")
        .expect("the name must be valid");
    let is_timeout = |state: &Result<_, Fault>| matches!(state, Err(Fault::Timeout(_)));
    assert!(status.nodes.iter().all(|node| is_timeout(&node.state)));
    // The lock has a TTL of 1 s. Until it expires, an answer could still extend it, so the extension waits that long.
    let extended = tokio::time::timeout(TOLERANCE, guard.extend(secs(10))).await;
    let error = extended
        .expect("the extension must end in time")
        .expect_err("the extension must fail, because no master has confirmed it");
    assert_eq!(error, ExtendError::Lost(LossCause::Expired));
    assert!(
        started_at.elapsed() >= ms(980),
        "{:?}",
        started_at.elapsed()
    );
    // The lock has expired, so the release does not wait for the silent masters. It reports all three as pending.
    let released = tokio::time::timeout(TOLERANCE, guard.release()).await;
    assert_eq!(released.expect("the release must end in time").pending, 3);
}
