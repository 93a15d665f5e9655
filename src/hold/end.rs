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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redlock::Redlock;
    use crate::testing::Masters;

    #[tokio::test(start_paused = true)]
    async fn lost_lock_is_released_unless_its_holder_releases_it() {
        let masters = Masters::new(3);
        let redlock = Redlock::builder().in_memory_on(&masters).build();
        let redlock = redlock.expect("good settings");
        let guard = redlock.acquire("r").await.expect("free");
        let end = |cause| {
            let core = &redlock.core;
            let id = guard.id.get();
            end_lost_lock(&core.renewal, &core.coordinator, &guard.held, id, cause);
            let is_free = |master: &crate::testing::MemoryNode| {
                master.with_master(|master, now| master.peek(now, b"r").holder.is_none())
            };
            (guard.loss(), masters.iter().all(is_free))
        };
        assert_eq!(end(LossCause::Released), (None, false));
        let lost = (Some(LossCause::TakenAway), true);
        assert_eq!(end(LossCause::TakenAway), lost);
    }

    #[tokio::test(start_paused = true)]
    async fn loss_that_is_noticed_during_a_release_does_not_end_the_lock() {
        let redlock = Redlock::in_memory(3);
        let guard = redlock.acquire("r").await.expect("free");
        let (core, id) = (&redlock.core, guard.id.get());
        let _sent = core.coordinator.release(&guard.held.claim);
        let cause = LossCause::TakenAway;
        end_lost_lock(&core.renewal, &core.coordinator, &guard.held, id, cause);
        assert_eq!(guard.loss(), None, "the release itself ends the lock");
    }
}
