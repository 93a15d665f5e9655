//! Worlds in which some masters, or all, are stores that compare and set, and the canaries of those.
//!
//! 2,000 seeds with optimizations, 60 without; `QUORATE_SEEDS` asks for another number.

use quorate_simulation::{Flaw, Play, Scenario, Sweep, Worlds, first_caught};

fn seeds() -> u64 {
    let asked = std::env::var("QUORATE_SEEDS").ok();
    let usual = if cfg!(debug_assertions) { 60 } else { 2_000 };
    asked.and_then(|seeds| seeds.parse().ok()).unwrap_or(usual)
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[test]
fn every_seed_passes_where_masters_are_stores() {
    let sweep = Sweep {
        first: 0,
        seeds: seeds(),
        threads: threads(),
        worlds: Worlds::Stores,
    };
    let summary = sweep.run(|_, _| {});
    println!("{}", summary.coverage);
    let failures: Vec<String> = summary
        .failures
        .iter()
        .map(|failure| {
            let (seed, violation) = (failure.seed, &failure.violation);
            format!("QUORATE_SEED={seed} scripts/simulate --stores: {violation}")
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    if seeds() >= 2_000 {
        assert_eq!(summary.idle_rules(), Vec::<&str>::new(), "judged nothing");
        let missing = summary.coverage.missing();
        assert_eq!(missing, Vec::<&str>::new(), "never happened");
    }
}

#[test]
fn the_same_seed_gives_the_same_run_at_stores() {
    let play = Play {
        trace: true,
        ..Play::default()
    };
    for seed in 0..20 {
        let scenario = Scenario::draw_stores(seed);
        assert_eq!(play.run(&scenario), play.run(&scenario), "seed {seed}");
    }
}

/// Within how many seeds each canary must be caught.
const CANARIES: [(Flaw, u64); 7] = [
    (Flaw::VersionsAgain, 200),
    (Flaw::SessionIsLease, 200),
    (Flaw::EarlyEnd, 500),
    (Flaw::Unsoiled, 2_000),
    (Flaw::StoreGuardOff, 1_000),
    (Flaw::NoSlack, 20_000),
    (Flaw::KeptSession, 50),
];

#[test]
fn every_canary_of_stores_is_caught_within_its_seeds() {
    assert_eq!(CANARIES.map(|(flaw, _)| flaw), Flaw::OF_STORES);
    for flaw in Flaw::ALL.into_iter().chain(Flaw::OF_STORES) {
        assert_eq!(Flaw::by_name(flaw.name()), Some(flaw), "one name for each");
    }
    // Without optimizations the seeds are too few.
    if cfg!(debug_assertions) {
        return;
    }
    for (flaw, within) in CANARIES {
        let caught = first_caught(flaw, false, within, threads());
        let caught = caught.unwrap_or_else(|| panic!("{flaw} gets through {within} seeds"));
        println!("{flaw:<24} seed {:>6}  {}", caught.seed, caught.violation);
    }
}
