//! Measures how long an acquire takes when the network round trips to the masters are long.

use std::time::Duration;

use quorate_testbed::measure::Samples;
use quorate_testbed::{Fault, Masters, Proxy, Way};

use super::environment::Environment;
use super::measure::{Latency, measure_alone, warm_up};
use super::results::{FarResults, FarSize, FarTime};
use super::setting::Setting;
use crate::config::MasterOptions;
use crate::exit::Failure;

/// Simulated round trips to five masters, in milliseconds. A proxy in front of each master delays its replies by this
/// time.
const ROUND_TRIPS_MS: [u64; 5] = [1, 10, 40, 80, 150];
/// Number of masters that `--spawn` needs for the measurement with simulated distances.
pub(super) const MASTERS: usize = ROUND_TRIPS_MS.len();
const MAX_CYCLES: usize = 12;

/// The distant masters to measure, with the simulated or measured round trip to each of them.
struct DistantMasters {
    options: MasterOptions,
    urls: Vec<String>,
    round_trips_ms: Vec<f64>,
    /// Proxies that delay the replies of the masters. A proxy stops when it is dropped, so they are stored until the
    /// end of the measurement.
    _proxies: Vec<Proxy>,
}

impl DistantMasters {
    /// Puts the started masters behind proxies, which delay the replies of each master by its value in
    /// [`ROUND_TRIPS_MS`].
    fn simulated(environment: &Environment, masters: &Masters) -> Result<Self, Failure> {
        let mut urls = Vec::new();
        let mut proxies = Vec::new();
        for (master, ms) in masters.iter().zip(ROUND_TRIPS_MS) {
            let proxy = Proxy::start(master.addr()).map_err(Failure::internal)?;
            urls.push(master.url_at(proxy.addr()));
            proxy
                .inject(Fault::latency(Way::ToClient, Duration::from_millis(ms)))
                .keep();
            proxies.push(proxy);
        }
        let mut options = environment.options.clone();
        // Use longer timeouts, because distant masters reply later than the default timeouts allow.
        let settings = options.settings_mut();
        settings.node_timeout = Some(Duration::from_millis(500));
        settings.connect_timeout = Some(Duration::from_secs(5));
        Ok(Self {
            options,
            urls,
            round_trips_ms: ROUND_TRIPS_MS.map(|ms| ms as f64).to_vec(),
            _proxies: proxies,
        })
    }

    /// Uses the configured masters without proxies. The round trip to a master is the median time of an acquire on this
    /// master alone.
    async fn with_measured_round_trips(
        environment: &Environment,
        time: Duration,
    ) -> Result<Self, Failure> {
        let options = environment.options.clone();
        let mut round_trips_ms = Vec::new();
        for url in &environment.urls {
            let redlock =
                environment.client(Setting::Classic, &options, std::slice::from_ref(url))?;
            let mut samples = Samples::default();
            if warm_up(&redlock, "near").await.is_ok() {
                let time = Duration::from_millis(300).min(time);
                measure_alone(&redlock, Setting::Classic, "near", time, 50, &mut samples).await;
            }
            round_trips_ms.push(Latency::from_nanos(samples.acquire).p50 / 1e3);
        }
        Ok(Self {
            options,
            urls: environment.urls.clone(),
            round_trips_ms,
            _proxies: Vec::new(),
        })
    }
}

/// Measures how long an acquire takes on masters with long round trips. Returns `None` if the benchmark compares kinds
/// of masters, or if there is only one master.
///
/// If the benchmark has started the masters, proxies simulate the round trips. The measurement takes about `time`.
pub(super) async fn measure(
    environment: &Environment,
    time: Duration,
) -> Result<Option<FarResults>, Failure> {
    if environment.is_by_kind() {
        return Ok(None);
    }
    let distant = match &environment.spawned {
        Some(masters) => DistantMasters::simulated(environment, masters)?,
        None => {
            DistantMasters::with_measured_round_trips(
                environment,
                time / 2 / environment.urls.len().max(1) as u32,
            )
            .await?
        }
    };
    if distant.urls.len() < 2 {
        return Ok(None);
    }
    let sizes: Vec<usize> = if environment.spawned.is_some() {
        // Include even numbers: an acquire waits for two of three masters, but for three of four.
        (1..=distant.urls.len()).collect()
    } else {
        environment
            .quorums
            .iter()
            .map(|quorum| quorum.urls.len())
            .collect()
    };
    let time_per_setting = time / 2 / (sizes.len() * Setting::PLAIN_LOCK.len()).max(1) as u32;
    let mut far_sizes = Vec::new();
    for masters in sizes {
        let mut sorted_round_trips = distant.round_trips_ms[..masters].to_vec();
        sorted_round_trips.sort_by(f64::total_cmp);
        let theory_ms = sorted_round_trips[masters / 2];
        let mut measured = Vec::new();
        for setting in Setting::PLAIN_LOCK {
            let redlock =
                environment.client(setting, &distant.options, &distant.urls[..masters])?;
            warm_up(&redlock, "far").await?;
            let mut samples = Samples::default();
            measure_alone(
                &redlock,
                setting,
                "far",
                time_per_setting,
                MAX_CYCLES,
                &mut samples,
            )
            .await;
            measured.push(FarTime {
                setting,
                acquire_ms: Latency::from_nanos(samples.acquire).p50 / 1e3,
            });
        }
        far_sizes.push(FarSize {
            masters,
            theory_ms,
            measured,
        });
    }
    Ok(Some(FarResults {
        round_trips_ms: distant.round_trips_ms,
        simulated: environment.spawned.is_some(),
        sizes: far_sizes,
    }))
}
