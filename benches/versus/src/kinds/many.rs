//! Measures many held locks, with and without holder's notes (the texts by which `status` shows the holders). The
//! figures are the memory and the processor time of the client and of the masters.

use quorate_testbed::Masters;

use super::figure::Figure;
use crate::contender::Name;
use crate::held::{Hold, Row};

/// The number of measurements with notes, and also the number of measurements without notes.
const ROUNDS: usize = 2;
const SECONDS: u64 = 10;

/// Measures locks with and without notes, and returns the figures.
pub(super) fn measure(masters: &Masters, count: usize) -> Vec<Figure> {
    let hold = |notes| Hold {
        name: Name::Default,
        count,
        seconds: SECONDS,
        node_timeout_ms: None,
        notes,
        brief: true,
        in_tasks: false,
    };
    let turn = |notes| hold(notes).run(masters);
    let pairs: Vec<(Row, Row)> = (0..ROUNDS).map(|_| (turn(true), turn(false))).collect();
    let with = |value: fn(&Row) -> f64| -> Vec<f64> { pairs.iter().map(|p| value(&p.0)).collect() };
    let without =
        |value: fn(&Row) -> f64| -> Vec<f64> { pairs.iter().map(|p| value(&p.1)).collect() };
    let over = |value: fn(&Row) -> f64| -> Vec<f64> {
        let ratio = |(with, without): &(Row, Row)| value(with) / value(without);
        pairs.iter().map(ratio).collect()
    };
    let row = |what: &str, unit, rounds| {
        Figure::stated(format!("{count} locks held: {what}"), unit, rounds)
    };
    let holder: fn(&Row) -> f64 = |row| row.seen.memory_per_lock;
    let master: fn(&Row) -> f64 = |row| row.master_memory_per_lock;
    let cpu: fn(&Row) -> f64 = |row| row.servers_percent;
    let client: fn(&Row) -> f64 = |row| row.seen.cpu_percent;
    vec![
        row(
            "client memory per lock, with holder's notes",
            "B",
            with(holder),
        ),
        row(
            "client memory per lock, without holder's notes",
            "B",
            without(holder),
        ),
        row(
            "memory per lock on each master, with holder's notes",
            "B",
            with(master),
        ),
        row(
            "memory per lock on each master, without holder's notes",
            "B",
            without(master),
        ),
        row(
            "CPU of the five masters, with holder's notes",
            "% of a core",
            with(cpu),
        ),
        row(
            "CPU of the five masters, without holder's notes",
            "% of a core",
            without(cpu),
        ),
        row(
            "CPU of the five masters, ratio of the values with and without holder's notes",
            "",
            over(cpu),
        ),
        row(
            "CPU of the client, with holder's notes",
            "% of a core",
            with(client),
        ),
    ]
}
