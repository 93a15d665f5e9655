//! Helpers for the sweeps over many seeds.

use quorate_simulation::{Flaw, Summary, Sweep, Worlds, first_caught};

/// How many seeds of some worlds are played.
pub(crate) struct Seeds {
    /// In every run of the tests.
    short: u64,
    /// In the nightly run, by tests with `#[ignore = "nightly"]`.
    all: u64,
    /// At most, without optimizations.
    debug: u64,
}

// `tests/all/tiers.rs` compares these numbers with the table in CONTRIBUTING.md.
pub(crate) const REDIS: Seeds = Seeds::of(2_000, 20_000, 300);
pub(crate) const CHANGES: Seeds = Seeds::of(300, 3_000, 30);
pub(crate) const STORES: Seeds = Seeds::of(200, 2_000, 60);
pub(crate) const CROSSINGS: Seeds = Seeds::of(0, 8_000, 0);

impl Seeds {
    const fn of(short: u64, all: u64, debug: u64) -> Self {
        Self { short, all, debug }
    }

    /// For every run of the tests, unless `QUORATE_SEEDS` asks for another number.
    pub(crate) fn short(&self) -> u64 {
        self.asked(self.short)
    }

    /// For the nightly run, unless `QUORATE_SEEDS` asks for another number.
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

/// Whether a seeded bug that must be caught within `within` seeds is part of every run of the tests. The other ones
/// are part of the nightly run.
pub(crate) fn is_short(within: u64) -> bool {
    within < 1_000
}

pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Plays the first seeds of a family of scenarios, and prints what happened.
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

/// Fails with the command that replays each failed seed. `worlds` is the option for this family.
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

/// Whether a seeded bug is caught within this many seeds. Prints the seed.
pub(crate) fn is_caught(flaw: Flaw, within: u64) -> bool {
    let caught = first_caught(flaw, false, within, threads());
    if let Some(caught) = &caught {
        println!("{flaw:<24} seed {:>6}  {}", caught.seed, caught.violation);
    }
    caught.is_some()
}
