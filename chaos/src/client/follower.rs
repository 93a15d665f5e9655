//! A follower: observes which client leads an election, and records each notification of a leader.

use super::context::Ctx;
use crate::event::Event;
use crate::workload::Workload;

/// Watches the leader of the election until the client is asked to finish.
pub(super) async fn repeat(ctx: Ctx) {
    let election = ctx.redlock.election(Workload::Leader.name());
    let Ok(mut observation) = election.observe() else {
        return;
    };
    while !ctx.is_finishing() {
        // The time limit for each call of `next`. It must be long enough to ask all masters.
        let time_limit = ctx.settings.ttl;
        let Ok(leader) = tokio::time::timeout(time_limit, observation.next()).await else {
            continue;
        };
        let term = leader.as_ref().map(|leader| leader.term);
        let leader = leader.and_then(|leader| leader.note?.text);
        ctx.record(Event::Followed { term, leader });
    }
}
