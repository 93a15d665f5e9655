//! Helpers for playing many seeds.

use quorate_simulation::{Flaw, RunRule, ScenarioFamily, StorePlan, Summary, Sweep, first_caught};

/// One millisecond in nanoseconds.
pub(crate) const MS: u64 = 1_000_000;

/// The plan of a store without faults that are random.
pub(crate) fn quiet_store(run: RunRule) -> StorePlan {
    let clocked = run == RunRule::Counted;
    StorePlan {
        clocked,
        date_grain: if clocked { 0 } else { 1_000 * MS },
        timeout: 100 * MS,
        sessions: 2,
        commits_per_request: 2,
        sends_wakes: true,
        run,
        wakes_name_no_lock: false,
        lagging_reads_ppm: 0,
        disturbed_wakes_ppm: 0,
        repeats_wakes: false,
        delayed_commits_ppm: 0,
        longest_commit_delay: MS,
    }
}

/// How many seeds the tests of one family of scenarios run.
pub(crate) struct Seeds {
    /// The number of seeds in the tests that run in every `cargo test`.
    short_tier: u64,
    /// The number of seeds in the nightly tests, which are marked `#[ignore = "nightly"]`.
    all: u64,
    /// The largest number of seeds in any test of a build without optimizations.
    debug: u64,
}

// `tests/all/tiers.rs` compares the numbers below with the table in CONTRIBUTING.md.
pub(crate) const REDIS: Seeds = Seeds::new(2_000, 20_000, 300);
pub(crate) const CHANGES: Seeds = Seeds::new(300, 3_000, 30);
pub(crate) const CLOCKS: Seeds = Seeds::new(300, 3_000, 30);
pub(crate) const STORES: Seeds = Seeds::new(200, 2_000, 60);
pub(crate) const TRIES: Seeds = Seeds::new(200, 2_000, 60);
pub(crate) const MODEL: Seeds = Seeds::new(300, 3_000, 30);
pub(crate) const CROSSINGS: Seeds = Seeds::new(0, 8_000, 0);

impl Seeds {
    const fn new(short_tier: u64, all: u64, debug: u64) -> Self {
        Self {
            short_tier,
            all,
            debug,
        }
    }

    /// Returns the number of seeds in the tests that run in every `cargo test`. `QUORATE_SEEDS` overrides it.
    pub(crate) fn short_tier(&self) -> u64 {
        self.overridden_or(self.short_tier)
    }

    /// Returns the number of seeds in the nightly tests. `QUORATE_SEEDS` overrides it.
    pub(crate) fn all(&self) -> u64 {
        self.overridden_or(self.all)
    }

    fn overridden_or(&self, default_seeds: u64) -> u64 {
        let override_text = std::env::var("QUORATE_SEEDS").ok();
        let limit = if cfg!(debug_assertions) {
            self.debug
        } else {
            u64::MAX
        };
        override_text
            .and_then(|seeds| seeds.parse().ok())
            .unwrap_or(default_seeds.min(limit))
    }
}

/// Whether `cargo test` must catch a seeded bug that needs `seed_limit` seeds. If not, only the nightly tests must
/// catch it.
pub(crate) fn is_short(seed_limit: u64) -> bool {
    seed_limit < 1_000
}

pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Plays the seeds from 0 to `seeds - 1` of a family of scenarios, and prints how often each event happened.
pub(crate) fn sweep(family: ScenarioFamily, seeds: u64) -> Summary {
    sweep_from(family, 0, seeds)
}

/// Like [`sweep`], but plays the seeds from `first` to `first + seeds - 1`.
pub(crate) fn sweep_from(family: ScenarioFamily, first: u64, seeds: u64) -> Summary {
    let sweep = Sweep {
        first,
        seeds,
        threads: threads(),
        family,
    };
    let summary = sweep.run(|_, _| {});
    println!("{}", summary.coverage);
    summary
}

/// Panics if a seed broke a rule. For each such seed, the message contains a command that runs the seed again. `family`
/// is the option of `scripts/simulate` that selects the family of scenarios; empty for Redis masters.
pub(crate) fn must_pass(summary: &Summary, family_option: &str) {
    let failures: Vec<String> = summary
        .failures
        .iter()
        .map(|failure| {
            let (seed, violation) = (failure.seed, &failure.violation);
            format!("QUORATE_SEED={seed} scripts/simulate{family_option}: {violation}")
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Whether a run with one of the seeds from 0 to `seed_limit - 1` catches the seeded bug. Prints the first such seed.
pub(crate) fn is_caught(flaw: Flaw, seed_limit: u64) -> bool {
    let failure = first_caught(flaw, false, seed_limit, threads());
    if let Some(failure) = &failure {
        println!("{flaw:<24} seed {:>6}  {}", failure.seed, failure.violation);
    }
    failure.is_some()
}
