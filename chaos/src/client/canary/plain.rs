//! The plain lock. Wrong are `half-quorum` and `no-undo`; for every other locker it is right, as far as it goes.

use super::held::CanaryHold;
use super::masters;
use crate::client::context::Ctx;
use crate::workload::Locker;

pub(super) fn attempt(ctx: &Ctx, resource: &str) -> Option<CanaryHold> {
    let settings = &ctx.settings;
    let quorum = match settings.locker {
        // The mistake: half is not more than half.
        Locker::HalfQuorum => (settings.masters.len() / 2).max(1),
        _ => masters::majority(ctx),
    };
    let (value, ttl) = (masters::value(), masters::ttl(ctx));
    let until = masters::until(ctx, ctx.clock.now());
    let set = ["SET", resource, &value, "NX", "PX", &ttl].map(str::to_owned);
    let answers = masters::on_each(ctx, &set);
    let granted = answers.iter().filter(|reply| reply.is_ok()).count();
    let hold = CanaryHold::new(until, masters::release(resource, &value));
    let won = granted >= quorum && ctx.clock.now() < until;
    if !won && settings.locker == Locker::NoUndo {
        // The other mistake: what was granted in vain stays in the way of everybody.
        return None;
    }
    hold.if_won(ctx, won)
}
