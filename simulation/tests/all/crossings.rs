//! Tests that the simulation covers every combination of a kind of masters, a kind of lock or value, and an event
//! (`Happening`). The combinations in `NEVER_TESTED` are exceptions.

use crate::support::{CROSSINGS, sweep, sweep_from};
use quorate_simulation::{Crossings, Happening, LOCK_OR_VALUE_KINDS, Masters, ScenarioFamily};

/// The combinations that no run covers. The text in each row is the reason.
const NEVER_TESTED: [(Masters, &[&str], Happening, &str); 4] = [
    (
        Masters::Clocked,
        &LOCK_OR_VALUE_KINDS,
        Happening::MastersChanged,
        "stores cannot be replaced, because a store keeps no generation marker",
    ),
    (
        Masters::Clockless,
        &LOCK_OR_VALUE_KINDS,
        Happening::MastersChanged,
        "stores cannot be replaced, because a store keeps no generation marker",
    ),
    (
        Masters::Redis,
        &LOCK_OR_VALUE_KINDS,
        Happening::NewRun,
        "only stores have a row of their run",
    ),
    (
        Masters::Redis,
        &LOCK_OR_VALUE_KINDS,
        Happening::SetBack,
        "only stores number their changes",
    ),
];

/// How often at most the seeds of stores are repeated with other seeds, while some combination has no case. The rarest
/// one (a job that runs once per period, while a store with a clock is set back) has a case in about 10,000 seeds.
const MORE_STORES: u64 = 6;

/// The combinations that should have cases but have none, and those that should have none but have some.
fn unexpected_cells(crossings: &Crossings) -> Vec<String> {
    let cells = crossings.cells();
    let unexpected = cells.filter_map(|(masters, held, happening, judged_cases)| {
        let cell = format!("{}, {held}, {}", masters.name(), happening.name());
        match (judged_cases, reason_for_zero(masters, held, happening)) {
            (0, None) => Some(format!("{cell}: no rule was checked")),
            (1.., Some(reason)) => Some(format!(
                "{cell}: a rule was checked {judged_cases} times, although NEVER_TESTED lists the cell: {reason}"
            )),
            _ => None,
        }
    });
    unexpected.collect()
}

fn reason_for_zero(masters: Masters, held: &str, happening: Happening) -> Option<&'static str> {
    let is_this_cell = |(cell_masters, rows, column, _): &&(Masters, &[&str], Happening, &str)| {
        (*cell_masters, *column) == (masters, happening) && rows.contains(&held)
    };
    NEVER_TESTED
        .iter()
        .find(is_this_cell)
        .map(|(_, _, _, reason)| *reason)
}

#[test]
fn every_unchecked_combination_of_lock_kind_and_event_has_a_reason() {
    for (_, rows, _, reason) in NEVER_TESTED {
        assert!(rows.iter().all(|row| LOCK_OR_VALUE_KINDS.contains(row)) && !reason.is_empty());
    }
}

#[test]
#[ignore = "nightly"]
fn every_combination_of_lock_kind_and_event_is_checked_by_a_rule() {
    let seeds = CROSSINGS.all();
    let mut crossings = Crossings::default();
    for family in [
        ScenarioFamily::Redis,
        ScenarioFamily::Changes,
        ScenarioFamily::Stores,
    ] {
        crossings.add(&sweep(family, seeds).crossings);
    }
    for round in 1..=MORE_STORES {
        if unexpected_cells(&crossings).is_empty() {
            break;
        }
        let more = sweep_from(ScenarioFamily::Stores, round * seeds, seeds);
        crossings.add(&more.crossings);
    }
    println!("{crossings}");
    let unexpected_cells = unexpected_cells(&crossings);
    assert!(
        seeds == 0 || unexpected_cells.is_empty(),
        "{}",
        unexpected_cells.join("\n")
    );
}
