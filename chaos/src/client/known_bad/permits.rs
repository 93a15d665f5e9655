//! Permits as keys on each master, each of which grants a free one. So no master grants more permits than there are.

use quorate_testbed::Reply;

use super::held::KnownBadHold;
use super::masters;
use crate::claim::Claim;
use crate::client::context::Ctx;
use crate::client::wanted::Wanted;

/// Returns the number of the permit that was free on this master, from one on.
const TAKE: &str = "
    for number, key in ipairs(KEYS) do
        if redis.call('SET', key, ARGV[1], 'NX', 'PX', ARGV[2]) then return number end
    end
    return 0";

/// Releases the permit, whichever it was.
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
    // The mistake: a majority of masters granted, but each may have granted another permit.
    let won = given.len() >= masters::majority(ctx);
    let undo = masters::script(LEAVE, &keys, &[&value]);
    let hold = KnownBadHold {
        slot: given.first().copied(),
        ..KnownBadHold::new(until, undo)
    };
    hold.if_won(ctx, won)
}
