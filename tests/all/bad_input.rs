//! Tests of calls with an invalid argument or in an unsupported state. Each call fails with a one-line error that names
//! the cause. A call with an invalid argument sends no request to the masters.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quorate::node::memory::{Condition, Master, MemoryNode};
use quorate::node::{Node, Reply, Request};
use quorate::runtime::BoxFuture;
use quorate::{LossCause, NodeName, Redlock};

/// A master in memory that counts the requests it receives.
struct CountingNode(MemoryNode, AtomicUsize);

impl Node for CountingNode {
    fn name(&self) -> &NodeName {
        self.0.name()
    }

    fn send(&self, request: Request, reply: Reply) {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.send(request, reply);
    }

    fn idle(&self) -> BoxFuture<()> {
        self.0.idle()
    }
}

fn client_over(nodes: &[MemoryNode]) -> Redlock {
    let dyn_nodes = nodes
        .iter()
        .map(|node| Arc::new(node.clone()) as Arc<dyn Node>);
    let redlock = Redlock::builder().nodes(dyn_nodes.collect()).build();
    redlock.expect("good settings")
}

#[tokio::test]
async fn invalid_argument_fails_with_a_one_line_error_before_any_request_is_sent() {
    let node = Arc::new(CountingNode(MemoryNode::new("m"), AtomicUsize::new(0)));
    let build_result = Redlock::builder().nodes(vec![node.clone()]).build();
    let redlock = build_result.expect("good settings");
    let acquire_error = |error: Result<_, quorate::AcquireError>| match error {
        Err(error) => error.to_string(),
        Ok::<quorate::LockGuard, _>(guard) => panic!("{guard:?}"),
    };
    let owner_error = |id: &str| redlock.owner(id).expect_err("no id").to_string();
    let many_names = (0..17).map(|n| format!("r{n}"));
    let once_without_period = redlock.once("nightly", Duration::ZERO);
    let messages = [
        acquire_error(redlock.semaphore("api", 0).acquire().await),
        acquire_error(redlock.semaphore("api", 65).acquire().await),
        acquire_error(redlock.lock_all(many_names).acquire().await),
        acquire_error(redlock.lock_all(["a", "b", "a"]).acquire().await),
        acquire_error(redlock.lock_all(["a", ""]).acquire().await),
        acquire_error(redlock.lock("quorate:slot:0:api").acquire().await),
        match redlock.election("").observe() {
            Err(error) => error.to_string(),
            Ok(_) => panic!("an election needs a name"),
        },
        owner_error(""),
        owner_error(&"x".repeat(65)),
        owner_error("a\nb"),
        owner_error("0123456789ABCDEF0123456789abcdef"),
        once_without_period
            .create()
            .await
            .expect_err("a period of zero must be refused")
            .to_string(),
        match redlock.break_permit("api", 64).await {
            Err(error) => error.to_string(),
            Ok(status) => panic!("{status:?}"),
        },
    ];
    let expected = [
        "a semaphore has 1 to 64 permits, not 0",
        "a semaphore has 1 to 64 permits, not 65",
        "17 resources in one lock, at most 16 are allowed",
        "the resource \"a\" is named twice",
        "the resource name is empty",
        "resource names that begin with \"quorate:\" are reserved",
        "the resource name is empty",
        "an owner's id has 1 to 64 bytes and no control characters; this id has 0 bytes",
        "an owner's id has 1 to 64 bytes and no control characters; this id has 65 bytes",
        "an owner's id has 1 to 64 bytes and no control characters; this id has 3 bytes",
        "an owner's id of 32 hexadecimal digits looks like the token of a lock: give the owner another id",
        "the period is 0: it must be at least 1ms",
        "there is no slot 64: the slots of a semaphore are 0 to 63",
    ];
    assert_eq!(messages, expected);
    assert_eq!(node.1.load(Ordering::Relaxed), 0, "no request may be sent");
}

#[tokio::test]
async fn downgrade_of_a_lost_write_lock_reports_the_loss() {
    let nodes = ["m0", "m1", "m2"].map(MemoryNode::new);
    let redlock = client_over(&nodes);
    let writer_guard = redlock.acquire("doc").await.expect("free");
    redlock
        .break_lock("doc")
        .await
        .expect("the name must be valid");
    assert!(writer_guard.extend(Duration::from_secs(20)).await.is_err());
    assert_eq!(writer_guard.lost().await, LossCause::TakenAway);
    let error = writer_guard
        .downgrade()
        .await
        .expect_err("the downgrade must fail, because the lock is lost");
    assert_eq!(
        error.to_string(),
        "the lock is lost (a majority of masters reports that this client no longer holds it) and cannot be \
         downgraded: \
         acquire it again with shared()"
    );
    redlock.flush().await;
    let status = redlock.status("doc").await.expect("the name must be valid");
    assert_eq!(status.verdict(), quorate::StatusVerdict::Free, "{status:?}");
}

#[tokio::test]
async fn creation_of_a_quota_fails_if_a_master_is_unreachable_or_the_quota_exists() {
    let nodes = ["m0", "m1", "m2"].map(MemoryNode::new);
    let redlock = client_over(&nodes);
    let quota = redlock.quota("prizes");
    nodes[1].set_condition(Condition::Down);
    let error = quota
        .create(10)
        .await
        .expect_err("the creation must fail, because one master is away")
        .details();
    let expected = "the value of \"prizes\" can be created or dropped only if every master answers: try again when \
                all masters answer; a drop may already have removed the value from some masters";
    assert!(
        error.starts_with(expected) && error.contains("m1"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1);
    nodes[1].set_condition(Condition::Up);
    // The failed `create` must store no value on any master.
    let value_on = |master: &mut Master| {
        let key = b"quorate:value:prizes";
        master.peek(u64::MAX / 2, key).holder.map(<[u8]>::to_vec)
    };
    assert!(
        nodes
            .iter()
            .all(|node| node.with_master(|m, _| value_on(m)).is_none())
    );
    quota
        .create(10)
        .await
        .expect("the creation must succeed, because all masters can be reached");
    let error = quota
        .create(7)
        .await
        .expect_err("the creation must fail, because the value exists already")
        .details();
    assert_eq!(
        error,
        "the value of \"prizes\" was not created: it exists already, on m0, m1, m2"
    );
    assert_eq!(quota.left().await, Ok(10));
}

#[tokio::test]
async fn callers_with_limits_of_two_and_three_share_at_most_three_permits() {
    let redlock = Redlock::in_memory(3);
    let try_permit = |permits| redlock.semaphore("api", permits).try_acquire();
    let first_permit = try_permit(2).await.expect("an answer").acquired();
    let second_permit = try_permit(2).await.expect("an answer").acquired();
    assert!(first_permit.is_some() && second_permit.is_some());
    assert!(try_permit(2).await.expect("an answer").acquired().is_none());
    let third_permit = try_permit(3).await.expect("an answer").acquired();
    assert_eq!(
        third_permit.as_ref().and_then(quorate::LockGuard::slot),
        Some(2)
    );
    assert!(try_permit(3).await.expect("an answer").acquired().is_none());
    // The first holder had slot 0, and `third_permit` has slot 2. With a limit of two permits, only slots 0 and 1
    // count.
    drop(first_permit);
    redlock.flush().await;
    assert!(try_permit(2).await.expect("an answer").acquired().is_some());
}

/// The locks of the values are held. The error must nevertheless say that the client uses no fencing tokens.
#[tokio::test]
async fn client_without_fencing_cannot_create_a_quota_or_a_once_record() {
    let build_result = Redlock::builder().in_memory(3).fencing(false).build();
    let redlock = build_result.expect("good settings");
    let _held = redlock.acquire("prizes").await.expect("free");
    let quota = redlock.quota("prizes").create(1).await;
    assert_eq!(quota, Err(quorate::ValueError::NoFencing));
    let once = redlock.once("prizes", Duration::from_secs(60));
    assert_eq!(once.create().await, Err(quorate::ValueError::NoFencing));
}
