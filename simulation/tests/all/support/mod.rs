//! Helpers for playing many seeds.

use quorate_simulation::{HAND_WRITTEN, Scenario, ScenarioFamily, Summary, Sweep, hand_written};

/// One millisecond in nanoseconds.
pub(crate) const MS: u64 = 1_000_000;

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

/// Returns all variants of the scenario with this name that was written by hand.
pub(crate) fn variants(name: &str) -> impl Iterator<Item = Scenario> {
    let index = hand_written(name).expect("the scenario must exist");
    let scenario = HAND_WRITTEN[index];
    (0..scenario.variants).map(move |variant| scenario.draw(variant))
}
