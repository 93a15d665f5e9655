//! The results of all measurements, and the tables that show them on the terminal and in the report.

use quorate_testbed::measure::{Spread, number};
use serde::Serialize;

use super::measure::Latency;
use super::noise::Noise;
use super::plot;
use super::setting::Setting;
use crate::output::{self, Cell};

/// The measurements of one set of masters in one setting.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) masters: usize,
    /// The number of masters of each kind as a label, for example `2 redis + 1 mysql`. `None` if the benchmark compares
    /// numbers of masters instead of kinds.
    pub(super) kinds: Option<String>,
    pub(super) setting: Setting,
    pub(super) acquire_us: Latency,
    pub(super) release_us: Latency,
    pub(super) cycle_us: Latency,
    /// The times of the fastest and the slowest round, in microseconds. The time of a round is its median time for one
    /// acquire and release.
    pub(super) rounds_us: RoundSpread,
    pub(super) cycles_per_s: f64,
    pub(super) client_cpu_us: f64,
    pub(super) server_cpu_us: Option<f64>,
    /// The median time for one acquire and release in this setting, divided by the median time with
    /// [`Setting::Classic`] on the same masters. `None` with `--kinds`.
    pub(super) over_classic: Option<f64>,
    /// The median time for one acquire and release of this kind of lock, divided by the median time of the plain lock
    /// on the same masters. `None` without `--kinds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) over_lock: Option<f64>,
    /// The median time for one acquire and release on these masters, divided by the median time in the same setting on
    /// the masters that the benchmark lists first. For those masters, the value is 1.
    pub(super) over_first: f64,
    pub(super) failed: u64,
}

/// The smallest and the largest value of a measurement over the rounds of the benchmark.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct RoundSpread {
    pub(super) least: f64,
    pub(super) most: f64,
    /// The difference between `most` and `least`, divided by the median of all rounds: 0.1 means 10 %.
    pub(super) share: f64,
}

impl RoundSpread {
    pub(super) fn new(spread: Spread) -> Self {
        let Spread {
            median,
            least,
            most,
        } = spread;
        let share = (most - least) / median;
        Self { least, most, share }
    }
}

impl Row {
    /// The label of the set of masters: the number of its masters, or their kinds.
    pub(super) fn label(&self) -> String {
        let number = || self.masters.to_string();
        self.kinds.clone().unwrap_or_else(number)
    }
}

/// How long an acquire takes on masters with long round trips. `sizes` has one entry for each measured number of
/// masters.
#[derive(Debug, Serialize)]
pub(super) struct FarResults {
    pub(super) round_trips_ms: Vec<f64>,
    pub(super) simulated: bool,
    pub(super) sizes: Vec<FarSize>,
}

/// How long an acquire takes on this number of masters: the expected and the measured time.
#[derive(Debug, Serialize)]
pub(super) struct FarSize {
    pub(super) masters: usize,
    /// The expected time of an acquire, in milliseconds. An acquire waits for a majority, so this is the longest round
    /// trip among the fastest majority of the masters.
    pub(super) theory_ms: f64,
    pub(super) measured: Vec<FarTime>,
}

#[derive(Debug, Serialize)]
pub(super) struct FarTime {
    pub(super) setting: Setting,
    pub(super) acquire_ms: f64,
}

/// All results of one benchmark, as in `result.json`.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    pub(super) version: &'static str,
    pub(super) when: String,
    pub(super) server: String,
    pub(super) spawned: bool,
    pub(super) processors: usize,
    pub(super) tasks: usize,
    pub(super) took_ms: u64,
    pub(super) noise: Noise,
    /// The lock settings or kinds of locks that were measured on each set of masters.
    #[serde(skip)]
    pub(super) settings: &'static [Setting],
    pub(super) sizes: Vec<Row>,
    pub(super) wide: Option<FarResults>,
}

/// One column of the results:
///
/// - its heading in the report
/// - its heading on the terminal; `None` if the terminal does not show the column
/// - a function that returns the cell of a row
pub(super) type Column = (&'static str, Option<&'static str>, fn(&Row) -> String);

const OVER_FIRST: &str = "over first";

const OVER_CLASSIC: &str = "over classic";

const OVER_LOCK: &str = "over lock";

const COLUMNS: [Column; 18] = [
    ("masters", Some("MASTERS"), |row| row.label()),
    ("setting", Some("SETTING"), |row| {
        row.setting.name().to_owned()
    }),
    ("acquire p50", Some("ACQUIRE p50 us"), |row| {
        number(row.acquire_us.p50)
    }),
    ("p99", Some("p99"), |row| number(row.acquire_us.p99)),
    ("p99.9", None, |row| number(row.acquire_us.p999)),
    ("release p50", Some("RELEASE p50"), |row| {
        number(row.release_us.p50)
    }),
    ("p99", None, |row| number(row.release_us.p99)),
    ("cycle p50", Some("CYCLE p50"), |row| {
        number(row.cycle_us.p50)
    }),
    ("p99", Some("p99"), |row| number(row.cycle_us.p99)),
    ("p99.9", Some("p99.9"), |row| number(row.cycle_us.p999)),
    ("rounds apart", Some("APART"), |row| {
        let share = row.rounds_us.share;
        let percent = |share: f64| format!("{:.0}%", share * 100.0);
        Some(share)
            .filter(|share| share.is_finite())
            .map_or("-".to_owned(), percent)
    }),
    (OVER_CLASSIC, Some("x CLASSIC"), |row| {
        number(row.over_classic.unwrap_or(f64::NAN))
    }),
    (OVER_LOCK, Some("x LOCK"), |row| {
        number(row.over_lock.unwrap_or(f64::NAN))
    }),
    (OVER_FIRST, Some("x FIRST"), |row| {
        format!("{:.2}", row.over_first)
    }),
    ("cycles/s", Some("CYCLES/s"), |row| number(row.cycles_per_s)),
    ("client CPU", Some("CLIENT CPU us"), |row| {
        number(row.client_cpu_us)
    }),
    ("server CPU", Some("SERVER CPU us"), |row| {
        number(row.server_cpu_us.unwrap_or(f64::NAN))
    }),
    ("failed", Some("FAILED"), |row| row.failed.to_string()),
];

impl Results {
    /// Whether this benchmark compares kinds of masters instead of numbers of masters.
    pub(super) fn is_by_kind(&self) -> bool {
        self.sizes.iter().any(|row| row.kinds.is_some())
    }

    /// The columns of the results, without the ratios that this benchmark does not compute.
    pub(super) fn columns(&self) -> impl Iterator<Item = &'static Column> {
        let is_by_kind = self.is_by_kind();
        let has_lock_kinds = self.sizes.iter().any(|row| row.over_lock.is_some());
        COLUMNS.iter().filter(move |(name, ..)| match *name {
            OVER_FIRST => is_by_kind,
            OVER_CLASSIC => !has_lock_kinds,
            OVER_LOCK => has_lock_kinds,
            _ => true,
        })
    }

    /// The results as a table to print on the terminal.
    pub(super) fn table(&self) -> String {
        let terminal_columns = || {
            self.columns()
                .filter_map(|(_, heading, cell)| Some((*heading.as_ref()?, cell)))
        };
        let heading: Vec<&str> = terminal_columns().map(|(heading, _)| heading).collect();
        let rows = self.sizes.iter();
        let rows: Vec<Vec<Cell>> = rows
            .map(|row| {
                terminal_columns()
                    .map(|(_, cell)| cell(row).into())
                    .collect()
            })
            .collect();
        let mut text = output::table(&heading, &rows);
        if let Some(wide) = &self.wide {
            let round_trips: Vec<String> = wide
                .round_trips_ms
                .iter()
                .map(|ms| plot::trimmed_number(*ms))
                .collect();
            text += &format!(
                "\nRound trips of the masters, in ms: {}. A row with n MASTERS uses the first n masters. THEORY is \
                 the round trip of the q-th fastest of these masters (q: the size of a majority):\n",
                round_trips.join(", ")
            );
            let mut heading = vec!["MASTERS", "THEORY ms"];
            heading.extend(Setting::PLAIN_LOCK.iter().map(|setting| setting.name()));
            let rows: Vec<Vec<Cell>> = wide
                .sizes
                .iter()
                .map(|size| {
                    let measured = size.measured.iter().map(|far_time| far_time.acquire_ms);
                    let mut row = vec![
                        Cell::from(size.masters.to_string()),
                        plot::trimmed_number(size.theory_ms).into(),
                    ];
                    row.extend(measured.map(|ms| Cell::from(number(ms))));
                    row
                })
                .collect();
            text += &output::table(&heading, &rows);
        }
        text
    }
}
