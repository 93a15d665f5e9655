//! Detects whether other processes used the machine's processors during the benchmark.

use std::time::Duration;

use quorate_testbed::Server;
use quorate_testbed::measure::{own_cpu, servers_cpu};
use serde::Serialize;

/// Share of the machine's processor time (0 to 1) that other processes may use without a warning.
const MAX_OTHERS_SHARE: f64 = 0.1;
/// `bench` warns if the results of its rounds differ by more than this share (25 %), see [`Noise::apart`].
const MAX_SPREAD: f64 = 0.25;
/// The length of one tick on common kernels. `/proc/stat` counts processor time in ticks.
const CPU_TICK: Duration = Duration::from_millis(10);

/// The processor times at one moment. The difference between two `CpuSample` values shows how much processor time this
/// process and other processes used.
pub(super) struct CpuSample {
    /// Busy time and total time of all processors together since the boot, in ticks; `None` if unknown.
    machine_ticks: Option<(u64, u64)>,
    /// Processor time that this process and its servers have used.
    own_cpu: Duration,
}

impl CpuSample {
    /// Reads the processor times now. `servers` are the servers that this process started.
    pub(super) fn now(servers: &[Server]) -> Self {
        let stat = std::fs::read_to_string("/proc/stat").ok();
        Self {
            machine_ticks: stat.and_then(|stat| parse_ticks(&stat)),
            own_cpu: own_cpu() + servers_cpu(servers),
        }
    }

    /// The share of the machine's processor time (0 to 1) that other processes used from `self` to `now`; `None` if
    /// unknown.
    pub(super) fn share_of_others(&self, later: &Self) -> Option<f64> {
        let ((busy_before, total_before), (busy_after, total_after)) =
            self.machine_ticks.zip(later.machine_ticks)?;
        let own_time = later.own_cpu.saturating_sub(self.own_cpu);
        let others_time =
            (CPU_TICK * busy_after.saturating_sub(busy_before) as u32).saturating_sub(own_time);
        let total_before = CPU_TICK * total_after.saturating_sub(total_before) as u32;
        (!total_before.is_zero()).then(|| others_time.as_secs_f64() / total_before.as_secs_f64())
    }
}

/// Reads busy and total ticks from the text of `/proc/stat`. The numbers in its first line are: user, nice, system,
/// idle, waiting for disks, interrupts of two kinds, and time stolen by other virtual machines.
fn parse_ticks(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let numbers = line.split_whitespace().take(8).map(str::parse);
    let numbers: Vec<u64> = numbers.collect::<Result<_, _>>().ok()?;
    let total = numbers.iter().sum::<u64>();
    let idle = numbers.get(3)? + numbers.get(4)?;
    Some((total - idle, total))
}

/// How reliable the measurement is: the load of other processes, and the differences between the rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Noise {
    /// The share of the machine's processor time (0 to 1) that other processes used; `None` if unknown. This process
    /// and its servers are not counted.
    others: Option<f64>,
    /// How much the rounds of the benchmark differ: the median of the values that [`of`](Self::of) gets as `apart`.
    apart: f64,
    /// Whether the machine was too busy: `others` exceeds [`MAX_OTHERS_SHARE`] or `apart` exceeds [`MAX_SPREAD`].
    noisy: bool,
}

impl Noise {
    /// Creates the summary.
    ///
    /// - `others`: the share of processor time that other processes used
    /// - `apart`: one value for each combination of a set of masters and a setting. It is the difference between the
    ///   largest and the smallest result of a round, divided by the median (0.1 means 10 %).
    pub(super) fn new(others: Option<f64>, mut apart: Vec<f64>) -> Self {
        apart.retain(|share| share.is_finite());
        apart.sort_by(f64::total_cmp);
        let apart = apart.get(apart.len() / 2).copied().unwrap_or(0.0);
        let noisy = others.is_some_and(|share| share > MAX_OTHERS_SHARE) || apart > MAX_SPREAD;
        Self {
            others,
            apart,
            noisy,
        }
    }

    /// The warning about a noisy machine; `None` on a quiet machine.
    pub(super) fn warning(&self) -> Option<String> {
        let percent = |share: f64| (share * 100.0).round();
        let others = self.others.filter(|share| *share > MAX_OTHERS_SHARE);
        let others = others.map(|share| {
            format!(
                "other processes used {} % of the processor time, and ",
                percent(share)
            )
        });
        self.noisy.then(|| {
            format!(
                "the machine is noisy: {}the rounds of the same setting differ by {} %. Do not rely on absolute \
                 times. Measure again with a longer --time while no other program runs",
                others.unwrap_or_default(),
                percent(self.apart)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_ticks_are_parsed_from_the_first_line_of_proc_stat() {
        let stat = "cpu  100 1 50 800 20 0 4 5 7 0\ncpu0 1 2 3 4 5 6 7 8\n";
        assert_eq!(parse_ticks(stat), Some((160, 980)));
        assert_eq!(parse_ticks("cpu  1 2 x"), None);
        assert_eq!(parse_ticks("intr 5"), None);
    }

    #[test]
    fn cpu_time_of_bench_itself_does_not_count_as_noise() {
        let sample = |busy, total, own_cpu| CpuSample {
            machine_ticks: Some((busy, total)),
            own_cpu: Duration::from_millis(own_cpu),
        };
        let share = |sample: &CpuSample, later: &CpuSample| {
            sample
                .share_of_others(later)
                .map(|share| (share * 100.0).round())
        };
        // One second on a machine with two processors is 200 ticks. The processors were busy for 150 ticks. This
        // process used 50 ticks of them (500 ms), so other processes used 100.
        assert_eq!(share(&sample(0, 0, 0), &sample(150, 200, 500)), Some(50.0));
        assert_eq!(share(&sample(0, 0, 0), &sample(40, 200, 500)), Some(0.0));
        assert_eq!(share(&sample(5, 5, 0), &sample(5, 5, 0)), None);
    }

    #[test]
    fn bench_warns_about_noise_only_if_a_limit_is_exceeded() {
        assert_eq!(Noise::new(Some(0.05), vec![0.9, 0.1, 0.2]).warning(), None);
        assert_eq!(Noise::new(None, vec![]).warning(), None);
        let busy = Noise::new(Some(0.4), vec![0.1])
            .warning()
            .expect("a warning");
        assert!(
            busy.contains("other processes used 40 %") && busy.contains("differ by 10 %"),
            "{busy}"
        );
        let jumpy = Noise::new(Some(0.0), vec![0.3, 0.4, 0.1])
            .warning()
            .expect("a warning");
        assert!(
            !jumpy.contains("other processes") && jumpy.contains("differ by 30 %"),
            "{jumpy}"
        );
    }
}
