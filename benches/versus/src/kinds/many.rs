//! Measures many held locks, with and without holder's notes (the texts by which `status` shows the holders). The
//! figures are the memory and the processor time of the client and of the masters.

use quorate_testbed::Masters;

use super::figure::Figure;
use crate::contender::Name;
use crate::held::{HolderSettings, Row};

/// The number of measurements with notes, and also the number of measurements without notes.
const ROUNDS: usize = 2;
const SECONDS: u64 = 10;

fn holder_settings(count: usize, notes: bool) -> HolderSettings {
    HolderSettings {
        name: Name::Default,
        count,
        seconds: SECONDS,
        node_timeout_ms: None,
        notes,
        brief: true,
        in_tasks: false,
    }
}

/// Measures locks with and without notes, and returns the figures.
pub(super) fn measure(masters: &Masters, count: usize) -> Vec<Figure> {
    let measure_once = |notes| holder_settings(count, notes).run(masters);
    let pairs: Vec<(Row, Row)> = (0..ROUNDS)
        .map(|_| (measure_once(true), measure_once(false)))
        .collect();
    let values_with_notes =
        |value: fn(&Row) -> f64| -> Vec<f64> { pairs.iter().map(|p| value(&p.0)).collect() };
    let values_without_notes =
        |value: fn(&Row) -> f64| -> Vec<f64> { pairs.iter().map(|p| value(&p.1)).collect() };
    let ratios = |value: fn(&Row) -> f64| -> Vec<f64> {
        let ratio = |(with, without): &(Row, Row)| value(with) / value(without);
        pairs.iter().map(ratio).collect()
    };
    let new_figure = |title: &str, unit, rounds| {
        Figure::without_goal(format!("{count} locks held: {title}"), unit, rounds)
    };
    let client_memory: fn(&Row) -> f64 = |row| row.holder.memory_per_lock;
    let master_memory: fn(&Row) -> f64 = |row| row.master_memory_per_lock;
    let masters_cpu: fn(&Row) -> f64 = |row| row.masters_percent;
    let client_cpu: fn(&Row) -> f64 = |row| row.holder.cpu_percent;
    vec![
        new_figure(
            "client memory per lock, with holder's notes",
            "B",
            values_with_notes(client_memory),
        ),
        new_figure(
            "client memory per lock, without holder's notes",
            "B",
            values_without_notes(client_memory),
        ),
        new_figure(
            "memory per lock on each master, with holder's notes",
            "B",
            values_with_notes(master_memory),
        ),
        new_figure(
            "memory per lock on each master, without holder's notes",
            "B",
            values_without_notes(master_memory),
        ),
        new_figure(
            "CPU of the five masters, with holder's notes",
            "% of a core",
            values_with_notes(masters_cpu),
        ),
        new_figure(
            "CPU of the five masters, without holder's notes",
            "% of a core",
            values_without_notes(masters_cpu),
        ),
        new_figure(
            "CPU of the five masters, ratio of the values with and without holder's notes",
            "",
            ratios(masters_cpu),
        ),
        new_figure(
            "CPU of the client, with holder's notes",
            "% of a core",
            values_with_notes(client_cpu),
        ),
    ]
}
