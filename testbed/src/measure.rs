//! Building blocks of benchmarks: samples and their quantiles, the processor time of client and servers, and the
//! numbers of commands and bytes that the servers handled.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::resp::Reply;
use crate::server::Server;

/// The times of one client's cycles, in nanoseconds. In each cycle, the client acquires and then releases a resource,
/// such as a lock.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// The time to acquire, for each cycle.
    pub acquire: Vec<u64>,
    /// The time to release, for each cycle.
    pub release: Vec<u64>,
    /// The time to acquire and release, for each cycle.
    pub cycle: Vec<u64>,
    /// The number of failed acquisitions.
    pub failed: u64,
}

impl Samples {
    /// Runs one more cycle and records its times. `acquire` returns the value that is passed to `release`, or `None` if
    /// the acquisition failed.
    pub async fn cycle<H, R: Future>(
        &mut self,
        acquire: impl Future<Output = Option<H>>,
        release: impl FnOnce(H) -> R,
    ) {
        let started = Instant::now();
        let Some(held) = acquire.await else {
            self.failed += 1;
            return;
        };
        let acquired = Instant::now();
        release(held).await;
        let released = Instant::now();
        self.acquire.push((acquired - started).as_nanos() as u64);
        self.release.push((released - acquired).as_nanos() as u64);
        self.cycle.push((released - started).as_nanos() as u64);
    }

    /// Sorts all samples, because [`quantile`] needs sorted samples.
    pub fn sort(&mut self) {
        for samples in [&mut self.acquire, &mut self.release, &mut self.cycle] {
            samples.sort_unstable();
        }
    }
}

/// The quantile `share` (0 to 1) of sorted values, for example the median for 0.5. NaN if there are no values.
pub fn quantile(sorted: &[u64], share: f64) -> f64 {
    let last_index = sorted.len().saturating_sub(1);
    let index = ((sorted.len() as f64 * share) as usize).min(last_index);
    sorted.get(index).map_or(f64::NAN, |value| *value as f64)
}

/// The median, minimum and maximum of one quantity that was measured in each round of a benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// The median. For an even number of values, it is the mean of the middle two.
    pub median: f64,
    /// The minimum.
    pub least: f64,
    /// The maximum.
    pub most: f64,
}

impl Spread {
    /// Computes the median, minimum and maximum from one value per round. Ignores NaN values.
    pub fn of(rounds: impl IntoIterator<Item = f64>) -> Self {
        let mut rounds: Vec<f64> = rounds
            .into_iter()
            .filter(|value| value.is_finite())
            .collect();
        rounds.sort_by(f64::total_cmp);
        let Some((&least, &most)) = rounds.first().zip(rounds.last()) else {
            let nan = f64::NAN;
            return Self {
                median: nan,
                least: nan,
                most: nan,
            };
        };
        let middle = rounds.len() / 2;
        let median = if rounds.len().is_multiple_of(2) {
            f64::midpoint(rounds[middle - 1], rounds[middle])
        } else {
            rounds[middle]
        };
        Self {
            median,
            least,
            most,
        }
    }
}

/// Formats a number with three significant digits.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        "-".to_owned()
    } else if value.abs() >= 100.0 {
        format!("{value:.0}")
    } else if value.abs() >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// The elapsed time and the processor time of some work.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// The elapsed time of the work.
    pub took: Duration,
    /// The processor time of this process during the work.
    pub client: Duration,
    /// The processor time that all running servers together used during the work. Zero if it cannot be read from
    /// `/proc`.
    pub servers: Duration,
}

impl Usage {
    /// Runs the future `work`. Returns its result, with the elapsed time and the processor time.
    pub async fn of<T>(servers: &[Server], work: impl Future<Output = T>) -> (T, Self) {
        let (client, servers_before, started) = (own_cpu(), servers_cpu(servers), Instant::now());
        let result = work.await;
        let took = started.elapsed();
        let client_cpu = own_cpu().saturating_sub(client);
        let servers_used_cpu = servers_cpu(servers).saturating_sub(servers_before);
        let usage = Self {
            took,
            client: client_cpu,
            servers: servers_used_cpu,
        };
        (result, usage)
    }
}

/// The processor time that this process has used.
pub fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// The processor time that the running servers have used together.
pub fn servers_cpu(servers: &[Server]) -> Duration {
    servers.iter().filter_map(Server::pid).map(cpu_of).sum()
}

/// The processor time of a process: in nanoseconds if the file `schedstat` in `/proc` shows it, otherwise in ticks of
/// 10 ms.
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
    cpu_in_ticks(pid)
}

/// The processor time of a process in ticks of 10 ms, including the time of threads that have ended.
pub fn cpu_in_ticks(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_millis(10 * ticks)
}

/// Counters from the `INFO` replies of all running servers, added up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// The number of commands for locks that clients sent: `EVAL`, `EVALSHA`, `SCRIPT` and `SUBSCRIBE`. Includes `SET`
    /// if the caller of [`read`](Self::read) requested this.
    pub sent: u64,
    /// The number of commands that the servers executed, inside and outside of scripts. `INFO`, `PING` and the commands
    /// that set up a connection are not counted.
    pub ran: u64,
    /// The number of bytes that the servers received and sent.
    pub bytes: u64,
}

impl Counts {
    /// Reads the current counters of all `servers`. If `sends_set` is true, [`sent`](Self::sent) includes all calls of
    /// `SET`. Pass false if `SET` is called only inside scripts.
    pub fn read(servers: &[Server], sends_set: bool) -> Self {
        let mut counts = Self::default();
        for server in servers {
            let Ok(Reply::Bulk(text)) = server.command(&["INFO", "everything"]) else {
                continue;
            };
            for line in String::from_utf8_lossy(&text).lines() {
                let Some((name, value)) = line.split_once(':') else {
                    continue;
                };
                if let "total_net_input_bytes" | "total_net_output_bytes" = name {
                    counts.bytes += value.parse::<u64>().unwrap_or(0);
                } else if let Some(command) = name.strip_prefix("cmdstat_") {
                    let call_count = value.split(['=', ',']).nth(1);
                    let call_count = call_count.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
                    if ["info", "client|setinfo", "hello", "ping", "config|get"].contains(&command)
                    {
                        continue;
                    }
                    counts.ran += call_count;
                    if ["evalsha", "eval", "subscribe"].contains(&command)
                        || command.starts_with("script")
                        || (command == "set" && sends_set)
                    {
                        counts.sent += call_count;
                    }
                }
            }
        }
        counts
    }

    /// The difference between these counters and the earlier ones in `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(before.sent),
            ran: self.ran.saturating_sub(before.ran),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_spreads_of_empty_and_small_samples_are_correct() {
        let quantiles = [(&[1, 2, 3, 4][..], 0.5), (&[7], 0.999), (&[], 0.5)];
        let texts = quantiles.map(|(sorted, share)| number(quantile(sorted, share)));
        assert_eq!(texts, ["3.00", "7.00", "-"]);
        let spread = Spread::of([4.0, f64::NAN, 1.0, 2.0, 3.0]);
        let texts = [spread.median, spread.least, spread.most].map(number);
        assert_eq!(texts, ["2.50", "1.00", "4.00"]);
        assert!(Spread::of([]).median.is_nan());
    }

    #[test]
    fn numbers_are_printed_with_three_significant_digits() {
        let texts = [f64::NAN, 0.5, 12.34, 1234.5].map(number);
        assert_eq!(texts, ["-", "0.50", "12.3", "1234"]);
    }
}
