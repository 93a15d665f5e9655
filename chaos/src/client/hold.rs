//! One hold, whoever the locker is: the library, or one that is wrong on purpose.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use quorate::{AcquireError, LockGuard};

use super::canary::{self, CanaryHold};
use super::context::Ctx;
use crate::event::Event;
use crate::workload::Locker;

/// A lock that somebody believes to hold.
pub(super) enum Hold {
    /// By the library.
    Guard(LockGuard),
    /// By the library, from a holder that does not listen.
    Ignoring(LockGuard),
    /// By a locker of our own.
    Canary(CanaryHold),
}

/// How the wait for a lock ended.
pub(super) enum Taken {
    Yes(Hold),
    No(&'static str),
}

impl Hold {
    /// Waits for the lock.
    pub(super) async fn take(ctx: &Ctx, resource: &str) -> Taken {
        let request = ctx.redlock.lock(resource);
        let taken = match ctx.settings.locker {
            Locker::Quorate if ctx.settings.renewed => request.acquire().await.map(Self::Guard),
            Locker::JumpsLine => request.acquire().await.map(Self::Guard),
            Locker::Quorate => request.fixed_lease().acquire().await.map(Self::Guard),
            Locker::IgnoresLoss => request.fixed_lease().acquire().await.map(Self::Ignoring),
            Locker::HalfQuorum | Locker::NoUndo => {
                return match canary::acquire(ctx, resource).await {
                    Some(hold) => Taken::Yes(Self::Canary(hold)),
                    None => Taken::No("held"),
                };
            }
        };
        match taken {
            Ok(hold) => Taken::Yes(hold),
            Err(AcquireError::HeldByOther(_) | AcquireError::NotJoinable(_)) => Taken::No("held"),
            Err(AcquireError::NoQuorum(_)) => Taken::No("no_quorum"),
            Err(AcquireError::TooLate(_)) => Taken::No("late"),
            Err(_) => Taken::No("invalid"),
        }
    }

    pub(super) fn token(&self) -> Option<u64> {
        match self {
            Self::Guard(guard) | Self::Ignoring(guard) => guard.fencing_token(),
            Self::Canary(_) => None,
        }
    }

    /// Until when the holder believes, as things stand. One who ignores losses believes without end.
    pub(super) fn until(&self, ctx: &Ctx) -> Option<u64> {
        match self {
            Self::Guard(guard) => Some(ctx.clock.of(guard.valid_until())),
            Self::Ignoring(_) => None,
            Self::Canary(hold) => Some(hold.until),
        }
    }

    pub(super) fn is_valid(&self, ctx: &Ctx) -> bool {
        match self {
            Self::Guard(guard) => guard.is_valid(),
            Self::Ignoring(_) => true,
            Self::Canary(hold) => ctx.clock.now() < hold.until,
        }
    }

    /// Resolves with the cause when the lock is lost.
    pub(super) fn lost(&self, ctx: &Ctx) -> Pin<Box<dyn Future<Output = String> + Send>> {
        match self {
            Self::Guard(guard) => {
                let lost = guard.lost();
                Box::pin(async move { lost.await.as_str().to_owned() })
            }
            Self::Ignoring(_) => Box::pin(std::future::pending()),
            Self::Canary(hold) => {
                let left = hold.until.saturating_sub(ctx.clock.now());
                Box::pin(async move {
                    tokio::time::sleep(Duration::from_nanos(left)).await;
                    "expired".to_owned()
                })
            }
        }
    }

    /// Writes down that the belief is over, and gives back. Dropped instead of released when the
    /// client drops things.
    pub(super) async fn give_back(self, ctx: &Ctx, op: u64) {
        let until = self.until(ctx);
        ctx.note(Event::Release { op, until });
        match self {
            Self::Guard(guard) if ctx.drops_futures() => drop(guard),
            Self::Guard(guard) | Self::Ignoring(guard) => {
                let released = guard.release().await;
                let open = released.unreachable + released.pending;
                let on = released.on;
                ctx.note(Event::Released { op, on, open });
            }
            Self::Canary(hold) => canary::release(ctx, hold).await,
        }
    }
}
