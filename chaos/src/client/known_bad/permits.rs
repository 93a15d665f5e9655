//! A known-bad semaphore: each permit is a key on each master. A master grants any permit whose key is free there.
//!
//! A client needs one permit from each master of a majority. The mistake: these can be different permits. So more
//! clients succeed than there are permits.

use quorate_testbed::Reply;

use super::held::KnownBadHold;
use super::masters;
use crate::claim::Claim;
use crate::client::attempt_spec::AttemptSpec;
use crate::client::context::Ctx;

/// Lua script: takes a permit that is free on this master. Returns the number of the permit, counted from 1, or 0 if no
/// permit is free.
const TAKE: &str = "
    for number, key in ipairs(KEYS) do
        if redis.call('SET', key, ARGV[1], 'NX', 'PX', ARGV[2]) then return number end
    end
    return 0";

/// Lua script: releases the permit that this master has granted to this hold.
const LEAVE: &str = "
    for _, key in ipairs(KEYS) do
        if redis.call('GET', key) == ARGV[1] then return redis.call('DEL', key) end
    end
    return 0";

pub(super) fn attempt(ctx: &Ctx, spec: &AttemptSpec) -> Option<KnownBadHold> {
    let Claim::Permit(permits) = spec.claim else {
        return None;
    };
    let slot_keys = (0..permits).map(|slot| format!("{}:{slot}", spec.resource));
    let slot_keys: Vec<String> = slot_keys.collect();
    let keys: Vec<&str> = slot_keys.iter().map(String::as_str).collect();
    let (value, ttl) = (masters::random_value(), masters::ttl(ctx));
    let until = masters::believed_until(ctx, ctx.clock.now());
    let replies = masters::replies_of_all(ctx, &masters::script(TAKE, &keys, &[&value, &ttl]));
    let numbers = replies.iter().filter_map(Reply::int);
    let granted_slots: Vec<usize> = numbers
        .filter_map(|number| usize::try_from(number).ok()?.checked_sub(1))
        .collect();
    // The mistake: only the grants are counted, but each master of the majority may have granted a different permit.
    let has_won = granted_slots.len() >= masters::majority(ctx);
    let release = masters::script(LEAVE, &keys, &[&value]);
    let hold = KnownBadHold {
        slot: granted_slots.first().copied(),
        ..KnownBadHold::new(until, release)
    };
    hold.confirmed_if(ctx, has_won)
}
