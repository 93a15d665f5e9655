//! Prizes from quotas of ten.

use std::time::Duration;

use quorate::{Quota, Take, ValueError, Wait};
use rand::RngExt;

use super::context::Ctx;
use super::hold;
use super::settings::PATIENCE;
use super::wanted::Wanted;
use super::work::Waits;
use crate::event::Event;
use crate::workload::Workload;

/// How many each quota has.
const PRIZES: u64 = 10;

/// The operator's act, before anything else happens: every master must be there.
pub(super) async fn create_all(ctx: &Ctx) {
    for number in 1..=ctx.settings.quotas {
        let name = name(number);
        let quota = ctx.redlock.quota(&name);
        for _ in 0..50 {
            match quota.create(PRIZES).await {
                Ok(()) | Err(ValueError::Exists(_)) => {
                    ctx.note(Event::Created {
                        quota: name,
                        pieces: PRIZES,
                    });
                    break;
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }
}

/// One prize after the other, from any quota that is not known to be over.
pub(super) async fn repeat(ctx: Ctx) {
    let mut open: Vec<usize> = (1..=ctx.settings.quotas).collect();
    let all = open.clone();
    while !ctx.is_finishing() {
        pause(&ctx).await;
        let some = if open.is_empty() { &all } else { &open };
        let number = some[rand::rng().random_range(0..some.len())];
        let mut over = false;
        let attempt = async { over = take(&ctx, &name(number)).await };
        if ctx.drops_futures() {
            let most = Duration::from_micros(rand::rng().random_range(0..20_000));
            let _ = tokio::time::timeout(most, attempt).await;
        } else {
            attempt.await;
        }
        if over {
            open.retain(|one| *one != number);
        }
    }
}

/// Takes a prize. Whether there will be no more.
async fn take(ctx: &Ctx, name: &str) -> bool {
    let op = ctx.next_op();
    let wanted = Wanted::draw(Workload::Prizes, name);
    let waits = Waits::begin(ctx, &wanted, op);
    let quota: Quota = ctx.redlock.quota(name).wait(Wait::For(PATIENCE));
    let taken = quota.take(1).await;
    waits.over();
    let (answer, left) = match &taken {
        Ok(Take::Taken { left }) => ("taken", Some(*left)),
        Ok(Take::SoldOut { left }) => ("sold_out", Some(*left)),
        Err(ValueError::Lost(_)) => ("lost", None),
        Err(ValueError::Missing(_)) => ("missing", None),
        Err(error) => {
            let why = why(error).to_owned();
            ctx.note(Event::Missed { op, why });
            return false;
        }
    };
    ctx.note(Event::Answered {
        op,
        answer: answer.to_owned(),
        left,
    });
    answer != "taken"
}

fn why(error: &ValueError) -> &'static str {
    match error {
        ValueError::NotAcquired(error) => hold::word(error),
        ValueError::NoQuorum(_) => "no_quorum",
        ValueError::LockLost(_) => "lock_lost",
        ValueError::Unknown(_) => "unknown",
        _ => "invalid",
    }
}

/// Less often than other work: ten are soon gone. At the end nobody waits for that.
async fn pause(ctx: &Ctx) {
    let most = ctx.settings.between_prizes.as_micros() as u64 + 1;
    let pause = Duration::from_micros(rand::rng().random_range(0..most));
    let end = tokio::time::Instant::now() + pause;
    while tokio::time::Instant::now() < end && !ctx.is_finishing() {
        let step = end.saturating_duration_since(tokio::time::Instant::now());
        tokio::time::sleep(step.min(Duration::from_millis(50))).await;
    }
}

fn name(number: usize) -> String {
    format!("{}-{number}", Workload::Prizes.name())
}
