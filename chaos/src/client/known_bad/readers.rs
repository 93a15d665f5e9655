//! A known-bad readers-writer lock: each master stores only the number of readers, and admits a writer when this number
//! is zero.

use super::held::KnownBadHold;
use super::masters;
use crate::claim::Claim;
use crate::client::attempt_spec::AttemptSpec;
use crate::client::context::Ctx;

/// Lua script: increments the number of readers if there is no writer.
///
/// The mistake: only the first reader sets the expiry of the number. So the number can expire while later readers still
/// hold the lock.
const ENTER: &str = "
    if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
    if redis.call('INCR', KEYS[2]) == 1 then redis.call('PEXPIRE', KEYS[2], ARGV[1]) end
    return 1";

/// Lua script: decrements the number of readers.
const LEAVE: &str = "return redis.call('DECR', KEYS[1])";

/// Lua script: acquires the lock for a writer if there is neither a reader nor another writer.
const WRITE: &str = "
    if tonumber(redis.call('GET', KEYS[2]) or 0) > 0 then return 0 end
    if redis.call('SET', KEYS[1], ARGV[2], 'NX', 'PX', ARGV[1]) then return 1 end
    return 0";

pub(super) fn attempt(ctx: &Ctx, spec: &AttemptSpec) -> Option<KnownBadHold> {
    let resource = &spec.resource;
    let readers = format!("{resource}:count");
    let (value, ttl) = (masters::random_value(), masters::ttl(ctx));
    let (enter_script, release) = match spec.claim {
        Claim::Reader => (ENTER, masters::script(LEAVE, &[&readers], &[])),
        _ => (WRITE, masters::release(resource, &value)),
    };
    let until = masters::believed_until(ctx, ctx.clock.now());
    let enter_command = masters::script(enter_script, &[resource, &readers], &[&ttl, &value]);
    let replies = masters::replies_of_all(ctx, &enter_command);
    let granted = replies.iter().filter(|reply| reply.int() == Some(1));
    let has_won = granted.count() >= masters::majority(ctx);
    KnownBadHold::new(until, release).confirmed_if(ctx, has_won)
}
