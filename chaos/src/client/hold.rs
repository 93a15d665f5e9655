//! One hold of a lock.

use std::future::Future;
use std::pin::Pin;

use quorate::{AcquireError, Leadership, LockGuard, OwnedGuard, Wait};

use super::attempt_spec::AttemptSpec;
use super::context::Ctx;
use super::settings::PATIENCE;
use crate::claim::Claim;
use crate::event::Event;
use crate::workload::Workload;

/// A lock that a client believes it holds.
pub(super) enum Hold {
    /// An exclusive or shared guard of the library.
    Guard(LockGuard),
    /// A guard for one hold of a reentrant lock.
    Owned(OwnedGuard),
    /// A leader's guard.
    Leading(Leadership),
}

/// The outcome of an attempt to acquire a lock: the hold, or the reason of the failure as one word.
pub(super) enum Acquisition {
    Acquired(Hold),
    Refused(&'static str),
}

impl Hold {
    /// Waits for the lock.
    pub(super) async fn acquire(ctx: &Ctx, spec: &AttemptSpec, op: u64) -> Acquisition {
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
        let request = request.renewal(ctx.settings.renews_locks);
        Acquisition::of(request.acquire().await.map(Self::Guard))
    }

    /// The library's guard.
    pub(super) fn guard(&self) -> &LockGuard {
        match self {
            Self::Guard(guard) => guard,
            Self::Owned(guard) => guard,
            Self::Leading(leadership) => leadership.guard(),
        }
    }

    pub(super) fn token(&self) -> Option<u64> {
        self.guard().fencing_token()
    }

    /// The slot of the semaphore that this hold occupies; `None` if the hold is not a permit.
    pub(super) fn slot(&self) -> Option<usize> {
        self.guard().slot()
    }

    /// The time until which the holder believes that it holds the lock, in nanoseconds since the start of the run.
    pub(super) fn until(&self, ctx: &Ctx) -> u64 {
        ctx.clock.nanos_at(self.guard().valid_until())
    }

    pub(super) fn is_valid(&self) -> bool {
        self.guard().is_valid()
    }

    /// Resolves with the cause when the lock is lost.
    pub(super) fn loss(&self) -> Pin<Box<dyn Future<Output = String> + Send>> {
        let loss = self.guard().lost();
        Box::pin(async move { loss.await.as_str().to_owned() })
    }

    /// Records the release, and then releases the lock. While a fault makes the client drop guards, the guard is
    /// dropped instead of released.
    pub(super) async fn release(self, ctx: &Ctx, op: u64) {
        let until = Some(self.until(ctx));
        ctx.record(Event::Release { op, until });
        if ctx.drops_futures() {
            return drop(self);
        }
        let outcome = match self {
            Self::Guard(guard) => Some(guard.release().await),
            Self::Owned(guard) => guard.release().await,
            Self::Leading(leadership) => Some(leadership.resign().await),
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
