//! A known-bad quota: each master counts the remaining units, and decrements its counter for every unit that a client
//! takes. The mistake: masters can receive two requests in different orders, and then both clients get the same unit.

use quorate_testbed::Reply;

use super::masters;
use crate::client::context::Ctx;

/// Creates the quota on all masters. Returns whether every master accepted it.
pub(crate) async fn create(ctx: &Ctx, name: &str, units: u64) -> bool {
    let (ctx, set_command) = (ctx.clone(), command(&["SET", name, &units.to_string()]));
    let is_created = tokio::task::spawn_blocking(move || {
        let replies = masters::replies_of_all(&ctx, &set_command);
        replies.iter().filter(|reply| reply.is_ok()).count() == ctx.settings.masters.len()
    });
    is_created.await.unwrap_or(false)
}

/// Takes a unit and returns how many units are left. `None` if no unit was left or no majority answered.
pub(crate) async fn take(ctx: &Ctx, name: &str) -> Option<u64> {
    let (ctx, name) = (ctx.clone(), name.to_owned());
    let units_left = tokio::task::spawn_blocking(move || take_unit(&ctx, &name));
    units_left.await.ok().flatten()
}

fn take_unit(ctx: &Ctx, name: &str) -> Option<u64> {
    let replies = masters::replies_of_all(ctx, &command(&["DECR", name]));
    let units_left = replies.iter().filter_map(Reply::int);
    let units_left: Vec<u64> = units_left
        .filter_map(|units_left| u64::try_from(units_left).ok())
        .collect();
    // The mistake: if two requests reach the masters in different orders, both can get the same minimum, i.e. one unit.
    if units_left.len() >= masters::majority(ctx) {
        return units_left.into_iter().min();
    }
    masters::replies_of_all(ctx, &command(&["INCR", name]));
    None
}

fn command(arguments: &[&str]) -> masters::Command {
    arguments
        .iter()
        .map(|reason_of| (*reason_of).to_owned())
        .collect()
}
