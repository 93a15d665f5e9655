//! One hold of a lock, acquired with the library or with a known-bad implementation.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use quorate::{AcquireError, Leadership, LockGuard, OwnedGuard, Wait};

use super::attempt_spec::AttemptSpec;
use super::context::Ctx;
use super::known_bad::{self, KnownBadHold};
use super::settings::PATIENCE;
use crate::claim::Claim;
use crate::event::Event;
use crate::workload::{Locker, Workload};

/// A lock that a client believes it holds.
pub(super) enum Hold {
    /// An exclusive or shared guard of the library.
    Guard(LockGuard),
    /// A guard for one hold of a reentrant lock.
    Owned(OwnedGuard),
    /// A leader's guard.
    Leading(Leadership),
    /// A guard of a client that ignores the notification when the lock is lost.
    Ignoring(LockGuard),
    /// A hold of a known-bad implementation.
    KnownBad(KnownBadHold),
}

/// The outcome of an attempt to acquire a lock: the hold, or the reason of the failure as one word.
pub(super) enum Acquisition {
    Acquired(Hold),
    Refused(&'static str),
}

impl Hold {
    /// Waits for the lock. `ctx.settings.locker` selects the lock implementation.
    pub(super) async fn acquire(ctx: &Ctx, spec: &AttemptSpec, op: u64) -> Acquisition {
        if !uses_library(ctx.settings.locker) {
            return match known_bad::acquire(ctx, spec, op).await {
                Some(hold) => Acquisition::Acquired(Self::KnownBad(hold)),
                None => Acquisition::Refused("held"),
            };
        }
        let result = match (&spec.claim, spec.workload) {
            (_, Workload::Leader) => campaign(ctx, spec, op).await,
            (Claim::Owner(id), _) => acquire_for_owner(ctx, spec, id).await,
            (Claim::Alone | Claim::Reader | Claim::Permit(_), _) => {
                return Self::acquire_plain_lock(ctx, spec).await;
            }
        };
        Acquisition::of(result)
    }

    /// Waits for a lock of the library that is neither an election nor a reentrant lock.
    async fn acquire_plain_lock(ctx: &Ctx, spec: &AttemptSpec) -> Acquisition {
        let resource = &spec.resource;
        let request = match spec.claim {
            Claim::Reader => ctx.redlock.lock(resource).shared(),
            Claim::Permit(permits) => ctx.redlock.semaphore(resource, permits),
            Claim::Alone | Claim::Owner(_) if spec.further_resources.is_empty() => {
                ctx.redlock.lock(resource)
            }
            Claim::Alone | Claim::Owner(_) => ctx.redlock.lock_all(spec.resources()),
        };
        Acquisition::of(match ctx.settings.locker {
            Locker::IgnoresLoss => request.renewal(false).acquire().await.map(Self::Ignoring),
            Locker::Quorate if !ctx.settings.renews_locks => {
                request.renewal(false).acquire().await.map(Self::Guard)
            }
            _ => request.acquire().await.map(Self::Guard),
        })
    }

    /// The library's guard. `None` for a holder that ignores loss notifications, and for a known-bad implementation.
    pub(super) fn guard(&self) -> Option<&LockGuard> {
        match self {
            Self::Guard(guard) => Some(guard),
            Self::Owned(guard) => Some(guard),
            Self::Leading(leadership) => Some(leadership.guard()),
            Self::Ignoring(_) | Self::KnownBad(_) => None,
        }
    }

    pub(super) fn token(&self) -> Option<u64> {
        match self {
            Self::Ignoring(guard) => guard.fencing_token(),
            Self::KnownBad(hold) => hold.token,
            _ => self.guard()?.fencing_token(),
        }
    }

    /// The slot of the semaphore that this hold occupies; `None` if the hold is not a permit.
    pub(super) fn slot(&self) -> Option<usize> {
        match self {
            Self::KnownBad(hold) => hold.slot,
            _ => self.guard()?.slot(),
        }
    }

    /// The time until which the holder believes that it holds the lock, in nanoseconds since the start of the run.
    /// `None` for a holder that ignores losses, because such a holder believes that it never loses the lock.
    pub(super) fn until(&self, ctx: &Ctx) -> Option<u64> {
        match self {
            Self::KnownBad(hold) => Some(hold.until),
            _ => Some(ctx.clock.nanos_at(self.guard()?.valid_until())),
        }
    }

    pub(super) fn is_valid(&self, ctx: &Ctx) -> bool {
        match self {
            Self::KnownBad(hold) => ctx.clock.now() < hold.until,
            _ => self.guard().is_none_or(LockGuard::is_valid),
        }
    }

    /// Resolves with the cause when the lock is lost. Never resolves for a holder that ignores losses.
    pub(super) fn loss(&self, ctx: &Ctx) -> Pin<Box<dyn Future<Output = String> + Send>> {
        match (self, self.guard()) {
            (_, Some(guard)) => {
                let loss = guard.lost();
                Box::pin(async move { loss.await.as_str().to_owned() })
            }
            (Self::KnownBad(hold), _) => {
                let remaining = hold.until.saturating_sub(ctx.clock.now());
                Box::pin(async move {
                    tokio::time::sleep(Duration::from_nanos(remaining)).await;
                    "expired".to_owned()
                })
            }
            _ => Box::pin(std::future::pending()),
        }
    }

    /// Ends a hold whose lock was lost. A known-bad client also releases the lost lock, which is one of its mistakes.
    pub(super) async fn discard(self, ctx: &Ctx) {
        if let Self::KnownBad(hold) = self {
            known_bad::release(ctx, hold).await;
        }
    }

    /// Records the release, and then releases the lock. While a fault makes the client drop guards, the guard is
    /// dropped instead of released.
    pub(super) async fn release(self, ctx: &Ctx, op: u64) {
        let until = self.until(ctx);
        ctx.record(Event::Release { op, until });
        if ctx.drops_futures() && self.guard().is_some() {
            return drop(self);
        }
        let outcome = match self {
            Self::Guard(guard) | Self::Ignoring(guard) => Some(guard.release().await),
            Self::Owned(guard) => guard.release().await,
            Self::Leading(leadership) => Some(leadership.resign().await),
            Self::KnownBad(hold) => return known_bad::release(ctx, hold).await,
        };
        // `None`: clones of an `OwnedGuard` still hold the lock, so there is no result to record.
        if let Some(outcome) = outcome {
            let unconfirmed = outcome.unreachable + outcome.pending;
            let confirmed = outcome.on;
            ctx.record(Event::Released {
                op,
                on: confirmed,
                open: unconfirmed,
            });
        }
    }
}

/// Whether the library acquires the lock. This is also true for the known-bad clients that use the library wrongly.
fn uses_library(locker: Locker) -> bool {
    matches!(
        locker,
        Locker::Quorate | Locker::IgnoresLoss | Locker::JumpsLine
    )
}

impl Acquisition {
    fn of(result: Result<Hold, AcquireError>) -> Self {
        match result {
            Ok(hold) => Self::Acquired(hold),
            Err(error) => Self::Refused(reason_of(&error)),
        }
    }
}

/// The reason of a failed acquisition, as one word for the history.
pub(super) fn reason_of(error: &AcquireError) -> &'static str {
    match error {
        AcquireError::HeldByOther(_) | AcquireError::NotJoinable(_) => "held",
        AcquireError::NoQuorum(_) => "no_quorum",
        AcquireError::OtherMasters(_) => "other_masters",
        AcquireError::TooLate(_) => "late",
        _ => "invalid",
    }
}

async fn campaign(ctx: &Ctx, spec: &AttemptSpec, op: u64) -> Result<Hold, AcquireError> {
    let election = ctx.redlock.election(&spec.resource);
    let election = election.wait(Wait::For(PATIENCE));
    election
        .campaign(ctx.attempt_name(op))
        .await
        .map(Hold::Leading)
}

async fn acquire_for_owner(ctx: &Ctx, spec: &AttemptSpec, id: &str) -> Result<Hold, AcquireError> {
    let owner = ctx.owner(id)?;
    owner.acquire(&spec.resource).await.map(Hold::Owned)
}
