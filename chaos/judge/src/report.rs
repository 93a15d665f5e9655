//! Judges files, and prints a table for each of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::objects::{Judged, judge_all};
use crate::operation::Input;
use crate::promise::Promise;
use crate::search::Verdict;

/// Accepted objects of one workload get a row for each object up to this number, and otherwise a common row.
const MAX_ROWS: usize = 12;

/// Judges the files. Returns the worst verdict.
///
/// # Errors
///
/// If a file cannot be read.
pub fn run(files: &[PathBuf], limit: Duration, prints_all: bool) -> Result<Verdict, String> {
    let mut totals = Totals::default();
    for file in files {
        let started_at = Instant::now();
        let input = Input::load(file)?;
        let judged = judge_all(&input.operations, limit);
        let broken = input.run.broken_promises();
        println!(
            "\n{}: locks of {}; two holders at a time: {}",
            file.display(),
            input.run.code,
            if broken.contains(&Promise::Holds) {
                "allowed, because of the faults"
            } else {
                "not allowed"
            }
        );
        print_table(&judged, &broken, prints_all);
        totals.add(&judged, &broken, started_at.elapsed());
    }
    totals.print();
    Ok(totals.worst)
}

fn worst(judged: &Judged) -> Verdict {
    let verdicts = judged.verdicts.iter().map(|(_, verdict)| *verdict);
    verdicts.max().unwrap_or(Verdict::Accepted)
}

fn print_table(judged: &[Judged], broken: &[Promise], prints_all: bool) {
    println!(
        "{:<34} {:>10} {:>8}  verdict",
        "object", "operations", "left out"
    );
    let mut groups: BTreeMap<&str, Vec<&Judged>> = BTreeMap::new();
    for one in judged {
        let group = one.object.split('-').next().unwrap_or(&one.object);
        groups.entry(group).or_default().push(one);
    }
    for (group, judged) in groups {
        let is_long = judged.len() > MAX_ROWS && !prints_all;
        let (in_common, alone): (Vec<&Judged>, Vec<&Judged>) = judged
            .into_iter()
            .partition(|one| is_long && worst(one) == Verdict::Accepted);
        if !in_common.is_empty() {
            let name = format!("{group}-* ({})", in_common.len());
            let operations = in_common.iter().map(|one| one.operations).sum();
            let left_out = in_common.iter().map(|one| one.left_out).sum();
            print_row(&name, operations, left_out, "accepted");
        }
        for one in alone {
            let verdict = verdict_text(one, broken);
            print_row(&one.object, one.operations, one.left_out, &verdict);
        }
    }
}

fn print_row(name: &str, operations: usize, left_out: usize, verdict: &str) {
    println!("{name:<34} {operations:>10} {left_out:>8}  {verdict}");
}

fn verdict_text(judged: &Judged, broken: &[Promise]) -> String {
    if judged.operations == 0 {
        return "nothing to judge".into();
    }
    if worst(judged) == Verdict::Accepted {
        return "accepted".into();
    }
    let parts = judged.verdicts.iter().map(|(promise, verdict)| {
        let promise_name = format!("{promise:?}").to_lowercase();
        match verdict {
            Verdict::Accepted => format!("{promise_name} accepted"),
            Verdict::Unknown => format!("{promise_name} UNKNOWN"),
            Verdict::Refused if broken.contains(promise) => {
                format!("{promise_name} refused (allowed)")
            }
            Verdict::Refused => format!("{promise_name} REFUSED"),
        }
    });
    let mut text = parts.collect::<Vec<_>>().join(", ");
    if let Some(note) = judged.note {
        text = format!("{text} ({note})");
    }
    text
}

/// The sums over all files.
struct Totals {
    worst: Verdict,
    files: usize,
    objects: usize,
    locks: usize,
    operations: usize,
    left_out: usize,
    /// The numbers of objects: accepted, refused although this is allowed, unknown, refused.
    counts: [usize; 4],
    time: Duration,
}

impl Default for Totals {
    fn default() -> Self {
        Self {
            worst: Verdict::Accepted,
            files: 0,
            objects: 0,
            locks: 0,
            operations: 0,
            left_out: 0,
            counts: [0; 4],
            time: Duration::ZERO,
        }
    }
}

impl Totals {
    fn add(&mut self, judged: &[Judged], broken: &[Promise], time: Duration) {
        self.files += 1;
        self.time += time;
        let has_operations = judged.iter().any(|one| one.operations > 0);
        if !has_operations {
            // A history without operations shows nothing.
            self.worst = self.worst.max(Verdict::Unknown);
        }
        for one in judged {
            self.left_out += one.left_out;
            if one.operations == 0 {
                continue;
            }
            self.objects += 1;
            self.locks += usize::from(one.object.starts_with("lock "));
            self.operations += one.operations;
            let held = one.verdicts.iter();
            let held = held.filter(|(promise, verdict)| {
                *verdict != Verdict::Refused || !broken.contains(promise)
            });
            let verdict = held.map(|(_, verdict)| *verdict).max();
            let verdict = verdict.unwrap_or(Verdict::Accepted);
            self.worst = self.worst.max(verdict);
            let index = match verdict {
                Verdict::Accepted => usize::from(worst(one) == Verdict::Refused),
                Verdict::Unknown => 2,
                Verdict::Refused => 3,
            };
            self.counts[index] += 1;
        }
    }

    fn print(&self) {
        let [accepted, allowed, unknown, refused] = self.counts;
        println!(
            "\n{} histories, {} objects ({} of them locks), {} operations, {} left out: {accepted} accepted, {allowed} \
             refused as the faults allow, {unknown} UNKNOWN, {refused} REFUSED; {:.1} s",
            self.files,
            self.objects,
            self.locks,
            self.operations,
            self.left_out,
            self.time.as_secs_f64()
        );
    }
}
