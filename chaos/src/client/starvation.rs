//! Measures how long the machine delays a client, in two ways:
//!
//! - The kernel counts the time in which threads were ready but had no CPU.
//! - A thread measures how late it wakes up from sleep. This also detects a halt of the whole machine, which the kernel
//!   does not count.
//!
//! Neither way measures delays that the library causes by blocking its threads.

use std::collections::HashMap;
use std::fs;
use std::thread;
use std::time::Duration;

use super::context::{Ctx, LATE};
use crate::event::{Event, STALLED};

/// How long the measuring thread sleeps between two readings of the clock.
const NAP: Duration = Duration::from_millis(10);
/// The time between two readings of how long the client's threads waited for a CPU, in nanoseconds.
const LOOK: u64 = 50_000_000;
/// Waits for a CPU are recorded only if all threads together waited longer than this between two readings, in
/// nanoseconds.
const LITTLE: u64 = 3_000_000;

/// Records late wake-ups, and how long threads waited for a CPU. Never returns.
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
        if let Some((since, waited)) = starved(&counted, &fresh, looked, now) {
            ctx.note(Event::Starved { since, waited });
        }
        (counted, looked) = (fresh, now);
    }
}

/// Compares two readings of how long each thread has waited for a CPU: `counted` at the time `looked`, and `fresh` at
/// the time `now`.
///
/// `None` if all threads together waited at most [`LITTLE`] between the readings. Otherwise returns the estimated time
/// at which the waits began, and the sum of their lengths in nanoseconds.
///
/// Waits can begin before `looked`, because the kernel counts a wait only when the wait ends.
fn starved(
    counted: &HashMap<u32, u64>,
    fresh: &HashMap<u32, u64>,
    looked: u64,
    now: u64,
) -> Option<(u64, u64)> {
    let before = |thread: &u32| counted.get(thread).copied().unwrap_or(0);
    let waits = fresh.iter();
    let waits = waits.map(|(thread, sum)| sum.saturating_sub(before(thread)));
    let (longest, sum) = waits.fold((0, 0), |(longest, sum): (u64, u64), wait| {
        (longest.max(wait), sum + wait)
    });
    let since = looked.min(now.saturating_sub(longest));
    (sum > LITTLE).then_some((since, sum))
}

/// For each thread of this process: the total time for which it was ready but had no CPU, in nanoseconds. Empty if the
/// kernel does not count this time.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_wait_may_have_begun_before_the_previous_measurement() {
        const MS: u64 = 1_000_000;
        let counts = |one: u64, other: u64| HashMap::from([(1, one * MS), (2, other * MS)]);
        let between =
            |fresh: &HashMap<u32, u64>| starved(&counts(10, 10), fresh, 1_000 * MS, 1_050 * MS);
        assert_eq!(between(&counts(11, 11)), None);
        assert_eq!(between(&counts(40, 20)), Some((1_000 * MS, 40 * MS)));
        assert_eq!(between(&counts(640, 310)), Some((420 * MS, 930 * MS)));
    }
}
