//! The workload of readers and writers. A writer changes two files that belong together, one after the other. Readers
//! must find the same content in both files.

use std::time::Duration;

use quorate::LockGuard;
use rand::RngExt;

use super::context::Ctx;
use super::files;
use super::hold::Hold;
use super::wanted::Wanted;
use crate::claim::Claim;
use crate::event::Event;
use crate::workload::Workload;

/// The two files. A writer increments a number, and writes it to both files. The content of a file is this number, a
/// space, and the name of the attempt that wrote the file.
const HALVES: [&str; 2] = ["readers-1", "readers-2"];
/// The name that stands for both files together in the history.
const WHOLE: &str = "readers";

pub(super) async fn work(ctx: &Ctx, wanted: &Wanted, op: u64, hold: &Hold, time: Duration) {
    match wanted.claim {
        Claim::Reader => read(ctx, wanted, op, hold, time).await,
        _ => write(ctx, op, hold, time).await,
    }
}

/// Writes the next number to both files, first to one and then to the other.
async fn write(ctx: &Ctx, op: u64, hold: &Hold, time: Duration) {
    let mut edition = None;
    for half in HALVES {
        let Ok((file, from)) = files::read(ctx, half) else {
            return;
        };
        let number = edition.unwrap_or_else(|| edition_of(&from) + 1);
        edition = Some(number);
        let text = format!("{number} {}", ctx.signed(op));
        files::write(ctx, (half, &file), op, hold, from, &text);
        tokio::time::sleep(time / 2).await;
    }
}

/// Reads one file, works, and reads the other file.
async fn read(ctx: &Ctx, wanted: &Wanted, op: u64, hold: &Hold, time: Duration) {
    let Ok((_, first)) = files::read(ctx, HALVES[0]) else {
        return;
    };
    if let Some((_, left)) = &wanted.goes_on {
        found(ctx, HALVES[0], op, hold, (left, &first));
    }
    tokio::time::sleep(time).await;
    if let Ok((_, second)) = files::read(ctx, HALVES[1]) {
        found(ctx, WHOLE, op, hold, (&first, &second));
    }
}

/// Records the content that the holder found in a file, and the content that it must find. Records nothing if the lock
/// has been lost.
fn found(ctx: &Ctx, key: &str, op: u64, hold: &Hold, (expected, found): (&str, &str)) {
    if !hold.is_valid(ctx) {
        return;
    }
    let later = if edition_of(expected) > edition_of(found) {
        expected
    } else {
        found
    };
    let writer = later.split(' ').nth(1).unwrap_or_default();
    ctx.note(Event::Found {
        op,
        key: key.to_owned(),
        expected: expected.to_owned(),
        found: found.to_owned(),
        writer: writer.to_owned(),
    });
}

fn edition_of(text: &str) -> u64 {
    let edition = text.split(' ').next().unwrap_or_default();
    edition.parse().unwrap_or(0)
}

/// Decides at random whether a writer turns its hold into a reader's hold after its writes, instead of releasing it.
pub(super) fn reads_on(ctx: &Ctx, wanted: &Wanted, guard: &LockGuard) -> bool {
    wanted.workload == Workload::Readers
        && wanted.claim == Claim::Alone
        && guard.is_valid()
        && !ctx.drops_futures()
        && rand::rng().random_bool(0.4)
}

/// Reads the file `readers-1`, which this client has just written as a writer. `None` if the file cannot be read.
pub(super) fn left(ctx: &Ctx) -> Option<String> {
    files::read(ctx, HALVES[0]).ok().map(|(_, text)| text)
}
