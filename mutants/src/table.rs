//! The table of verdicts on mutants. It is written to disk after each verdict, so that an interrupted run of the
//! command can continue.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use crate::judge::fate::Fate;
use crate::mutant::Mutant;
use crate::survivors::Survivor;

/// The table of verdicts, in `target/mutants/table.txt`.
#[derive(Debug)]
pub(crate) struct Table {
    path: PathBuf,
    rows: BTreeMap<String, Row>,
}

#[derive(Clone, Debug)]
struct Row {
    location: String,
    fate: String,
}

const ALIVE: &str = "ALIVE";
const UNREACHED: &str = "ALIVE, reached by no judge";

impl Table {
    /// Reads the table that earlier runs of the command have written to `path`. Returns an empty table if the file does
    /// not exist.
    pub(crate) fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let rows = text.lines().filter_map(|line| {
            let (fate, rest) = line.split_once('\t')?;
            let (location, name) = rest.split_once('\t')?;
            let (location, fate) = (location.to_owned(), fate.trim_end().to_owned());
            Some((name.to_owned(), Row { location, fate }))
        });
        Self {
            rows: rows.collect(),
            path,
        }
    }

    /// Whether a mutant has been judged already.
    pub(crate) fn contains(&self, mutant: &Mutant) -> bool {
        self.rows.contains_key(&mutant.name())
    }

    /// Whether a mutant was judged and survived.
    pub(crate) fn is_alive(&self, mutant: &Mutant) -> bool {
        let row = self.rows.get(&mutant.name());
        row.is_some_and(|row| row.fate.starts_with(ALIVE))
    }

    /// Records the verdict on a mutant, and writes the table.
    pub(crate) fn record_fate(&mut self, mutant: &Mutant, fate: &Fate) -> Result<()> {
        let fate = fate_text(fate);
        let location = format!("{}:{}", mutant.file, mutant.line);
        self.rows.insert(mutant.name(), Row { location, fate });
        self.write()
    }

    fn write(&self) -> Result<()> {
        let mut text = String::new();
        for (name, Row { location, fate }) in &self.rows {
            let _ = writeln!(text, "{fate}\t{location}\t{name}");
        }
        Ok(fs::write(&self.path, text)?)
    }

    /// Removes the verdicts on mutants that no longer exist, i.e. that are not in `mutants`.
    pub(crate) fn retain(&mut self, mutants: &[Mutant]) {
        let names: BTreeSet<String> = mutants.iter().map(Mutant::name).collect();
        self.rows.retain(|name, _| names.contains(name));
    }

    /// Formats two tables: the verdicts for each file, and the number of mutants that each judge (a test program or the
    /// simulation) killed. If `sampled_names` is `Some`, counts only the mutants in `sampled_names`.
    pub(crate) fn summary(
        &self,
        explained: &[Survivor],
        sampled_names: Option<&[&Mutant]>,
    ) -> String {
        let explained: BTreeSet<&str> = explained.iter().map(|survivor| &*survivor.name).collect();
        let sampled_names: Option<BTreeSet<String>> = sampled_names
            .map(|sampled_names| sampled_names.iter().map(|mutant| mutant.name()).collect());
        let mut files: BTreeMap<&str, Counts> = BTreeMap::new();
        let mut judges: BTreeMap<String, usize> = BTreeMap::new();
        let rows = self.rows.iter();
        for (name, row) in rows.filter(|(name, _)| {
            sampled_names
                .as_ref()
                .is_none_or(|names| names.contains(*name))
        }) {
            let file = row.location.rsplit_once(':').map_or("", |(file, _)| file);
            let counts_of_file = files.entry(file).or_default();
            counts_of_file.judged += 1;
            if let Some(killer) = row.fate.strip_prefix("killed by ") {
                *judges.entry(judge_of(killer)).or_default() += 1;
                counts_of_file.killed += 1;
            } else if row.fate.starts_with("hung") {
                *judges
                    .entry("a judge that did not end in time".into())
                    .or_default() += 1;
                counts_of_file.hung += 1;
            } else if explained.contains(&**name) {
                counts_of_file.explained += 1;
            } else if row.fate == UNREACHED {
                counts_of_file.unreached += 1;
            } else {
                counts_of_file.alive += 1;
            }
        }
        let mut text = format!(
            "{:<34}{:>8}{:>8}{:>6}{:>11}{:>7}{:>11}\n",
            "file", "judged", "killed", "hung", "explained", "ALIVE", "UNREACHED"
        );
        let mut total = Counts::default();
        for (file, counts) in &files {
            total.add(counts);
            self::write_row(&mut text, file, counts);
        }
        self::write_row(&mut text, "all", &total);
        let accounted_for = total.killed + total.hung + total.explained;
        let share = 100.0 * accounted_for as f64 / total.judged.max(1) as f64;
        let _ = writeln!(
            text,
            "killed, hung or explained: {accounted_for} of {} ({share:.1} %); a mutant that no judge reaches counts as alive\n",
            total.judged
        );
        let mut judges: Vec<_> = judges.into_iter().collect();
        judges.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for (judge, count) in judges {
            let _ = writeln!(text, "{count:>6}  {judge}");
        }
        text
    }
}

/// The number of mutants with each verdict.
#[derive(Debug, Default)]
struct Counts {
    judged: usize,
    killed: usize,
    hung: usize,
    explained: usize,
    alive: usize,
    unreached: usize,
}

impl Counts {
    fn add(&mut self, counts: &Self) {
        self.judged += counts.judged;
        self.killed += counts.killed;
        self.hung += counts.hung;
        self.explained += counts.explained;
        self.alive += counts.alive;
        self.unreached += counts.unreached;
    }
}

/// Formats a verdict for the table.
fn fate_text(fate: &Fate) -> String {
    match fate {
        Fate::Killed(killer) => format!("killed by {killer}"),
        Fate::Hung(judge) => format!("hung in {judge}"),
        Fate::Alive => ALIVE.to_owned(),
        Fate::Unreached => UNREACHED.to_owned(),
    }
}

fn judge_of(killer: &str) -> String {
    killer
        .split_once(": ")
        .map_or(killer, |(judge, _)| judge)
        .to_owned()
}

fn write_row(text: &mut String, name: &str, counts: &Counts) {
    let Counts {
        judged,
        killed,
        hung,
        explained,
        alive,
        unreached,
    } = counts;
    let _ = writeln!(
        text,
        "{name:<34}{judged:>8}{killed:>8}{hung:>6}{explained:>11}{alive:>7}{unreached:>11}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lua;
    use crate::mutant::number;

    #[test]
    fn summary_of_sampled_mutants_counts_unreached_mutants_as_survivors() {
        let mut mutants = lua::mutants("x/a.lua", "return 3\nreturn 4\nreturn 7\nreturn 8\n");
        number(&mut mutants);
        let table_of = |fates: &[Fate]| {
            let rows = mutants.iter().zip(fates).map(|(mutant, fate)| {
                let (location, fate) = ("x/a.lua:1".to_owned(), fate_text(fate));
                (mutant.name(), Row { location, fate })
            });
            Table {
                path: PathBuf::new(),
                rows: rows.collect(),
            }
        };
        let killed_fate = || Fate::Killed("lib: a test".into());
        let fates = [killed_fate(), Fate::Unreached, Fate::Alive, killed_fate()];
        let table = table_of(&fates);
        let explained = vec![Survivor {
            name: mutants[2].name(),
            reason: "no matter".into(),
        }];
        let sample: Vec<&Mutant> = mutants.iter().take(3).collect();
        let text = table.summary(&explained, Some(&sample));
        assert!(
            text.contains("killed, hung or explained: 2 of 3 (66.7 %)"),
            "{text}"
        );
        let text = table.summary(&[], None);
        assert!(
            text.contains("killed, hung or explained: 2 of 4 (50.0 %)"),
            "{text}"
        );
    }
}
