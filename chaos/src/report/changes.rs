//! Shows as text how changes of masters affected the run: a table of the steps, and a chart with a column per second.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::change_statistics::{self, ClientProcess, FreeInterval, Step};
use crate::changes::MasterChanges;
use crate::history::{Attempt, FaultSpan, History};

/// The number of columns (seconds) in one line of the chart.
const COLUMNS_PER_LINE: usize = 100;
/// The bars of the chart, from low to high.
const BARS: [char; 8] = [
    '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}',
];
const SECOND: u64 = 1_000_000_000;

/// The data for the text about changes of masters.
struct ChangeReport {
    steps: Vec<Step>,
    faults: Vec<FaultSpan>,
    client_processes: Vec<ClientProcess>,
    free_intervals: Vec<FreeInterval>,
    success_times: Vec<u64>,
    end: u64,
}

/// The whole text: the steps as a table, and the chart of the seconds below it.
pub(super) fn text(changes: &MasterChanges, history: &History, attempts: &[Attempt]) -> String {
    let end = history.calm().unwrap_or(history.end());
    let report = ChangeReport {
        steps: change_statistics::steps(history),
        faults: history.faults(),
        client_processes: change_statistics::client_processes(history),
        free_intervals: change_statistics::free_intervals(attempts, history.end()),
        success_times: change_statistics::success_times(attempts),
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
        for step in report.steps.iter().filter(|step| step.change == change) {
            report.write_row(step, &mut out);
        }
    }
    let changes_began_at = report.steps.first().map_or(0, |step| step.from);
    report.write_period("before the changes", 0, changes_began_at, &mut out);
    report.write_period("all changes", changes_began_at, report.end, &mut out);
    out.push_str(
        "\nhad/s: acquisitions per second\nnobody: longest time without an acquisition\nfree: longest time that a lock \
         was free despite a waiter\nThe columns nobody and free include only times that ended in the period of the \
         row.\n\n",
    );
    report.seconds(&mut out);
    out
}

impl ChangeReport {
    fn write_row(&self, step: &Step, out: &mut String) {
        let name = if step.succeeded {
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
        let previous_end = self.steps.iter().map(|item| item.to);
        let previous_end = previous_end
            .filter(|to| *to <= step.from)
            .max()
            .unwrap_or(0);
        let faults = self
            .faults
            .iter()
            .filter(|item| (previous_end..step.to).contains(&item.from));
        let faults: Vec<String> = faults
            .map(|item| format!("{} {}", item.kind, item.targets.join("+")))
            .collect();
        self.write_figures(step.from, step.to, out);
        let _ = writeln!(out, "  {}", faults.join(", "));
    }

    fn write_period(&self, name: &str, from: u64, to: u64, out: &mut String) {
        let _ = write!(
            out,
            "{name:<22} {:>8} {:>7} {:>5}",
            seconds(from),
            seconds(to - from),
            ""
        );
        self.write_figures(from, to, out);
        out.push('\n');
    }

    fn write_figures(&self, from: u64, to: u64, out: &mut String) {
        let success_count = self
            .success_times
            .iter()
            .filter(|t| (from..to).contains(*t))
            .count();
        // A step that took no time has no rate of acquisitions.
        let rate = match to.saturating_sub(from) {
            duration if duration < SECOND / 5 => "-".to_owned(),
            duration => format!(
                "{:.0}",
                success_count as f64 * SECOND as f64 / duration as f64
            ),
        };
        let gap = change_statistics::longest_gap(&self.success_times, from, to);
        let longest_free = self
            .free_intervals
            .iter()
            .filter(|interval| (from..to).contains(&interval.to));
        let longest_free = longest_free
            .map(|interval| interval.to - interval.from)
            .max();
        let or_dash = |time: Option<u64>| time.map_or("-".to_owned(), milliseconds_text);
        let _ = write!(
            out,
            " {rate:>6} {:>8} {:>8}",
            or_dash(gap),
            or_dash(longest_free)
        );
    }

    /// Writes the chart. It has one column per second: locks obtained, steps, faults, and which masters the clients
    /// used.
    fn seconds(&self, out: &mut String) {
        let counts = change_statistics::per_second(&self.success_times, self.end);
        let highest = counts.iter().copied().max().unwrap_or(0).max(1);
        for (number, chunk) in counts.chunks(COLUMNS_PER_LINE).enumerate() {
            let from = number * COLUMNS_PER_LINE;
            let write_line = |name: &str, columns: String, out: &mut String| {
                let _ = writeln!(out, "{name:>14} |{}", columns.trim_end());
            };
            let each_second = |char_of: &dyn Fn(u64, u64) -> char| -> String {
                let columns = from..from + chunk.len();
                columns
                    .map(|second| char_of(second as u64 * SECOND, (second as u64 + 1) * SECOND))
                    .collect()
            };
            let labels = (from..from + chunk.len()).step_by(10);
            let labels: Vec<String> = labels.map(|second| format!("{second:<10}")).collect();
            write_line("second", labels.concat(), out);
            write_line(
                &format!("had, of {highest}"),
                chunk.iter().map(|n| bar_char(*n, highest)).collect(),
                out,
            );
            write_line(
                "steps",
                each_second(&|from, to| self.step_letter_in(from, to)),
                out,
            );
            write_line(
                "masters hit",
                each_second(&|from, to| self.fault_mark_in('m', from, to)),
                out,
            );
            write_line(
                "clients hit",
                each_second(&|from, to| self.fault_mark_in('c', from, to)),
                out,
            );
            let second: BTreeSet<u64> =
                self.client_processes.iter().map(|life| life.step).collect();
            for step in second {
                write_line(
                    &format!("at step {step}"),
                    each_second(&|from, to| self.clients_at_step(step, from, to)),
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
    fn step_letter_in(&self, from: u64, to: u64) -> char {
        let ended_steps = self
            .steps
            .iter()
            .filter(|step| (from..to).contains(&step.to));
        let letters = ended_steps.map(|step| step_letter(&step.name)).chain(
            self.steps
                .iter()
                .filter(|step| step.from < to && step.to >= from)
                .map(|step| step_letter(&step.name)),
        );
        // If there are several steps, prefer one that changes masters. Steps that restart clients have small letters.
        letters
            .min_by_key(|letter| !letter.is_ascii_uppercase())
            .unwrap_or(' ')
    }

    fn fault_mark_in(&self, kind: char, from: u64, to: u64) -> char {
        let hits_kind =
            |span: &&FaultSpan| span.targets.iter().any(|target| target.starts_with(kind));
        let mut matching = self.faults.iter().filter(hits_kind);
        let is_hit =
            matching.any(|span| span.from < to && span.over_at.unwrap_or(self.end) >= from);
        if is_hit { 'x' } else { ' ' }
    }

    /// Counts the client processes that used the configuration `step` (see [`ClientProcess::step`]) at the time `to`.
    /// Returns a space for 0, one base-36 digit for 1 to 35, or `+` for more.
    fn clients_at_step(&self, step: u64, _: u64, to: u64) -> char {
        let instant = to.min(self.end);
        let processes = self
            .client_processes
            .iter()
            .filter(|process| process.step == step);
        let count = processes
            .filter(|process| process.from <= instant && process.to > instant)
            .count();
        match u32::try_from(count) {
            Ok(0) => ' ',
            Ok(count) => char::from_digit(count, 36).unwrap_or('+'),
            Err(_) => '+',
        }
    }
}

fn step_letter(step: &str) -> char {
    match step {
        "clients of both" => 'b',
        "clients of the next" => 'n',
        step_name => step_name
            .chars()
            .next()
            .map_or(' ', |first| first.to_ascii_uppercase()),
    }
}

fn bar_char(count: usize, highest: usize) -> char {
    if count == 0 {
        return '_';
    }
    BARS[(count * BARS.len()).div_ceil(highest).clamp(1, BARS.len()) - 1]
}

fn seconds(t: u64) -> String {
    format!("{:.1} s", t as f64 / 1e9)
}

fn milliseconds_text(t: u64) -> String {
    format!("{} ms", t / 1_000_000)
}
