//! Follows whoever leads, and writes down what it is told.

use std::time::Duration;

use super::context::Ctx;
use crate::event::Event;
use crate::workload::Workload;

/// Until the client is to finish.
pub(super) async fn repeat(ctx: Ctx) {
    let election = ctx.redlock.election(Workload::Leader.name());
    let Ok(mut observation) = election.observe() else {
        return;
    };
    while !ctx.is_finishing() {
        // Dropping the future loses nothing.
        let step = Duration::from_millis(50);
        let Ok(leader) = tokio::time::timeout(step, observation.next()).await else {
            continue;
        };
        let term = leader.as_ref().map(|leader| leader.term);
        let leader = leader.and_then(|leader| leader.note?.text);
        ctx.note(Event::Followed { term, leader });
    }
}
