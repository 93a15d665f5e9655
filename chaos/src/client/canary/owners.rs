//! Holds of one owner as a set of names on each master, beside the owner's own.

use super::held::CanaryHold;
use super::masters;
use crate::claim::Claim;
use crate::client::context::Ctx;
use crate::client::wanted::Wanted;

/// Nought where another owner has it, one where nobody had it, two where it is joined.
const ENTER: &str = "
    local owner = redis.call('GET', KEYS[1])
    if owner and owner ~= ARGV[1] then return 0 end
    if not owner then redis.call('DEL', KEYS[2]) end
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
    redis.call('SADD', KEYS[2], ARGV[2])
    redis.call('PEXPIRE', KEYS[2], ARGV[3])
    return owner and 2 or 1";

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
    let answers = masters::on_each(ctx, &masters::script(ENTER, &keys, &[owner, &value, &ttl]));
    let said = |number| {
        answers
            .iter()
            .filter(move |reply| reply.int() == Some(number))
    };
    // The mistake: one master that says so is no majority, be it for who joins.
    let won = said(2).count() > 0 || said(1).count() >= masters::majority(ctx);
    let undo = masters::script(LEAVE, &keys, &[owner, &value]);
    CanaryHold::new(until, undo).if_won(ctx, won)
}
