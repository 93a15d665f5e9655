//! What a client does under its locks.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rand::RngExt;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::context::Ctx;
use super::hold::{Hold, Taken};
use crate::event::Event;
use crate::workload::{Locker, Workload};

/// How many prizes a stock has before a new one is opened.
const PRIZES: u64 = 25;

/// One attempt after the other, until the client is to finish.
pub(super) async fn repeat(ctx: Ctx, workload: Workload, resource: String) {
    while !ctx.is_finishing() {
        ctx.pause().await;
        if ctx.drops_futures() {
            let most = Duration::from_micros(rand::rng().random_range(0..20_000));
            let op = ctx.next_op();
            let attempt = critical(&ctx, workload, &resource, op);
            if tokio::time::timeout(most, attempt).await.is_err() {
                // Wherever it was: waiting, or holding. A belief ended just now at the latest.
                ctx.note(Event::Dropped { op });
            }
        } else {
            critical(&ctx, workload, &resource, ctx.next_op()).await;
        }
    }
}

/// How long a hold works: mostly short, now and then longer than the ttl.
fn hold_time(ctx: &Ctx, workload: Workload) -> Duration {
    let ttl = ctx.settings.ttl;
    let draw: f64 = rand::rng().random_range(0.0..1.0);
    match workload {
        Workload::Handover => Duration::from_micros((draw * 4_000.0) as u64),
        Workload::Many => ctx.settings.many_hold.mul_f64(0.6 + 0.8 * draw),
        // Longer than the lease, or there would be no loss to ignore.
        _ if ctx.settings.locker == Locker::IgnoresLoss && draw < 0.3 => ttl.mul_f64(1.5),
        _ if draw < ctx.settings.long => ttl.mul_f64(0.7 + 0.7 * draw / ctx.settings.long),
        _ => Duration::from_millis(2 + (draw * 30.0) as u64),
    }
}

/// One attempt and the work under it.
async fn critical(ctx: &Ctx, workload: Workload, resource: &str, op: u64) {
    ctx.note(Event::Wait {
        op,
        resource: resource.to_owned(),
    });
    let hold = match Hold::take(ctx, resource).await {
        Taken::Yes(hold) => hold,
        Taken::No(why) => {
            let why = why.to_owned();
            return ctx.note(Event::Missed { op, why });
        }
    };
    let (token, until) = (hold.token(), hold.until(ctx));
    ctx.note(Event::Obtained { op, token, until });
    let mut held = HoldGuard {
        ctx,
        op,
        hold: Some(hold),
    };
    let Some(hold) = &held.hold else { return };
    let cause = {
        let lost = hold.lost(ctx);
        let work = work(ctx, workload, resource, op, hold);
        tokio::select! {
            // First the work: a paused holder does its next step before it hears the news, which
            // is what the fenced register must withstand.
            biased;
            () = work => None,
            () = watch(ctx, workload, op, hold) => None,
            cause = lost => Some(cause),
        }
    };
    let Some(hold) = held.hold.take() else {
        return;
    };
    match cause {
        None => hold.give_back(ctx, op).await,
        Some(cause) => {
            let until = hold.until(ctx);
            ctx.note(Event::Told { op, cause, until });
        }
    }
}

/// A hold that may be dropped with the future around it: the belief ends before the lock does.
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

/// Writes down when the validity has moved, so that it is known of a client that gets killed.
async fn watch(ctx: &Ctx, workload: Workload, op: u64, hold: &Hold) {
    if workload == Workload::Many {
        // Nobody else wants these, and there are too many of them.
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

async fn work(ctx: &Ctx, workload: Workload, resource: &str, op: u64, hold: &Hold) {
    let time = hold_time(ctx, workload);
    match workload {
        Workload::File => {
            change_file(ctx, resource, op, hold, time, |text| {
                let count: u64 = text.parse().unwrap_or(0);
                (count + 1).to_string()
            })
            .await;
        }
        Workload::Prizes => change_file(ctx, resource, op, hold, time, next_prize).await,
        Workload::Register => write_register(ctx, resource, op, hold, time).await,
        Workload::Many => {
            // Given back early at the end, or the end would take as long as the longest hold.
            let end = tokio::time::Instant::now() + time;
            while tokio::time::Instant::now() < end && !ctx.is_finishing() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        _ => tokio::time::sleep(time).await,
    }
}

/// The stock is `number of the draw:prizes left`; one prize is taken, and an empty stock is filled.
fn next_prize(text: &str) -> String {
    let (draw, left) = text.split_once(':').unwrap_or(("0", "0"));
    let (draw, left): (u64, u64) = (draw.parse().unwrap_or(0), left.parse().unwrap_or(0));
    match left {
        0 | 1 => format!("{}:{PRIZES}", draw + 1),
        _ => format!("{draw}:{}", left - 1),
    }
}

/// Reads, works, looks at the lock once more as a careful holder does, and writes.
async fn change_file(
    ctx: &Ctx,
    key: &str,
    op: u64,
    hold: &Hold,
    time: Duration,
    next: impl FnOnce(&str) -> String,
) {
    let Ok((file, from)) = read(ctx, key) else {
        return;
    };
    tokio::time::sleep(time).await;
    if !hold.is_valid(ctx) {
        return;
    }
    let began = ctx.clock.now();
    let text = format!("{:<32}", next(&from));
    if file.write_all_at(text.as_bytes(), 0).is_ok() {
        ctx.note(Event::Wrote {
            op,
            key: key.to_owned(),
            from,
            began,
        });
    }
}

pub(super) fn read(ctx: &Ctx, key: &str) -> std::io::Result<(File, String)> {
    let path = ctx.settings.dir.join(format!("{key}.state"));
    read_at(&path)
}

pub(super) fn read_at(path: &std::path::Path) -> std::io::Result<(File, String)> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok((file, text.trim().to_owned()))
}

/// Writes twice with the work in between, and does not look at the lock: that is the register's job.
async fn write_register(ctx: &Ctx, key: &str, op: u64, hold: &Hold, time: Duration) {
    let Some(token) = hold.token() else {
        return tokio::time::sleep(time).await;
    };
    let Ok(stream) = UnixStream::connect(&ctx.settings.register).await else {
        return;
    };
    let mut stream = BufReader::new(stream);
    let line = format!("{key} {token} {}#{op}\n", ctx.settings.name);
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
