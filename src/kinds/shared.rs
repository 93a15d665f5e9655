//! Converts a writer's lock into a reader's lock.

use std::sync::Arc;

use crate::hold::guard::LockGuard;
use crate::hold::held::{Held, HoldOptions};
use crate::hold::renewal;
use crate::hold::schedule::ScheduleId;
use crate::node::Fairness;
use crate::outcome::LossCause;
use crate::protocol::instant::Instant;
use crate::rounds::lock_target::LockTarget;

/// Why a writer's lock was not converted into a reader's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DowngradeError {
    /// The lock ended before a majority of the masters had converted it. Nothing is held any more; remaining keys are
    /// released in the background.
    #[error("the lock is lost ({0}) and cannot be downgraded: acquire it again with shared()")]
    Lost(LossCause),
    /// The lock cannot be converted into a reader's lock: it is a reader's lock already, a permit, an owner's hold, or
    /// a lock on several resources.
    #[error(
        "only an exclusive lock on a single resource can be downgraded: release it, and acquire again with shared()"
    )]
    NotAWriter,
    /// The `Redlock` was built with `fencing(false)`, but readers need fencing tokens.
    #[error("readers need fencing tokens: remove fencing(false) from the builder")]
    NeedsFencing,
    /// The call was made on a thread of a Tokio runtime.
    #[cfg(feature = "blocking")]
    #[cfg_attr(docsrs, doc(cfg(feature = "blocking")))]
    #[error(transparent)]
    CannotBlock(crate::error::CannotBlock),
}

impl LockGuard {
    /// Converts the lock into a reader's lock, without a moment in which another writer could acquire it. The new guard
    /// shares the lock with other readers. Its fencing token is larger than the writer's.
    ///
    /// Once this method is called, the caller is no longer a writer and must not use the writer's token again. A reader
    /// cannot be converted into a writer, because two readers that wait to become writers would wait for each other
    /// forever. Release the lock and acquire it again instead.
    ///
    /// # Errors
    ///
    /// [`DowngradeError`]; after any error nothing is held.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, both the writer's lock and the reader's lock are released in the background.
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) -> Result<(), quorate::DowngradeError> {
    /// // Everything is written; from here on it is only read, shared with other readers.
    /// let reading = guard.downgrade().await?;
    /// # drop(reading);
    /// # Ok(()) }
    /// ```
    pub async fn downgrade(self) -> Result<LockGuard, DowngradeError> {
        let (core, old) = (self.core.clone(), self.held.clone());
        let Some(wanted) = LockTarget::readers_instead_of(&old.claim) else {
            return Err(DowngradeError::NotAWriter);
        };
        if !old.claim.fenced() {
            return Err(DowngradeError::NeedsFencing);
        }
        let coordinator = &core.coordinator;
        if let Some(cause) = self.loss() {
            return Err(DowngradeError::Lost(cause));
        }
        // Stop the writer's renewals. After the conversion to a reader, they would restore the writer's lock.
        core.renewal.forget(&self.id);
        let old_valid_until = old.valid_until();
        // The writer may still have an entry in the queue on the masters. The request carries its ticket, so that each
        // master removes this entry when it converts the lock.
        let fairness = match old.claim.fairness() {
            Fairness::Fair(ticket) => Fairness::Fair(ticket.clone()),
            Fairness::Unordered => Fairness::Unordered,
        };
        let attempt = coordinator.attempt(&wanted, old.ttl(), fairness, old_valid_until);
        let won_attempt = match attempt.await {
            Ok(won_attempt) if coordinator.now() < old_valid_until => won_attempt,
            Ok(won_attempt) => {
                coordinator.release_in_background(&won_attempt.claim);
                return Err(DowngradeError::Lost(LossCause::Expired));
            }
            Err(failed) if failed.round.answers().majority_refused() => {
                return Err(DowngradeError::Lost(LossCause::TakenAway));
            }
            Err(_) => return Err(DowngradeError::Lost(LossCause::Expired)),
        };
        let started_at = won_attempt.started_at;
        let renews = old.renews();
        let has_max_hold = old.hold_end != Instant::NEVER;
        let max_hold = has_max_hold.then(|| old.hold_end.saturating_since(started_at));
        let hold_options = HoldOptions {
            ttl: old.ttl(),
            max_hold,
            renews,
            note_text: old.note_text().cloned(),
        };
        let held = Held::new(won_attempt, hold_options, &core.local_queues, None);
        let id = ScheduleId::default();
        renewal::schedule_renewals(&core.renewal, coordinator, &held, &id, started_at);
        // Dropping the writer's guard sends releases to all masters. These releases delete only keys that were not
        // converted.
        drop(self);
        Ok(LockGuard::new(held, Arc::clone(&core), id))
    }
}
