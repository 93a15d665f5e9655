//! Inspects the server of a store. The result also shows whether another address leads to the same server, and how long
//! the restart guard still ignores the server's votes.

use std::sync::Arc;

use super::contract::Store;
use super::shared::Shared;
use crate::node::inspection::Inspection;
use crate::protocol::restart::quarantined_until;
use crate::settings::RestartGuard;

pub(super) async fn inspect<S: Store>(shared: Arc<Shared<S>>) -> Inspection {
    let mut inspection = shared.store.inspect().await;
    inspection.records = true;
    inspection.timeout = Some(shared.traits.timeout);
    let context = shared.context();
    if let Some(server) = &inspection.identity
        && let Err(vote_taken) = context.roster.claim_vote(server, shared.store.name())
    {
        inspection.fault.get_or_insert(vote_taken.into());
    }
    let is_first_run = inspection.run_id.as_deref().is_some_and(|run| {
        shared
            .run_history
            .for_another_connection()
            .is_first_run(run)
    });
    let guarded_uptime = match context.restart_guard {
        RestartGuard::Off => None,
        RestartGuard::AfterFirstContact if is_first_run => None,
        _ => inspection.uptime,
    };
    let now = context.runtime.now();
    let until = guarded_uptime.and_then(|up| quarantined_until(now, up.as_secs(), context.max_ttl));
    inspection.quarantined = until.map(|until| until.saturating_since(now));
    inspection
}
