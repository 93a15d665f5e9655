//! Tests of quotas. Even if masters or callers fail, the callers must not take more units than the quota was created
//! with.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::support::polled::poll_then_drop;
use crate::support::slow::SlowNode;
use crate::support::stubborn::{self, Treatment};
use crate::support::{
    self, PATIENCE, ask_server, eventually, has_key, masters, memory, ms, secs, settings,
};
use quorate::node::memory::{Condition, Master, MemoryNode};
use quorate::node::{Fault, Node, Reply, Request};
use quorate::runtime::BoxFuture;
use quorate::{
    AcquireError, NodeName, NodeOutcome, Quota, Redlock, RestartGuard, Take, ValueError, Wait,
};
use quorate_testbed::{Fault as Trouble, Proxy, Way};

async fn quota(redlock: &Redlock, units: u64) -> Quota {
    let quota = redlock.quota("prizes");
    quota
        .create(units)
        .await
        .expect("the creation of the quota must succeed, because all masters can be reached");
    quota
}

#[tokio::test]
async fn quota_hands_out_exactly_its_units() {
    let (_, redlock) = memory(3);
    let quota = quota(&redlock, 3).await;
    assert_eq!(quota.left().await, Ok(3));
    assert_eq!(quota.take(2).await, Ok(Take::Taken { left: 1 }));
    assert_eq!(quota.take(2).await, Ok(Take::SoldOut { left: 1 }));
    assert_eq!(quota.take(1).await, Ok(Take::Taken { left: 0 }));
    assert_eq!(quota.take(1).await, Ok(Take::SoldOut { left: 0 }));
    assert_eq!(quota.left().await, Ok(0));
}

#[tokio::test]
async fn quota_that_was_never_created_hands_out_no_units() {
    let (_, redlock) = memory(3);
    let quota = redlock.quota("prizes");
    let error = quota
        .take(1)
        .await
        .expect_err("a take from a quota that was never created must fail");
    assert!(matches!(error, ValueError::Missing(_)), "{error}");
    assert!(error.details().contains("create it"), "{error}");
    let error = quota
        .left()
        .await
        .expect_err("a read of a quota that was never created must fail");
    assert!(matches!(error, ValueError::Missing(_)), "{error}");
}

#[tokio::test]
async fn quota_creation_fails_if_any_master_is_down_or_already_stores_the_quota() {
    let (nodes, redlock) = memory(3);
    let quota = redlock.quota("prizes");
    nodes[1].set_condition(Condition::Down);
    let error = quota
        .create(10)
        .await
        .expect_err("the creation must fail, because one master is away");
    assert!(matches!(error, ValueError::Incomplete(_)), "{error}");
    assert!(error.details().contains("m1: down"), "{error}");
    nodes[1].set_condition(Condition::Up);
    let error = quota
        .take(1)
        .await
        .expect_err("the take must fail, because no quota was created");
    assert!(matches!(error, ValueError::Missing(_)), "{error}");

    quota
        .create(10)
        .await
        .expect("the creation of the quota must succeed, because all masters can be reached");
    let error = quota
        .create(10)
        .await
        .expect_err("the creation must fail, because the value exists already");
    assert!(matches!(error, ValueError::Exists(_)), "{error}");
    assert!(error.details().contains("m0"), "{error}");
    // A second `create` must fail and change nothing as long as at least one master has the quota.
    assert_eq!(quota.take(1).await, Ok(Take::Taken { left: 9 }));
    nodes[0].forget();
    nodes[2].forget();
    let error = quota
        .create(10)
        .await
        .expect_err("the quota must not be created again, because one master still stores it");
    assert!(matches!(error, ValueError::Exists(_)), "{error}");
    assert!(error.details().contains("m1"), "{error}");
}

#[tokio::test]
async fn quota_survives_when_masters_lose_their_data_one_after_another() {
    let (nodes, redlock) = memory(3);
    let quota = quota(&redlock, 10).await;
    for (taken_units, node) in nodes.iter().chain(&nodes).enumerate() {
        node.forget();
        let units_left = 9 - taken_units as u64;
        assert_eq!(quota.take(1).await, Ok(Take::Taken { left: units_left }));
    }
    assert_eq!(quota.left().await, Ok(4));
}

#[tokio::test]
async fn reading_a_quota_restores_it_on_a_master_that_lost_it() {
    let (nodes, redlock) = memory(3);
    let quota = quota(&redlock, 1).await;
    assert_eq!(quota.take(1).await, Ok(Take::Taken { left: 0 }));
    for (n, node) in nodes.iter().chain(&nodes).enumerate() {
        if n % 2 == 0 {
            node.forget();
            assert_eq!(quota.take(1).await, Ok(Take::SoldOut { left: 0 }));
        } else {
            node.restart();
            assert_eq!(quota.left().await, Ok(0));
        }
    }
}

#[tokio::test]
async fn quota_lost_by_a_majority_at_the_same_time_hands_out_no_units() {
    let (nodes, redlock) = memory(5);
    let quota = quota(&redlock, 10).await;
    assert_eq!(quota.take(1).await, Ok(Take::Taken { left: 9 }));
    for node in &nodes[..3] {
        node.forget();
    }
    for _ in 0..3 {
        let error = quota
            .take(1)
            .await
            .expect_err("the take must fail, because the quota is lost");
        assert!(matches!(error, ValueError::Lost(_)), "{error}");
        let reports = error.reports().iter();
        let without_value = reports.filter(|reports| reports.outcome == NodeOutcome::NoValue);
        assert_eq!(without_value.count(), 3, "{error}");
    }
    // To replace a lost quota, an operator must first remove it with `drop_quota`.
    quota
        .drop_quota()
        .await
        .expect("the removal of the quota must succeed, because all masters can be reached");
    quota
        .create(9)
        .await
        .expect("the creation must succeed, because no master has a record any more");
    assert_eq!(quota.take(1).await, Ok(Take::Taken { left: 8 }));
}

#[tokio::test]
async fn quota_is_reported_as_lost_after_a_majority_restarted_from_disk() {
    let (nodes, redlock) = memory(3);
    let quota = quota(&redlock, 10).await;
    nodes[0].restart();
    nodes[1].restart();
    let error = quota.take(1).await.expect_err(
        "the take must fail, because two restarted masters may have lost \
         writes",
    );
    assert!(matches!(error, ValueError::Lost(_)), "{error}");
    let reports = error.details();
    assert!(
        reports.contains("m1: has a value from before its restart"),
        "{reports}"
    );
}

/// A rule for a master in memory that applies `treatment` to write requests, and treats all other requests normally.
fn treat_writes(treatment: Treatment) -> impl FnMut(&Request) -> Treatment + Send + 'static {
    move |request| match request {
        Request::Write { .. } => treatment.clone(),
        _ => Treatment::Answered,
    }
}

fn lost_reply() -> Fault {
    Fault::Disconnected("cut".into())
}

#[tokio::test]
async fn quota_reports_an_unknown_result_if_too_few_masters_confirm_a_write() {
    let lose_reply = || Treatment::Fails(lost_reply(), ms(0));
    for (treatment, expected_left) in [(Treatment::Unanswered, 8), (lose_reply(), 9)] {
        let (nodes, redlock) = stubborn::three();
        let quota = quota(&redlock, 10).await;
        for node in &nodes[..2] {
            node.set_rule(treat_writes(treatment.clone()));
        }
        // The third master does not store the value. The client cannot know this, because the connection broke before
        // the answer.
        nodes[2].set_rule(treat_writes(lose_reply()));
        let error = quota.take(1).await.expect_err("unknown");
        assert!(matches!(error, ValueError::Unknown(_)), "{error}");
        for node in &nodes {
            node.set_rule(|_| Treatment::Answered);
        }
        let units_left = expected_left;
        assert_eq!(quota.take(1).await, Ok(Take::Taken { left: units_left }));
    }
}

#[tokio::test]
async fn quota_that_was_reported_as_sold_out_hands_out_no_unit_later() {
    let fails = || Treatment::Fails(lost_reply(), ms(0));
    let (nodes, redlock) = stubborn::three();
    let quota = quota(&redlock, 1).await;
    // Only the first master stores that the unit was taken.
    for node in &nodes[1..] {
        node.set_rule(treat_writes(fails()));
    }
    let error = quota.take(1).await.expect_err("unknown");
    assert!(matches!(error, ValueError::Unknown(_)), "{error}");
    // A later read may miss this master. So the next reader must not report its value, unless a majority stores it.
    for result in [quota.take(1).await.map(drop), quota.left().await.map(drop)] {
        let error = result.expect_err("the value is only on one master");
        assert!(matches!(error, ValueError::NoQuorum(_)), "{error}");
    }
    nodes[1].set_rule(|_| Treatment::Answered);
    nodes[2].set_rule(move |_| fails());
    assert_eq!(quota.take(1).await, Ok(Take::SoldOut { left: 0 }));
    nodes[0].set_rule(move |_| Treatment::Fails(lost_reply(), ms(0)));
    nodes[2].set_rule(|_| Treatment::Answered);
    assert_eq!(quota.take(1).await, Ok(Take::SoldOut { left: 0 }));
}

#[tokio::test]
async fn quota_write_needs_a_majority_of_masters_that_also_answered_the_read() {
    let (nodes, redlock) = stubborn::three();
    let quota = quota(&redlock, 10).await;
    // Only the first master answers both reads and writes.
    nodes[1].set_rule(treat_writes(Treatment::Fails(lost_reply(), ms(0))));
    nodes[2].set_rule(|request| match request {
        Request::Read { .. } => Treatment::Fails(lost_reply(), ms(0)),
        _ => Treatment::Answered,
    });
    let error = quota.take(1).await.expect_err(
        "the result must be unknown, because only one master that was read has stored the write",
    );
    assert!(matches!(error, ValueError::Unknown(_)), "{error}");
}

#[tokio::test]
async fn quota_write_ignores_servers_that_restarted_between_read_and_write() {
    let (nodes, redlock) = stubborn::three();
    let quota = quota(&redlock, 10).await;
    for (n, node) in nodes[..2].iter().enumerate() {
        let master = node.master.clone();
        node.set_rule(move |request| {
            if matches!(request, Request::Write { .. }) {
                // Both masters restart between the read and the write. The first master loses its data, and the second
                // keeps its data.
                if n == 0 {
                    master.forget();
                } else {
                    master.restart();
                }
            }
            Treatment::Answered
        });
    }
    let error = quota
        .take(1)
        .await
        .expect_err("the take must fail, because two masters have restarted since the read");
    assert!(matches!(error, ValueError::Unknown(_)), "{error}");
}

#[tokio::test]
async fn quota_is_not_written_if_its_lock_ends_between_read_and_write() {
    let (nodes, redlock) = stubborn::three();
    let quota = quota(&redlock, 10).await;
    for node in &nodes {
        node.set_rule(|request| match request {
            Request::Read { .. } => Treatment::Late(ms(600)),
            Request::Extend { .. } => Treatment::Fails(lost_reply(), ms(0)),
            _ => Treatment::Answered,
        });
    }
    let error = quota
        .take(1)
        .await
        .expect_err("the take must fail, because the lock has expired");
    assert!(matches!(error, ValueError::LockLost(_)), "{error}");
    for node in &nodes {
        node.set_rule(|_| Treatment::Answered);
    }
    assert_eq!(quota.left().await, Ok(10));
}

#[tokio::test(start_paused = true)]
async fn cancelled_request_for_a_quota_unit_wastes_at_most_one_unit() {
    const UNITS: u64 = 4;
    let mut wasted_units = 0;
    for distances in [[0, 0, 0], [1, 2, 4], [9, 1, 3]] {
        let slow_node =
            |(n, way): (usize, &u64)| SlowNode::new(&format!("far {n}"), ms(*way), ms(*way));
        for polls in 1.. {
            let nodes: Vec<_> = distances.iter().enumerate().map(slow_node).collect();
            let dyn_nodes = nodes.into_iter().map(|node| node as Arc<dyn Node>);
            let redlock = Redlock::builder().nodes(dyn_nodes.collect());
            let redlock = redlock.build().expect("good settings");
            let quota = quota(&redlock, UNITS).await;
            let outcome = poll_then_drop(quota.take(1), polls).await;
            let mut taken_units = u64::from(outcome.is_some());
            loop {
                match quota
                    .take(1)
                    .await
                    .expect("each later take must succeed, because all masters can be reached")
                {
                    Take::Taken { .. } => taken_units += 1,
                    Take::SoldOut { left: units_left } => break assert_eq!(units_left, 0),
                }
            }
            assert!(
                taken_units <= UNITS,
                "at most all units may be taken, but {taken_units} were (distances {distances:?}, dropped after {polls} \
                 polls)"
            );
            assert!(
                taken_units + 1 >= UNITS,
                "at most one unit may be wasted, but only {taken_units} were taken (distances {distances:?}, dropped \
                 after {polls} polls)"
            );
            wasted_units += UNITS - taken_units;
            if outcome.is_some() {
                break;
            }
        }
    }
    assert!(
        wasted_units > 0,
        "at least one call must have been dropped after its write"
    );
}

/// Tests masters that are restarted without data, one after the other. A write stores the value on a restarted master
/// again, even while the restart guard ignores the votes of this master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quota_survives_when_real_masters_are_restarted_empty_one_after_another() {
    const UNITS: u64 = 500;
    let masters = masters(3);
    let redlock = Redlock::builder()
        .masters(masters.urls())
        .ttl(secs(1))
        .max_ttl(secs(2))
        .node_timeout(ms(250))
        .wait(Wait::For(PATIENCE))
        .restart_guard(RestartGuard::AfterFirstContact)
        .build()
        .expect("good settings");
    let quota = quota(&redlock, UNITS).await;
    let mut taken_units = 0;
    for (n, master) in masters.iter().chain(&masters).enumerate().take(5) {
        master.restart_empty().expect("restarted");
        let restarted = Instant::now();
        let mut successes = 0;
        loop {
            assert!(
                restarted.elapsed() < PATIENCE,
                "{n}: the restarted master must store the value again"
            );
            match quota.take(1).await {
                Ok(Take::Taken { .. }) => {
                    (taken_units, successes) = (taken_units + 1, successes + 1);
                }
                Ok(take) => panic!("{take:?}"),
                Err(error @ (ValueError::Lost(_) | ValueError::Missing(_))) => {
                    panic!("{n}: {error}")
                }
                // The call failed because the restart of a master had just closed a connection.
                Err(_) => {}
            }
            if successes > 0 && has_key(master, "quorate:value:prizes") {
                break;
            }
            tokio::time::sleep(ms(20)).await;
        }
    }
    let units_left = loop {
        if let Ok(units_left) = quota.left().await {
            break units_left;
        }
    };
    assert!(
        taken_units + units_left <= UNITS,
        "{taken_units} units were taken and {units_left} are left, which is more than were created"
    );
    // Finally, restart two of the three masters without data at the same time, so only one master has the value.
    masters[0].restart_empty().expect("restarted");
    masters[1].restart_empty().expect("restarted");
    let started_at = Instant::now();
    let error = loop {
        match quota.take(1).await {
            Ok(take) => panic!("{take:?}"),
            Err(error @ ValueError::Lost(_)) => break error,
            Err(error) => assert!(started_at.elapsed() < PATIENCE, "{error}"),
        }
    };
    assert!(error.details().contains("is lost"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_concurrent_tasks_take_exactly_the_units_of_a_quota() {
    const UNITS: u64 = 40;
    let masters = masters(3);
    let builder = settings(masters.urls()).restart_guard(RestartGuard::AfterFirstContact);
    let guarded_builder = builder.wait(Wait::For(secs(60)));
    let clients: Vec<Redlock> = (0..4)
        .map(|_| guarded_builder.clone().build().expect("good settings"))
        .collect();
    quota(&clients[0], UNITS).await;
    let taken_units = Arc::new(AtomicU64::new(0));
    let takers = (0..64).map(|n| {
        let (quota, taken_units) = (
            clients[n % clients.len()].quota("prizes"),
            taken_units.clone(),
        );
        tokio::spawn(async move {
            match quota.take(1).await {
                Ok(Take::Taken { .. }) => drop(taken_units.fetch_add(1, Ordering::Relaxed)),
                Ok(Take::SoldOut { left: units_left }) => assert_eq!(units_left, 0),
                Err(error) => panic!("{error}"),
            }
        })
    });
    for taker in futures::future::join_all(takers).await {
        taker.expect("no panic");
    }
    assert_eq!(taken_units.load(Ordering::Relaxed), UNITS);
    assert_eq!(clients[1].quota("prizes").left().await, Ok(0));
}

#[tokio::test]
async fn quota_is_reported_as_lost_if_a_majority_of_masters_restarted_after_storing_it() {
    let masters = masters(3);
    let guarded_builder = settings(masters.urls()).restart_guard(RestartGuard::AfterFirstContact);
    let redlock = guarded_builder.build().expect("good settings");
    let quota = quota(&redlock, 10).await;
    assert_eq!(quota.take(1).await, Ok(Take::Taken { left: 9 }));
    // Replace the value on two masters with an old value from an earlier run of the server.
    for master in masters.iter().take(2) {
        let reply = ask_server(master, &["GET", "quorate:value:prizes"]);
        let text = reply.text().expect("a value").into_owned();
        let value_parts: Vec<&str> = text.splitn(3, ' ').collect();
        assert_eq!(value_parts[2], "quota 9");
        let old_text = format!("{} {} quota 10", value_parts[0], "0".repeat(40));
        ask_server(master, &["SET", "quorate:value:prizes", &old_text]);
    }
    let error = quota
        .take(1)
        .await
        .expect_err("the take must fail, because two stored values may be outdated");
    assert!(matches!(error, ValueError::Lost(_)), "{error}");
    // With the restart guard off, a client trusts values from disk, and uses the one with the largest fencing token.
    let builder = settings(masters.urls()).restart_guard(RestartGuard::Off);
    let unguarded = builder.build().expect("good settings").quota("prizes");
    let units_left = unguarded
        .left()
        .await
        .expect("the read must succeed, because three masters store a value");
    assert!(units_left >= 9, "{units_left}");
}

#[tokio::test]
async fn quota_can_be_used_after_a_client_whose_clock_is_a_day_ahead_wrote_it() {
    let masters = masters(3);
    let redlock = settings(masters.urls()).build().expect("good settings");
    let quota = quota(&redlock, 10).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let ahead_us = (now.expect("after 1970") + secs(86_400)).as_micros();
    // Give the value a fencing token that is a day ahead of the clock. Delete the fencing counter, as if it had
    // expired.
    for master in &masters {
        let reply = ask_server(master, &["GET", "quorate:value:prizes"]);
        let text = reply.text().expect("a value").into_owned();
        let (_, rest) = text.split_once(' ').expect("a number");
        let refilled_text = format!("{ahead_us} {rest}");
        ask_server(master, &["SET", "quorate:value:prizes", &refilled_text]);
        ask_server(master, &["DEL", "quorate:fence:prizes"]);
    }
    let _ = quota.take(1).await;
    let taken_units = quota.take(1).await;
    assert!(
        matches!(taken_units, Ok(Take::Taken { .. })),
        "{taken_units:?}"
    );
}

#[tokio::test]
async fn quota_does_not_overwrite_a_key_that_holds_another_kind_of_value() {
    let masters = masters(3);
    let redlock = support::redlock(&masters);
    for master in &masters {
        ask_server(master, &["RPUSH", "quorate:value:prizes", "a", "b"]);
    }
    let quota = redlock.quota("prizes");
    for error in [
        quota
            .take(1)
            .await
            .expect_err("the call must fail, because the key of the value is a Redis list"),
        quota
            .create(10)
            .await
            .expect_err("the call must fail, because the key of the value is a Redis list"),
        quota
            .drop_quota()
            .await
            .expect_err("the call must fail, because the key of the value is a Redis list"),
    ] {
        assert!(error.details().contains("WRONGTYPE"), "{error}");
    }
    for master in &masters {
        let list_length = ask_server(master, &["LLEN", "quorate:value:prizes"]);
        assert_eq!(list_length.int(), Some(2));
    }
    let nightly = redlock.once("nightly", secs(3600));
    nightly
        .create()
        .await
        .expect("the creation of the once record must succeed, because all masters can be reached");
    let other_quota = redlock.quota("nightly");
    for error in [
        other_quota
            .take(1)
            .await
            .expect_err("a stored value of another kind must be refused"),
        other_quota
            .drop_quota()
            .await
            .expect_err("a stored value of another kind must be refused"),
    ] {
        assert!(matches!(error, ValueError::OtherKind { .. }), "{error}");
    }
    let outcome = nightly.at_most_once(async |_| ()).await;
    assert!(
        outcome.is_ok(),
        "the record of the once job must still exist: {outcome:?}"
    );
    quota_is_no_record_to_refill(&redlock).await;
}

async fn quota_is_no_record_to_refill(redlock: &quorate::Redlock) {
    redlock.quota("seats").create(10).await.expect("new");
    let guard = redlock.acquire("seats").await.expect("free");
    let record = redlock.once("seats", secs(3600));
    let error = record
        .refill(&guard)
        .await
        .expect_err("a stored value of another kind must be refused");
    assert!(matches!(error, ValueError::OtherKind { .. }), "{error}");
}

#[tokio::test]
async fn invalid_quota_request_is_refused_and_sends_nothing() {
    let (nodes, redlock) = memory(3);
    let quota = redlock.quota("prizes");
    for error in [
        quota.create(0).await.expect_err("none"),
        quota.take(0).await.expect_err("none").clone(),
    ] {
        assert!(matches!(error, ValueError::Invalid(_)), "{error}");
    }
    let error = redlock.quota("").take(1).await.expect_err("no name");
    assert!(error.details().contains("empty"), "{error}");
    for node in &nodes {
        assert!(node.with_master(Master::is_empty));
    }
    let classic_builder = Redlock::builder().in_memory(3).fencing(false);
    let classic_quota = classic_builder
        .build()
        .expect("good settings")
        .quota("prizes");
    let error = classic_quota
        .create(1)
        .await
        .expect_err("a client without fencing must be refused");
    assert_eq!(error, ValueError::NoFencing);
}

#[tokio::test]
async fn taking_a_quota_unit_sends_one_read_and_one_write_to_each_master() {
    let (nodes, redlock) = stubborn::three();
    let quota = quota(&redlock, 10).await;
    let request_count = Arc::new(AtomicU64::new(0));
    for node in &nodes {
        let request_count = request_count.clone();
        node.set_rule(move |request| {
            if matches!(request, Request::Read { .. } | Request::Write { .. }) {
                request_count.fetch_add(1, Ordering::Relaxed);
            }
            Treatment::Answered
        });
    }
    assert_eq!(quota.take(1).await, Ok(Take::Taken { left: 9 }));
    assert_eq!(request_count.swap(0, Ordering::Relaxed), 2 * 3);
    assert_eq!(quota.left().await, Ok(9));
    assert_eq!(request_count.swap(0, Ordering::Relaxed), 3);
}

#[tokio::test]
async fn quota_operation_fails_if_its_lock_is_not_free_within_the_wait_limit() {
    let (_, redlock) = memory(3);
    let quota = quota(&redlock, 3).await;
    let guard = redlock.acquire("prizes").await.expect("free");
    let outcome = quota.clone().wait(Wait::For(ms(50))).take(1).await;
    let error = outcome.expect_err("held");
    assert!(
        matches!(error, ValueError::NotAcquired(AcquireError::HeldByOther(_))),
        "{error}"
    );
    guard.release().await;
    assert_eq!(quota.take(1).await, Ok(Take::Taken { left: 2 }));
}

/// A master in memory that delays each write of the quota until it receives a request to release a lock.
struct LateAnswers {
    node: MemoryNode,
    held_writes: Mutex<Vec<(Request, Reply)>>,
}

impl Node for LateAnswers {
    fn name(&self) -> &NodeName {
        self.node.name()
    }

    fn send(&self, request: Request, reply: Reply) {
        let mut held_writes = self.held_writes.lock().expect("no panic");
        match &request {
            Request::Write { value, .. } if value.run.is_some() => {
                held_writes.push((request, reply));
            }
            Request::Release { .. } => {
                for (request, reply) in held_writes.drain(..) {
                    self.node.send(request, reply);
                }
                self.node.send(request, reply);
            }
            _ => self.node.send(request, reply),
        }
    }

    fn idle(&self) -> BoxFuture<()> {
        self.node.idle()
    }
}

/// Five masters that delay each write of the quota until they receive a request to release its lock. Returns the
/// masters, and a quota of 10 units on them.
async fn quota_with_late_answers() -> (Vec<MemoryNode>, Quota) {
    let (nodes, plain_client) = memory(5);
    quota(&plain_client, 10).await;
    let late_node = |node: &MemoryNode| {
        Arc::new(LateAnswers {
            node: node.clone(),
            held_writes: Mutex::default(),
        }) as Arc<dyn Node>
    };
    let redlock = Redlock::builder().nodes(nodes.iter().map(late_node).collect());
    let redlock = redlock.node_timeout(ms(200)).build();
    (nodes, redlock.expect("good settings").quota("prizes"))
}

#[tokio::test]
async fn lock_of_a_quota_is_released_before_the_write_is_answered() {
    let (_, quota) = quota_with_late_answers().await;
    for units_left in [9, 8, 7] {
        assert_eq!(quota.take(1).await, Ok(Take::Taken { left: units_left }));
    }
}

#[tokio::test]
async fn quota_lock_is_held_until_the_write_is_answered_if_one_read_failed() {
    let (nodes, quota) = quota_with_late_answers().await;
    nodes[4].set_condition(Condition::Down);
    // After a failed read, the client releases the lock only when the write is answered. These masters answer a write
    // only after the release, so `take` times out.
    let error = quota
        .take(1)
        .await
        .expect_err("the take must fail, because no master answers the write in time");
    assert!(matches!(error, ValueError::Unknown(_)), "{error}");
    nodes[4].set_condition(Condition::Up);
    assert_eq!(quota.take(1).await, Ok(Take::Taken { left: 8 }));
}

#[tokio::test]
async fn reading_a_quota_restores_it_on_a_slow_master() {
    let masters = masters(3);
    let proxy = Proxy::start(masters[2].addr()).expect("a proxy");
    proxy.inject(Trouble::latency(Way::Both, ms(10))).keep();
    let urls = [
        masters[0].url(),
        masters[1].url(),
        masters[2].url_at(proxy.addr()),
    ];
    let redlock = settings(urls).build().expect("good settings");
    let quota = redlock.quota("prizes");
    quota
        .create(10)
        .await
        .expect("the creation of the quota must succeed, because all masters can be reached");
    let has_value = || has_key(&masters[2], "quorate:value:prizes");
    eventually("all masters must have the value", has_value).await;
    let delete_value = |master| ask_server(master, &["DEL", "quorate:value:prizes"]);
    delete_value(&masters[2]);
    assert_eq!(
        quota
            .left()
            .await
            .expect("the read must succeed, because two masters still store the value"),
        10
    );
    eventually("the master must have received the value again", has_value).await;
    delete_value(&masters[1]);
    let units_left = quota.left().await;
    assert_eq!(
        units_left,
        Ok(10),
        "the quota must still exist: the read between the two losses must have restored it"
    );
}
