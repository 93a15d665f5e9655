//! How much of its lateness a client owes to the machine.
//!
//! Two measures, because neither sees everything: the kernel's count of the time that threads were
//! ready and had no processor, and a thread of its own that only sleeps and looks how late it wakes
//! (also where a whole machine or group is halted, which the kernel does not count). What the library
//! does to its own threads, blocking or hogging them, is in neither.

use std::collections::HashMap;
use std::fs;
use std::thread;
use std::time::Duration;

use super::context::{Ctx, LATE};
use crate::event::{Event, STALLED};

/// How long the watching thread sleeps at a time.
const NAP: Duration = Duration::from_millis(10);
/// How often the kernel's count is looked at.
const LOOK: u64 = 50_000_000;
/// Waits shorter than this, in one look, are not written down.
const LITTLE: u64 = 3_000_000;

/// Writes down what is measured, for as long as the process lives.
pub(super) fn watch(ctx: &Ctx) {
    let mut counted = waits();
    let mut looked = ctx.clock.now();
    loop {
        let since = ctx.clock.now();
        thread::sleep(NAP);
        let now = ctx.clock.now();
        if now - since > LATE {
            let what = STALLED.to_owned();
            ctx.note(Event::Suffered { what, since });
        }
        if now - looked < LOOK {
            continue;
        }
        let fresh = waits();
        let waited = fresh
            .iter()
            .map(|(thread, sum)| sum.saturating_sub(counted.get(thread).copied().unwrap_or(0)))
            .sum();
        if waited > LITTLE {
            let since = looked;
            ctx.note(Event::Starved { since, waited });
        }
        (counted, looked) = (fresh, now);
    }
}

/// For how long each thread of this process has been ready without a processor, in nanoseconds; nothing
/// where the kernel does not count it.
fn waits() -> HashMap<u32, u64> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else {
        return HashMap::new();
    };
    let wait = |thread: fs::DirEntry| {
        let id = thread.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        Some((id, stat.split_whitespace().nth(1)?.parse().ok()?))
    };
    threads.flatten().filter_map(wait).collect()
}
