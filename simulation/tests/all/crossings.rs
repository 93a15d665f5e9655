//! Tests that the simulation covers every combination of a kind of masters, a kind of lock or value, and an event
//! (`Happening`). The combinations in `NEVER` are exceptions.

use crate::support::{CROSSINGS, sweep};
use quorate_simulation::{Crossings, HELD, Happening, Masters, Worlds};

/// The combinations that no run covers. The text in each row is the reason.
const NEVER: [(Masters, &[&str], Happening, &str); 2] = [
    (
        Masters::Clocked,
        &HELD,
        Happening::Change,
        "stores cannot be replaced, because a store keeps no generation marker",
    ),
    (
        Masters::Clockless,
        &HELD,
        Happening::Change,
        "stores cannot be replaced, because a store keeps no generation marker",
    ),
];

fn reason(masters: Masters, held: &str, happening: Happening) -> Option<&'static str> {
    let here = |(of, rows, column, _): &&(Masters, &[&str], Happening, &str)| {
        (*of, *column) == (masters, happening) && rows.contains(&held)
    };
    NEVER.iter().find(here).map(|(_, _, _, why)| *why)
}

#[test]
fn every_unchecked_combination_of_lock_kind_and_event_has_a_reason() {
    for (_, rows, _, why) in NEVER {
        assert!(rows.iter().all(|row| HELD.contains(row)) && !why.is_empty());
    }
}

#[test]
#[ignore = "nightly"]
fn every_combination_of_lock_kind_and_event_is_checked_by_a_rule() {
    let seeds = CROSSINGS.all();
    let mut seen = Crossings::default();
    for worlds in [Worlds::Redis, Worlds::Changes, Worlds::Stores] {
        seen.add(&sweep(worlds, seeds).crossings);
    }
    println!("{seen}");
    let wrong = seen
        .cells()
        .filter_map(|(masters, held, happening, judged)| {
            let cell = format!("{}, {held}, {}", masters.name(), happening.name());
            match (judged, reason(masters, held, happening)) {
                (0, None) => Some(format!("{cell}: no rule was checked")),
                (1.., Some(why)) => Some(format!(
                    "{cell}: a rule was checked {judged} times, although NEVER lists the cell as empty: {why}"
                )),
                _ => None,
            }
        });
    let wrong: Vec<String> = wrong.collect();
    assert!(seeds == 0 || wrong.is_empty(), "{}", wrong.join("\n"));
}
