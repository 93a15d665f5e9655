//! The plain lock of the known-bad clients, with the mistakes of `half-quorum` and `no-undo`. Other known-bad
//! implementations use this lock as well, but without these two mistakes.

use super::held::KnownBadHold;
use super::masters;
use crate::client::context::Ctx;
use crate::workload::Locker;

pub(super) fn attempt(ctx: &Ctx, resource: &str) -> Option<KnownBadHold> {
    let settings = &ctx.settings;
    let quorum = match settings.locker {
        // The mistake of `half-quorum`: half of the masters is not a majority.
        Locker::HalfQuorum => (settings.masters.len() / 2).max(1),
        _ => masters::majority(ctx),
    };
    let (value, ttl) = (masters::random_value(), masters::ttl(ctx));
    let until = masters::believed_until(ctx, ctx.clock.now());
    let set_command = ["SET", resource, &value, "NX", "PX", &ttl].map(str::to_owned);
    let replies = masters::replies_of_all(ctx, &set_command);
    let granted = replies.iter().filter(|reply| reply.is_ok()).count();
    let hold = KnownBadHold::new(until, masters::release(resource, &value));
    let has_won = granted >= quorum && ctx.clock.now() < until;
    if !has_won && settings.locker == Locker::NoUndo {
        // The mistake of `no-undo`: a failed attempt does not release the masters that granted the lock. Until these
        // grants expire, they block all clients.
        return None;
    }
    hold.confirmed_if(ctx, has_won)
}
