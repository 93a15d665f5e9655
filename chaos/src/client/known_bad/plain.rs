//! The plain lock. The known-bad ones are `half-quorum` and `no-undo`; for all other lockers this part is correct.

use super::held::KnownBadHold;
use super::masters;
use crate::client::context::Ctx;
use crate::workload::Locker;

pub(super) fn attempt(ctx: &Ctx, resource: &str) -> Option<KnownBadHold> {
    let settings = &ctx.settings;
    let quorum = match settings.locker {
        // The mistake: half is not a majority.
        Locker::HalfQuorum => (settings.masters.len() / 2).max(1),
        _ => masters::majority(ctx),
    };
    let (value, ttl) = (masters::value(), masters::ttl(ctx));
    let until = masters::until(ctx, ctx.clock.now());
    let set = ["SET", resource, &value, "NX", "PX", &ttl].map(str::to_owned);
    let answers = masters::on_each(ctx, &set);
    let granted = answers.iter().filter(|reply| reply.is_ok()).count();
    let hold = KnownBadHold::new(until, masters::release(resource, &value));
    let won = granted >= quorum && ctx.clock.now() < until;
    if !won && settings.locker == Locker::NoUndo {
        // The mistake: grants without a majority are not undone, and block everybody.
        return None;
    }
    hold.if_won(ctx, won)
}
