//! A known-bad quota: each master counts the remaining units, and decrements its counter for every unit that a client
//! takes. The mistake: masters can receive two requests in different orders, and then both clients get the same unit.

use quorate_testbed::Reply;

use super::masters;
use crate::client::context::Ctx;

/// Creates the quota on all masters. Returns whether every master accepted it.
pub(crate) async fn create(ctx: &Ctx, name: &str, pieces: u64) -> bool {
    let (ctx, set) = (ctx.clone(), command(&["SET", name, &pieces.to_string()]));
    let asked = tokio::task::spawn_blocking(move || {
        let answers = masters::on_each(&ctx, &set);
        answers.iter().filter(|reply| reply.is_ok()).count() == ctx.settings.masters.len()
    });
    asked.await.unwrap_or(false)
}

/// Takes a unit and returns how many units are left. `None` if no unit was left or no majority answered.
pub(crate) async fn take(ctx: &Ctx, name: &str) -> Option<u64> {
    let (ctx, name) = (ctx.clone(), name.to_owned());
    let taken = tokio::task::spawn_blocking(move || take_one(&ctx, &name));
    taken.await.ok().flatten()
}

fn take_one(ctx: &Ctx, name: &str) -> Option<u64> {
    let answers = masters::on_each(ctx, &command(&["DECR", name]));
    let left = answers.iter().filter_map(Reply::int);
    let left: Vec<u64> = left.filter_map(|left| u64::try_from(left).ok()).collect();
    // The mistake: if two requests reach the masters in different orders, both can get the same minimum, i.e. one unit.
    if left.len() >= masters::majority(ctx) {
        return left.into_iter().min();
    }
    masters::on_each(ctx, &command(&["INCR", name]));
    None
}

fn command(words: &[&str]) -> masters::Command {
    words.iter().map(|word| (*word).to_owned()).collect()
}
