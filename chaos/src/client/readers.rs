//! The workload of readers and writers. A writer changes two files that belong together, one after the other. Readers
//! must find the same content in both files.

use std::time::Duration;

use quorate::LockGuard;
use rand::RngExt;

use super::attempt_spec::AttemptSpec;
use super::context::Ctx;
use super::files;
use super::hold::Hold;
use crate::claim::Claim;
use crate::event::Event;
use crate::workload::Workload;

/// The two files. A writer increments a number, and writes it to both files. The content of a file is this number, a
/// space, and the name of the attempt that wrote the file.
const HALVES: [&str; 2] = ["readers-1", "readers-2"];
/// The name that stands for both files together in the history.
const BOTH_FILES: &str = "readers";

pub(super) async fn work(ctx: &Ctx, spec: &AttemptSpec, op: u64, hold: &Hold, time: Duration) {
    match spec.claim {
        Claim::Reader => read(ctx, spec, op, hold, time).await,
        _ => write(ctx, op, hold, time).await,
    }
}

/// Writes the next number to both files, first to one and then to the other.
async fn write(ctx: &Ctx, op: u64, hold: &Hold, time: Duration) {
    let mut edition = None;
    for file_name in HALVES {
        let Ok((file, old_content)) = files::read_state(ctx, file_name) else {
            return;
        };
        let number = edition.unwrap_or_else(|| edition_of(&old_content) + 1);
        edition = Some(number);
        let text = format!("{number} {}", ctx.attempt_name(op));
        files::write(ctx, (file_name, &file), op, hold, old_content, &text);
        tokio::time::sleep(time / 2).await;
    }
}

/// Reads one file, works, and reads the other file.
async fn read(ctx: &Ctx, spec: &AttemptSpec, op: u64, hold: &Hold, time: Duration) {
    let Ok((_, first)) = files::read_state(ctx, HALVES[0]) else {
        return;
    };
    if let Some((_, read_own_write)) = &spec.continued_hold {
        record_found(ctx, HALVES[0], op, hold, (read_own_write, &first));
    }
    tokio::time::sleep(time).await;
    if let Ok((_, second)) = files::read_state(ctx, HALVES[1]) {
        record_found(ctx, BOTH_FILES, op, hold, (&first, &second));
    }
}

/// Records the content that the holder found in a file, and the content that it must find. Records nothing if the lock
/// has been lost.
fn record_found(ctx: &Ctx, key: &str, op: u64, hold: &Hold, (expected, found): (&str, &str)) {
    if !hold.is_valid() {
        return;
    }
    let newer = if edition_of(expected) > edition_of(found) {
        expected
    } else {
        found
    };
    let writer = newer.split(' ').nth(1).unwrap_or_default();
    ctx.record(Event::Found {
        op,
        key: key.to_owned(),
        expected: expected.to_owned(),
        found: found.to_owned(),
        writer: writer.to_owned(),
    });
}

fn edition_of(content: &str) -> u64 {
    let number = content.split(' ').next().unwrap_or_default();
    number.parse().unwrap_or(0)
}

/// Decides at random whether a writer turns its hold into a reader's hold after its writes, instead of releasing it.
pub(super) fn downgrades(ctx: &Ctx, spec: &AttemptSpec, guard: &LockGuard) -> bool {
    spec.workload == Workload::Readers
        && spec.claim == Claim::Alone
        && guard.is_valid()
        && !ctx.drops_futures()
        && rand::rng().random_bool(0.4)
}

/// Reads the file `readers-1`, which this client has just written as a writer. `None` if the file cannot be read.
pub(super) fn read_own_write(ctx: &Ctx) -> Option<String> {
    files::read_state(ctx, HALVES[0])
        .ok()
        .map(|(_, content)| content)
}
