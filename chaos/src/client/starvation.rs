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

use super::context::{Ctx, STALL_THRESHOLD};
use crate::event::{Event, STALLED};

/// How long the measuring thread sleeps between two readings of the clock.
const SLEEP_TIME: Duration = Duration::from_millis(10);
/// The time between two readings of how long the client's threads waited for a CPU, in nanoseconds.
const READING_INTERVAL: u64 = 50_000_000;
/// Waits for a CPU are recorded only if all threads together waited longer than this between two readings, in
/// nanoseconds.
const MIN_TOTAL_WAIT: u64 = 3_000_000;

/// Records late wake-ups, and how long threads waited for a CPU. Never returns.
pub(super) fn watch(ctx: &Ctx) {
    let mut earlier = cpu_waits();
    let mut earlier_at = ctx.clock.now();
    loop {
        let slept_at = ctx.clock.now();
        thread::sleep(SLEEP_TIME);
        let now = ctx.clock.now();
        if now - slept_at > STALL_THRESHOLD {
            let disturbance = STALLED.to_owned();
            ctx.record(Event::Suffered {
                disturbance,
                since: slept_at,
            });
        }
        if now - earlier_at < READING_INTERVAL {
            continue;
        }
        let current = cpu_waits();
        if let Some((slept_at, waited)) = waits_between(&earlier, &current, earlier_at, now) {
            ctx.record(Event::Starved {
                since: slept_at,
                waited,
            });
        }
        (earlier, earlier_at) = (current, now);
    }
}

/// Compares two readings of how long each thread has waited for a CPU: `earlier` at the time `earlier_at`, and
/// `current` at the time `now`.
///
/// `None` if all threads together waited at most [`MIN_TOTAL_WAIT`] between the readings. Otherwise returns the
/// estimated time at which the waits began, and the sum of their lengths in nanoseconds.
///
/// Waits can begin before `earlier_at`, because the kernel counts a wait only when the wait ends.
fn waits_between(
    earlier: &HashMap<u32, u64>,
    current: &HashMap<u32, u64>,
    earlier_at: u64,
    now: u64,
) -> Option<(u64, u64)> {
    let earlier_wait = |thread: &u32| earlier.get(thread).copied().unwrap_or(0);
    let new_waits = current.iter();
    let new_waits = new_waits.map(|(thread, total)| total.saturating_sub(earlier_wait(thread)));
    let (longest, total) = new_waits.fold((0, 0), |(longest, total): (u64, u64), wait| {
        (longest.max(wait), total + wait)
    });
    let began_at = earlier_at.min(now.saturating_sub(longest));
    (total > MIN_TOTAL_WAIT).then_some((began_at, total))
}

/// For each thread of this process: the total time for which it was ready but had no CPU, in nanoseconds. Empty if the
/// kernel does not count this time.
fn cpu_waits() -> HashMap<u32, u64> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else {
        return HashMap::new();
    };
    let read_wait = |thread: fs::DirEntry| {
        let id = thread.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        Some((id, stat.split_whitespace().nth(1)?.parse().ok()?))
    };
    threads.flatten().filter_map(read_wait).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_wait_may_have_begun_before_the_previous_measurement() {
        const MS: u64 = 1_000_000;
        let waits = |first: u64, second: u64| HashMap::from([(1, first * MS), (2, second * MS)]);
        let waits_since = |current: &HashMap<u32, u64>| {
            waits_between(&waits(10, 10), current, 1_000 * MS, 1_050 * MS)
        };
        assert_eq!(waits_since(&waits(11, 11)), None);
        assert_eq!(waits_since(&waits(40, 20)), Some((1_000 * MS, 40 * MS)));
        assert_eq!(waits_since(&waits(640, 310)), Some((420 * MS, 930 * MS)));
    }
}
