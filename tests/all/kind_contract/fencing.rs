//! Questions about fencing tokens.

use super::kind::Kind;
use super::world::World;
use crate::support::larger_token;

/// A master loses all its keys twice. The lock and its rival are held in turn.
pub(crate) async fn tokens_rise_over_holds_and_over_a_restart_of_a_master(kind: &'static dyn Kind) {
    let world = World::new(kind).await;
    let (one, other) = (world.client(), world.client());
    let mut last = 0;
    for round in 0..6 {
        let held = match round % 2 {
            0 => world.acquire(&one).await,
            _ => world.acquire_as_rival(&other).await,
        };
        last = larger_token(held.token(), last);
        held.release().await;
        if matches!(round, 1 | 2) {
            world.masters[0].restart_empty().expect("restarted");
        }
    }
}
