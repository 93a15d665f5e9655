//! A follower: observes which client leads an election, and records each notification of a leader.

use std::time::Duration;

use super::context::Ctx;
use super::known_bad;
use crate::event::Event;
use crate::workload::{Locker, Workload};

/// Watches the leader of the election until the client is asked to finish.
pub(super) async fn repeat(ctx: Ctx) {
    if ctx.settings.locker == Locker::LedByOne {
        return follow_known_bad(&ctx).await;
    }
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

/// Watches the leader of the known-bad leader election.
async fn follow_known_bad(ctx: &Ctx) {
    let mut last_leader = None;
    while !ctx.is_finishing() {
        let current_leader = known_bad::current_leader(ctx, Workload::Leader.name()).await;
        if current_leader != last_leader {
            last_leader.clone_from(&current_leader);
            let (term, leader) = current_leader.unzip();
            ctx.record(Event::Followed { term, leader });
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
