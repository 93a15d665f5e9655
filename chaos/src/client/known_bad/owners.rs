//! A known-bad reentrant lock: one owner can hold it several times. Each master stores the name of the owner under one
//! key, and the names of the owner's holds as a set under another key.
//!
//! The implementations are `joins-by-one` and `numbers-each`.

use quorate_testbed::Reply;

use super::held::KnownBadHold;
use super::masters;
use crate::claim::Claim;
use crate::client::context::Ctx;
use crate::client::wanted::Wanted;
use crate::workload::Locker;

/// Lua script: adds a hold of an owner on one master. Increments the lock's counter on this master, and returns its new
/// value.
///
/// Returns 0 and adds nothing in two cases:
///
/// - Another owner holds the lock on this master.
/// - `ARGV[4]` is `joins` (the owner must already hold the lock), and no owner holds the lock on this master.
const ENTER: &str = "
    local owner = redis.call('GET', KEYS[1])
    if owner and owner ~= ARGV[1] or ARGV[4] == 'joins' and not owner then return 0 end
    if not owner then redis.call('DEL', KEYS[2]) end
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
    redis.call('SADD', KEYS[2], ARGV[2])
    redis.call('PEXPIRE', KEYS[2], ARGV[3])
    return redis.call('INCR', KEYS[3])";

/// Lua script: removes the name of a hold. If it was the owner's last hold, deletes the key of the owner.
const LEAVE: &str = "
    redis.call('SREM', KEYS[2], ARGV[2])
    if redis.call('SCARD', KEYS[2]) > 0 or redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
    return redis.call('DEL', KEYS[1])";

pub(super) fn attempt(ctx: &Ctx, wanted: &Wanted) -> Option<KnownBadHold> {
    let Claim::Owner(owner) = &wanted.claim else {
        return None;
    };
    let (names, counter) = (
        format!("{}:names", wanted.resource),
        format!("{}:number", wanted.resource),
    );
    let keys = [wanted.resource.as_str(), &names, &counter];
    let (value, ttl) = (masters::value(), masters::ttl(ctx));
    let until = masters::until(ctx, ctx.clock.now());
    let enter = |how| masters::script(ENTER, &keys, &[owner, &value, &ttl, how]);
    let number = |reply: &Reply| {
        u64::try_from(reply.int()?)
            .ok()
            .filter(|number| *number > 0)
    };
    let undo = masters::script(LEAVE, &keys[..2], &[owner, &value]);
    let hold = KnownBadHold::new(until, undo);
    let joins_by_one = ctx.settings.locker == Locker::JoinsByOne;
    // The mistake of `joins-by-one`: the answer of one master is enough to add a hold to a lock that the owner holds.
    // All other masters may have lost this lock.
    if joins_by_one
        && masters::on_any(ctx, &enter("joins")).is_some_and(|reply| number(&reply).is_some())
    {
        return hold.if_won(ctx, true);
    }
    let answers = masters::on_each(ctx, &enter("takes"));
    let numbers: Vec<u64> = answers.iter().filter_map(number).collect();
    let won = numbers.len() >= masters::majority(ctx);
    let hold = KnownBadHold {
        // The mistake of `numbers-each`: each further hold of an owner gets a larger token, so protected services
        // reject the owner's earlier holds. `joins-by-one` gives no tokens.
        token: numbers.into_iter().max().filter(|_| !joins_by_one),
        ..hold
    };
    hold.if_won(ctx, won)
}
