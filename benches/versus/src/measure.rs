//! Clocks and counters: quantiles, processor time of client and servers, what servers counted.

use std::time::Duration;

use quorate_testbed::{Masters, Reply, Server};
use rustix::time::{ClockId, clock_gettime};

/// The value below which `share` of the sorted values lie; not a number when there are none.
pub(crate) fn quantile(sorted: &[u64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = ((sorted.len() as f64 * share) as usize).min(last);
    sorted.get(at).map_or(f64::NAN, |value| *value as f64)
}

/// The middle, the smallest and the largest of the rounds.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// Of one value per round; values that are not numbers are left out.
    pub(crate) fn of(rounds: impl IntoIterator<Item = f64>) -> Self {
        let mut rounds: Vec<f64> = rounds.into_iter().filter(|v| v.is_finite()).collect();
        rounds.sort_by(f64::total_cmp);
        let Some((&least, &most)) = rounds.first().zip(rounds.last()) else {
            let none = f64::NAN;
            return Self {
                median: none,
                least: none,
                most: none,
            };
        };
        let half = rounds.len() / 2;
        let median = if rounds.len().is_multiple_of(2) {
            f64::midpoint(rounds[half - 1], rounds[half])
        } else {
            rounds[half]
        };
        Self {
            median,
            least,
            most,
        }
    }
}

/// The most by which a cost rises over the least before it: one that falls and then rises has risen.
pub(crate) fn climb(costs: impl IntoIterator<Item = f64>) -> f64 {
    let (mut least, mut climb) = (f64::NAN, f64::NAN);
    for cost in costs {
        climb = climb.max(cost / least);
        least = least.min(cost);
    }
    climb
}

#[test]
fn a_cost_that_falls_and_then_rises_has_risen() {
    assert!((climb([100.0, 10.0, 15.0, 12.0]) - 1.5).abs() < 1e-9);
    assert!((climb([4.0, 2.0, 1.0]) - 0.5).abs() < 1e-9);
    assert!(climb([4.0]).is_nan());
}

/// The processor time that this process has used.
pub(crate) fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// The processor time that the running masters have used together.
pub(crate) fn masters_cpu(masters: &Masters) -> Duration {
    masters.iter().filter_map(Server::pid).map(cpu_of).sum()
}

/// In nanoseconds from the scheduler where it tells, else in ticks of 10 ms.
fn cpu_of(pid: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let precise: u64 = threads
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).ok())
        .filter_map(|text| text.split(' ').next()?.parse::<u64>().ok())
        .sum();
    if precise > 0 {
        return Duration::from_nanos(precise);
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = behind_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_millis(10 * ticks)
}

/// The resident memory of this process, in bytes.
pub(crate) fn own_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    1024 * kib.unwrap_or(0)
}

/// What the running masters have counted together.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(crate) struct Counts {
    /// Commands that clients sent.
    pub(crate) sent: u64,
    /// Commands that ran, those inside scripts included.
    pub(crate) ran: u64,
    /// Bytes that came in and went out.
    pub(crate) bytes: u64,
}

impl Counts {
    /// As of now. `sends_set`: SET is counted as sent, not as part of a script.
    pub(crate) fn read(masters: &Masters, sends_set: bool) -> Self {
        let mut counts = Self::default();
        for master in masters {
            let Ok(Reply::Bulk(text)) = master.command(&["INFO", "everything"]) else {
                continue;
            };
            for line in String::from_utf8_lossy(&text).lines() {
                let Some((name, value)) = line.split_once(':') else {
                    continue;
                };
                if let "total_net_input_bytes" | "total_net_output_bytes" = name {
                    counts.bytes += value.parse::<u64>().unwrap_or(0);
                } else if let Some(command) = name.strip_prefix("cmdstat_") {
                    let calls = value.split(['=', ',']).nth(1);
                    let calls = calls.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
                    if ["info", "client|setinfo", "hello", "ping", "config|get"].contains(&command)
                    {
                        continue;
                    }
                    counts.ran += calls;
                    if ["evalsha", "eval", "subscribe"].contains(&command)
                        || command.starts_with("script")
                        || (command == "set" && sends_set)
                    {
                        counts.sent += calls;
                    }
                }
            }
        }
        counts
    }

    /// What was added since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(before.sent),
            ran: self.ran.saturating_sub(before.ran),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }
}
