//! Holds of one owner as a set of names on each master, beside the owner's own.

use quorate_testbed::Reply;

use super::held::CanaryHold;
use super::masters;
use crate::claim::Claim;
use crate::client::context::Ctx;
use crate::client::wanted::Wanted;

/// One name more, if no other owner has it; and if it is only to be joined, if this one has it.
const ENTER: &str = "
    local owner = redis.call('GET', KEYS[1])
    if owner and owner ~= ARGV[1] or ARGV[4] == 'joins' and not owner then return 0 end
    if not owner then redis.call('DEL', KEYS[2]) end
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
    redis.call('SADD', KEYS[2], ARGV[2])
    redis.call('PEXPIRE', KEYS[2], ARGV[3])
    return 1";

/// The last one of its owner deletes the key.
const LEAVE: &str = "
    redis.call('SREM', KEYS[2], ARGV[2])
    if redis.call('SCARD', KEYS[2]) > 0 or redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
    return redis.call('DEL', KEYS[1])";

pub(super) fn attempt(ctx: &Ctx, wanted: &Wanted) -> Option<CanaryHold> {
    let Claim::Owner(owner) = &wanted.claim else {
        return None;
    };
    let names = format!("{}:names", wanted.resource);
    let keys = [wanted.resource.as_str(), &names];
    let (value, ttl) = (masters::value(), masters::ttl(ctx));
    let until = masters::until(ctx, ctx.clock.now());
    let enter = |how| masters::script(ENTER, &keys, &[owner, &value, &ttl, how]);
    let said_yes = |reply: &Reply| reply.int() == Some(1);
    // The mistake: what one master has of the lock may be all that is left of it.
    let joined = masters::on_any(ctx, &enter("joins"));
    let won = joined.is_some_and(|reply| said_yes(&reply)) || {
        let answers = masters::on_each(ctx, &enter("takes"));
        let granted = answers.iter().filter(|reply| said_yes(reply));
        granted.count() >= masters::majority(ctx)
    };
    let undo = masters::script(LEAVE, &keys, &[owner, &value]);
    CanaryHold::new(until, undo).if_won(ctx, won)
}
