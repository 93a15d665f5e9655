//! What became of each mutant, on disk after each, so that a run that was stopped goes on where it was.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use crate::judge::Fate;
use crate::mutant::Mutant;
use crate::survivors::Survivor;

/// The table of `target/mutants/table.txt`.
#[derive(Debug)]
pub(crate) struct Table {
    path: PathBuf,
    rows: BTreeMap<String, Row>,
}

#[derive(Clone, Debug)]
struct Row {
    place: String,
    fate: String,
}

const ALIVE: &str = "ALIVE";
const UNREACHED: &str = "ALIVE, reached by nobody";

impl Table {
    /// What an earlier run has left.
    pub(crate) fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let rows = text.lines().filter_map(|line| {
            let (fate, rest) = line.split_once('\t')?;
            let (place, name) = rest.split_once('\t')?;
            let (place, fate) = (place.to_owned(), fate.trim_end().to_owned());
            Some((name.to_owned(), Row { place, fate }))
        });
        Self {
            rows: rows.collect(),
            path,
        }
    }

    /// Whether it has been judged.
    pub(crate) fn knows(&self, mutant: &Mutant) -> bool {
        self.rows.contains_key(&mutant.name())
    }

    /// Whether it lived.
    pub(crate) fn is_alive(&self, mutant: &Mutant) -> bool {
        let row = self.rows.get(&mutant.name());
        row.is_some_and(|row| row.fate.starts_with(ALIVE))
    }

    /// Notes what became of one.
    pub(crate) fn note(&mut self, mutant: &Mutant, fate: &Fate) -> Result<()> {
        let fate = match fate {
            Fate::Killed(by) => format!("killed by {by}"),
            Fate::Hung(judge) => format!("hung in {judge}"),
            Fate::Alive => ALIVE.to_owned(),
            Fate::Unreached => UNREACHED.to_owned(),
        };
        let place = format!("{}:{}", mutant.file, mutant.line);
        self.rows.insert(mutant.name(), Row { place, fate });
        self.write()
    }

    fn write(&self) -> Result<()> {
        let mut text = String::new();
        for (name, Row { place, fate }) in &self.rows {
            let _ = writeln!(text, "{fate}\t{place}\t{name}");
        }
        Ok(fs::write(&self.path, text)?)
    }

    /// Forgets who is not in the code any more.
    pub(crate) fn retain(&mut self, mutants: &[Mutant]) {
        let names: BTreeSet<String> = mutants.iter().map(Mutant::name).collect();
        self.rows.retain(|name, _| names.contains(name));
    }

    /// A line a file, and a line a judge.
    pub(crate) fn summary(&self, explained: &[Survivor]) -> String {
        let explained: BTreeSet<&str> = explained.iter().map(|one| &*one.name).collect();
        let mut files: BTreeMap<&str, [usize; 5]> = BTreeMap::new();
        let mut judges: BTreeMap<String, usize> = BTreeMap::new();
        for (name, row) in &self.rows {
            let file = row.place.rsplit_once(':').map_or("", |(file, _)| file);
            let of_file = files.entry(file).or_default();
            of_file[0] += 1;
            let which = if let Some(by) = row.fate.strip_prefix("killed by ") {
                *judges.entry(judge_of(by)).or_default() += 1;
                1
            } else if row.fate.starts_with("hung") {
                *judges.entry("a judge that never ended".into()).or_default() += 1;
                2
            } else if explained.contains(&**name) {
                3
            } else {
                4
            };
            of_file[which] += 1;
        }
        let mut text = format!(
            "{:<34}{:>8}{:>8}{:>6}{:>11}{:>7}\n",
            "file", "judged", "killed", "hung", "explained", "ALIVE"
        );
        let mut all = [0; 5];
        for (file, counts) in &files {
            for (sum, count) in all.iter_mut().zip(counts) {
                *sum += count;
            }
            self::row(&mut text, file, counts);
        }
        self::row(&mut text, "all", &all);
        let seen = all[1] + all[2];
        let share = 100.0 * seen as f64 / (seen + all[4]).max(1) as f64;
        let _ = writeln!(text, "seen: {share:.1} % of those that are not explained\n");
        let mut judges: Vec<_> = judges.into_iter().collect();
        judges.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for (judge, count) in judges {
            let _ = writeln!(text, "{count:>6}  {judge}");
        }
        text
    }
}

fn judge_of(by: &str) -> String {
    by.split_once(": ")
        .map_or(by, |(judge, _)| judge)
        .to_owned()
}

fn row(text: &mut String, name: &str, counts: &[usize; 5]) {
    let [judged, killed, hung, explained, alive] = counts;
    let _ = writeln!(
        text,
        "{name:<34}{judged:>8}{killed:>8}{hung:>6}{explained:>11}{alive:>7}"
    );
}
