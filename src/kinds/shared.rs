//! From writer to reader.

use std::sync::Arc;

use crate::hold::guard::LockGuard;
use crate::hold::held::{Held, Holding};
use crate::hold::renewal;
use crate::hold::schedule::ScheduleId;
use crate::node::{Class, Fairness};
use crate::outcome::LossCause;
use crate::protocol::instant::Instant;
use crate::rounds::wanted::Wanted;

/// Why a writer did not become a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DowngradeError {
    /// The lock had ended, or ended before a majority had answered. Nothing is held any more: what is left is
    /// given back in the background.
    #[error(
        "the lock is lost ({0}), so there is nothing to read under: acquire it anew with shared()"
    )]
    Lost(LossCause),
    /// It is not one resource that is held alone: a reader is one already, and of several resources none
    /// can be given up apart.
    #[error(
        "only a lock on one resource that is held alone becomes a reader's: release it, and acquire with shared()"
    )]
    NotAWriter,
    /// Readers rest on fencing numbers.
    #[error("readers need fencing numbers: leave `fencing(false)` out of this Redlock")]
    NeedsFencing,
    /// A blocking call on a thread of a Tokio runtime.
    #[cfg(feature = "blocking")]
    #[cfg_attr(docsrs, doc(cfg(feature = "blocking")))]
    #[error(transparent)]
    CannotBlock(crate::error::CannotBlock),
}

impl LockGuard {
    /// Goes on as a reader, without a moment at which another writer could come between: the guard that comes
    /// back stands beside other readers, with a fencing number of its own, larger than the writer's.
    ///
    /// From the call on this is no writer any more: the writer's number must not be used again. The other way
    /// does not exist: two readers that both want to write wait for each other for ever. Release, and acquire anew.
    ///
    /// # Errors
    ///
    /// [`DowngradeError`]; in every case nothing is held afterwards.
    ///
    /// # Cancel safety
    ///
    /// Dropped midway, both the writer's lock and what has become of it are released in the background.
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) -> Result<(), quorate::DowngradeError> {
    /// // Written; from here on it is only read, beside others.
    /// let reading = guard.downgrade().await?;
    /// # drop(reading);
    /// # Ok(()) }
    /// ```
    pub async fn downgrade(self) -> Result<LockGuard, DowngradeError> {
        let (core, old) = (self.core.clone(), self.held.clone());
        if old.claim.group().is_some() || old.claim.permit().is_some() {
            return Err(DowngradeError::NotAWriter);
        }
        if !old.claim.fenced() {
            return Err(DowngradeError::NeedsFencing);
        }
        let coordinator = &core.coordinator;
        if let Some(cause) = old.ended(coordinator.now()) {
            return Err(DowngradeError::Lost(cause));
        }
        // What is renewed now would be the writer's again.
        core.renewal.forget(&self.id);
        let limit = old.valid_until();
        let wanted = Wanted::of_class(old.claim.shared_key().clone(), Class::Shared)
            .instead_of(old.claim.token());
        // With its ticket, so that the writer's place in line goes in the same step.
        let fairness = match old.claim.fairness() {
            Fairness::Fair(ticket) => Fairness::Fair(ticket.clone()),
            Fairness::Unordered => Fairness::Unordered,
        };
        let attempt = coordinator.attempt(&wanted, old.ttl(), fairness, limit);
        let won = match attempt.await {
            Ok(won) if coordinator.now() < limit => won,
            Ok(won) => {
                coordinator.release_unheard(&won.claim);
                return Err(DowngradeError::Lost(LossCause::Expired));
            }
            Err(missed) if missed.round.answers().majority_refused() => {
                return Err(DowngradeError::Lost(LossCause::TakenAway));
            }
            Err(_) => return Err(DowngradeError::Lost(LossCause::Expired)),
        };
        let started = won.started;
        let renews = old.renews();
        let bounded = old.hold_end != Instant::NEVER;
        let max_hold = bounded.then(|| old.hold_end.saturating_since(started));
        let holding = Holding {
            ttl: old.ttl(),
            max_hold,
            renews,
            says: old.says().cloned(),
        };
        let held = Held::new(won, holding, &core.lines, None);
        let id = ScheduleId::default();
        renewal::watch(&core.renewal, coordinator, &held, &id, started);
        // Here the writer's guard goes: its releases find nothing but what did not become a reader's.
        drop(self);
        Ok(LockGuard::new(held, Arc::clone(&core), id))
    }
}
