//! Ends a held lock that was lost.

use super::held::Held;
use super::schedule::Renewal;
use crate::outcome::LossCause;
use crate::rounds::coordinator::Coordinator;

/// Ends a lost lock, and releases its remaining keys, so that no other client has to wait until they expire.
pub(crate) fn end_lost_lock(
    renewal: &Renewal,
    coordinator: &Coordinator,
    held: &Held,
    id: u64,
    cause: LossCause,
) {
    renewal.schedule().remove(id);
    if cause == LossCause::Released || held.claim.is_withdrawn() {
        return;
    }
    coordinator.release_in_background(&held.claim);
    held.end(cause);
    let resource = String::from_utf8_lossy(held.claim.resource());
    let reply_texts = held.trouble(coordinator.names());
    tracing::warn!(%resource, cause = cause.as_str(), said = reply_texts, "lock lost");
}
