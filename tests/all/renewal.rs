//! Tests of the renewal of held locks: whether renewals reach the masters, how long a renewed lock is valid, and how
//! soon the holder is notified of a loss.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::stubborn::Treatment::{Answered, Fails, Late, Unanswered};
use crate::support::stubborn::{Stubborn, Treatment};
use crate::support::{PATIENCE, eventually, ms, secs};
use quorate::node::{Node, Request};
use quorate::{Drift, ExtendError, Fault, Instant, LockGuard, LossCause, Redlock};

/// The TTL of the locks. A lock is renewed after each third of its TTL, so after three seconds and again after six.
const TTL: Duration = secs(9);
/// The longest delay of an event that must happen immediately. It allows for a busy machine.
const PROMPTLY: Duration = secs(2);

/// One request that extends locks: the resources of these locks, and the time at which the request arrived at a master.
#[derive(Clone, Debug)]
struct ExtendRequest {
    resources: Vec<Vec<u8>>,
    arrived_at: Instant,
}

/// All requests for extensions that the three masters have received, in the order of their arrival.
#[derive(Clone, Default)]
struct Extensions(Arc<Mutex<Vec<ExtendRequest>>>);

impl Extensions {
    fn record(&self, request: &Request) {
        if let Request::Extend { items } = request {
            let resources = items.iter().map(|item| item.claim.resource().to_vec());
            let resources = resources.collect();
            let arrived_at = Instant::now();
            self.0.lock().expect("no panic").push(ExtendRequest {
                resources,
                arrived_at,
            });
        }
    }

    fn requests(&self) -> Vec<ExtendRequest> {
        self.0.lock().expect("no panic").clone()
    }

    /// Returns true if a request to extend the lock on this resource has arrived at a master.
    fn has_request_for(&self, resource: &str) -> bool {
        let is_resource = |other: &Vec<u8>| other == resource.as_bytes();
        self.requests()
            .iter()
            .any(|request| request.resources.iter().any(is_resource))
    }
}

struct ObservedMasters {
    nodes: [Arc<Stubborn>; 3],
    redlock: Redlock,
    extensions: Extensions,
}

impl ObservedMasters {
    fn new() -> Self {
        let extensions = Extensions::default();
        let nodes = ["a", "b", "c"].map(Stubborn::honest);
        let dyn_nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
        let redlock = Redlock::builder().nodes(dyn_nodes.collect()).ttl(TTL);
        let redlock = redlock.build().expect("good settings");
        let masters = Self {
            nodes,
            redlock,
            extensions,
        };
        masters.set_extension_rule(|_| Answered);
        masters
    }

    /// Sets the treatment of requests for extensions on each master: `rule` maps the index of the master to the
    /// treatment. All other requests are treated normally.
    fn set_extension_rule(&self, rule: impl Fn(usize) -> Treatment + Clone + Send + 'static) {
        for (number, node) in self.nodes.iter().enumerate() {
            let (rule, extensions) = (rule.clone(), self.extensions.clone());
            node.set_rule(move |request| {
                extensions.record(request);
                match request {
                    Request::Extend { .. } => rule(number),
                    _ => Answered,
                }
            });
        }
    }

    async fn take(&self, resource: &str, ttl: Duration) -> LockGuard {
        let guard = self.redlock.lock(resource).ttl(ttl).acquire().await;
        guard.unwrap_or_else(|error| panic!("{error}"))
    }

    fn steal_lock(&self, from: &[usize]) {
        for node in from {
            self.nodes[*node].clone().held_by_another("job");
        }
    }
}

/// The end of the validity of a lease with this TTL, if its request was sent at the time `requested_at`. The validity is
/// shorter than the TTL by the allowed clock drift.
fn expected_deadline(requested_at: Instant, ttl: Duration) -> Instant {
    requested_at + ttl.saturating_sub(Drift::default().of(ttl))
}

#[tokio::test]
async fn lock_acquired_after_all_earlier_locks_were_released_is_renewed() {
    let masters = ObservedMasters::new();
    for _ in 0..2 {
        masters.take("first", ms(900)).await.release().await;
        // Sleep for longer than the renewal interval of the released lock, which is 300 ms.
        tokio::time::sleep(ms(700)).await;
    }
    let _guard = masters.take("second", TTL).await;
    eventually("the lock must be renewed", || {
        masters.extensions.has_request_for("second")
    })
    .await;
}

#[test]
fn locks_are_renewed_in_another_tokio_runtime_when_the_first_runtime_is_shut_down() {
    let masters = ObservedMasters::new();
    let runtime = || tokio::runtime::Runtime::new().expect("a runtime");
    let first_runtime = runtime();
    let first_guard = first_runtime.block_on(masters.take("first", TTL));
    drop(first_runtime);
    runtime().block_on(async {
        let _guard = masters.take("second", TTL).await;
        eventually("both locks must be renewed", || {
            masters.extensions.has_request_for("first")
                && masters.extensions.has_request_for("second")
        })
        .await;
        drop(first_guard);
    });
}

#[tokio::test]
async fn dropping_the_guard_of_a_lost_lock_does_not_stop_other_renewals() {
    let masters = ObservedMasters::new();
    let first_guard = masters.take("first", ms(900)).await;
    masters
        .redlock
        .break_lock("first")
        .await
        .expect("the force-release must succeed");
    let lost_result = tokio::time::timeout(PATIENCE, first_guard.lost()).await;
    assert_eq!(lost_result, Ok(LossCause::TakenAway));
    // The second lock takes the place of the lost lock in the client's renewal schedule. Dropping the lost guard must
    // not stop the renewals of the second lock.
    let _guard = masters.take("second", TTL).await;
    drop(first_guard);
    eventually("the lock must be renewed", || {
        masters.extensions.has_request_for("second")
    })
    .await;
}

/// The treatment of a slow master: it executes an extension late, and delays its answer. Neither delay may make the
/// lease longer.
fn slow(_: usize) -> Treatment {
    std::thread::sleep(ms(30));
    Late(ms(300))
}

#[tokio::test]
async fn renewal_computes_the_validity_from_its_send_time_not_its_reply_time() {
    let masters = ObservedMasters::new();
    let guard = masters.take("job", TTL).await;
    masters.set_extension_rule(slow);
    let validity_before = guard.valid_until();
    eventually("the lock must be renewed", || {
        guard.valid_until() > validity_before
    })
    .await;
    let renewed = guard.valid_until();
    let requests = masters.extensions.requests();
    // The last extension sent one request to each of the three masters. Take the first of these requests.
    let requested_at = requests[requests.len() - 3].arrived_at;
    assert!(
        renewed <= expected_deadline(requested_at, TTL),
        "{renewed:?} {requested_at:?}"
    );
}

#[tokio::test]
async fn extension_computes_the_validity_from_its_send_time_not_its_reply_time() {
    let masters = ObservedMasters::new();
    let lock_request = masters.redlock.lock("job").renewal(false);
    let guard = lock_request.acquire().await.expect("free");
    masters.set_extension_rule(slow);
    guard.extend(TTL * 2).await.expect("extended");
    let requested_at = masters.extensions.requests()[0].arrived_at;
    let extended = guard.valid_until();
    assert!(
        extended <= expected_deadline(requested_at, TTL * 2),
        "{extended:?}"
    );
    // The lease may end up to 300 ms before the latest allowed time.
    assert!(extended + ms(300) > expected_deadline(requested_at, TTL * 2));
}

#[tokio::test]
async fn acquire_computes_the_validity_from_its_send_time_not_its_reply_time() {
    let masters = ObservedMasters::new();
    let first_acquire_at = Arc::<Mutex<Option<Instant>>>::default();
    for node in &masters.nodes {
        let first_acquire_at = first_acquire_at.clone();
        node.set_rule(move |request| match request {
            Request::Acquire { .. } => {
                first_acquire_at
                    .lock()
                    .expect("no panic")
                    .get_or_insert(Instant::now());
                slow(0)
            }
            _ => Answered,
        });
    }
    let guard = masters.take("job", TTL).await;
    let requested_at = first_acquire_at.lock().expect("no panic").expect("asked");
    assert!(guard.valid_until() <= expected_deadline(requested_at, TTL));
}

/// The holder must be notified before the third master answers, before another renewal, and before the lease ends.
#[tokio::test]
async fn loss_is_reported_as_soon_as_a_majority_has_refused_the_renewal() {
    let masters = ObservedMasters::new();
    let guard = masters.take("job", TTL).await;
    let lost_task = tokio::spawn(guard.lost());
    masters.steal_lock(&[0, 1]);
    masters.set_extension_rule(|node| if node == 2 { Unanswered } else { Answered });
    eventually("the extension must have reached all masters", || {
        masters.extensions.requests().len() == 3
    })
    .await;
    let outcome = tokio::time::timeout(PROMPTLY, lost_task).await;
    let cause = outcome
        .expect("the holder must be notified within 2 s, long before the lease ends")
        .expect("no panic");
    assert_eq!(cause, LossCause::TakenAway);
    assert!(!guard.is_valid());
}

#[tokio::test]
async fn extension_reports_a_loss_as_soon_as_a_majority_has_refused_it() {
    let masters = ObservedMasters::new();
    let guard = masters.take("job", TTL).await;
    masters.steal_lock(&[1, 2]);
    masters.set_extension_rule(|node| if node == 0 { Unanswered } else { Answered });
    let lost_future = tokio::spawn(guard.lost());
    let outcome = tokio::time::timeout(PROMPTLY, guard.extend(TTL)).await;
    let taken_away = Err(ExtendError::Lost(LossCause::TakenAway));
    assert_eq!(
        outcome.expect("the extension must fail within 2 s, long before the lease ends"),
        taken_away
    );
    let outcome = tokio::time::timeout(PROMPTLY, lost_future).await;
    outcome
        .expect("the holder must be notified within 2 s, long before the lease ends")
        .expect("no panic");
}

#[tokio::test]
async fn renewal_without_a_majority_is_repeated_before_the_next_renewal_is_due() {
    let masters = ObservedMasters::new();
    let guard = masters.take("job", TTL).await;
    let fault = Fault::Down("switched off".into());
    masters.set_extension_rule(move |node| match node {
        0 => Answered,
        _ => Fails(fault.clone(), Duration::ZERO),
    });
    eventually("two extensions must have reached all masters", || {
        masters.extensions.requests().len() >= 6
    })
    .await;
    masters.set_extension_rule(|_| Answered);
    let extend_requests = masters.extensions.requests();
    let pause = extend_requests[3]
        .arrived_at
        .saturating_since(extend_requests[0].arrived_at);
    assert!(pause < PROMPTLY, "{pause:?}");
    assert!(guard.is_valid());
}

#[tokio::test]
async fn max_hold_shorter_than_the_ttl_limits_the_validity_of_a_new_lock() {
    let masters = ObservedMasters::new();
    let max_hold = ms(500);
    let lock = masters.redlock.lock("job").max_hold(max_hold);
    let guard = lock.acquire().await.expect("free");
    assert!(guard.valid_until() <= Instant::now() + max_hold);
    let lost_result = tokio::time::timeout(PATIENCE, guard.lost()).await;
    assert_eq!(lost_result, Ok(LossCause::MaxHold));
    // When `max_hold` has passed, the client releases the lock, although the guard still exists. So the keys are
    // deleted before they expire.
    eventually("the lock keys must be gone", || {
        masters.nodes.iter().all(|node| {
            let is_free = |master: &mut quorate::node::memory::Master, now| {
                master.peek(now, b"job").holder.is_none()
            };
            node.master.with_master(is_free)
        })
    })
    .await;
    assert!(guard.extend(TTL).await.is_err());
    assert!(
        masters.extensions.requests().is_empty(),
        "no renewal may be sent"
    );
}
