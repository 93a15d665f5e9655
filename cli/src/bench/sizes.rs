//! Measures every set of masters in every setting, in several rounds. Each round measures each combination for a short
//! time.

use std::time::Duration;

use quorate_testbed::measure::{Samples, Spread};

use super::environment::Environment;
use super::measure::{Latency, Throughput, measure_alone, measure_throughput, warm_up};
use super::quorum::Quorum;
use super::results::{RoundSpread, Row};
use super::setting::Setting;
use crate::exit::Failure;
use crate::progress::Progress;

const ROUNDS: usize = 3;

/// The number of turns in the whole benchmark. Each round has one turn for every combination of a set of masters and a
/// setting.
pub(super) fn turn_count(environment: &Environment) -> usize {
    environment.quorums.len() * environment.settings.len() * ROUNDS
}

/// Measures all sets of masters in all settings. Returns one row for each set and setting.
///
/// - In the first half of each turn, one task repeatedly acquires and releases a lock.
/// - In the second half, `tasks` concurrent tasks do so, each with its own lock.
///
/// The whole measurement takes `time`.
pub(super) async fn measure(
    environment: &Environment,
    time: Duration,
    tasks: usize,
    progress: &Progress,
) -> Result<Vec<Row>, Failure> {
    let mut runs = Vec::new();
    for quorum in &environment.quorums {
        for &setting in environment.settings {
            let redlock = environment.client(setting, &environment.options, &quorum.urls)?;
            warm_up(&redlock, setting.name()).await?;
            runs.push((quorum, setting, redlock, Vec::new(), Vec::new()));
        }
    }
    let time_per_turn = time / (2 * turn_count(environment) as u32);
    for _ in 0..ROUNDS {
        for (quorum, setting, redlock, rounds, throughputs) in &mut runs {
            progress.step(&format!("{} masters, {}", quorum.label(), setting.name()));
            let name = setting.name();
            let mut samples = Samples::default();
            measure_alone(
                redlock,
                *setting,
                name,
                time_per_turn,
                usize::MAX,
                &mut samples,
            )
            .await;
            rounds.push(samples);
            let servers = environment.spawned.as_deref();
            throughputs.push(
                measure_throughput(
                    redlock,
                    *setting,
                    time_per_turn,
                    tasks,
                    servers,
                    &environment.running_tasks,
                )
                .await,
            );
        }
    }
    let mut rows: Vec<Row> = runs
        .into_iter()
        .map(|(quorum, setting, _, rounds, throughputs)| {
            row_of(quorum, setting, rounds, &throughputs)
        })
        .collect();
    set_ratios(&mut rows, environment.settings);
    Ok(rows)
}

/// The row of one set of masters in one setting, without the ratios to other rows.
fn row_of(
    quorum: &Quorum,
    setting: Setting,
    rounds: Vec<Samples>,
    throughputs: &[Throughput],
) -> Row {
    let medians = rounds
        .iter()
        .map(|round| Latency::from_nanos(round.cycle.clone()).p50);
    let rounds_us = RoundSpread::new(Spread::of(medians));
    let samples = merge_samples(rounds);
    let median_of =
        |value: fn(&Throughput) -> f64| Spread::of(throughputs.iter().map(value)).median;
    let failed: u64 = throughputs.iter().map(|throughput| throughput.failed).sum();
    Row {
        masters: quorum.urls.len(),
        kinds: quorum.kinds.clone(),
        setting,
        failed: samples.failed + failed,
        cycles_per_s: median_of(|throughput| throughput.per_second),
        client_cpu_us: median_of(|throughput| throughput.client_us),
        server_cpu_us: throughputs
            .iter()
            .all(|throughput| throughput.server_us.is_finite())
            .then(|| median_of(|throughput| throughput.server_us)),
        acquire_us: Latency::from_nanos(samples.acquire),
        release_us: Latency::from_nanos(samples.release),
        cycle_us: Latency::from_nanos(samples.cycle),
        rounds_us,
        over_classic: None,
        over_lock: None,
        over_first: 1.0,
    }
}

/// Merges the samples of all rounds of one set of masters in one setting.
fn merge_samples(rounds: Vec<Samples>) -> Samples {
    let mut merged = Samples::default();
    for round in rounds {
        merged.acquire.extend(round.acquire);
        merged.release.extend(round.release);
        merged.cycle.extend(round.cycle);
        merged.failed += round.failed;
    }
    merged
}

/// Fills in the ratios of each row: `over_classic` or `over_lock`, and `over_first`.
fn set_ratios(rows: &mut [Row], settings: &[Setting]) {
    let cycles: Vec<f64> = rows.iter().map(|row| row.cycle_us.p50).collect();
    for (n, row) in rows.iter_mut().enumerate() {
        let setting_index = n % settings.len();
        let ratio = Some(row.cycle_us.p50 / cycles[n - setting_index]);
        if settings.contains(&Setting::Classic) {
            row.over_classic = ratio;
        } else {
            row.over_lock = ratio;
        }
        row.over_first = row.cycle_us.p50 / cycles[setting_index];
    }
}
