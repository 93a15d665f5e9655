//! Helpers for the sweeps over many seeds.

use quorate_simulation::{Flaw, Summary, Sweep, Worlds, first_caught};

/// The number of seeds: `usual` with optimizations, `few` without, or `QUORATE_SEEDS`.
pub(crate) fn seeds(usual: u64, few: u64) -> u64 {
    let asked = std::env::var("QUORATE_SEEDS").ok();
    let usual = if cfg!(debug_assertions) { few } else { usual };
    asked.and_then(|seeds| seeds.parse().ok()).unwrap_or(usual)
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
