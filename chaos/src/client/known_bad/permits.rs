//! A known-bad semaphore: each permit is a key on each master. A master grants any permit whose key is free there.
//!
//! A client needs one permit from each master of a majority. The mistake: these can be different permits. So more
//! clients succeed than there are permits.

use quorate_testbed::Reply;

use super::held::KnownBadHold;
use super::masters;
use crate::claim::Claim;
use crate::client::context::Ctx;
use crate::client::wanted::Wanted;

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

pub(super) fn attempt(ctx: &Ctx, wanted: &Wanted) -> Option<KnownBadHold> {
    let Claim::Permit(of) = wanted.claim else {
        return None;
    };
    let slots = (0..of).map(|slot| format!("{}:{slot}", wanted.resource));
    let slots: Vec<String> = slots.collect();
    let keys: Vec<&str> = slots.iter().map(String::as_str).collect();
    let (value, ttl) = (masters::value(), masters::ttl(ctx));
    let until = masters::until(ctx, ctx.clock.now());
    let answers = masters::on_each(ctx, &masters::script(TAKE, &keys, &[&value, &ttl]));
    let numbers = answers.iter().filter_map(Reply::int);
    let given: Vec<usize> = numbers
        .filter_map(|number| usize::try_from(number).ok()?.checked_sub(1))
        .collect();
    // The mistake: only the grants are counted, but each master of the majority may have granted a different permit.
    let won = given.len() >= masters::majority(ctx);
    let undo = masters::script(LEAVE, &keys, &[&value]);
    let hold = KnownBadHold {
        slot: given.first().copied(),
        ..KnownBadHold::new(until, undo)
    };
    hold.if_won(ctx, won)
}
