//! `quorate bench`: what a quorum size costs, measured on your masters or on spawned ones.
//!
//! Every round gives every size and every setting one short turn, so that a noisy neighbour meets
//! all of them alike; absolute times are of this machine and this minute, ratios travel. It
//! deliberately knows no other lock: peers and floors are compared by the project's own benchmarks.

mod measure;
mod plot;
mod report;

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use quorate::Redlock;
use quorate_testbed::{Fault, Masters, Proxy, Way};
use serde::Serialize;

use crate::config::{self, GuardMode, MasterOptions, Order};
use crate::exit::{self, Failure, Outcome};
use crate::output::{self, Cell};
use crate::process::Signals;
use crate::progress::Progress;
use measure::{Crowd, Latency, Samples};

/// What stands below `quorate bench --help`.
pub(crate) const AFTER_HELP: &str = "\
Three settings are measured at every size: classic (--fencing off), fenced (--order unordered) and the
default (fenced, first come first served); --fencing and --order are therefore not used. With --masters
a size of n takes the first n of them, and odd sizes up to their number are the default. Locks are named
quorate-bench:.. and given back; a fencing counter for each is left for a day.

Examples:
    quorate bench --spawn --out bench
        Everything on servers that are started for it; open bench/report.html, or show bench/*.svg.
    quorate bench --masters redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3 --time 1m
        What your own masters cost.

JSON fields (stable): version, when, server, spawned, processors, tasks, took_ms; sizes[]: masters,
setting (classic, fenced, default), acquire_us, release_us, cycle_us (each p50, p99, p999, samples),
cycles_per_s, client_cpu_us, server_cpu_us (null where it cannot be seen), over_classic, failed;
wide (null where there is one master only): round_trips_ms[], simulated, sizes[]: masters, theory_ms,
measured[]: setting, acquire_ms.

Exit codes:
    0       measured
    64      wrong usage
    69      no quorum of masters
    70      the masters could not be started, or the report not be written";

const ROUNDS: u32 = 3;
const TTL: Duration = Duration::from_secs(10);
const DEFAULT_SIZES: [usize; 5] = [1, 3, 5, 7, 9];
/// Round trips of the simulated wide area, in milliseconds.
const FAR: [u64; 5] = [1, 10, 40, 80, 150];
const FAR_CYCLES: usize = 12;

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// The quorum sizes, separated by commas [default: 1,3,5,7,9, as far as there are masters]
    #[arg(
        long,
        value_name = "N,N,..",
        env = "QUORATE_SIZES",
        value_delimiter = ','
    )]
    sizes: Option<Vec<usize>>,

    /// Start servers on free ports instead of using masters that run
    #[arg(long, env = "QUORATE_SPAWN", value_parser = clap::builder::BoolishValueParser::new())]
    spawn: bool,

    /// How long to measure, all in all
    #[arg(long, value_name = "TIME", env = "QUORATE_TIME", default_value = "30s", value_parser = config::duration)]
    time: Duration,

    /// How many tasks share the client for the throughput
    #[arg(long, value_name = "N", env = "QUORATE_TASKS", default_value_t = 64)]
    tasks: usize,

    /// Print JSON
    #[arg(long, env = "QUORATE_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,

    /// Write report.html, its plots as SVG files and result.json into this directory
    #[arg(long, value_name = "DIR", env = "QUORATE_OUT")]
    out: Option<PathBuf>,

    #[command(flatten)]
    masters: MasterOptions,
}

/// One of the three ways to lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Setting {
    Classic,
    Fenced,
    Default,
}

impl Setting {
    const ALL: [Self; 3] = [Self::Classic, Self::Fenced, Self::Default];

    fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Fenced => "fenced",
            Self::Default => "default",
        }
    }

    fn redlock(self, options: &MasterOptions, urls: &[String]) -> Result<Redlock, Failure> {
        let mut options = options.clone();
        options.masters = Some(urls.to_vec());
        options.fencing = Some(self != Self::Classic);
        let fair = self == Self::Default;
        options.order = Some(if fair { Order::Fair } else { Order::Unordered });
        config::redlock(&options, Some(TTL))
    }
}

/// One size in one setting.
#[derive(Debug, Serialize)]
struct Row {
    masters: usize,
    setting: Setting,
    acquire_us: Latency,
    release_us: Latency,
    cycle_us: Latency,
    cycles_per_s: f64,
    client_cpu_us: f64,
    server_cpu_us: Option<f64>,
    /// The median cycle over that of classic at the same size.
    over_classic: f64,
    failed: u64,
}

/// Masters far apart.
#[derive(Debug, Serialize)]
struct Wide {
    round_trips_ms: Vec<f64>,
    simulated: bool,
    sizes: Vec<FarSize>,
}

/// The first so many of them.
#[derive(Debug, Serialize)]
struct FarSize {
    masters: usize,
    /// The round trip of the q-th fastest.
    theory_ms: f64,
    measured: Vec<Far>,
}

#[derive(Debug, Serialize)]
struct Far {
    setting: Setting,
    acquire_ms: f64,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Results {
    version: &'static str,
    when: String,
    server: String,
    spawned: bool,
    processors: usize,
    tasks: usize,
    took_ms: u64,
    sizes: Vec<Row>,
    wide: Option<Wide>,
}

/// Where the locks live.
struct Ground {
    options: MasterOptions,
    urls: Vec<String>,
    sizes: Vec<usize>,
    server: String,
    spawned: Option<Masters>,
    /// Every client there was: a measurement that is cut short has releases on their way.
    clients: RefCell<Vec<Redlock>>,
}

/// How long those releases may take; the ttl does the rest.
const PARTING: Duration = Duration::from_millis(500);

/// Measures, prints, and writes the report.
pub(crate) fn run(args: BenchArgs) -> Outcome {
    let began = Instant::now();
    if args.tasks == 0 {
        return Err(Failure::usage("--tasks 0: at least one task is needed"));
    }
    if args.time < Duration::from_secs(1) {
        return Err(Failure::usage(
            "--time is below 1s: nothing could be measured in it",
        ));
    }
    if let Some(dir) = &args.out {
        // Before half a minute is spent on what could not be written.
        std::fs::create_dir_all(dir).map_err(|error| unwritable(dir, &error))?;
    }
    let (ground, sizes, wide) = config::block_on(async {
        // Before anything is started: what is started is taken down in order.
        let mut signals = Signals::hear().map_err(Failure::internal)?;
        let ground = Ground::find(&args)?;
        output::say(format!(
            "measuring {} for about {}",
            ground.words(),
            output::human(args.time)
        ));
        for size in ground.sizes.iter().filter(|size| **size % 2 == 0) {
            output::say(format!(
                "{size} masters bear no more failures than {}: an even size only costs",
                size - 1
            ));
        }
        let settings = ground.sizes.len() * Setting::ALL.len();
        let progress = Progress::of(settings * ROUNDS as usize + 1, "turns");
        let measured = tokio::select! {
            measured = measure(&args, &ground, &progress) => measured,
            sig = signals.next_that_ends() => Err(Failure::new(
                exit::signalled(sig as i32),
                format!("{sig}: the measurement was cut short"),
            )),
        };
        progress.finish();
        if measured.is_err() {
            ground.clear().await;
        }
        let (sizes, wide) = measured?;
        Ok((ground, sizes, wide))
    })?;
    let results = Results {
        version: env!("CARGO_PKG_VERSION"),
        when: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        server: ground.server.clone(),
        spawned: ground.spawned.is_some(),
        processors: std::thread::available_parallelism().map_or(0, usize::from),
        tasks: args.tasks,
        took_ms: began.elapsed().as_millis() as u64,
        sizes,
        wide,
    };
    if let Some(dir) = &args.out {
        let write = |name: &str, text: String| {
            let path = dir.join(name);
            std::fs::write(&path, text).map_err(|error| unwritable(&path, &error))?;
            output::say(format!("wrote {}", path.display()));
            Ok(())
        };
        write("report.html", report::html(&results))?;
        for (name, svg) in report::pictures(&results) {
            write(&name, svg)?;
        }
        let json = serde_json::to_string_pretty(&results).map_err(Failure::internal)?;
        write("result.json", json + "\n")?;
    }
    if args.json {
        output::print_json(&results)?;
    } else {
        output::print(&results.table())?;
    }
    Ok(exit::OK)
}

async fn measure(
    args: &BenchArgs,
    ground: &Ground,
    progress: &Progress,
) -> Result<(Vec<Row>, Option<Wide>), Failure> {
    let sizes = measure_sizes(args, ground, progress).await?;
    progress.step("masters far apart");
    let wide = measure_wide(ground).await?;
    Ok((sizes, wide))
}

fn unwritable(path: &std::path::Path, error: &std::io::Error) -> Failure {
    Failure::internal(format!("cannot write {}: {error}", path.display()))
}

impl Ground {
    fn find(args: &BenchArgs) -> Result<Self, Failure> {
        let check = |sizes: &[usize]| match sizes.iter().find(|size| !(1..=64).contains(*size)) {
            Some(size) => Err(Failure::usage(format!(
                "--sizes {size}: a quorum has between 1 and 64 masters"
            ))),
            None => Ok(()),
        };
        if args.spawn {
            let sizes = args.sizes.clone().unwrap_or(DEFAULT_SIZES.to_vec());
            check(&sizes)?;
            let most = sizes.iter().copied().max().unwrap_or(1).max(FAR.len());
            let program = quorate_testbed::available().ok_or_else(|| {
                Failure::internal(
                    "no redis-server or valkey-server on the PATH: install one, or name it in QUORATE_SERVER",
                )
            })?;
            let masters = Masters::start(most)
                .map_err(|error| Failure::internal(format!("cannot start masters: {error}")))?;
            let options = MasterOptions {
                // Just started by ourselves: they have forgotten nothing.
                restart_guard: Some(GuardMode::Off),
                ..MasterOptions::default()
            };
            let name = program.file_name().unwrap_or_default();
            return Ok(Self {
                options,
                urls: masters.urls(),
                sizes,
                server: format!("{} on this machine", name.to_string_lossy()),
                spawned: Some(masters),
                clients: RefCell::default(),
            });
        }
        let (options, _) = args.masters.clone().complete().map_err(|failure| {
            failure.with("; or start some for the measurement: quorate bench --spawn")
        })?;
        let urls = options.masters.clone().unwrap_or_default();
        let sizes = match &args.sizes {
            Some(sizes) => sizes.clone(),
            None => (1..=urls.len()).step_by(2).collect(),
        };
        check(&sizes)?;
        if let Some(size) = sizes.iter().find(|size| **size > urls.len()) {
            return Err(Failure::usage(format!(
                "--sizes {size}: more than the masters that are named ({})",
                urls.len()
            )));
        }
        Ok(Self {
            server: format!("{} masters as configured", urls.len()),
            options,
            urls,
            sizes,
            spawned: None,
            clients: RefCell::default(),
        })
    }

    fn client(
        &self,
        setting: Setting,
        options: &MasterOptions,
        urls: &[String],
    ) -> Result<Redlock, Failure> {
        let redlock = setting.redlock(options, urls)?;
        self.clients.borrow_mut().push(redlock.clone());
        Ok(redlock)
    }

    /// Sees releases off.
    async fn clear(&self) {
        // The tasks of a crowd that was dropped end with the next turn of the runtime.
        tokio::time::sleep(Duration::from_millis(10)).await;
        let clients = self.clients.take();
        let flushed = futures::future::join_all(clients.iter().map(Redlock::flush));
        let _ = tokio::time::timeout(PARTING, flushed).await;
    }

    fn words(&self) -> String {
        let sizes: Vec<String> = self.sizes.iter().map(ToString::to_string).collect();
        format!("quorums of {} ({})", sizes.join(", "), self.server)
    }
}

async fn measure_sizes(
    args: &BenchArgs,
    ground: &Ground,
    progress: &Progress,
) -> Result<Vec<Row>, Failure> {
    let mut parties = Vec::new();
    for &size in &ground.sizes {
        for setting in Setting::ALL {
            let redlock = ground.client(setting, &ground.options, &ground.urls[..size])?;
            measure::warm_up(&redlock, setting.name()).await?;
            parties.push((size, setting, redlock, Samples::default(), Vec::new()));
        }
    }
    // A tenth is left for the masters far apart and for what goes between the turns.
    let turn = args.time.mul_f64(0.9) / (ROUNDS * 2 * parties.len() as u32);
    for _ in 0..ROUNDS {
        for (size, setting, redlock, samples, crowds) in &mut parties {
            progress.step(&format!("{size} masters, {}", setting.name()));
            let name = setting.name();
            measure::alone(redlock, name, turn, usize::MAX, samples).await;
            let servers = ground.spawned.as_deref();
            crowds.push(measure::crowd(redlock, name, turn, args.tasks, servers).await);
        }
    }
    let mut rows: Vec<Row> = parties
        .into_iter()
        .map(|(masters, setting, _, samples, crowds)| {
            let middle = |value: fn(&Crowd) -> f64| measure::median(crowds.iter().map(value));
            Row {
                masters,
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
                over_classic: 1.0,
            }
        })
        .collect();
    for three in rows.chunks_mut(Setting::ALL.len()) {
        let classic = three[0].cycle_us.p50;
        for row in three {
            row.over_classic = row.cycle_us.p50 / classic;
        }
    }
    Ok(rows)
}

/// What an acquire costs when masters are far apart: through proxies on masters that were
/// spawned, as they are on others.
async fn measure_wide(ground: &Ground) -> Result<Option<Wide>, Failure> {
    let mut options = ground.options.clone();
    let mut urls = ground.urls.clone();
    let mut proxies = Vec::new();
    let round_trips_ms = if let Some(masters) = &ground.spawned {
        urls.truncate(FAR.len());
        for ((url, master), ms) in urls.iter_mut().zip(masters.iter()).zip(FAR) {
            let proxy = Proxy::start(master.addr()).map_err(Failure::internal)?;
            *url = master.url_at(proxy.addr());
            proxy
                .inject(Fault::latency(Way::ToClient, Duration::from_millis(ms)))
                .keep();
            proxies.push(proxy);
        }
        // Far masters need more than the default patience.
        options.node_timeout = Some(Duration::from_millis(500));
        options.connect_timeout = Some(Duration::from_secs(5));
        FAR.map(|ms| ms as f64).to_vec()
    } else {
        let mut alone = Vec::new();
        for url in &urls {
            // One master alone: what it takes is its round trip and its work.
            let redlock = ground.client(Setting::Classic, &options, std::slice::from_ref(url))?;
            let mut samples = Samples::default();
            if measure::warm_up(&redlock, "near").await.is_ok() {
                let time = Duration::from_millis(300);
                measure::alone(&redlock, "near", time, 50, &mut samples).await;
            }
            alone.push(Latency::of(samples.acquire).p50 / 1e3);
        }
        alone
    };
    if urls.len() < 2 {
        return Ok(None);
    }
    let sizes: Vec<usize> = if proxies.is_empty() {
        ground.sizes.clone()
    } else {
        // Even ones as well: they show that one master more buys nothing but its cost.
        (1..=urls.len()).collect()
    };
    let mut all = Vec::new();
    for masters in sizes {
        let mut sorted = round_trips_ms[..masters].to_vec();
        sorted.sort_by(f64::total_cmp);
        let theory_ms = sorted[masters / 2];
        let mut measured = Vec::new();
        for setting in Setting::ALL {
            let redlock = ground.client(setting, &options, &urls[..masters])?;
            measure::warm_up(&redlock, "far").await?;
            let mut samples = Samples::default();
            let time = Duration::from_secs(2);
            measure::alone(&redlock, "far", time, FAR_CYCLES, &mut samples).await;
            measured.push(Far {
                setting,
                acquire_ms: Latency::of(samples.acquire).p50 / 1e3,
            });
        }
        all.push(FarSize {
            masters,
            theory_ms,
            measured,
        });
    }
    drop(proxies);
    Ok(Some(Wide {
        round_trips_ms,
        simulated: ground.spawned.is_some(),
        sizes: all,
    }))
}

impl Results {
    fn table(&self) -> String {
        let rows: Vec<Vec<Cell>> = self
            .sizes
            .iter()
            .map(|row| {
                let us = |value: f64| Cell::from(measure::digits(value));
                vec![
                    row.masters.to_string().into(),
                    row.setting.name().into(),
                    us(row.acquire_us.p50),
                    us(row.acquire_us.p99),
                    us(row.release_us.p50),
                    us(row.cycle_us.p50),
                    us(row.cycle_us.p99),
                    us(row.cycle_us.p999),
                    format!("{:.2}", row.over_classic).into(),
                    us(row.cycles_per_s),
                    us(row.client_cpu_us),
                    row.server_cpu_us
                        .map_or_else(|| "-".into(), measure::digits)
                        .into(),
                    row.failed.to_string().into(),
                ]
            })
            .collect();
        let heading = [
            "MASTERS",
            "SETTING",
            "ACQUIRE p50 us",
            "p99",
            "RELEASE p50",
            "CYCLE p50",
            "p99",
            "p99.9",
            "x CLASSIC",
            "CYCLES/s",
            "CLIENT CPU us",
            "SERVER CPU us",
            "FAILED",
        ];
        let mut text = output::table(&heading, &rows);
        if let Some(wide) = &self.wide {
            let trips: Vec<String> = wide
                .round_trips_ms
                .iter()
                .map(|ms| plot::trim(*ms))
                .collect();
            text += &format!(
                "\nMasters {} ms away, the first so many of them; an acquire waits for the q-th fastest:\n",
                trips.join(", ")
            );
            let mut heading = vec!["MASTERS", "THEORY ms"];
            heading.extend(Setting::ALL.iter().map(|setting| setting.name()));
            let rows: Vec<Vec<Cell>> = wide
                .sizes
                .iter()
                .map(|size| {
                    let measured = size.measured.iter().map(|far| far.acquire_ms);
                    let mut row = vec![
                        Cell::from(size.masters.to_string()),
                        plot::trim(size.theory_ms).into(),
                    ];
                    row.extend(measured.map(|ms| Cell::from(measure::digits(ms))));
                    row
                })
                .collect();
            text += &output::table(&heading, &rows);
        }
        text
    }
}
