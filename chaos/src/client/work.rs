//! The work of a client under its locks.

use std::pin::Pin;
use std::time::Duration;

use quorate::LockGuard;
use rand::RngExt;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::attempt_spec::AttemptSpec;
use super::context::Ctx;
use super::hold::{Acquisition, Hold};
use super::{files, owners, readers, transfer};
use crate::event::Event;
use crate::workload::Workload;

/// The number of items in a full stock.
const FULL_STOCK: u64 = 25;

/// Makes one attempt after the other until the client is asked to finish.
pub(super) async fn repeat(ctx: Ctx, workload: Workload, resource: String) {
    while !ctx.is_finishing() {
        ctx.pause().await;
        let spec = AttemptSpec::draw(workload, &resource);
        let running_attempt = attempt_once(&ctx, &spec, ctx.next_op());
        if ctx.drops_futures() {
            let time_limit = Duration::from_micros(rand::rng().random_range(0..20_000));
            let _ = tokio::time::timeout(time_limit, running_attempt).await;
        } else {
            running_attempt.await;
        }
    }
}

/// Draws how long a client works under one hold. The time depends on the workload: usually a few milliseconds,
/// sometimes about one TTL.
fn hold_time(ctx: &Ctx, workload: Workload) -> Duration {
    let ttl = ctx.settings.ttl;
    let share: f64 = rand::rng().random_range(0.0..1.0);
    match workload {
        Workload::Handover => Duration::from_micros((share * 4_000.0) as u64),
        Workload::Many => ctx.settings.many_hold.mul_f64(0.6 + 0.8 * share),
        // A leader must lead long enough for followers to be notified.
        Workload::Leader if share > ctx.settings.long_hold_share => {
            Duration::from_millis(40 + (share * 160.0) as u64)
        }
        _ if share < ctx.settings.long_hold_share => {
            ttl.mul_f64(0.7 + 0.7 * share / ctx.settings.long_hold_share)
        }
        _ => Duration::from_millis(2 + (share * 30.0) as u64),
    }
}

/// Makes one attempt, and works under its lock.
pub(super) async fn attempt_once(ctx: &Ctx, spec: &AttemptSpec, op: u64) {
    let pending = PendingAttempt::begin(ctx, spec, op);
    let acquisition = Hold::acquire(ctx, spec, op).await;
    pending.finish();
    match acquisition {
        Acquisition::Acquired(hold) => work_under_hold(ctx, spec, op, hold).await,
        Acquisition::Refused(why) => {
            let why = why.to_owned();
            ctx.record(Event::Missed { op, why });
        }
    }
}

/// Works under a new hold, and then releases the lock. The future is boxed, because this function is recursive.
pub(super) fn work_under_hold<'a>(
    ctx: &'a Ctx,
    spec: &'a AttemptSpec,
    op: u64,
    hold: Hold,
) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
    let (token, until, slot) = (hold.token(), Some(hold.until(ctx)), hold.slot());
    ctx.record(Event::Obtained {
        op,
        token,
        until,
        slot,
    });
    let mut hold_guard = HoldGuard {
        ctx,
        op,
        hold: Some(hold),
    };
    Box::pin(async move {
        let Some(hold) = &hold_guard.hold else { return };
        let cause = {
            let loss = hold.loss();
            let work = work(ctx, spec, op, hold);
            tokio::select! {
                // Poll `work` before the other futures. If the lock was lost while this process was paused, `work` then
                // still writes, and the register must refuse the write.
                biased;
                () = work => None,
                () = record_renewals(ctx, spec.workload, op, hold) => None,
                cause = loss => Some(cause),
            }
        };
        let Some(hold) = hold_guard.hold.take() else {
            return;
        };
        match (cause, hold) {
            (None, Hold::Guard(guard)) if readers::downgrades(ctx, spec, &guard) => {
                downgrade_and_read(ctx, spec, op, guard).await;
            }
            (None, hold) => hold.release(ctx, op).await,
            (Some(cause), hold) => {
                let until = Some(hold.until(ctx));
                ctx.record(Event::Notified { op, cause, until });
            }
        }
    })
}

/// An attempt in progress. If it is dropped before the lock was granted or refused, the drop is recorded.
pub(super) struct PendingAttempt<'a> {
    ctx: &'a Ctx,
    op: u64,
    is_finished: bool,
}

impl<'a> PendingAttempt<'a> {
    /// Records that the attempt begins.
    pub(super) fn begin(ctx: &'a Ctx, spec: &AttemptSpec, op: u64) -> Self {
        ctx.record(spec.wait_event(op));
        Self {
            ctx,
            op,
            is_finished: false,
        }
    }

    /// Marks the attempt as decided, so that dropping it records nothing.
    pub(super) fn finish(mut self) {
        self.is_finished = true;
    }
}

impl Drop for PendingAttempt<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.ctx.record(Event::Dropped { op: self.op });
        }
    }
}

/// Contains the hold of a client that works under a lock. If the future of the work is dropped before it completes,
/// `drop` records the release event, and then drops the hold.
struct HoldGuard<'a> {
    ctx: &'a Ctx,
    op: u64,
    hold: Option<Hold>,
}

impl Drop for HoldGuard<'_> {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            let (op, until) = (self.op, Some(hold.until(self.ctx)));
            self.ctx.record(Event::Release { op, until });
        }
    }
}

/// Records each extension of the hold's validity, so that the checkers know the validity even if the client is killed.
async fn record_renewals(ctx: &Ctx, workload: Workload, op: u64, hold: &Hold) {
    if workload == Workload::Many {
        // The workload `many` has too many locks to record each extension.
        return std::future::pending().await;
    }
    let mut last_until = hold.until(ctx);
    loop {
        tokio::time::sleep(ctx.settings.ttl / 5).await;
        let until = hold.until(ctx);
        if until != last_until {
            ctx.record(Event::Renewed { op, until });
            last_until = until;
        }
    }
}

async fn work(ctx: &Ctx, spec: &AttemptSpec, op: u64, hold: &Hold) {
    let time = hold_time(ctx, spec.workload);
    let resource = &spec.resource;
    match spec.workload {
        Workload::File => {
            change_file(ctx, resource, op, hold, time, next_number).await;
        }
        Workload::Permits => {
            // Each slot of the semaphore is a lock of its own, so it has a file of its own.
            let key = format!("{resource}-{}", hold.slot().unwrap_or_default());
            change_file(ctx, &key, op, hold, time, next_number).await;
        }
        Workload::Stock => change_file(ctx, resource, op, hold, time, next_item).await,
        Workload::Transfer => transfer::work(ctx, spec, op, hold, time).await,
        Workload::Readers => readers::work(ctx, spec, op, hold, time).await,
        Workload::Owners => work_for_owner(ctx, spec, op, hold, time).await,
        // Lock holders and leaders write to the register. The fencing token of a leader is its term.
        Workload::Register | Workload::Leader => {
            write_register(ctx, resource, op, hold, time).await;
        }
        Workload::Many => {
            // Release the lock early when the client is asked to finish. Otherwise the run would end only after the
            // longest hold.
            let end = tokio::time::Instant::now() + time;
            while tokio::time::Instant::now() < end && !ctx.is_finishing() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        // A hand-over needs no work. The other two do not work here: `run` works in a process of its own, and `prizes`
        // works with values.
        Workload::Handover | Workload::Run | Workload::Prizes => tokio::time::sleep(time).await,
    }
}

/// The new content of a file that counts its writes.
pub(super) fn next_number(text: &str) -> String {
    let number: u64 = text.parse().unwrap_or(0);
    (number + 1).to_string()
}

/// The new content of the stock file after one item is taken: the number of the latest delivery, a colon, and the
/// number of items left. If the last item was taken, a new delivery with a full stock follows.
fn next_item(text: &str) -> String {
    let (delivery, items_left) = text.split_once(':').unwrap_or(("0", "0"));
    let (delivery, items_left): (u64, u64) = (
        delivery.parse().unwrap_or(0),
        items_left.parse().unwrap_or(0),
    );
    match items_left {
        0 | 1 => format!("{}:{FULL_STOCK}", delivery + 1),
        _ => format!("{delivery}:{}", items_left - 1),
    }
}

/// Reads the file, works, checks the lock again as a careful holder does, and writes the file.
async fn change_file(
    ctx: &Ctx,
    key: &str,
    op: u64,
    hold: &Hold,
    time: Duration,
    new_content_from: impl FnOnce(&str) -> String,
) {
    let Ok((file, old_content)) = files::read_state(ctx, key) else {
        return;
    };
    tokio::time::sleep(time).await;
    let new_content = new_content_from(&old_content);
    files::write(ctx, (key, &file), op, hold, old_content, &new_content);
}

/// Writes to the register, works, and writes again. It does not check the lock before the second write, because the
/// register checks the fencing token.
async fn write_register(ctx: &Ctx, key: &str, op: u64, hold: &Hold, time: Duration) {
    let Some(token) = hold.token() else {
        return tokio::time::sleep(time).await;
    };
    let Ok(stream) = UnixStream::connect(&ctx.settings.register).await else {
        return;
    };
    let mut stream = BufReader::new(stream);
    let line = format!("{key} {token} {}\n", ctx.attempt_name(op));
    for is_last in [false, true] {
        let mut answer = String::new();
        if stream.write_all(line.as_bytes()).await.is_err()
            || stream.read_line(&mut answer).await.is_err()
        {
            return;
        }
        if !is_last {
            tokio::time::sleep(time).await;
        }
    }
}

/// Works under a hold of the reentrant lock, sometimes with a nested hold of the same owner.
async fn work_for_owner(ctx: &Ctx, spec: &AttemptSpec, op: u64, hold: &Hold, time: Duration) {
    if !owners::write_owner(ctx, spec, op, hold) {
        return;
    }
    tokio::time::sleep(time / 2).await;
    if !spec.is_nested && rand::rng().random_bool(0.5) {
        let inner = spec.nested();
        attempt_once(ctx, &inner, ctx.next_op()).await;
    }
    tokio::time::sleep(time / 2).await;
    owners::record_found_owner(ctx, spec, op, hold);
}

/// Downgrades a writer's hold to a reader's hold. The reader must then find the content that the writer has written.
async fn downgrade_and_read(ctx: &Ctx, spec: &AttemptSpec, op: u64, guard: LockGuard) {
    let written_text = readers::read_own_write(ctx);
    let until = Some(ctx.clock.nanos_at(guard.valid_until()));
    // Record the end of the writer's hold before the downgrade, because other readers may hold the lock during the
    // downgrade.
    ctx.record(Event::Release { op, until });
    let Some(written_text) = written_text else {
        return;
    };
    let (reader_spec, op) = (spec.as_reader(op, written_text), ctx.next_op());
    let pending = PendingAttempt::begin(ctx, &reader_spec, op);
    let guard = guard.downgrade().await;
    pending.finish();
    let Ok(guard) = guard else {
        let why = "no_downgrade".to_owned();
        return ctx.record(Event::Missed { op, why });
    };
    work_under_hold(ctx, &reader_spec, op, Hold::Guard(guard)).await;
}
