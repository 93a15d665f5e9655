//! Tests with other Redlock clients that use the same lock key: while one of two clients holds the lock, the other is
//! refused.
//!
//! `scripts/interop` installs these clients and runs the tests. Without the clients, each test reports that it was
//! skipped.

mod peer;

use std::sync::Mutex;
use std::time::Duration;

use peer::Peer;
use quorate::{Instant, Redlock, RestartGuard, TryAcquire};
use quorate_promises::{Breach, Class, Event, Exclusion, Hold, Moment, Promise};
use quorate_testbed::Masters;

/// The number of holds of each client in a history, at least.
const HOLDS: usize = 100;

/// How long the clients may need for these holds. They need a second or two; the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long the other clients hold their locks at most: the validity that they request.
const PEER_VALIDITY: Duration = Duration::from_secs(20);

fn redlock_on(masters: &Masters, prefix: &str) -> Redlock {
    Redlock::builder()
        .masters(masters.urls())
        .restart_guard(RestartGuard::Off)
        .prefix(prefix)
        .build()
        .expect("good settings")
}

/// Checks that while one of two clients holds the lock, the other client is refused. One client is this library.
async fn both_exclude_each_other(peer: peer::Kind) {
    let Some(prefix) = peer.prefix_if_installed() else {
        return;
    };
    let masters = Masters::start(3).expect("three masters");
    let redlock = redlock_on(&masters, prefix);
    let mut peer = Peer::start(peer, "shared", &masters);

    let guard = redlock.acquire("shared").await.expect("free");
    assert!(
        !peer.try_acquire(),
        "the other client must not get a lock that quorate holds"
    );
    guard.release().await;
    redlock.flush().await;

    assert!(
        peer.try_acquire(),
        "the other client must get a lock that is free"
    );
    let tried = redlock.try_acquire("shared").await.expect("a quorum");
    assert!(
        matches!(tried, TryAcquire::Held(_)),
        "quorate must not get a lock that the other client holds"
    );
    peer.release();
    let tried = redlock.try_acquire("shared").await.expect("a quorum");
    assert!(
        matches!(tried, TryAcquire::Acquired(_)),
        "quorate must get a lock that the other client has released"
    );
}

/// The start or the end of a hold.
#[derive(Clone, Copy)]
struct Change {
    at: Instant,
    hold: u64,
    client: u64,
    /// The end of the validity; `None` if the hold ends now.
    until: Option<Instant>,
}

/// The holds of several clients.
#[derive(Default)]
struct History(Mutex<Vec<Change>>);

impl History {
    /// Adds the start of a hold, and returns its number.
    fn add_start(&self, client: u64, until: Instant) -> u64 {
        let mut changes = self.0.lock().expect("no client has panicked");
        let hold = changes.len() as u64;
        changes.push(Change {
            at: Instant::now(),
            hold,
            client,
            until: Some(until),
        });
        hold
    }

    /// Adds the end of a hold. Call this before the release.
    fn add_end(&self, client: u64, hold: u64) {
        self.0.lock().expect("no client has panicked").push(Change {
            at: Instant::now(),
            hold,
            client,
            until: None,
        });
    }

    /// The client of each hold, in the order of the holds.
    fn holders(&self) -> Vec<u64> {
        let changes = self.0.lock().expect("no client has panicked");
        let starts = changes.iter().filter(|change| change.until.is_some());
        starts.map(|change| change.client).collect()
    }

    /// The number of locks that this client has got.
    fn holds_of(&self, client: u64) -> usize {
        let holders = self.holders();
        holders.iter().filter(|holder| **holder == client).count()
    }

    /// How often another client got the lock than the one before.
    fn turns(&self) -> usize {
        let holders = self.holders();
        holders.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }

    /// Lets the checker of the promise "one holder" judge the history. Returns the breaches.
    fn judge(self) -> Vec<Breach> {
        let mut changes = self.0.into_inner().expect("no client has panicked");
        changes.sort_by_key(|change| change.at);
        let (mut checker, mut breaches) = (Exclusion::default(), Vec::new());
        for change in changes {
            let now = Moment::at(change.at.as_nanos());
            let hold = Hold {
                id: change.hold,
                client: change.client,
                task: change.client,
                places: &[0],
                class: Class::Exclusive,
                permit: None,
                began: now,
                token: None,
                until: change.until.unwrap_or(change.at).as_nanos(),
                note: None,
            };
            let event = match change.until {
                Some(_) => Event::Obtained(&hold),
                None => Event::Ended(&hold),
            };
            breaches.extend(checker.observe(now, &event));
        }
        assert!(checker.judged() >= 2 * HOLDS as u64);
        breaches
    }
}

/// Lets another client and this library compete for the lock `shared`, until each has had it `HOLDS` times. The other
/// client locks `peer_resource`. Returns the breaches of the promise "one holder".
fn breaches_under_competition(peer: peer::Kind, prefix: &str, peer_resource: &str) -> Vec<Breach> {
    let masters = Masters::start(3).expect("three masters");
    let redlock = redlock_on(&masters, prefix);
    let history = History::default();
    let mut peer = Peer::start(peer, peer_resource, &masters);
    // Begin when the other client has started, or it would come too late.
    assert!(peer.try_acquire(), "free");
    peer.release();
    let ends_at = Instant::now() + PATIENCE;
    let goes_on = || {
        assert!(Instant::now() < ends_at, "a client got the lock too seldom");
        history.holds_of(0).min(history.holds_of(1)) < HOLDS
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while goes_on() {
                let until = Instant::now() + PEER_VALIDITY;
                if peer.try_acquire() {
                    let hold = history.add_start(0, until);
                    std::thread::sleep(Duration::from_millis(3));
                    history.add_end(0, hold);
                    peer.release();
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let (redlock, history, goes_on) = (&redlock, &history, &goes_on);
        let runtime = tokio::runtime::Handle::current();
        scope.spawn(move || {
            while goes_on() {
                let tried = runtime.block_on(redlock.try_acquire("shared"));
                if let TryAcquire::Acquired(guard) = tried.expect("a quorum") {
                    let hold = history.add_start(1, guard.valid_until());
                    std::thread::sleep(Duration::from_millis(3));
                    history.add_end(1, hold);
                    runtime.block_on(guard.release());
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
    });
    assert!(
        history.turns() >= HOLDS / 10,
        "the clients must take turns, but the holder changed only {} times",
        history.turns()
    );
    history.judge()
}

/// Checks that two clients never hold the lock at the same time while both want it again and again.
fn both_take_turns(peer: peer::Kind) {
    let Some(prefix) = peer.prefix_if_installed() else {
        return;
    };
    let breaches = breaches_under_competition(peer, prefix, "shared");
    assert!(breaches.is_empty(), "{breaches:#?}");
    // A client that locks something else holds its lock at the same time. The checker must report this.
    let breaches = breaches_under_competition(peer, prefix, "other");
    assert!(!breaches.is_empty(), "the checker noticed nothing");
}

#[tokio::test]
async fn npm_package_redlock_and_quorate_exclude_each_other() {
    both_exclude_each_other(peer::Kind::NpmRedlock).await;
}

#[tokio::test]
async fn pypi_package_pottery_and_quorate_exclude_each_other() {
    both_exclude_each_other(peer::Kind::Pottery).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn npm_package_redlock_and_quorate_take_turns() {
    both_take_turns(peer::Kind::NpmRedlock);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pypi_package_pottery_and_quorate_take_turns() {
    both_take_turns(peer::Kind::Pottery);
}
