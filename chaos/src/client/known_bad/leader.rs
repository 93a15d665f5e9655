//! A known-bad leader election: the first master that answers decides alone.

use super::held::KnownBadHold;
use super::masters;
use crate::client::attempt_spec::AttemptSpec;
use crate::client::context::Ctx;

/// Lua script: if there is no leader, draws the next term and stores the term and the name of the leader under the
/// first key. Returns the term, or 0 if there is a leader.
const LEAD: &str = "
    if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
    local term = redis.call('INCR', KEYS[2])
    redis.call('SET', KEYS[1], term .. ' ' .. ARGV[1], 'PX', ARGV[2])
    return term";

/// Lua script: deletes the key of the leader if it holds this client's name.
const RESIGN: &str = "
    local leads = redis.call('GET', KEYS[1])
    if leads and string.match(leads, ' (.*)') == ARGV[1] then return redis.call('DEL', KEYS[1]) end
    return 0";

pub(super) fn attempt(ctx: &Ctx, spec: &AttemptSpec, op: u64) -> Option<KnownBadHold> {
    let (resource, name) = (&spec.resource, ctx.attempt_name(op));
    let terms = format!("{resource}:term");
    let until = masters::believed_until(ctx, ctx.clock.now());
    let lead_script = masters::script(LEAD, &[resource, &terms], &[&name, &masters::ttl(ctx)]);
    // The deliberate mistake: a single master decides. If that master stops answering, the next master knows of no
    // leader and elects a second leader.
    let term = masters::first_reply(ctx, &lead_script)?.int()?;
    let release = masters::script(RESIGN, &[resource], &[&name]);
    let hold = KnownBadHold {
        token: u64::try_from(term).ok(),
        ..KnownBadHold::new(until, release)
    };
    hold.confirmed_if(ctx, term > 0)
}

/// Returns the leader and its term from the first master that answers.
pub(crate) async fn current_leader(ctx: &Ctx, resource: &str) -> Option<(u64, String)> {
    let (ctx, command) = (ctx.clone(), vec!["GET".to_owned(), resource.to_owned()]);
    let first_reply = tokio::task::spawn_blocking(move || masters::first_reply(&ctx, &command));
    let reply = first_reply.await.ok().flatten()?;
    let text = reply.text()?;
    let (term, name) = text.split_once(' ')?;
    Some((term.parse().ok()?, name.to_owned()))
}
