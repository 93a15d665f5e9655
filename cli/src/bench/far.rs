//! Measures how long an acquire takes when the network round trips to the masters are long.

use std::time::Duration;

use quorate_testbed::measure::Samples;
use quorate_testbed::{Fault, Masters, Proxy, Way};

use super::ground::Ground;
use super::measure::{Latency, alone, warm_up};
use super::results::{Wide, WideSize, WideTime};
use super::setting::Setting;
use crate::config::MasterOptions;
use crate::exit::Failure;

/// Simulated round trips to five masters, in milliseconds. A proxy in front of each master delays its replies by this
/// time.
const FAR: [u64; 5] = [1, 10, 40, 80, 150];
/// Number of masters that `--spawn` needs for the measurement with simulated distances.
pub(super) const MASTERS: usize = FAR.len();
const CYCLES: usize = 12;

/// The distant masters to measure, with the simulated or measured round trip to each of them.
struct Place {
    options: MasterOptions,
    urls: Vec<String>,
    round_trips_ms: Vec<f64>,
    /// Proxies that delay the replies of the masters. A proxy stops when it is dropped, so they are stored until the
    /// end of the measurement.
    _proxies: Vec<Proxy>,
}

impl Place {
    /// Puts the started masters behind proxies, which delay the replies of each master by its value in [`FAR`].
    fn simulated(ground: &Ground, masters: &Masters) -> Result<Self, Failure> {
        let mut urls = Vec::new();
        let mut proxies = Vec::new();
        for (master, ms) in masters.iter().zip(FAR) {
            let proxy = Proxy::start(master.addr()).map_err(Failure::internal)?;
            urls.push(master.url_at(proxy.addr()));
            proxy
                .inject(Fault::latency(Way::ToClient, Duration::from_millis(ms)))
                .keep();
            proxies.push(proxy);
        }
        let mut options = ground.options.clone();
        // Use longer timeouts, because distant masters reply later than the default timeouts allow.
        let settings = options.settings_mut();
        settings.node_timeout = Some(Duration::from_millis(500));
        settings.connect_timeout = Some(Duration::from_secs(5));
        Ok(Self {
            options,
            urls,
            round_trips_ms: FAR.map(|ms| ms as f64).to_vec(),
            _proxies: proxies,
        })
    }

    /// Uses the configured masters without proxies. The round trip to a master is the median time of an acquire on this
    /// master alone.
    async fn found(ground: &Ground, time: Duration) -> Result<Self, Failure> {
        let options = ground.options.clone();
        let mut round_trips_ms = Vec::new();
        for url in &ground.urls {
            let redlock = ground.client(Setting::Classic, &options, std::slice::from_ref(url))?;
            let mut samples = Samples::default();
            if warm_up(&redlock, "near").await.is_ok() {
                let time = Duration::from_millis(300).min(time);
                alone(&redlock, Setting::Classic, "near", time, 50, &mut samples).await;
            }
            round_trips_ms.push(Latency::of(samples.acquire).p50 / 1e3);
        }
        Ok(Self {
            options,
            urls: ground.urls.clone(),
            round_trips_ms,
            _proxies: Vec::new(),
        })
    }
}

/// Measures how long an acquire takes on masters with long round trips. Returns `None` if the benchmark compares kinds
/// of masters, or if there is only one master.
///
/// If the benchmark has started the masters, proxies simulate the round trips. The measurement takes about `time`.
pub(super) async fn measure(ground: &Ground, time: Duration) -> Result<Option<Wide>, Failure> {
    if ground.is_by_kind() {
        return Ok(None);
    }
    let place = match &ground.spawned {
        Some(masters) => Place::simulated(ground, masters)?,
        None => Place::found(ground, time / 2 / ground.urls.len().max(1) as u32).await?,
    };
    if place.urls.len() < 2 {
        return Ok(None);
    }
    let sizes: Vec<usize> = if ground.spawned.is_some() {
        // Include even numbers: an acquire waits for two of three masters, but for three of four.
        (1..=place.urls.len()).collect()
    } else {
        ground
            .parties
            .iter()
            .map(|party| party.urls.len())
            .collect()
    };
    let turn = time / 2 / (sizes.len() * Setting::ALL.len()).max(1) as u32;
    let mut all = Vec::new();
    for masters in sizes {
        let mut sorted = place.round_trips_ms[..masters].to_vec();
        sorted.sort_by(f64::total_cmp);
        let theory_ms = sorted[masters / 2];
        let mut measured = Vec::new();
        for setting in Setting::ALL {
            let redlock = ground.client(setting, &place.options, &place.urls[..masters])?;
            warm_up(&redlock, "far").await?;
            let mut samples = Samples::default();
            alone(&redlock, setting, "far", turn, CYCLES, &mut samples).await;
            measured.push(WideTime {
                setting,
                acquire_ms: Latency::of(samples.acquire).p50 / 1e3,
            });
        }
        all.push(WideSize {
            masters,
            theory_ms,
            measured,
        });
    }
    Ok(Some(Wide {
        round_trips_ms: place.round_trips_ms,
        simulated: ground.spawned.is_some(),
        sizes: all,
    }))
}
