//! One hold of a lock, acquired with the library or with a known-bad implementation.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use quorate::{AcquireError, Leadership, LockGuard, OwnedGuard, Wait};

use super::context::Ctx;
use super::known_bad::{self, KnownBadHold};
use super::settings::PATIENCE;
use super::wanted::Wanted;
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
pub(super) enum Taken {
    Yes(Hold),
    No(&'static str),
}

impl Hold {
    /// Waits for the lock. `ctx.settings.locker` selects the lock implementation.
    pub(super) async fn take(ctx: &Ctx, wanted: &Wanted, op: u64) -> Taken {
        if !is_of_the_library(ctx.settings.locker) {
            return match known_bad::acquire(ctx, wanted, op).await {
                Some(hold) => Taken::Yes(Self::KnownBad(hold)),
                None => Taken::No("held"),
            };
        }
        let taken = match (&wanted.claim, wanted.workload) {
            (_, Workload::Leader) => lead(ctx, wanted, op).await,
            (Claim::Owner(id), _) => own(ctx, wanted, id).await,
            _ => return Self::take_plainly(ctx, wanted).await,
        };
        Taken::of(taken)
    }

    /// Waits for a lock of the library that is neither an election nor a reentrant lock.
    async fn take_plainly(ctx: &Ctx, wanted: &Wanted) -> Taken {
        let resource = &wanted.resource;
        let request = match wanted.claim {
            Claim::Reader => ctx.redlock.lock(resource).shared(),
            Claim::Permit(of) => ctx.redlock.semaphore(resource, of),
            _ if wanted.also.is_empty() => ctx.redlock.lock(resource),
            _ => ctx.redlock.lock_all(wanted.resources()),
        };
        Taken::of(match ctx.settings.locker {
            Locker::IgnoresLoss => request.renewal(false).acquire().await.map(Self::Ignoring),
            Locker::Quorate if !ctx.settings.renewed => {
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
            _ => Some(ctx.clock.of(self.guard()?.valid_until())),
        }
    }

    pub(super) fn is_valid(&self, ctx: &Ctx) -> bool {
        match self {
            Self::KnownBad(hold) => ctx.clock.now() < hold.until,
            _ => self.guard().is_none_or(LockGuard::is_valid),
        }
    }

    /// Resolves with the cause when the lock is lost. Never resolves for a holder that ignores losses.
    pub(super) fn lost(&self, ctx: &Ctx) -> Pin<Box<dyn Future<Output = String> + Send>> {
        match (self, self.guard()) {
            (_, Some(guard)) => {
                let lost = guard.lost();
                Box::pin(async move { lost.await.as_str().to_owned() })
            }
            (Self::KnownBad(hold), _) => {
                let left = hold.until.saturating_sub(ctx.clock.now());
                Box::pin(async move {
                    tokio::time::sleep(Duration::from_nanos(left)).await;
                    "expired".to_owned()
                })
            }
            _ => Box::pin(std::future::pending()),
        }
    }

    /// Ends a hold whose lock was lost. A known-bad client also releases the lost lock, which is one of its mistakes.
    pub(super) async fn give_up(self, ctx: &Ctx) {
        if let Self::KnownBad(hold) = self {
            known_bad::release(ctx, hold).await;
        }
    }

    /// Records the release, and then releases the lock. While a fault makes the client drop guards, the guard is
    /// dropped instead of released.
    pub(super) async fn give_back(self, ctx: &Ctx, op: u64) {
        let until = self.until(ctx);
        ctx.note(Event::Release { op, until });
        if ctx.drops_futures() && self.guard().is_some() {
            return drop(self);
        }
        let released = match self {
            Self::Guard(guard) | Self::Ignoring(guard) => Some(guard.release().await),
            Self::Owned(guard) => guard.release().await,
            Self::Leading(leadership) => Some(leadership.resign().await),
            Self::KnownBad(hold) => return known_bad::release(ctx, hold).await,
        };
        // `None`: clones of an `OwnedGuard` still hold the lock, so there is no result to record.
        if let Some(released) = released {
            let open = released.unreachable + released.pending;
            let on = released.on;
            ctx.note(Event::Released { op, on, open });
        }
    }
}

/// Whether the library acquires the lock. This is also true for the known-bad clients that use the library wrongly.
fn is_of_the_library(locker: Locker) -> bool {
    matches!(
        locker,
        Locker::Quorate | Locker::IgnoresLoss | Locker::JumpsLine
    )
}

impl Taken {
    fn of(taken: Result<Hold, AcquireError>) -> Self {
        match taken {
            Ok(hold) => Self::Yes(hold),
            Err(error) => Self::No(word(&error)),
        }
    }
}

/// The reason of a failed acquisition, as one word for the history.
pub(super) fn word(error: &AcquireError) -> &'static str {
    match error {
        AcquireError::HeldByOther(_) | AcquireError::NotJoinable(_) => "held",
        AcquireError::NoQuorum(_) => "no_quorum",
        AcquireError::OtherMasters(_) => "other_masters",
        AcquireError::TooLate(_) => "late",
        _ => "invalid",
    }
}

async fn lead(ctx: &Ctx, wanted: &Wanted, op: u64) -> Result<Hold, AcquireError> {
    let election = ctx.redlock.election(&wanted.resource);
    let election = election.wait(Wait::For(PATIENCE));
    election.campaign(ctx.signed(op)).await.map(Hold::Leading)
}

async fn own(ctx: &Ctx, wanted: &Wanted, id: &str) -> Result<Hold, AcquireError> {
    let owner = ctx.owner(id)?;
    owner.acquire(&wanted.resource).await.map(Hold::Owned)
}
