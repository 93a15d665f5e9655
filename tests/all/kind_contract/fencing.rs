//! Questions about fencing tokens.

use super::kind::Kind;
use super::world::World;
use crate::support::larger_token;

/// A master loses all its keys twice. The lock and its rival are held in turn.
pub(crate) async fn tokens_rise_over_holds_and_over_a_restart_of_a_master(kind: &'static dyn Kind) {
    let world = World::new(kind).await;
    let (first_client, second_client) = (world.client(), world.client());
    let mut last_token = 0;
    for round in 0..6 {
        let held = match round % 2 {
            0 => world.acquire(&first_client).await,
            _ => world.acquire_as_rival(&second_client).await,
        };
        last_token = larger_token(held.token(), last_token);
        held.release().await;
        if matches!(round, 1 | 2) {
            world.masters[0].restart_empty().expect("restarted");
        }
    }
}
