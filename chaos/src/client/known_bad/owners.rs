//! A known-bad reentrant lock: one owner can hold it several times. Each master stores the name of the owner under one
//! key, and the names of the owner's holds as a set under another key.
//!
//! The implementations are `joins-by-one` and `numbers-each`.

use quorate_testbed::Reply;

use super::held::KnownBadHold;
use super::masters;
use crate::claim::Claim;
use crate::client::attempt_spec::AttemptSpec;
use crate::client::context::Ctx;
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

pub(super) fn attempt(ctx: &Ctx, spec: &AttemptSpec) -> Option<KnownBadHold> {
    let Claim::Owner(owner) = &spec.claim else {
        return None;
    };
    let (names, counter) = (
        format!("{}:names", spec.resource),
        format!("{}:number", spec.resource),
    );
    let keys = [spec.resource.as_str(), &names, &counter];
    let (value, ttl) = (masters::random_value(), masters::ttl(ctx));
    let until = masters::believed_until(ctx, ctx.clock.now());
    let enter_command = |mode| masters::script(ENTER, &keys, &[owner, &value, &ttl, mode]);
    let counter_value = |reply: &Reply| {
        u64::try_from(reply.int()?)
            .ok()
            .filter(|counter_value| *counter_value > 0)
    };
    let release = masters::script(LEAVE, &keys[..2], &[owner, &value]);
    let hold = KnownBadHold::new(until, release);
    let joins_by_one = ctx.settings.locker == Locker::JoinsByOne;
    // The mistake of `joins-by-one`: the answer of one master is enough to add a hold to a lock that the owner holds.
    // All other masters may have lost this lock.
    if joins_by_one
        && masters::any_reply(ctx, &enter_command("joins"))
            .is_some_and(|reply| counter_value(&reply).is_some())
    {
        return hold.confirmed_if(ctx, true);
    }
    let replies = masters::replies_of_all(ctx, &enter_command("takes"));
    let numbers: Vec<u64> = replies.iter().filter_map(counter_value).collect();
    let has_won = numbers.len() >= masters::majority(ctx);
    let hold = KnownBadHold {
        // The mistake of `numbers-each`: each further hold of an owner gets a larger token, so protected services
        // reject the owner's earlier holds. `joins-by-one` gives no tokens.
        token: numbers.into_iter().max().filter(|_| !joins_by_one),
        ..hold
    };
    hold.confirmed_if(ctx, has_won)
}
