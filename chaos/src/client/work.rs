//! The work of a client under its locks.

use std::pin::Pin;
use std::time::Duration;

use quorate::LockGuard;
use rand::RngExt;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::context::Ctx;
use super::hold::{Hold, Taken};
use super::wanted::Wanted;
use super::{files, owners, readers, transfer};
use crate::event::Event;
use crate::workload::{Locker, Workload};

/// The number of items in a full stock.
const ITEMS: u64 = 25;

/// Makes one attempt after the other until the client is asked to finish.
pub(super) async fn repeat(ctx: Ctx, workload: Workload, resource: String) {
    while !ctx.is_finishing() {
        ctx.pause().await;
        let wanted = Wanted::draw(workload, &resource);
        let attempt = critical(&ctx, &wanted, ctx.next_op());
        if ctx.drops_futures() {
            let most = Duration::from_micros(rand::rng().random_range(0..20_000));
            let _ = tokio::time::timeout(most, attempt).await;
        } else {
            attempt.await;
        }
    }
}

/// Draws how long a client works under one hold. The time depends on the workload: usually a few milliseconds,
/// sometimes about one TTL.
fn hold_time(ctx: &Ctx, workload: Workload) -> Duration {
    let ttl = ctx.settings.ttl;
    let draw: f64 = rand::rng().random_range(0.0..1.0);
    match workload {
        Workload::Handover => Duration::from_micros((draw * 4_000.0) as u64),
        Workload::Many => ctx.settings.many_hold.mul_f64(0.6 + 0.8 * draw),
        // A leader must lead long enough for followers to be notified.
        Workload::Leader if draw > ctx.settings.long => {
            Duration::from_millis(40 + (draw * 160.0) as u64)
        }
        // `ignores-loss` does not renew its lock, so the lock is lost during this hold of 1.5 TTLs.
        _ if ctx.settings.locker == Locker::IgnoresLoss && draw < 0.3 => ttl.mul_f64(1.5),
        _ if draw < ctx.settings.long => ttl.mul_f64(0.7 + 0.7 * draw / ctx.settings.long),
        _ => Duration::from_millis(2 + (draw * 30.0) as u64),
    }
}

/// Makes one attempt, and works under its lock.
pub(super) async fn critical(ctx: &Ctx, wanted: &Wanted, op: u64) {
    let waits = Waits::begin(ctx, wanted, op);
    let taken = Hold::take(ctx, wanted, op).await;
    waits.over();
    match taken {
        Taken::Yes(hold) => holding(ctx, wanted, op, hold).await,
        Taken::No(why) => {
            let why = why.to_owned();
            ctx.note(Event::Missed { op, why });
        }
    }
}

/// Works under a new hold, and then releases the lock. The future is boxed, because this function is recursive.
pub(super) fn holding<'a>(
    ctx: &'a Ctx,
    wanted: &'a Wanted,
    op: u64,
    hold: Hold,
) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
    let (token, until, slot) = (hold.token(), hold.until(ctx), hold.slot());
    ctx.note(Event::Obtained {
        op,
        token,
        until,
        slot,
    });
    let mut held = HoldGuard {
        ctx,
        op,
        hold: Some(hold),
    };
    Box::pin(async move {
        let Some(hold) = &held.hold else { return };
        let cause = {
            let lost = hold.lost(ctx);
            let work = work(ctx, wanted, op, hold);
            tokio::select! {
                // Poll `work` before the other futures. If the lock was lost while this process was paused, `work` then
                // still writes, and the register must refuse the write.
                biased;
                () = work => None,
                () = watch(ctx, wanted.workload, op, hold) => None,
                cause = lost => Some(cause),
            }
        };
        let Some(hold) = held.hold.take() else {
            return;
        };
        match (cause, hold) {
            (None, Hold::Guard(guard)) if readers::reads_on(ctx, wanted, &guard) => {
                read_on(ctx, wanted, op, guard).await;
            }
            (None, hold) => hold.give_back(ctx, op).await,
            (Some(cause), hold) => {
                let until = hold.until(ctx);
                ctx.note(Event::Notified { op, cause, until });
                hold.give_up(ctx).await;
            }
        }
    })
}

/// An attempt in progress. If it is dropped before the lock was granted or refused, the drop is recorded.
pub(super) struct Waits<'a> {
    ctx: &'a Ctx,
    op: u64,
    is_over: bool,
}

impl<'a> Waits<'a> {
    /// Records that the attempt begins.
    pub(super) fn begin(ctx: &'a Ctx, wanted: &Wanted, op: u64) -> Self {
        ctx.note(wanted.wait(op));
        Self {
            ctx,
            op,
            is_over: false,
        }
    }

    /// Marks the attempt as decided, so that dropping it records nothing.
    pub(super) fn over(mut self) {
        self.is_over = true;
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.ctx.note(Event::Dropped { op: self.op });
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
            let (op, until) = (self.op, hold.until(self.ctx));
            self.ctx.note(Event::Release { op, until });
        }
    }
}

/// Records each extension of the hold's validity, so that the checkers know the validity even if the client is killed.
async fn watch(ctx: &Ctx, workload: Workload, op: u64, hold: &Hold) {
    if workload == Workload::Many {
        // The workload `many` has too many locks to record each extension.
        return std::future::pending().await;
    }
    let mut last = hold.until(ctx);
    loop {
        tokio::time::sleep(ctx.settings.ttl / 5).await;
        let now = hold.until(ctx);
        if let Some(until) = now
            && now != last
        {
            ctx.note(Event::Renewed { op, until });
            last = now;
        }
    }
}

async fn work(ctx: &Ctx, wanted: &Wanted, op: u64, hold: &Hold) {
    let time = hold_time(ctx, wanted.workload);
    let resource = &wanted.resource;
    match wanted.workload {
        Workload::File => {
            change_file(ctx, resource, op, hold, time, next_number).await;
        }
        Workload::Permits => {
            // Each slot of the semaphore is a lock of its own, so it has a file of its own.
            let key = format!("{resource}-{}", hold.slot().unwrap_or_default());
            change_file(ctx, &key, op, hold, time, next_number).await;
        }
        Workload::Stock => change_file(ctx, resource, op, hold, time, next_item).await,
        Workload::Transfer => transfer::work(ctx, wanted, op, hold, time).await,
        Workload::Readers => readers::work(ctx, wanted, op, hold, time).await,
        Workload::Owners => work_for_owner(ctx, wanted, op, hold, time).await,
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
        _ => tokio::time::sleep(time).await,
    }
}

fn next_number(text: &str) -> String {
    let number: u64 = text.parse().unwrap_or(0);
    (number + 1).to_string()
}

/// The new content of the stock file after one item is taken: the number of the latest delivery, a colon, and the
/// number of items left. If the last item was taken, a new delivery with a full stock follows.
fn next_item(text: &str) -> String {
    let (delivery, left) = text.split_once(':').unwrap_or(("0", "0"));
    let (delivery, left): (u64, u64) = (delivery.parse().unwrap_or(0), left.parse().unwrap_or(0));
    match left {
        0 | 1 => format!("{}:{ITEMS}", delivery + 1),
        _ => format!("{delivery}:{}", left - 1),
    }
}

/// Reads the file, works, checks the lock again as a careful holder does, and writes the file.
async fn change_file(
    ctx: &Ctx,
    key: &str,
    op: u64,
    hold: &Hold,
    time: Duration,
    next: impl FnOnce(&str) -> String,
) {
    let Ok((file, from)) = files::read(ctx, key) else {
        return;
    };
    tokio::time::sleep(time).await;
    let text = next(&from);
    files::write(ctx, (key, &file), op, hold, from, &text);
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
    let line = format!("{key} {token} {}\n", ctx.signed(op));
    for last in [false, true] {
        let mut answer = String::new();
        if stream.write_all(line.as_bytes()).await.is_err()
            || stream.read_line(&mut answer).await.is_err()
        {
            return;
        }
        if !last {
            tokio::time::sleep(time).await;
        }
    }
}

/// Works under a hold of the reentrant lock, sometimes with a nested hold of the same owner.
async fn work_for_owner(ctx: &Ctx, wanted: &Wanted, op: u64, hold: &Hold, time: Duration) {
    if !owners::leave_mark(ctx, wanted, op, hold) {
        return;
    }
    tokio::time::sleep(time / 2).await;
    if !wanted.is_inner && rand::rng().random_bool(0.5) {
        let inner = wanted.inner();
        critical(ctx, &inner, ctx.next_op()).await;
    }
    tokio::time::sleep(time / 2).await;
    owners::note_found_owner(ctx, wanted, op, hold);
}

/// Downgrades a writer's hold to a reader's hold. The reader must then find the content that the writer has written.
async fn read_on(ctx: &Ctx, wanted: &Wanted, op: u64, guard: LockGuard) {
    let left = readers::left(ctx);
    let until = Some(ctx.clock.of(guard.valid_until()));
    // Record the end of the writer's hold before the downgrade, because other readers may hold the lock during the
    // downgrade.
    ctx.note(Event::Release { op, until });
    let Some(left) = left else {
        return;
    };
    let (reader, op) = (wanted.reader(op, left), ctx.next_op());
    let waits = Waits::begin(ctx, &reader, op);
    let guard = guard.downgrade().await;
    waits.over();
    let Ok(guard) = guard else {
        let why = "no_downgrade".to_owned();
        return ctx.note(Event::Missed { op, why });
    };
    holding(ctx, &reader, op, Hold::Guard(guard)).await;
}
