//! Reads `mutants/seeded.toml`, the list of the seeded bugs.

use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::rust::Body;

/// The smallest bound, in seeds, of the searches that `--short` leaves out.
const SHORT_SEEDS: u64 = 1_000;

/// The smallest bound, in seconds, of the chaos runs that `--short` leaves out.
const SHORT_SECONDS: u64 = 40;

/// A seeded bug: a change of the code, and the rules that must catch it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SeededBug {
    /// The number of the bug, from 1. It switches the bug on.
    #[serde(skip)]
    pub(super) id: usize,
    /// The name of the bug.
    pub(super) name: String,
    /// One sentence that describes the faulty behaviour.
    pub(super) does: String,
    /// The changes of the code, which are switched on together. Empty if `world` is true.
    #[serde(default)]
    pub(super) change: Vec<Change>,
    /// Whether the bug is one of the simulated world (`Flaw` in `simulation/src/flaw.rs`), and not a change of
    /// the code.
    #[serde(default)]
    pub(super) world: bool,
    /// The rules that must catch the bug.
    pub(super) caught: Vec<Caught>,
}

/// One change of the code of a function.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Change {
    /// The path of the file, relative to the root of the repository.
    pub(super) file: String,
    /// The name of the function; for a method, with the name of its type in front, for example `Held::lost`. If it is
    /// empty, `after` is appended to the file. A Lua script has no functions: the change is one of a line of the script.
    #[serde(default)]
    pub(super) function: String,
    /// The text to replace. It must stand exactly once in the body of the function. Spaces and line breaks are ignored.
    #[serde(default)]
    pub(super) before: String,
    /// The text that takes its place.
    pub(super) after: String,
}

/// Whether the file is a Lua script.
pub(super) fn is_script(file: &str) -> bool {
    Path::new(file).extension().is_some_and(|end| end == "lua")
}

/// A rule that must catch a bug, and where.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "CaughtEntry")]
pub(super) struct Caught {
    /// The name of the rule that the bug violates, or of a checker of the chaos runs.
    pub(super) by: String,
    /// The scenarios: `plain`, or options of `scripts/simulate` without the two hyphens, for example `changes values`.
    /// For a chaos run: the options of `scripts/chaos`.
    pub(super) scenarios: String,
    /// Only for a chaos run: a text that must be in the description of one of the violations.
    pub(super) says: String,
    pub(super) bound: Bound,
}

/// The effort within which a bug must be caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Bound {
    /// A simulation run with a seed below this number must reveal the bug.
    Seeds(u64),
    /// A chaos run of this many seconds must reveal the bug.
    Seconds(u64),
}

impl Bound {
    /// Whether `scripts/test` has the time for a judgement within this bound.
    pub(super) fn is_short(self) -> bool {
        match self {
            Self::Seeds(seeds) => seeds < SHORT_SEEDS,
            Self::Seconds(seconds) => seconds < SHORT_SECONDS,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seeds(seeds) => f.pad(&seeds.to_string()),
            Self::Seconds(seconds) => f.pad(&format!("{seconds} s")),
        }
    }
}

/// [`Caught`] as it is written in the list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaughtEntry {
    by: String,
    #[serde(rename = "in")]
    scenarios: String,
    #[serde(default)]
    says: String,
    seeds: Option<u64>,
    seconds: Option<u64>,
}

impl TryFrom<CaughtEntry> for Caught {
    type Error = &'static str;

    fn try_from(entry: CaughtEntry) -> Result<Self, Self::Error> {
        let bound = match (
            entry.scenarios.strip_prefix("chaos "),
            entry.seeds,
            entry.seconds,
        ) {
            (None, Some(seeds), None) if entry.says.is_empty() => Bound::Seeds(seeds),
            (Some(_), None, Some(seconds)) => Bound::Seconds(seconds),
            _ => {
                return Err(
                    "a rule of the simulation needs `seeds`, and a chaos run needs `seconds`",
                );
            }
        };
        let CaughtEntry {
            by,
            scenarios,
            says,
            ..
        } = entry;
        Ok(Self {
            by,
            scenarios,
            says,
            bound,
        })
    }
}

impl Caught {
    /// Returns the arguments of the simulation that select the scenarios, or the arguments of a chaos run.
    pub(super) fn arguments(&self) -> Vec<String> {
        let mut words = self.scenarios.split_whitespace();
        if let Bound::Seconds(_) = self.bound {
            return words.skip(1).map(str::to_owned).collect();
        }
        let mut arguments = Vec::new();
        while let Some(word) = words.next() {
            if word != "plain" {
                arguments.push(format!("--{word}"));
            }
            if word == "hand-written" {
                arguments.extend(words.next().map(str::to_owned));
            }
        }
        arguments
    }

    /// The same scenarios, in which any violation of a rule that protects users counts.
    pub(super) fn as_harm(&self, seeds: u64) -> Self {
        Self {
            by: "harm".into(),
            bound: Bound::Seeds(seeds),
            ..self.clone()
        }
    }
}

#[derive(Deserialize)]
struct List {
    bug: Vec<SeededBug>,
}

/// Reads the list of the checkout `root`.
pub(super) fn read(root: &Path) -> Result<Vec<SeededBug>> {
    let path = root.join("mutants/seeded.toml");
    let text = fs::read_to_string(&path).context(path.display().to_string())?;
    let mut list: List = toml::from_str(&text).context("mutants/seeded.toml")?;
    for (index, bug) in list.bug.iter_mut().enumerate() {
        bug.id = index + 1;
    }
    Ok(list.bug)
}

/// Returns the body of the function that the change names, and the range of `before` in `text`. `text` is the text of
/// the file, and `bodies` are the bodies of all of its functions.
///
/// Fails if the file has no such function or several, or if `before` does not stand exactly once in its body.
pub(super) fn find<'a>(
    change: &Change,
    text: &str,
    bodies: &'a [Body],
) -> Result<(&'a Body, Range<usize>)> {
    let Change { file, function, .. } = change;
    let bodies: Vec<&Body> = bodies
        .iter()
        .filter(|body| body.function == *function)
        .collect();
    let [body] = bodies[..] else {
        bail!(
            "{file} has {} functions with the name {function}, but must have one",
            bodies.len()
        );
    };
    let ranges = find_ignoring_spaces(&text[body.range.clone()], &change.before);
    ensure!(
        ranges.len() == 1,
        "the text before the change stands {} times in {function} of {file}, but must stand there once: {}",
        ranges.len(),
        change.before
    );
    let start = body.range.start;
    let range = start + ranges[0].start..start + ranges[0].end;
    Ok((body, range))
}

/// Returns the range of `before` in `text`, the text of a Lua script. Fails if `before` does not stand exactly once in the
/// script, or if the change does not fit into one line.
pub(super) fn find_in_script(change: &Change, text: &str) -> Result<Range<usize>> {
    let ranges = find_ignoring_spaces(text, &change.before);
    let is_one_line = |range: &Range<usize>| !text[range.clone()].contains('\n');
    match &ranges[..] {
        [range] if is_one_line(range) && !change.after.contains('\n') => Ok(range.clone()),
        _ => bail!(
            "the text before the change stands {} times in {}, but must stand there once, and in one line: {}",
            ranges.len(),
            change.file,
            change.before
        ),
    }
}

/// Returns the ranges of `text` that equal `wanted` if spaces and line breaks are ignored.
fn find_ignoring_spaces(text: &str, wanted: &str) -> Vec<Range<usize>> {
    let visible = |text: &str| -> Vec<(usize, char)> {
        let letters = text.char_indices();
        letters.filter(|(_, c)| !c.is_whitespace()).collect()
    };
    let (text, wanted) = (visible(text), visible(wanted));
    let is_match = |window: &&[(usize, char)]| {
        window
            .iter()
            .zip(&wanted)
            .all(|((_, c), (_, wanted))| c == wanted)
    };
    let windows = text.windows(wanted.len().max(1)).filter(is_match);
    let range_of = |window: &[(usize, char)]| match (window.first(), window.last()) {
        (Some((start, _)), Some((end, last))) => *start..end + last.len_utf8(),
        _ => 0..0,
    };
    windows.map(range_of).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::rust::bodies_of;
    use crate::targets;

    #[test]
    fn text_before_each_seeded_change_stands_once_in_its_function() {
        let root = targets::root();
        let bugs = read(&root).expect("the list must be readable");
        let (mut files, mut faults) = (BTreeMap::new(), Vec::new());
        for bug in &bugs {
            for change in bug.change.iter().filter(|change| is_script(&change.file)) {
                let text = fs::read_to_string(root.join(&change.file)).unwrap_or_default();
                let found = find_in_script(change, &text);
                faults.extend(found.err().map(|error| format!("{}: {error:#}", bug.name)));
            }
            let in_functions = |change: &&Change| !change.function.is_empty();
            for change in bug.change.iter().filter(in_functions) {
                let (text, bodies) = files.entry(&change.file).or_insert_with(|| {
                    let text = fs::read_to_string(root.join(&change.file)).unwrap_or_default();
                    let bodies = bodies_of(&text).expect("the file must parse");
                    (text, bodies)
                });
                let found = find(change, text, bodies);
                faults.extend(found.err().map(|error| format!("{}: {error:#}", bug.name)));
            }
            if bug.world != bug.change.is_empty() || bug.caught.is_empty() {
                faults.push(format!("{}: needs changes and rules", bug.name));
            }
            let is_search = |caught: &Caught| matches!(caught.bound, Bound::Seeds(_));
            let is_first_of_chaos = bug.caught.first().is_some_and(|first| !is_search(first));
            let first = bug.caught.first();
            if first.is_some_and(|caught| caught.scenarios.contains("model"))
                || is_first_of_chaos && bug.caught.iter().any(is_search)
            {
                faults.push(format!(
                    "{}: the first rule must be one of the simulation",
                    bug.name
                ));
            }
        }
        assert_eq!(faults, Vec::<String>::new());
    }

    #[test]
    fn each_seeded_bug_has_a_name_of_its_own_and_one_sentence() {
        let bugs = read(&targets::root()).expect("the list must be readable");
        let names: BTreeSet<&str> = bugs.iter().map(|bug| &*bug.name).collect();
        assert_eq!(names.len(), bugs.len());
        for bug in &bugs {
            assert!(
                bug.does.ends_with('.') && !bug.name.contains(' '),
                "{bug:?}"
            );
        }
    }

    /// Returns the texts in quotation marks behind `start` in the Rust files of a folder.
    fn quoted_behind(folder: &str, start: &str) -> BTreeSet<String> {
        let files = targets::tracked(&targets::root(), &[folder]).expect("git must list files");
        let mut quoted = BTreeSet::new();
        for file in files {
            let text = fs::read_to_string(targets::root().join(file)).expect("the file");
            let parts = text.split(start).skip(1);
            quoted.extend(parts.filter_map(|part| Some(part.split_once('"')?.0.to_owned())));
        }
        quoted
    }

    #[test]
    fn every_rule_and_scenario_that_the_list_names_exists() {
        let mut rules = quoted_behind("simulation/src/checks/*.rs", "RULE: &'static str = \"");
        for prefix in [": &str = \"", ", \""] {
            rules.extend(quoted_behind("simulation/src/checks/mod.rs", prefix));
        }
        let replay = targets::root().join("model/src/replay.rs");
        let replay = fs::read_to_string(replay).expect("the file");
        let scenarios = quoted_behind("simulation/src/hand_written.rs", "name: \"");
        let options = quoted_behind("simulation/src/main.rs", "            \"--");
        let world_bugs = quoted_behind("simulation/src/flaw.rs", " = \"");
        let mut checkers = quoted_behind("chaos/src/checks/*.rs", "Finding::new(\"");
        for start in ["kept(\"", "kept(\n        \""] {
            checkers.extend(quoted_behind("chaos/src/checks/kept.rs", start));
        }
        assert!(rules.len() > 25 && scenarios.len() > 5 && options.len() > 9);
        for bug in read(&targets::root()).expect("the list must be readable") {
            assert!(!bug.world || world_bugs.contains(&bug.name), "{}", bug.name);
            for caught in &bug.caught {
                if let Bound::Seconds(_) = caught.bound {
                    assert!(checkers.contains(&caught.by), "{}: {caught:?}", bug.name);
                    continue;
                }
                let words: Vec<&str> = caught.scenarios.split_whitespace().collect();
                let is_rule = if words.contains(&"model") {
                    replay.contains(&format!("\"{}\"", caught.by))
                } else {
                    rules.contains(&caught.by)
                };
                assert!(is_rule, "{}: {caught:?}", bug.name);
                let are_known = match words[..] {
                    ["hand-written", name] => scenarios.contains(name),
                    _ => words
                        .iter()
                        .all(|word| *word == "plain" || options.contains(*word)),
                };
                assert!(are_known, "{}: {caught:?}", bug.name);
            }
        }
    }

    /// Each kind of lock has a workload of its own in the chaos runs, and their checkers must be able to fail.
    #[test]
    fn chaos_runs_of_every_kind_of_lock_reveal_a_seeded_bug() {
        let bugs = read(&targets::root()).expect("the list must be readable");
        let caught = bugs.iter().flat_map(|bug| &bug.caught);
        let scenarios: BTreeSet<&str> = caught.map(|caught| &*caught.scenarios).collect();
        let workloads = fs::read_to_string(targets::root().join("chaos/src/workload.rs"));
        let workloads = workloads.expect("the file");
        let (_, kinds) = workloads
            .split_once("pub const KINDS: [Self; 6] = [")
            .expect("the kinds of locks");
        let (kinds, _) = kinds.split_once("];").expect("the end of the list");
        let kinds = kinds.split("Self::").skip(1);
        let kinds = kinds.map(|kind| kind.trim().trim_end_matches(',').to_lowercase());
        for kind in kinds.chain(["file,handover".to_owned()]) {
            let options = format!("chaos --workload {kind} ");
            let mut scenarios = scenarios.iter();
            assert!(
                scenarios.any(|scenario| scenario.starts_with(&options)),
                "no chaos run with the workload {kind} reveals a seeded bug"
            );
        }
    }

    #[test]
    fn text_is_found_although_its_line_breaks_differ() {
        let ranges = find_ignoring_spaces("a b\n  .c() b.c()", "b.c()");
        assert_eq!(ranges, [2..10, 11..16]);
        assert_eq!(find_ignoring_spaces("a", "ab"), []);
    }
}
