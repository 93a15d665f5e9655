//! Measures every set of masters in every setting, in several rounds. Each round measures each combination for a short
//! time.

use std::time::Duration;

use quorate_testbed::measure::{Samples, Spread};

use super::ground::Ground;
use super::measure::{Crowd, Latency, alone, crowd, warm_up};
use super::results::{Apart, Row};
use super::setting::Setting;
use crate::exit::Failure;
use crate::progress::Progress;

const ROUNDS: usize = 3;

/// The number of turns in the whole benchmark. Each round has one turn for every combination of a set of masters and a
/// setting.
pub(super) fn turns(ground: &Ground) -> usize {
    ground.parties.len() * ground.settings.len() * ROUNDS
}

/// Measures all sets of masters in all settings. Returns one row for each set and setting.
///
/// - In the first half of each turn, one task repeatedly acquires and releases a lock.
/// - In the second half, `tasks` concurrent tasks do so, each with its own lock.
///
/// The whole measurement takes `time`.
pub(super) async fn measure(
    ground: &Ground,
    time: Duration,
    tasks: usize,
    progress: &Progress,
) -> Result<Vec<Row>, Failure> {
    let mut parties = Vec::new();
    for party in &ground.parties {
        for &setting in ground.settings {
            let redlock = ground.client(setting, &ground.options, &party.urls)?;
            warm_up(&redlock, setting.name()).await?;
            parties.push((party, setting, redlock, Vec::new(), Vec::new()));
        }
    }
    let turn = time / (2 * turns(ground) as u32);
    for _ in 0..ROUNDS {
        for (party, setting, redlock, rounds, crowds) in &mut parties {
            progress.step(&format!("{} masters, {}", party.label(), setting.name()));
            let name = setting.name();
            let mut samples = Samples::default();
            alone(redlock, *setting, name, turn, usize::MAX, &mut samples).await;
            rounds.push(samples);
            let servers = ground.spawned.as_deref();
            crowds.push(crowd(redlock, *setting, turn, tasks, servers, &ground.running).await);
        }
    }
    let mut rows: Vec<Row> = parties
        .into_iter()
        .map(|(party, setting, _, rounds, crowds)| {
            let medians = rounds
                .iter()
                .map(|round| Latency::of(round.cycle.clone()).p50);
            let spread = Apart::of(Spread::of(medians));
            let samples = together(rounds);
            let middle = |value: fn(&Crowd) -> f64| Spread::of(crowds.iter().map(value)).median;
            Row {
                masters: party.urls.len(),
                kinds: party.kinds.clone(),
                setting,
                failed: samples.failed + crowds.iter().map(|crowd| crowd.failed).sum::<u64>(),
                cycles_per_s: middle(|crowd| crowd.per_second),
                client_cpu_us: middle(|crowd| crowd.client_us),
                server_cpu_us: crowds
                    .iter()
                    .all(|crowd| crowd.server_us.is_finite())
                    .then(|| middle(|crowd| crowd.server_us)),
                acquire_us: Latency::of(samples.acquire),
                release_us: Latency::of(samples.release),
                cycle_us: Latency::of(samples.cycle),
                rounds_us: spread,
                over_classic: None,
                over_lock: None,
                over_first: 1.0,
            }
        })
        .collect();
    compare(&mut rows, ground.settings);
    Ok(rows)
}

/// Merges the samples of all rounds of one set of masters in one setting.
fn together(rounds: Vec<Samples>) -> Samples {
    let mut all = Samples::default();
    for round in rounds {
        all.acquire.extend(round.acquire);
        all.release.extend(round.release);
        all.cycle.extend(round.cycle);
        all.failed += round.failed;
    }
    all
}

/// Fills in the ratios of each row: `over_classic` or `over_lock`, and `over_first`.
fn compare(rows: &mut [Row], settings: &[Setting]) {
    let cycles: Vec<f64> = rows.iter().map(|row| row.cycle_us.p50).collect();
    for (n, row) in rows.iter_mut().enumerate() {
        let setting = n % settings.len();
        let over = Some(row.cycle_us.p50 / cycles[n - setting]);
        if settings.contains(&Setting::Classic) {
            row.over_classic = over;
        } else {
            row.over_lock = over;
        }
        row.over_first = row.cycle_us.p50 / cycles[setting];
    }
}
