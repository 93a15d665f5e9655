//! Tests of the table in `docs/kinds.md`, which shows the operations that each kind of lock supports. They run on
//! masters in memory.

use std::future::Future;
use std::time::Duration;

use crate::support::{self, ms, secs};
use quorate::{LockRequest, LossCause, Owner, Redlock, RedlockBuilder, StatusVerdict};

/// The kinds of locks in the table of `docs/kinds.md`. Each kind is tested on a separate resource.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Several,
    Reader,
    Owner,
    Permit,
}

const KINDS: [Kind; 4] = [Kind::Several, Kind::Reader, Kind::Owner, Kind::Permit];

impl Kind {
    fn request(self, redlock: &Redlock, owner: &Owner) -> LockRequest {
        match self {
            Self::Several => redlock.lock_all(["a", "b"]),
            Self::Reader => redlock.lock("doc").shared(),
            Self::Owner => owner.lock("stock"),
            Self::Permit => redlock.semaphore("api", 2),
        }
    }

    /// The number of locks that a listing shows while one lock of this kind is held, and the name of one of these
    /// locks.
    fn listed(self) -> (usize, &'static str) {
        match self {
            Self::Several => (2, "a"),
            Self::Reader => (1, "doc"),
            Self::Owner => (1, "stock"),
            Self::Permit => (1, "api"),
        }
    }
}

fn memory() -> RedlockBuilder {
    Redlock::builder().in_memory(3)
}

/// Two clients of masters in memory: the first queues waiters in order, and the second does not.
fn both() -> [Redlock; 2] {
    [memory(), memory().order(quorate::Order::Unordered)]
        .map(|builder| builder.build().expect("good settings"))
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    let outcome = tokio::time::timeout(support::PATIENCE, what).await;
    outcome.unwrap_or_else(|_| panic!("the call must end within {:?}", support::PATIENCE))
}

#[tokio::test]
async fn every_kind_of_lock_supports_listing_extension_and_force_release() {
    for redlock in both() {
        let owner = redlock.owner("o").expect("an id");
        for kind in KINDS {
            let guard = kind.request(&redlock, &owner).acquire().await;
            let guard = guard.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            let (count, name) = kind.listed();
            let listing = redlock.list("").await;
            assert_eq!(listing.locks.len(), count, "{kind:?}: {listing:?}");
            let held =
                |status: &quorate::Status| matches!(status.verdict(), StatusVerdict::Held(_));
            assert!(held(&listing.locks[0].status), "{kind:?}: {listing:?}");
            guard
                .extend(secs(20))
                .await
                .expect("the extension must succeed, because the lock is still held");
            let was = match guard.slot() {
                Some(slot) => redlock.break_permit(name, slot).await,
                None => redlock.break_lock(name).await,
            };
            assert!(held(&was.expect("the name must be valid")), "{kind:?}");
            assert!(guard.extend(secs(20)).await.is_err(), "{kind:?}");
            assert_eq!(soon(guard.lost()).await, LossCause::TakenAway, "{kind:?}");
            guard.release().await;
            assert!(redlock.list("").await.locks.is_empty(), "{kind:?}");
        }
    }
}

#[tokio::test]
async fn locks_of_every_kind_leave_no_key_when_max_hold_ends_or_acquire_is_dropped() {
    for redlock in both() {
        let owner = redlock.owner("o").expect("an id");
        for kind in KINDS {
            let bounded = kind.request(&redlock, &owner).max_hold(ms(100));
            let guard = bounded.acquire().await.expect("free");
            assert_eq!(soon(guard.lost()).await, LossCause::MaxHold, "{kind:?}");
            drop(guard);
            // Start an acquire, and drop its future at the first await point.
            let begun = kind.request(&redlock, &owner).acquire();
            assert!(futures::FutureExt::now_or_never(begun).is_none_or(|lock| lock.is_ok()));
            redlock.flush().await;
            assert!(redlock.list("").await.locks.is_empty(), "{kind:?}");
        }
    }
}

#[tokio::test]
async fn locks_of_every_kind_are_renewed() {
    let redlock = memory().ttl(secs(2)).build().expect("good settings");
    let owner = redlock.owner("o").expect("an id");
    let held = KINDS.map(|kind| kind.request(&redlock, &owner).acquire());
    let held = futures::future::join_all(held).await;
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    for (kind, guard) in KINDS.iter().zip(held) {
        assert!(guard.expect("free").is_valid(), "{kind:?}");
    }
}

#[tokio::test]
async fn client_without_fencing_refuses_every_kind_of_lock_that_needs_fencing() {
    let redlock = memory().fencing(false).build().expect("good settings");
    let owner = redlock.owner("o").expect("an id");
    let mut said = Vec::new();
    for kind in KINDS {
        let error = kind.request(&redlock, &owner).acquire().await;
        said.push(
            error
                .expect_err("a client without fencing must be refused")
                .to_string(),
        );
    }
    let line = |what| format!("{what} need fencing tokens: remove fencing(false) from the builder");
    let words = [
        "several resources in one lock",
        "readers",
        "the holds of an owner",
        "semaphores",
    ];
    assert_eq!(said, words.map(line));
    // `create` must report that the client uses no fencing tokens, not that the locks are held.
    let held = ["prizes", "nightly"].map(|name| redlock.acquire(name));
    let held = futures::future::join_all(held).await;
    let quota = redlock.quota("prizes").create(1).await;
    assert!(
        matches!(quota, Err(quorate::ValueError::NoFencing)),
        "{quota:?}"
    );
    let once = redlock.once("nightly", secs(60)).create().await;
    assert!(
        matches!(once, Err(quorate::ValueError::NoFencing)),
        "{once:?}"
    );
    for guard in held {
        guard.expect("the lock must be free").release().await;
    }
    assert!(redlock.list("").await.locks.is_empty());
}
