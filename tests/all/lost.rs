//! Tests of lost locks: how renewals and extensions report a loss, and how a guard shows each master's answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::listener::Listener;
use crate::support::stubborn::Treatment::{Answered, Fails, Late};
use crate::support::stubborn::{Stubborn, Treatment};
use crate::support::{
    PATIENCE, ask_server, count_masters_with, eventually, has_key, masters, ms, secs, settings,
    take,
};
use quorate::node::memory::Master;
use quorate::node::{Node, Request};
use quorate::{
    ExtendError, Fault, LockGuard, LossCause, NodeOutcome, Phase, Redlock, StatusVerdict, Wait,
};
use quorate_testbed::{Fault as Cut, Proxy, Way};

fn three_masters(ttl: Duration) -> ([Arc<Stubborn>; 3], Redlock) {
    let nodes = ["a", "b", "c"].map(Stubborn::honest);
    let redlock = Redlock::builder()
        .nodes(
            nodes
                .iter()
                .map(|node| node.clone() as Arc<dyn Node>)
                .collect(),
        )
        .ttl(ttl)
        .build()
        .expect("good settings");
    (nodes, redlock)
}

fn outcomes(guard: &LockGuard) -> Vec<(Phase, NodeOutcome)> {
    let reports = guard.report().into_iter();
    reports
        .map(|report| (report.phase, report.outcome))
        .collect()
}

/// Acquires the lock with a fixed lease. The lock is never renewed, so only an extension can find that it is lost.
async fn acquire_lease(redlock: &Redlock) -> LockGuard {
    let lock_request = redlock.lock("job").renewal(false);
    lock_request.acquire().await.expect("free")
}

/// Tests that the client releases a lost lock on all masters. Otherwise the remaining keys would block every client
/// until their TTL ends, and this test does not wait that long.
#[tokio::test]
async fn extension_of_a_lost_lock_deletes_its_remaining_lock_keys() {
    let masters = masters(3);
    let redlock = settings(masters.urls()).build().expect("good settings");
    let guard = acquire_lease(&redlock).await;
    for master in masters.iter().take(2) {
        ask_server(master, &["SET", "job", "a thief"]);
    }
    let next_client = redlock.clone();
    let next_client = tokio::spawn(async move {
        let lock_request = next_client.lock("job").wait(Wait::For(PATIENCE));
        lock_request.acquire().await.map(drop)
    });
    let lost_error = Err(ExtendError::Lost(LossCause::TakenAway));
    assert_eq!(guard.extend(secs(30)).await, lost_error);
    eventually(
        "the extension must have deleted the key of the third master",
        || !has_key(&masters[2], "job"),
    )
    .await;
    // Delete the foreign lock values, so that the waiter gets the lock.
    for master in masters.iter().take(2) {
        ask_server(master, &["DEL", "job"]);
    }
    next_client
        .await
        .expect("no panic")
        .expect("the waiter must get the lock");
    assert!(guard.extend(secs(30)).await.is_err());
    guard.release().await;
    take(&redlock, "job").await.release().await;
}

#[tokio::test]
async fn guard_reports_a_loss_detected_by_a_dropped_extension() {
    let (nodes, redlock) = three_masters(secs(30));
    let guard = acquire_lease(&redlock).await;
    let steal_lock = |node: &Arc<Stubborn>| {
        node.clone().held_by_another("job");
        node.set_rule(|request| match request {
            Request::Extend { .. } => Treatment::Late(ms(100)),
            _ => Answered,
        });
    };
    nodes[..2].iter().for_each(steal_lock);
    let outcome = tokio::time::timeout(ms(20), guard.extend(secs(30))).await;
    assert!(
        outcome.is_err(),
        "the extension must be dropped before the masters answer"
    );
    let lost_result = tokio::time::timeout(PATIENCE, guard.lost()).await;
    assert_eq!(lost_result, Ok(LossCause::TakenAway));
}

/// The test drops the future of the extension and releases the lock. Only then do the answers of the masters show the
/// loss, which must not be reported any more.
#[tokio::test]
async fn dropped_extension_reports_no_loss_after_the_lock_was_released() {
    let listener = Listener::default();
    let _listening = listener.listen();
    let (nodes, redlock) = three_masters(secs(30));
    let guard = acquire_lease(&redlock).await;
    for node in &nodes {
        node.clone().held_by_another("job");
        node.set_rule(|request| match request {
            Request::Extend { .. } => Late(ms(100)),
            _ => Answered,
        });
    }
    let outcome = tokio::time::timeout(ms(20), guard.extend(secs(30))).await;
    assert!(
        outcome.is_err(),
        "the extension must be dropped before the masters answer"
    );
    guard.release().await;
    tokio::time::sleep(ms(300)).await;
    let trace = listener.output();
    assert!(!trace.contains("lock lost"), "{trace}");
}

#[tokio::test]
async fn guard_of_a_lost_lock_reports_each_masters_answer_to_the_last_renewal() {
    let (nodes, redlock) = three_masters(ms(900));
    let guard = take(&redlock, "job").await;
    let acquired = outcomes(&guard);
    assert!(acquired.iter().all(|(phase, _)| *phase == Phase::Acquire));
    let timeout = Fault::Timeout(ms(50));
    let timeout_fault = timeout.clone();
    nodes[0].set_rule(move |_| Fails(timeout_fault.clone(), Duration::ZERO));
    nodes[1].set_rule(|_| Fails(Fault::Down("switched off".into()), Duration::ZERO));
    let lost_result = tokio::time::timeout(PATIENCE, guard.lost()).await;
    assert_eq!(lost_result, Ok(LossCause::Expired));
    let down_fault = Fault::Down("switched off".into());
    assert_eq!(
        outcomes(&guard),
        [
            (Phase::Extend, NodeOutcome::Fault(timeout)),
            (Phase::Extend, NodeOutcome::Fault(down_fault)),
            (Phase::Extend, NodeOutcome::Yes),
        ]
    );
    // All answers had arrived when the client decided that the lock was lost, so none of them is marked as late.
    assert!(guard.report().iter().all(|report| !report.late));
}

#[tokio::test]
async fn guard_report_shows_a_late_answer_that_arrives_after_acquire_returned() {
    let (nodes, redlock) = three_masters(secs(30));
    nodes[2].set_rule(|_| Late(ms(40)));
    let guard = take(&redlock, "job").await;
    assert_eq!(guard.report()[2].outcome, NodeOutcome::Silent);
    eventually(
        "the guard must report the late answer of the last master",
        || {
            let report = guard.report();
            report[2].outcome == NodeOutcome::Yes && report[2].late && !report[1].late
        },
    )
    .await;
    guard.release().await;
}

/// Tests that a guard shows the answers to the acquire as long as no renewal fails, even after successful renewals.
#[tokio::test]
async fn guard_report_still_shows_the_acquire_answers_after_a_successful_renewal() {
    let (_nodes, redlock) = three_masters(ms(900));
    let guard = take(&redlock, "job").await;
    let first_validity_end = guard.valid_until();
    eventually("the lock must be renewed", || {
        guard.valid_until() > first_validity_end
    })
    .await;
    let report = outcomes(&guard);
    assert!(
        report.iter().all(|(phase, _)| *phase == Phase::Acquire),
        "{report:?}"
    );
    guard.release().await;
}

#[tokio::test]
async fn report_of_a_lost_lock_shows_which_masters_refused_its_renewal() {
    for extend in [false, true] {
        let (nodes, redlock) = three_masters(if extend { secs(30) } else { ms(900) });
        let guard = take(&redlock, "job").await;
        nodes[0].clone().held_by_another("job");
        nodes[1].clone().held_by_another("job");
        if extend {
            guard.extend(secs(30)).await.expect_err("taken away");
        }
        let lost_result = tokio::time::timeout(PATIENCE, guard.lost()).await;
        assert_eq!(lost_result, Ok(LossCause::TakenAway));
        let report = outcomes(&guard);
        let no = (Phase::Extend, NodeOutcome::No);
        assert_eq!(report[..2], [no.clone(), no], "{report:?}");
    }
}

#[tokio::test]
async fn successful_renewal_removes_earlier_renewal_failures_from_the_guard_report() {
    let (nodes, redlock) = three_masters(secs(3));
    let guard = take(&redlock, "job").await;
    for node in &nodes[..2] {
        node.set_rule(|_| Fails(Fault::Stalled, Duration::ZERO));
    }
    eventually("the report must show a failed renewal", || {
        let stalled = NodeOutcome::Fault(Fault::Stalled);
        guard.report()[0].outcome == stalled
    })
    .await;
    for node in &nodes[..2] {
        node.set_rule(|_| Answered);
    }
    eventually("the report must no longer show the failed renewal", || {
        outcomes(&guard)
            .iter()
            .all(|(_, report)| *report == NodeOutcome::Yes)
    })
    .await;
    assert!(guard.is_valid());
    guard.release().await;
}

/// No master answers the extension, so the call waits until the lock would have expired without renewals. During this
/// wait, a renewal extends the lock.
#[tokio::test]
async fn unanswered_extension_reports_no_loss_if_a_renewal_keeps_the_lock() {
    let (nodes, redlock) = three_masters(secs(3));
    let guard = take(&redlock, "job").await;
    for node in &nodes {
        node.set_rule(|request| match request {
            Request::Extend { items } if items[0].ttl == secs(7) => Treatment::Unanswered,
            _ => Answered,
        });
    }
    let extended = tokio::time::timeout(PATIENCE, guard.extend(secs(7))).await;
    let error = extended
        .expect("the extension must end in time")
        .expect_err("the call must fail, because no master answers");
    assert!(guard.is_valid());
    assert!(matches!(error, ExtendError::NoQuorum(_)), "{error}");
    guard.release().await;
}

/// An operator force-releases a lock while its holder is disconnected. The holder's later renewals must not restore the
/// lock, even if the operator's `max_ttl` (3 s) is far shorter than the TTL of the lock (18 s).
#[tokio::test]
async fn force_released_lock_is_not_restored_when_its_disconnected_holder_reconnects() {
    let masters = masters(3);
    let proxies: Vec<Proxy> = masters
        .iter()
        .map(|master| Proxy::start(master.addr()).expect("a proxy"))
        .collect();
    let urls = masters.iter().zip(&proxies);
    let urls = urls.map(|(master, proxy)| master.url_at(proxy.addr()));
    // A renewal of this lock is due every six seconds.
    let build_result = settings(urls).ttl(secs(18)).max_ttl(secs(60)).build();
    let far_client = build_result.expect("good settings");
    let builder = settings(masters.urls()).ttl(secs(3)).max_ttl(secs(3));
    let near_client = builder.build().expect("good settings");
    let guard = take(&far_client, "job").await;
    // An acquire needs only a majority. Wait until the third master has executed it as well, because the proxies will
    // hold back all later requests.
    eventually("every master must have the lock key", || {
        count_masters_with(&masters, "job") == 3
    })
    .await;
    let stopped_proxies: Vec<_> = proxies
        .iter()
        .map(|proxy| proxy.inject(Cut::Hold(Way::Both)))
        .collect();
    // On a busy machine, a force-release may time out on a master and leave the lock key there. So repeat it until no
    // master has the key.
    let started_at = Instant::now();
    while count_masters_with(&masters, "job") > 0 {
        assert!(
            started_at.elapsed() < PATIENCE,
            "every master must lose the lock key"
        );
        near_client
            .break_lock("job")
            .await
            .expect("the name must be valid");
    }
    let next_client = take(&near_client, "job").await;
    let later_token = next_client.fencing_token();
    assert!(later_token > guard.fencing_token());
    next_client.release().await;
    // Wait longer than the longest TTL in the operator's settings.
    tokio::time::sleep(ms(3_500)).await;
    assert!(
        guard.is_valid(),
        "the holder must not notice the forced release before it reaches the masters again"
    );
    drop(stopped_proxies);
    let lost_result = tokio::time::timeout(PATIENCE, guard.lost()).await;
    assert_eq!(lost_result, Ok(LossCause::TakenAway));
    assert_eq!(count_masters_with(&masters, "job"), 0);
}

/// A force-release that reaches less than a majority of the masters deletes nothing: another client could acquire the
/// lock on a master without a break record.
#[tokio::test]
async fn force_release_that_reaches_a_minority_of_the_masters_deletes_nothing() {
    let masters = masters(3);
    let redlock = settings(masters.urls()).build().expect("good settings");
    let guard = take(&redlock, "job").await;
    eventually("every master must have the lock key", || {
        count_masters_with(&masters, "job") == 3
    })
    .await;
    let proxies: Vec<Proxy> = masters
        .iter()
        .map(|master| Proxy::start(master.addr()).expect("a proxy"))
        .collect();
    let urls = masters.iter().zip(&proxies);
    let urls = urls.map(|(master, proxy)| master.url_at(proxy.addr()));
    let operator = settings(urls).build().expect("good settings");
    let held_connections = [1, 2].map(|n| proxies[n].inject(Cut::Hold(Way::Both)));
    let status = operator.break_lock("job").await.expect("a valid name");
    assert_eq!(status.verdict(), StatusVerdict::Unknown);
    assert_eq!(count_masters_with(&masters, "job"), 3);
    drop(held_connections);
    let started_at = Instant::now();
    while count_masters_with(&masters, "job") > 0 {
        assert!(started_at.elapsed() < PATIENCE, "the lock must be released");
        operator.break_lock("job").await.expect("a valid name");
    }
    assert_eq!(guard.lost().await, LossCause::TakenAway);
}

/// A majority gets the break records, and is lost before it executes the deletion.
#[tokio::test]
async fn force_release_without_a_confirmed_deletion_reports_that_the_holder_is_refused() {
    let (nodes, redlock) = three_masters(ms(1_500));
    let guard = take(&redlock, "job").await;
    let has_lock = |node: &Stubborn| {
        let is_locked = |master: &mut Master, now| master.peek(now, b"job").holder.is_some();
        node.master.with_master(is_locked)
    };
    eventually("every master must have the lock key", || {
        nodes.iter().all(|node| has_lock(node))
    })
    .await;
    let fault = Fault::Timeout(ms(50));
    for node in &nodes[1..] {
        let cloned_fault = fault.clone();
        node.set_rule(move |request| match request {
            Request::Break { delete: true, .. } => Fails(cloned_fault.clone(), Duration::ZERO),
            _ => Answered,
        });
    }
    let status = redlock.break_lock("job").await.expect("a valid name");
    assert_eq!(status.verdict(), StatusVerdict::Unknown);
    assert!(status.deletion_was_sent(), "{status:?}");
    assert!(!has_lock(&nodes[0]) && has_lock(&nodes[1]) && has_lock(&nodes[2]));
    // The holder is refused, although most of its keys are still there.
    assert_eq!(guard.lost().await, LossCause::TakenAway);
    for node in &nodes {
        node.set_rule(|_| Answered);
    }
    let second_break = redlock.break_lock("job").await.expect("a valid name");
    assert_ne!(second_break.verdict(), StatusVerdict::Unknown);
    assert!(!nodes.iter().any(|node| has_lock(node)));
    // Without a majority for the records, nothing is sent.
    let _guard = take(&redlock, "job").await;
    for node in &nodes[1..] {
        let cloned_fault = fault.clone();
        node.set_rule(move |request| match request {
            Request::Break { .. } => Fails(cloned_fault.clone(), Duration::ZERO),
            _ => Answered,
        });
    }
    let status = redlock.break_lock("job").await.expect("a valid name");
    assert!(!status.deletion_was_sent() && has_lock(&nodes[0]));
    assert!(
        !redlock
            .status("job")
            .await
            .expect("a valid name")
            .deletion_was_sent()
    );
}
