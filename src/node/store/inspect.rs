//! Inspects the server of a store. The result also shows whether another address leads to the same server, and how long
//! the restart guard still ignores the server's votes.

use std::sync::Arc;

use super::contract::Store;
use super::shared::Shared;
use crate::node::inspection::Inspection;
use crate::protocol::restart::quarantined_until;
use crate::settings::RestartGuard;

pub(super) async fn inspect<S: Store>(shared: Arc<Shared<S>>) -> Inspection {
    let mut found = shared.store.inspect().await;
    found.records = true;
    found.timeout = Some(shared.traits.timeout);
    let context = shared.context();
    if let Some(server) = &found.identity
        && let Err(taken) = context.roster.enter(server, shared.store.name())
    {
        found.fault.get_or_insert(taken.into());
    }
    let first = found.run_id.as_deref().is_some_and(|run| {
        shared
            .acquaintance
            .for_another_connection()
            .is_first_run(run)
    });
    let guarded = match context.restart_guard {
        RestartGuard::Off => None,
        RestartGuard::AfterFirstContact if first => None,
        _ => found.uptime,
    };
    let now = context.runtime.now();
    let until = guarded.and_then(|up| quarantined_until(now, up.as_secs(), context.max_ttl));
    found.quarantined = until.map(|until| until.saturating_since(now));
    found
}
