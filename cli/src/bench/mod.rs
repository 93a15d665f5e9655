//! `quorate bench`: measures how the cost of a lock depends on the number or the kind of masters. It uses configured or
//! newly started masters.
//!
//! The benchmark has three rounds. Each round measures every set of masters in every setting for a short time. So a
//! temporary load on the machine affects all results about equally. The ratios of results can be compared between
//! machines; absolute times cannot.

mod environment;
mod far;
mod measure;
mod noise;
mod plot;
mod quorum;
mod report;
mod results;
mod setting;
mod sizes;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;

use crate::backends;
use crate::config::{self, MasterOptions};
use crate::exit::{self, CommandResult, Failure, Meaning};
use crate::output;
use crate::process::Signals;
use crate::progress::Progress;
use environment::Environment;
use noise::{CpuSample, Noise};
use quorum::KindList;
use results::{FarResults, Results, Row};

/// The text below the options of `quorate bench --help`.
pub(crate) const AFTER_HELP: &str = "\
Each number of masters is measured in three settings, regardless of --fencing and --order:
    classic    --fencing off
    fenced     --order unordered
    default    with fencing tokens, first come first served

With --masters, a measurement of n masters uses the first n. By default, all odd numbers of masters are measured. If the
masters are of several kinds, each kind is measured alone, and then all masters together.

The names of the locks begin with quorate-bench:. The locks are released at the end. Their fencing counters stay on the
masters for a day.

Every setting is measured in three rounds. Each round has a median time. The column APART compares these three medians:
(largest - smallest) / second largest.

A warning is printed if APART exceeds 25 % for at least half of the settings, or if other processes use more than 10 %
of the processor time (known only with --spawn). The numbers of such a busy machine are not reliable.

Examples:
    quorate bench --spawn --out bench
        Start servers and measure them. Then open bench/report.html or bench/*.svg.
    quorate bench --masters redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3 --time 1m
        Measure your own masters.
    quorate bench --spawn --kinds --sizes 5
        Compare readers, several resources, permits and owners with the plain lock.
    quorate bench --nodes redis,redis,redis --nodes redis,redis,mysql --nodes zookeeper
        Start servers and compare sets of masters of different kinds.

JSON fields (stable):
    version, when, server    texts
    spawned                  whether the benchmark started the servers
    processors, tasks        numbers
    took_ms                  the time that the benchmark took
    noise                    others (the share of the processor time that other processes used; null if unknown), \
apart (a share, as in APART), noisy
    sizes[]                  masters, kinds (null if numbers of masters are compared), setting (classic, fenced, \
default; with --kinds: default, reader, two, four, permit, owner), acquire_us, release_us and cycle_us (each: p50, \
p99, p999, samples), rounds_us (the medians of the rounds: least, most, and share as in APART), cycles_per_s, \
client_cpu_us, server_cpu_us (null if unknown), over_classic (median cycle time as a ratio to classic; null with \
--kinds), over_lock (as a ratio to the plain lock; only with --kinds), over_first (as a ratio to the first set of \
masters), failed
    wide                     round_trips_ms[], simulated, sizes[] (masters, theory_ms, measured[]: setting, \
acquire_ms); null with one master, with --kinds, and if kinds of masters are compared";

/// The exit codes of `quorate bench`, with their meanings.
pub(crate) const CODES: [Meaning; 5] = [
    ("0", "measured"),
    ("64", ""),
    ("69", ""),
    (
        "70",
        "the masters could not be started, or the report could not be written",
    ),
    (
        "128+n",
        "signal number n ended the measurement; the locks of quorate bench are released",
    ),
];

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// The numbers of masters to compare, separated by commas [default: 1,3,5,7,9 with --spawn, else all odd numbers up
    /// to the number of masters]
    #[arg(
        long,
        value_name = "N,N,..",
        env = "QUORATE_SIZES",
        value_delimiter = ','
    )]
    sizes: Option<Vec<usize>>,

    /// Start servers on free ports and measure these, instead of masters that are already running
    #[arg(long, env = "QUORATE_SPAWN", value_parser = clap::builder::BoolishValueParser::new())]
    spawn: bool,

    /// Start one server for each of these kinds, and measure them together; repeat the option to compare sets of masters
    #[arg(
        long,
        long_help = nodes_help(),
        value_name = "KIND,KIND,..",
        env = "QUORATE_NODES",
        value_delimiter = ' ',
        conflicts_with = "sizes"
    )]
    nodes: Vec<KindList>,

    /// Compare kinds of locks (plain, reader, two and four resources, permit, owner), not settings of the plain lock
    #[arg(long, env = "QUORATE_KINDS", value_parser = clap::builder::BoolishValueParser::new())]
    kinds: bool,

    /// Total time of the measurement
    #[arg(long, value_name = "TIME", env = "QUORATE_TIME", default_value = "30s", value_parser = config::duration)]
    time: Duration,

    /// Number of concurrent tasks when throughput is measured; they share one client
    #[arg(long, value_name = "N", env = "QUORATE_TASKS", default_value_t = 64)]
    tasks: usize,

    /// Print JSON
    #[arg(long, env = "QUORATE_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,

    /// Write report.html, its plots as SVG files, and result.json to this directory
    #[arg(long, value_name = "DIR", env = "QUORATE_OUT")]
    out: Option<PathBuf>,

    #[command(flatten)]
    masters: MasterOptions,
}

/// The help of `--nodes`.
fn nodes_help() -> String {
    format!(
        "Start one server for each of these kinds, and measure them together; repeat the option to compare sets of \
         masters\n\nThe kinds are separated by commas: {}. In the environment variable, separate several sets by \
         spaces.",
        backends::names_of_kinds()
    )
}

/// Runs the benchmark, prints the results, and writes the report if `--out` is given.
pub(crate) fn run(args: BenchArgs) -> CommandResult {
    let started_at = Instant::now();
    if args.tasks == 0 {
        return Err(Failure::usage("--tasks 0: give at least 1"));
    }
    if args.time < Duration::from_secs(1) {
        return Err(Failure::usage(
            "--time is below 1s, too short to measure anything: give for example --time 30s",
        ));
    }
    if let Some(dir) = &args.out {
        // Create the directory before the measurement, so that an error about its path comes immediately.
        std::fs::create_dir_all(dir).map_err(|error| write_failure(dir, &error))?;
    }
    let Measurement {
        environment,
        noise,
        sizes,
        wide,
    } = config::block_on(measure_all(&args))?;
    if let Some(warning) = noise.warning() {
        output::print_message(format!("warning: {warning}"));
    }
    let results = Results {
        version: env!("CARGO_PKG_VERSION"),
        when: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        server: environment.server.clone(),
        spawned: environment.is_spawned(),
        processors: std::thread::available_parallelism().map_or(0, usize::from),
        tasks: args.tasks,
        took_ms: started_at.elapsed().as_millis() as u64,
        noise,
        settings: environment.settings,
        sizes,
        wide,
    };
    if let Some(dir) = &args.out {
        write_report(dir, &results)?;
    }
    if args.json {
        output::print_json(&results)?;
    } else {
        output::print_page(&results.table())?;
    }
    Ok(exit::OK)
}

/// The measurements, and the masters on which they were made.
struct Measurement {
    environment: Environment,
    noise: Noise,
    sizes: Vec<Row>,
    wide: Option<FarResults>,
}

async fn measure_all(args: &BenchArgs) -> Result<Measurement, Failure> {
    // Receive signals before servers are started, so that a signal stops the servers in an orderly way.
    let mut signals = Signals::receive().map_err(Failure::internal)?;
    let environment = if !args.nodes.is_empty() {
        Environment::spawn_kinds(&args.nodes).await?
    } else if args.spawn {
        Environment::spawn(args.sizes.clone(), far::MASTERS)?
    } else {
        Environment::from_options(args.sizes.clone(), args.masters.clone())?
    };
    output::print_message(format!(
        "measuring {} for about {}",
        environment.description(),
        output::human(args.time)
    ));
    let sizes = environment.quorums.iter().map(|quorum| quorum.urls.len());
    for size in sizes.filter(|size| !environment.is_by_kind() && size % 2 == 0) {
        output::print_message(format!(
            "{size} masters survive no more failures than {} masters: use an odd number of masters",
            size - 1
        ));
    }
    let environment = environment.with_kinds_of_locks(args.kinds);
    let progress = Progress::with_unit(sizes::turn_count(&environment) + 1, "turns");
    let measurement = async {
        // The last tenth of the total time is for the measurement with long round trips.
        let time = args.time.mul_f64(0.9);
        let servers = environment.spawned.as_deref();
        let before = CpuSample::now(servers.unwrap_or_default());
        let sizes = sizes::measure(&environment, time, args.tasks, &progress).await?;
        let after = CpuSample::now(servers.unwrap_or_default());
        // Without `--spawn`, the share of other processes is unknown: it would include the masters' processor time.
        let others_share = servers.and_then(|_| before.share_of_others(&after));
        let spreads = sizes.iter().map(|row| row.rounds_us.share).collect();
        let wide = if args.kinds {
            None
        } else {
            progress.step("masters far apart");
            far::measure(&environment, args.time.saturating_sub(time)).await?
        };
        Ok((Noise::new(others_share, spreads), sizes, wide))
    };
    let measured = tokio::select! {
        measured = measurement => Ok(measured),
        sig = signals.next_ending_signal() => Err(sig),
    };
    progress.finish();
    // Wait for the replies of all masters to the releases: `release` already returns when a majority of the masters
    // has replied.
    let locks_text = if environment.wait_for_releases().await {
        "the locks of quorate bench are released"
    } else {
        "some locks of quorate bench may stay held until their ttl ends"
    };
    let (noise, sizes, wide) = measured.map_err(|sig| {
        Failure::interrupted(
            sig,
            format!("the measurement was interrupted; {locks_text}"),
        )
    })??;
    Ok(Measurement {
        environment,
        noise,
        sizes,
        wide,
    })
}

/// Writes the report, its plots and `result.json` to the directory of `--out`.
fn write_report(dir: &Path, results: &Results) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(results).map_err(Failure::internal)?;
    let mut files = vec![("report.html".to_owned(), report::html(results))];
    files.extend(report::svg_files(results));
    files.push(("result.json".to_owned(), json + "\n"));
    for (name, text) in files {
        let path = dir.join(name);
        std::fs::write(&path, text).map_err(|error| write_failure(&path, &error))?;
        output::print_message(format!("wrote {}", path.display()));
    }
    Ok(())
}

fn write_failure(path: &Path, error: &io::Error) -> Failure {
    Failure::internal(format!("cannot write {}: {error}", path.display()))
}
