//! The workload of quotas. Clients take prizes (units) from quotas of ten units. They also run jobs that must run only
//! once: for each job, a quota of one unit records whether the job has run.
//!
//! One task of the first client creates a new quota whenever few quotas have units left.

use std::fs;
use std::time::Duration;

use quorate::{Once, OnceOutcome, Quota, Take, ValueError, Wait};
use rand::RngExt;

use super::context::Ctx;
use super::hold;
use super::known_bad;
use super::settings::PATIENCE;
use super::wanted::Wanted;
use super::work::Waits;
use crate::event::Event;
use crate::workload::{Locker, Workload};

/// The number of prizes in each quota.
const PRIZES: u64 = 10;
/// Every third quota is the record of a job that runs once. All other quotas hand out prizes.
const RECORDS: usize = 3;
/// The period of a job that runs once per period: a year, so no chaos run reaches the next period.
const PERIOD: Duration = Duration::from_secs(365 * 24 * 3600);
/// If fewer than `OPEN` quotas have units left, the operator creates another quota.
const OPEN: usize = 3;
/// The probability (0 to 1) that a client asks for a unit of an exhausted quota. The masters must refuse this request.
const ASKS_AGAIN: f64 = 0.1;

/// The operator's task: keeps some quotas available until the client is asked to finish.
pub(super) async fn operate(ctx: Ctx) {
    while !ctx.is_finishing() {
        let (open, over) = (quotas(&ctx, "open"), quotas(&ctx, "over"));
        let next = open.iter().chain(&over).max().map_or(1, |last| last + 1);
        if open.len() < OPEN {
            create(&ctx, next).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Creates a quota with the number `next`, or with the next number that is not used yet. The creation succeeds only if
/// every master answers.
async fn create(ctx: &Ctx, next: usize) {
    for number in next.. {
        let (name, pieces) = (name(number), pieces(number));
        let created = match ctx.settings.locker {
            Locker::CountsDown => known_bad::create(ctx, &name, pieces).await,
            _ => match create_value(ctx, number).await {
                // A quota with this number exists already: its creation was reported as failed, or its creator was
                // killed. Try the next number.
                Err(ValueError::Exists(_)) => continue,
                created => created.is_ok(),
            },
        };
        if created {
            ctx.note(Event::Created {
                quota: name.clone(),
                pieces,
            });
            let _ = fs::write(ctx.settings.dir.join(format!("{name}.open")), "");
        }
        return;
    }
}

async fn create_value(ctx: &Ctx, number: usize) -> Result<(), ValueError> {
    match job(ctx, number) {
        Some(job) => job.create().await,
        None => ctx.redlock.quota(name(number)).create(PRIZES).await,
    }
}

/// The job that runs once and uses this quota as its record. `None` if the quota hands out prizes.
fn job(ctx: &Ctx, number: usize) -> Option<Once> {
    let is_record = number.is_multiple_of(RECORDS);
    is_record.then(|| {
        ctx.redlock
            .once(name(number), PERIOD)
            .wait(Wait::For(PATIENCE))
    })
}

fn pieces(number: usize) -> u64 {
    if number.is_multiple_of(RECORDS) {
        1
    } else {
        PRIZES
    }
}

/// The numbers of the quotas in this state: `open` (units are left) or `over` (exhausted). Each quota has a file. The
/// file's extension is the quota's state.
fn quotas(ctx: &Ctx, state: &str) -> Vec<usize> {
    let Ok(files) = fs::read_dir(&ctx.settings.dir) else {
        return Vec::new();
    };
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    let numbers = names.filter_map(|name| {
        let (name, is) = name.split_once('.')?;
        let number = name
            .strip_prefix(Workload::Prizes.name())?
            .strip_prefix('-')?;
        (is == state).then(|| number.parse().ok())?
    });
    numbers.collect()
}

/// Takes one prize after the other until the client is asked to finish.
pub(super) async fn repeat(ctx: Ctx) {
    while !ctx.is_finishing() {
        ctx.pause().await;
        ctx.pause().await;
        let asks_again = rand::rng().random_bool(ASKS_AGAIN);
        let some = quotas(&ctx, if asks_again { "over" } else { "open" });
        if some.is_empty() {
            continue;
        }
        let number = some[rand::rng().random_range(0..some.len())];
        let attempt = take(&ctx, number);
        if ctx.drops_futures() {
            let most = Duration::from_micros(rand::rng().random_range(0..20_000));
            let _ = tokio::time::timeout(most, attempt).await;
        } else {
            attempt.await;
        }
    }
}

/// Takes a prize from the quota with this number. If the quota gives none, marks it as exhausted.
async fn take(ctx: &Ctx, number: usize) {
    let (op, name) = (ctx.next_op(), name(number));
    let wanted = Wanted::draw(Workload::Prizes, &name);
    let waits = Waits::begin(ctx, &wanted, op);
    let taken = ask(ctx, number).await;
    waits.over();
    let (answer, left) = match taken {
        Ok(answered) => answered,
        Err(why) => {
            let why = why.to_owned();
            return ctx.note(Event::Missed { op, why });
        }
    };
    ctx.note(Event::Answered {
        op,
        answer: answer.to_owned(),
        left,
    });
    if answer != "taken" {
        let file = ctx.settings.dir.join(&name);
        let _ = fs::rename(file.with_extension("open"), file.with_extension("over"));
    }
}

/// Asks for a prize. Returns the reply and the number of prizes left; the number is `None` if the reply does not
/// contain it. If there is no reply, returns the reason as one word.
async fn ask(ctx: &Ctx, number: usize) -> Result<(&'static str, Option<u64>), &'static str> {
    let name = name(number);
    if ctx.settings.locker == Locker::CountsDown {
        let left = known_bad::take(ctx, &name).await;
        return Ok(left.map_or(("sold_out", Some(0)), |left| ("taken", Some(left))));
    }
    let taken = if let Some(job) = job(ctx, number) {
        job.at_most_once(async |_| ()).await.map(|done| match done {
            OnceOutcome::Done(()) => Take::Taken { left: 0 },
            _ => Take::SoldOut { left: 0 },
        })
    } else {
        let quota: Quota = ctx.redlock.quota(&name).wait(Wait::For(PATIENCE));
        quota.take(1).await
    };
    match taken {
        Ok(Take::Taken { left }) => Ok(("taken", Some(left))),
        Ok(Take::SoldOut { left }) => Ok(("sold_out", Some(left))),
        Err(ValueError::Lost(_)) => Ok(("lost", None)),
        Err(ValueError::Missing(_)) => Ok(("missing", None)),
        Err(error) => Err(why(&error)),
    }
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

fn name(number: usize) -> String {
    format!("{}-{number}", Workload::Prizes.name())
}
