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
const SOON: Duration = secs(2);

/// One request that extends locks: the resources of these locks, and the time at which the request arrived at a master.
#[derive(Clone, Debug)]
struct Asked {
    resources: Vec<Vec<u8>>,
    at: Instant,
}

/// All requests for extensions that the three masters have received, in the order of their arrival.
#[derive(Clone, Default)]
struct Extensions(Arc<Mutex<Vec<Asked>>>);

impl Extensions {
    fn note(&self, request: &Request) {
        if let Request::Extend { items } = request {
            let resources = items.iter().map(|item| item.claim.resource().to_vec());
            let resources = resources.collect();
            let at = Instant::now();
            self.0
                .lock()
                .expect("no panic")
                .push(Asked { resources, at });
        }
    }

    fn all(&self) -> Vec<Asked> {
        self.0.lock().expect("no panic").clone()
    }

    /// Returns true if a request to extend the lock on this resource has arrived at a master.
    fn name(&self, resource: &str) -> bool {
        let is_it = |name: &Vec<u8>| name == resource.as_bytes();
        self.all()
            .iter()
            .any(|asked| asked.resources.iter().any(is_it))
    }
}

struct World {
    nodes: [Arc<Stubborn>; 3],
    redlock: Redlock,
    extensions: Extensions,
}

impl World {
    fn new() -> Self {
        let extensions = Extensions::default();
        let nodes = ["a", "b", "c"].map(Stubborn::honest);
        let dyn_nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
        let redlock = Redlock::builder().nodes(dyn_nodes.collect()).ttl(TTL);
        let redlock = redlock.build().expect("good settings");
        let world = Self {
            nodes,
            redlock,
            extensions,
        };
        world.extensions_are(|_| Answered);
        world
    }

    /// Sets the treatment of requests for extensions on each master: `rule` maps the index of the master to the
    /// treatment. All other requests are treated normally.
    fn extensions_are(&self, rule: impl Fn(usize) -> Treatment + Clone + Send + 'static) {
        for (number, node) in self.nodes.iter().enumerate() {
            let (rule, extensions) = (rule.clone(), self.extensions.clone());
            node.set_rule(move |request| {
                extensions.note(request);
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

    fn stolen(&self, from: &[usize]) {
        for node in from {
            self.nodes[*node].clone().held_by_another("job");
        }
    }
}

/// The end of the validity of a lease with this TTL, if its request was sent at the time `asked`. The validity is
/// shorter than the TTL by the allowed clock drift.
fn valid_from(asked: Instant, ttl: Duration) -> Instant {
    asked + ttl.saturating_sub(Drift::default().of(ttl))
}

#[tokio::test]
async fn lock_acquired_after_all_earlier_locks_were_released_is_renewed() {
    let world = World::new();
    for _ in 0..2 {
        world.take("first", ms(900)).await.release().await;
        // Sleep for longer than the renewal interval of the released lock, which is 300 ms.
        tokio::time::sleep(ms(700)).await;
    }
    let _guard = world.take("second", TTL).await;
    eventually("the lock must be renewed", || {
        world.extensions.name("second")
    })
    .await;
}

#[test]
fn locks_are_renewed_in_another_tokio_runtime_when_the_first_runtime_is_shut_down() {
    let world = World::new();
    let runtime = || tokio::runtime::Runtime::new().expect("a runtime");
    let first = runtime();
    let kept = first.block_on(world.take("first", TTL));
    drop(first);
    runtime().block_on(async {
        let _guard = world.take("second", TTL).await;
        eventually("both locks must be renewed", || {
            world.extensions.name("first") && world.extensions.name("second")
        })
        .await;
        drop(kept);
    });
}

#[tokio::test]
async fn dropping_the_guard_of_a_lost_lock_does_not_stop_other_renewals() {
    let world = World::new();
    let lost = world.take("first", ms(900)).await;
    world
        .redlock
        .break_lock("first")
        .await
        .expect("the force-release must succeed");
    let cause = tokio::time::timeout(PATIENCE, lost.lost()).await;
    assert_eq!(cause, Ok(LossCause::TakenAway));
    // The second lock takes the place of the lost lock in the client's renewal schedule. Dropping the lost guard must
    // not stop the renewals of the second lock.
    let _guard = world.take("second", TTL).await;
    drop(lost);
    eventually("the lock must be renewed", || {
        world.extensions.name("second")
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
    let world = World::new();
    let guard = world.take("job", TTL).await;
    world.extensions_are(slow);
    let before = guard.valid_until();
    eventually("the lock must be renewed", || guard.valid_until() > before).await;
    let renewed = guard.valid_until();
    let asked = world.extensions.all();
    // The last extension sent one request to each of the three masters. Take the first of these requests.
    let asked = asked[asked.len() - 3].at;
    assert!(renewed <= valid_from(asked, TTL), "{renewed:?} {asked:?}");
}

#[tokio::test]
async fn extension_computes_the_validity_from_its_send_time_not_its_reply_time() {
    let world = World::new();
    let lease = world.redlock.lock("job").renewal(false);
    let guard = lease.acquire().await.expect("free");
    world.extensions_are(slow);
    guard.extend(TTL * 2).await.expect("extended");
    let asked = world.extensions.all()[0].at;
    let extended = guard.valid_until();
    assert!(extended <= valid_from(asked, TTL * 2), "{extended:?}");
    // The lease may end up to 300 ms before the latest allowed time.
    assert!(extended + ms(300) > valid_from(asked, TTL * 2));
}

#[tokio::test]
async fn acquire_computes_the_validity_from_its_send_time_not_its_reply_time() {
    let world = World::new();
    let first = Arc::<Mutex<Option<Instant>>>::default();
    for node in &world.nodes {
        let first = first.clone();
        node.set_rule(move |request| match request {
            Request::Acquire { .. } => {
                first
                    .lock()
                    .expect("no panic")
                    .get_or_insert(Instant::now());
                slow(0)
            }
            _ => Answered,
        });
    }
    let guard = world.take("job", TTL).await;
    let asked = first.lock().expect("no panic").expect("asked");
    assert!(guard.valid_until() <= valid_from(asked, TTL));
}

/// The holder must be notified before the third master answers, before another renewal, and before the lease ends.
#[tokio::test]
async fn loss_is_reported_as_soon_as_a_majority_has_refused_the_renewal() {
    let world = World::new();
    let guard = world.take("job", TTL).await;
    let lost = tokio::spawn(guard.lost());
    world.stolen(&[0, 1]);
    world.extensions_are(|node| if node == 2 { Unanswered } else { Answered });
    eventually("the extension must have reached all masters", || {
        world.extensions.all().len() == 3
    })
    .await;
    let told = tokio::time::timeout(SOON, lost).await;
    let cause = told
        .expect("the holder must be notified within 2 s, long before the lease ends")
        .expect("no panic");
    assert_eq!(cause, LossCause::TakenAway);
    assert!(!guard.is_valid());
}

#[tokio::test]
async fn extension_reports_a_loss_as_soon_as_a_majority_has_refused_it() {
    let world = World::new();
    let guard = world.take("job", TTL).await;
    world.stolen(&[1, 2]);
    world.extensions_are(|node| if node == 0 { Unanswered } else { Answered });
    let lost = tokio::spawn(guard.lost());
    let told = tokio::time::timeout(SOON, guard.extend(TTL)).await;
    let taken_away = Err(ExtendError::Lost(LossCause::TakenAway));
    assert_eq!(
        told.expect("the extension must fail within 2 s, long before the lease ends"),
        taken_away
    );
    let told = tokio::time::timeout(SOON, lost).await;
    told.expect("the holder must be notified within 2 s, long before the lease ends")
        .expect("no panic");
}

#[tokio::test]
async fn renewal_without_a_majority_is_repeated_before_the_next_renewal_is_due() {
    let world = World::new();
    let guard = world.take("job", TTL).await;
    let fault = Fault::Down("switched off".into());
    world.extensions_are(move |node| match node {
        0 => Answered,
        _ => Fails(fault.clone(), Duration::ZERO),
    });
    eventually("two extensions must have reached all masters", || {
        world.extensions.all().len() >= 6
    })
    .await;
    world.extensions_are(|_| Answered);
    let asked = world.extensions.all();
    let pause = asked[3].at.saturating_since(asked[0].at);
    assert!(pause < SOON, "{pause:?}");
    assert!(guard.is_valid());
}

#[tokio::test]
async fn max_hold_shorter_than_the_ttl_limits_the_validity_of_a_new_lock() {
    let world = World::new();
    let most = ms(500);
    let lock = world.redlock.lock("job").max_hold(most);
    let guard = lock.acquire().await.expect("free");
    assert!(guard.valid_until() <= Instant::now() + most);
    let lost = tokio::time::timeout(PATIENCE, guard.lost()).await;
    assert_eq!(lost, Ok(LossCause::MaxHold));
    // When `max_hold` has passed, the client releases the lock, although the guard still exists. So the keys are
    // deleted before they expire.
    eventually("the lock keys must be gone", || {
        world.nodes.iter().all(|node| {
            let free = |master: &mut quorate::node::memory::Master, now| {
                master.peek(now, b"job").holder.is_none()
            };
            node.master.with_master(free)
        })
    })
    .await;
    assert!(guard.extend(TTL).await.is_err());
    assert!(world.extensions.all().is_empty(), "no renewal may be sent");
}
