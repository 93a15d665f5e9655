//! Helpers for playing many seeds.

use quorate_simulation::{Flaw, Summary, Sweep, Worlds, first_caught};

/// How many seeds the tests of one family of scenarios run.
pub(crate) struct Seeds {
    /// The number of seeds in the tests that run in every `cargo test`.
    short: u64,
    /// The number of seeds in the nightly tests, which are marked `#[ignore = "nightly"]`.
    all: u64,
    /// The largest number of seeds in any test of a build without optimizations.
    debug: u64,
}

// `tests/all/tiers.rs` compares the numbers below with the table in CONTRIBUTING.md.
pub(crate) const REDIS: Seeds = Seeds::of(2_000, 20_000, 300);
pub(crate) const CHANGES: Seeds = Seeds::of(300, 3_000, 30);
pub(crate) const CLOCKS: Seeds = Seeds::of(300, 3_000, 30);
pub(crate) const STORES: Seeds = Seeds::of(200, 2_000, 60);
pub(crate) const TRIES: Seeds = Seeds::of(200, 2_000, 60);
pub(crate) const CROSSINGS: Seeds = Seeds::of(0, 8_000, 0);

impl Seeds {
    const fn of(short: u64, all: u64, debug: u64) -> Self {
        Self { short, all, debug }
    }

    /// Returns the number of seeds in the tests that run in every `cargo test`. `QUORATE_SEEDS` overrides it.
    pub(crate) fn short(&self) -> u64 {
        self.asked(self.short)
    }

    /// Returns the number of seeds in the nightly tests. `QUORATE_SEEDS` overrides it.
    pub(crate) fn all(&self) -> u64 {
        self.asked(self.all)
    }

    fn asked(&self, usual: u64) -> u64 {
        let asked = std::env::var("QUORATE_SEEDS").ok();
        let most = if cfg!(debug_assertions) {
            self.debug
        } else {
            u64::MAX
        };
        asked
            .and_then(|seeds| seeds.parse().ok())
            .unwrap_or(usual.min(most))
    }
}

/// Whether `cargo test` must catch a seeded bug that needs `within` seeds. If not, only the nightly tests must catch
/// it.
pub(crate) fn is_short(within: u64) -> bool {
    within < 1_000
}

pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Plays the seeds from 0 to `seeds - 1` of a family of scenarios, and prints how often each event happened.
pub(crate) fn sweep(worlds: Worlds, seeds: u64) -> Summary {
    let sweep = Sweep {
        first: 0,
        seeds,
        threads: threads(),
        worlds,
    };
    let summary = sweep.run(|_, _| {});
    println!("{}", summary.coverage);
    summary
}

/// Panics if a seed broke a rule. For each such seed, the message contains a command that runs the seed again. `worlds`
/// is the option of `scripts/simulate` that selects the family of scenarios; empty for Redis masters.
pub(crate) fn must_pass(summary: &Summary, worlds: &str) {
    let failures: Vec<String> = summary
        .failures
        .iter()
        .map(|failure| {
            let (seed, violation) = (failure.seed, &failure.violation);
            format!("QUORATE_SEED={seed} scripts/simulate{worlds}: {violation}")
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Whether a run with one of the seeds from 0 to `within - 1` catches the seeded bug. Prints the first such seed.
pub(crate) fn is_caught(flaw: Flaw, within: u64) -> bool {
    let caught = first_caught(flaw, false, within, threads());
    if let Some(caught) = &caught {
        println!("{flaw:<24} seed {:>6}  {}", caught.seed, caught.violation);
    }
    caught.is_some()
}
