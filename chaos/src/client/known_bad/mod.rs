//! Known-bad clients: lock implementations with one deliberate mistake each. A checker must report each mistake;
//! otherwise the checker does not work.
//!
//! A comment in each file points out the mistake.

mod held;
mod leader;
mod masters;
mod owners;
mod permits;
mod plain;
mod prizes;
mod readers;
mod several;

use std::time::Duration;

use rand::RngExt;

pub(super) use held::KnownBadHold;
pub(super) use leader::current_leader;
pub(super) use prizes::{create, take};

use super::attempt_spec::AttemptSpec;
use super::context::Ctx;
use crate::workload::Locker;

/// The maximum number of attempts to acquire the lock. The implementation `one-by-one` makes only one attempt.
const TRIES: usize = 40;

/// Tries to acquire the lock, with short random pauses between the attempts. `None` if every attempt has failed.
pub(super) async fn acquire(ctx: &Ctx, spec: &AttemptSpec, op: u64) -> Option<KnownBadHold> {
    let tries = match ctx.settings.locker {
        Locker::OneByOne => 1,
        _ => TRIES,
    };
    for _ in 0..tries {
        let (ctx, spec) = (ctx.clone(), spec.clone());
        let outcome = tokio::task::spawn_blocking(move || attempt(&ctx, &spec, op));
        if let Ok(Some(hold)) = outcome.await {
            return Some(hold);
        }
        let pause = rand::rng().random_range(5..40);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    None
}

/// Releases the lock even if it has expired, like a program that releases in a `finally` block.
pub(super) async fn release(ctx: &Ctx, hold: KnownBadHold) {
    let ctx = ctx.clone();
    let release = tokio::task::spawn_blocking(move || hold.release(&ctx));
    let _ = release.await;
}

fn attempt(ctx: &Ctx, spec: &AttemptSpec, op: u64) -> Option<KnownBadHold> {
    match ctx.settings.locker {
        Locker::OneByOne | Locker::LaterLease => several::attempt(ctx, spec),
        Locker::CountsReaders => readers::attempt(ctx, spec),
        Locker::AnyPermit => permits::attempt(ctx, spec),
        Locker::JoinsByOne | Locker::NumbersEach => owners::attempt(ctx, spec),
        Locker::LedByOne => leader::attempt(ctx, spec, op),
        _ => plain::attempt(ctx, &spec.resource),
    }
}
