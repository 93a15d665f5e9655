//! The workload of quotas. Clients take prizes (units) from quotas of ten units. They also run jobs that must run only
//! once: for each job, a quota of one unit records whether the job has run.
//!
//! One task of the first client creates a new quota whenever few quotas have units left.

use std::fs;
use std::time::Duration;

use quorate::{Once, OnceOutcome, Quota, Take, ValueError, Wait};
use rand::RngExt;

use super::attempt_spec::AttemptSpec;
use super::context::Ctx;
use super::hold;
use super::settings::PATIENCE;
use super::work::PendingAttempt;
use crate::event::Event;
use crate::workload::Workload;

/// The number of prizes in each quota.
const PRIZES: u64 = 10;
/// Every third quota is the record of a job that runs once. All other quotas hand out prizes.
const JOB_INTERVAL: usize = 3;
/// The period of a job that runs once per period: a year, so no chaos run reaches the next period.
const PERIOD: Duration = Duration::from_secs(365 * 24 * 3600);
/// If fewer than `MIN_OPEN_QUOTAS` quotas have units left, the operator creates another quota.
const MIN_OPEN_QUOTAS: usize = 3;
/// The probability (0 to 1) that a client asks for a unit of an exhausted quota. The masters must refuse this request.
const ASKS_EXHAUSTED_SHARE: f64 = 0.1;

/// The operator's task: keeps some quotas available until the client is asked to finish.
pub(super) async fn create_quotas(ctx: Ctx) {
    while !ctx.is_finishing() {
        let (open_quotas, exhausted_quotas) = (quotas(&ctx, "open"), quotas(&ctx, "over"));
        let next_number = open_quotas
            .iter()
            .chain(&exhausted_quotas)
            .max()
            .map_or(1, |last_number| last_number + 1);
        if open_quotas.len() < MIN_OPEN_QUOTAS {
            create_quota(&ctx, next_number).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Creates a quota with the number `first_number`, or with the next number that is not used yet. The creation succeeds
/// only if every master answers.
async fn create_quota(ctx: &Ctx, first_number: usize) {
    for number in first_number.. {
        let (name, units) = (quota_name(number), units_of(number));
        let is_created = match create_quota_or_job(ctx, number).await {
            // A quota with this number exists already: its creation was reported as failed, or its creator was killed.
            // Try the next number.
            Err(ValueError::Exists(_)) => continue,
            result => result.is_ok(),
        };
        if is_created {
            ctx.record(Event::Created {
                quota: name.clone(),
                pieces: units,
            });
            let _ = fs::write(ctx.settings.dir.join(format!("{name}.open")), "");
        }
        return;
    }
}

async fn create_quota_or_job(ctx: &Ctx, number: usize) -> Result<(), ValueError> {
    match job_of(ctx, number) {
        Some(job_of) => job_of.create().await,
        None => ctx.redlock.quota(quota_name(number)).create(PRIZES).await,
    }
}

/// The job that runs once and uses this quota as its record. `None` if the quota hands out prizes.
fn job_of(ctx: &Ctx, number: usize) -> Option<Once> {
    let is_record = number.is_multiple_of(JOB_INTERVAL);
    is_record.then(|| {
        ctx.redlock
            .once(quota_name(number), PERIOD)
            .wait(Wait::For(PATIENCE))
    })
}

fn units_of(number: usize) -> u64 {
    if number.is_multiple_of(JOB_INTERVAL) {
        1
    } else {
        PRIZES
    }
}

/// The numbers of the quotas in this state: `open` (units are left) or `finish` (exhausted). Each quota has a file. The
/// file's extension is the quota's state.
fn quotas(ctx: &Ctx, state: &str) -> Vec<usize> {
    let Ok(files) = fs::read_dir(&ctx.settings.dir) else {
        return Vec::new();
    };
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    let numbers = names.filter_map(|name| {
        let (name, quota_state) = name.split_once('.')?;
        let number = name
            .strip_prefix(Workload::Prizes.name())?
            .strip_prefix('-')?;
        (quota_state == state).then(|| number.parse().ok())?
    });
    numbers.collect()
}

/// Takes one prize after the other until the client is asked to finish.
pub(super) async fn repeat(ctx: Ctx) {
    while !ctx.is_finishing() {
        ctx.pause().await;
        ctx.pause().await;
        let asks_exhausted = rand::rng().random_bool(ASKS_EXHAUSTED_SHARE);
        let candidates = quotas(&ctx, if asks_exhausted { "over" } else { "open" });
        if candidates.is_empty() {
            continue;
        }
        let number = candidates[rand::rng().random_range(0..candidates.len())];
        let taking = take_prize(&ctx, number);
        if ctx.drops_futures() {
            let time_limit = Duration::from_micros(rand::rng().random_range(0..20_000));
            let _ = tokio::time::timeout(time_limit, taking).await;
        } else {
            taking.await;
        }
    }
}

/// Takes a prize from the quota with this number. If the quota gives none, marks it as exhausted.
async fn take_prize(ctx: &Ctx, number: usize) {
    let (op, name) = (ctx.next_op(), quota_name(number));
    let spec = AttemptSpec::draw(Workload::Prizes, &name);
    let pending = PendingAttempt::begin(ctx, &spec, op);
    let result = request_prize(ctx, number).await;
    pending.finish();
    let (answer, units_left) = match result {
        Ok(answer_and_left) => answer_and_left,
        Err(why) => {
            let why = why.to_owned();
            return ctx.record(Event::Missed { op, why });
        }
    };
    ctx.record(Event::Answered {
        op,
        answer: answer.to_owned(),
        left: units_left,
    });
    if answer != "taken" {
        let file = ctx.settings.dir.join(&name);
        let _ = fs::rename(file.with_extension("open"), file.with_extension("over"));
    }
}

/// Asks for a prize. Returns the reply and the number of prizes left; the number is `None` if the reply does not
/// contain it. If there is no reply, returns the reason as one word.
async fn request_prize(
    ctx: &Ctx,
    number: usize,
) -> Result<(&'static str, Option<u64>), &'static str> {
    let name = quota_name(number);
    let result = if let Some(job) = job_of(ctx, number) {
        job.at_most_once(async |_| ())
            .await
            .map(|outcome| match outcome {
                OnceOutcome::Done(()) => Take::Taken { left: 0 },
                _ => Take::SoldOut { left: 0 },
            })
    } else {
        let quota: Quota = ctx.redlock.quota(&name).wait(Wait::For(PATIENCE));
        quota.take(1).await
    };
    match result {
        Ok(Take::Taken { left: units_left }) => Ok(("taken", Some(units_left))),
        Ok(Take::SoldOut { left: units_left }) => Ok(("sold_out", Some(units_left))),
        Err(ValueError::Lost(_)) => Ok(("lost", None)),
        Err(ValueError::Missing(_)) => Ok(("missing", None)),
        Err(error) => Err(reason_of(&error)),
    }
}

fn reason_of(error: &ValueError) -> &'static str {
    match error {
        ValueError::NotAcquired(error) => hold::reason_of(error),
        ValueError::NoQuorum(_) => "no_quorum",
        ValueError::LockLost(_) => "lock_lost",
        ValueError::Unknown(_) => "unknown",
        _ => "invalid",
    }
}

fn quota_name(number: usize) -> String {
    format!("{}-{number}", Workload::Prizes.name())
}
