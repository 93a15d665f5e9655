//! Shows as text how changes of masters affected the run: a table of the steps, and a chart with a column per second.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::changes::Changes;
use crate::history::{Attempt, FaultSpan, History};
use crate::pace::{self, Idle, Life, Step};

/// The number of columns (seconds) in one line of the chart.
const WIDE: usize = 100;
/// The bars of the chart, from low to high.
const BARS: [char; 8] = [
    '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}',
];
const SECOND: u64 = 1_000_000_000;

/// The data for the text about changes of masters.
struct Contents {
    steps: Vec<Step>,
    faults: Vec<FaultSpan>,
    lives: Vec<Life>,
    idle: Vec<Idle>,
    had: Vec<u64>,
    end: u64,
}

/// The whole text: the steps as a table, and the chart of the seconds below it.
pub(super) fn text(changes: &Changes, history: &History, attempts: &[Attempt]) -> String {
    let end = history.calm().unwrap_or(history.end());
    let told = Contents {
        steps: pace::steps(history),
        faults: history.faults(),
        lives: pace::lives(history),
        idle: pace::idle(attempts, history.end()),
        had: pace::had(attempts),
        end,
    };
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<22} {:>8} {:>7} {:>5} {:>6} {:>8} {:>8}  injected faults",
        "step", "at", "took", "tries", "had/s", "nobody", "free"
    );
    for change in 0..changes.count() {
        let names = |set: &[usize]| {
            let names: Vec<String> = set
                .iter()
                .map(|master| format!("m{}", master + 1))
                .collect();
            names.join(",")
        };
        let [old, next] = [&changes.sets[change], &changes.sets[change + 1]];
        let _ = writeln!(
            out,
            "change {}: {} -> {}",
            change + 1,
            names(old),
            names(next)
        );
        for step in told.steps.iter().filter(|step| step.change == change) {
            told.row(step, &mut out);
        }
    }
    let first = told.steps.first().map_or(0, |step| step.from);
    told.without("before the changes", 0, first, &mut out);
    told.without("all changes", first, told.end, &mut out);
    out.push_str(
        "\nhad/s: acquisitions per second\nnobody: longest time without an acquisition\nfree: longest time that a lock \
         was free despite a waiter\nThe columns nobody and free include only times that ended in the period of the \
         row.\n\n",
    );
    told.seconds(&mut out);
    out
}

impl Contents {
    fn row(&self, step: &Step, out: &mut String) {
        let name = if step.done {
            step.name.clone()
        } else {
            format!("{} NOT DONE", step.name)
        };
        let _ = write!(
            out,
            "  {name:<20} {:>8} {:>7} {:>5}",
            seconds(step.from),
            seconds(step.to - step.from),
            step.tries
        );
        // Begin at the end of the previous step: a fault between two steps counts as a fault of the second one.
        let before = self.steps.iter().map(|one| one.to);
        let before = before.filter(|to| *to <= step.from).max().unwrap_or(0);
        let faults = self
            .faults
            .iter()
            .filter(|one| (before..step.to).contains(&one.from));
        let faults: Vec<String> = faults
            .map(|one| format!("{} {}", one.kind, one.targets.join("+")))
            .collect();
        self.figures(step.from, step.to, out);
        let _ = writeln!(out, "  {}", faults.join(", "));
    }

    fn without(&self, name: &str, from: u64, to: u64, out: &mut String) {
        let _ = write!(
            out,
            "{name:<22} {:>8} {:>7} {:>5}",
            seconds(from),
            seconds(to - from),
            ""
        );
        self.figures(from, to, out);
        out.push('\n');
    }

    fn figures(&self, from: u64, to: u64, out: &mut String) {
        let had = self.had.iter().filter(|t| (from..to).contains(*t)).count();
        // A step that took no time has no rate of acquisitions.
        let rate = match to.saturating_sub(from) {
            short if short < SECOND / 5 => "-".to_owned(),
            took => format!("{:.0}", had as f64 * SECOND as f64 / took as f64),
        };
        let gap = pace::longest_gap(&self.had, from, to);
        let free = self.idle.iter().filter(|one| (from..to).contains(&one.to));
        let free = free.map(|one| one.to - one.from).max();
        let or_dash = |time: Option<u64>| time.map_or("-".to_owned(), milliseconds);
        let _ = write!(out, " {rate:>6} {:>8} {:>8}", or_dash(gap), or_dash(free));
    }

    /// Writes the chart. It has one column per second: locks obtained, steps, faults, and which masters the clients
    /// used.
    fn seconds(&self, out: &mut String) {
        let counts = pace::per_second(&self.had, self.end);
        let most = counts.iter().copied().max().unwrap_or(0).max(1);
        for (number, some) in counts.chunks(WIDE).enumerate() {
            let from = number * WIDE;
            let row = |name: &str, columns: String, out: &mut String| {
                let _ = writeln!(out, "{name:>14} |{}", columns.trim_end());
            };
            let each = |of: &dyn Fn(u64, u64) -> char| -> String {
                let columns = from..from + some.len();
                columns
                    .map(|at| of(at as u64 * SECOND, (at as u64 + 1) * SECOND))
                    .collect()
            };
            let tens = (from..from + some.len()).step_by(10);
            let tens: Vec<String> = tens.map(|at| format!("{at:<10}")).collect();
            row("second", tens.concat(), out);
            row(
                &format!("had, of {most}"),
                some.iter().map(|n| bar(*n, most)).collect(),
                out,
            );
            row("steps", each(&|from, to| self.step_in(from, to)), out);
            row(
                "masters hit",
                each(&|from, to| self.hit_in('m', from, to)),
                out,
            );
            row(
                "clients hit",
                each(&|from, to| self.hit_in('c', from, to)),
                out,
            );
            let at: BTreeSet<u64> = self.lives.iter().map(|life| life.step).collect();
            for step in at {
                row(
                    &format!("at step {step}"),
                    each(&|from, to| self.at_step(step, from, to)),
                    out,
                );
            }
            out.push('\n');
        }
        out.push_str(
            "Steps: B begin; b clients get the old and the next masters; C close; O open; n clients get \
             only the next\nmasters; F finish; S stop.\nThe row `at step N` shows the number of clients with the \
             configuration of step N.\nEven step: clients use one set of masters. Odd step: clients use the old \
             and the next masters.\n",
        );
    }

    /// The letter of a step that was in progress between `from` and `to`; a space if there was none.
    fn step_in(&self, from: u64, to: u64) -> char {
        let ends = self
            .steps
            .iter()
            .filter(|step| (from..to).contains(&step.to));
        let letters = ends.map(|step| letter(&step.name)).chain(
            self.steps
                .iter()
                .filter(|step| step.from < to && step.to >= from)
                .map(|step| letter(&step.name)),
        );
        // If there are several steps, prefer one that changes masters. Steps that restart clients have small letters.
        letters
            .min_by_key(|letter| !letter.is_ascii_uppercase())
            .unwrap_or(' ')
    }

    fn hit_in(&self, kind: char, from: u64, to: u64) -> char {
        let of_kind = |one: &&FaultSpan| one.targets.iter().any(|target| target.starts_with(kind));
        let mut hit = self.faults.iter().filter(of_kind);
        let is_hit = hit.any(|one| one.from < to && one.over.unwrap_or(self.end) >= from);
        if is_hit { 'x' } else { ' ' }
    }

    /// Counts the client processes that used the configuration `step` (see [`Life::step`]) at the time `to`. Returns a
    /// space for 0, one base-36 digit for 1 to 35, or `+` for more.
    fn at_step(&self, step: u64, _: u64, to: u64) -> char {
        let last = to.min(self.end);
        let lives = self.lives.iter().filter(|life| life.step == step);
        let count = lives
            .filter(|life| life.from <= last && life.to > last)
            .count();
        match u32::try_from(count) {
            Ok(0) => ' ',
            Ok(count) => char::from_digit(count, 36).unwrap_or('+'),
            Err(_) => '+',
        }
    }
}

fn letter(step: &str) -> char {
    match step {
        "clients of both" => 'b',
        "clients of the next" => 'n',
        other => other
            .chars()
            .next()
            .map_or(' ', |first| first.to_ascii_uppercase()),
    }
}

fn bar(count: usize, most: usize) -> char {
    if count == 0 {
        return '_';
    }
    BARS[(count * BARS.len()).div_ceil(most).clamp(1, BARS.len()) - 1]
}

fn seconds(t: u64) -> String {
    format!("{:.1} s", t as f64 / 1e9)
}

fn milliseconds(t: u64) -> String {
    format!("{} ms", t / 1_000_000)
}
