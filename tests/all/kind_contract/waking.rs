//! Questions about the release of a lock for which another client waits.

use quorate::Wait;

use super::kind::Kind;
use super::waiting::{waiter_is_queued, woken_client};
use super::world::{World, granted};
use crate::support::PATIENCE;

pub(crate) async fn release_wakes_a_waiter(kind: &'static dyn Kind) {
    let world = World::new(kind).await;
    let (holder, waiter) = (woken_client(&world), woken_client(&world));
    let held = world.acquire(&holder).await;
    let waiter_task = tokio::spawn(kind.acquire_as_rival(&waiter, Wait::Forever));
    waiter_is_queued(&world).await;
    held.release().await;
    let outcome = tokio::time::timeout(PATIENCE, waiter_task).await;
    let acquired = outcome.expect("the release must wake the waiter");
    granted(acquired.expect("no panic")).release().await;
    world.no_keys_are_left().await;
}
