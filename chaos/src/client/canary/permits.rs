//! Permits as keys on each master, of which it gives one that is free. So no master gives more than there are.

use quorate_testbed::Reply;

use super::held::CanaryHold;
use super::masters;
use crate::claim::Claim;
use crate::client::context::Ctx;
use crate::client::wanted::Wanted;

/// The number of the permit that was free here, from one on.
const TAKE: &str = "
    for number, key in ipairs(KEYS) do
        if redis.call('SET', key, ARGV[1], 'NX', 'PX', ARGV[2]) then return number end
    end
    return 0";

/// Whichever it was.
const LEAVE: &str = "
    for _, key in ipairs(KEYS) do
        if redis.call('GET', key) == ARGV[1] then return redis.call('DEL', key) end
    end
    return 0";

pub(super) fn attempt(ctx: &Ctx, wanted: &Wanted) -> Option<CanaryHold> {
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
    // The mistake: a majority of masters, and each of them means another permit.
    let won = given.len() >= masters::majority(ctx);
    let undo = masters::script(LEAVE, &keys, &[&value]);
    let hold = CanaryHold {
        slot: given.first().copied(),
        ..CanaryHold::new(until, undo)
    };
    hold.if_won(ctx, won)
}
