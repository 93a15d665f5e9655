//! Questions about a queued waiter of a kind.

use quorate::{Redlock, Retry, Wait};

use super::kind::Kind;
use super::world::{World, granted};
use crate::support::{PATIENCE, eventually, secs};

/// A client with timers of ten minutes. A waiter of this client gets the lock only if it is woken.
pub(super) fn woken_client(world: &World) -> Redlock {
    let ten_minutes = secs(600);
    let settings = world
        .settings()
        .max_ttl(ten_minutes)
        .ttl(ten_minutes)
        .heartbeat(ten_minutes);
    let settings = settings.node_timeout(secs(5)).wait(Wait::Forever);
    let settings = settings.retry(Retry::new(ten_minutes, ten_minutes));
    settings.build().expect("good settings")
}

/// Waits until every master has one waiter in the queue of the lock.
pub(super) async fn waiter_is_queued(world: &World) {
    eventually("the waiter must be queued on every master", || {
        world.queue_lengths() == [1, 1, 1]
    })
    .await;
}

pub(crate) async fn release_by_another_client_wakes_the_waiter(kind: &'static dyn Kind) {
    let world = World::new(kind).await;
    let (holder, waiter) = (woken_client(&world), woken_client(&world));
    let held = world.acquire_as_rival(&holder).await;
    let waiter_task = tokio::spawn(kind.acquire(&waiter, Wait::Forever));
    waiter_is_queued(&world).await;
    held.release().await;
    let outcome = tokio::time::timeout(PATIENCE, waiter_task).await;
    let acquired = outcome.expect("the release must wake the waiter");
    granted(acquired.expect("no panic")).release().await;
    world.no_keys_are_left().await;
}
