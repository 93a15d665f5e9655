//! Judges histories made by hand, in which the checks of the chaos runs find certain violations. The judge must refuse
//! the histories that break one of its promises, and accept the others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::objects::judge_all;
use crate::operation::Input;
use crate::promise::Promise;
use crate::search::Verdict;

/// The findings of the checks of the chaos runs about one history.
#[derive(Deserialize)]
struct Findings {
    findings: Vec<Finding>,
}

#[derive(Deserialize)]
struct Finding {
    checker: String,
    verdict: String,
    violations: Vec<serde::de::IgnoredAny>,
}

/// The checks of the chaos runs whose rules the judge has as well, and the promises that they belong to.
const COVERED: [(&str, &[Promise]); 7] = [
    ("exclusion", &[Promise::Holds]),
    ("permits", &[Promise::Holds]),
    ("owners", &[Promise::Holds]),
    ("fencing", &[Promise::Tokens]),
    ("effects", &[Promise::Values]),
    ("ledger", &[Promise::Values, Promise::Tokens]),
    ("prizes", &[Promise::Quotas]),
];

const PROMISES: [Promise; 4] = [
    Promise::Holds,
    Promise::Tokens,
    Promise::Values,
    Promise::Quotas,
];

/// The numbers of bad histories of one check: all, and those that the judge refused.
#[derive(Default)]
struct Counts {
    bad: usize,
    refused: usize,
}

/// The comparison of the judge with the checks.
#[derive(Default)]
struct Comparison {
    counts: BTreeMap<String, Counts>,
    /// The number of histories in which no check finds a violation of a rule that the judge has.
    good: usize,
    disagreements: Vec<String>,
}

/// Judges each folder in `folder`. The verdict is "refused" if the judge and the checks disagree.
///
/// # Errors
///
/// If a file cannot be read, or there is no history.
pub fn run(folder: &Path, limit: Duration) -> Result<Verdict, String> {
    let entries =
        std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut folders: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    folders.sort();
    if folders.is_empty() {
        return Err(format!("{} has no histories", folder.display()));
    }
    let mut comparison = Comparison::default();
    for folder in &folders {
        comparison.add(folder, limit)?;
    }
    for (check, _) in COVERED {
        if !comparison.counts.contains_key(check) {
            let disagreement = format!("no history made by hand breaks a rule of {check}");
            comparison.disagreements.push(disagreement);
        }
    }
    print(folders.len(), comparison.good, &comparison.counts);
    for disagreement in &comparison.disagreements {
        println!("DISAGREEMENT: {disagreement}");
    }
    Ok(if comparison.disagreements.is_empty() {
        Verdict::Accepted
    } else {
        Verdict::Refused
    })
}

impl Comparison {
    /// Judges one history.
    fn add(&mut self, folder: &Path, limit: Duration) -> Result<(), String> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let text = std::fs::read_to_string(folder.join("findings.json"))
            .map_err(|error| format!("{name}: {error}"))?;
        let findings: Findings =
            serde_json::from_str(&text).map_err(|error| format!("{name}: {error}"))?;
        let input = Input::load(&folder.join("operations.jsonl"))?;
        let judged = judge_all(&input.operations, limit);
        let verdicts = judged.iter().flat_map(|one| &one.verdicts);
        let refused: BTreeSet<Promise> = verdicts
            .filter(|(_, verdict)| *verdict == Verdict::Refused)
            .map(|(promise, _)| *promise)
            .collect();
        // The promises that the judge may refuse: those of a check that found a violation, or had too few events.
        let mut may_be_refused: BTreeSet<Promise> = BTreeSet::new();
        let mut is_good = true;
        for finding in findings.findings {
            let covered = COVERED.iter().find(|(check, _)| *check == finding.checker);
            let promises = covered.map_or(&[][..], |(_, promises)| *promises);
            let is_bad = !finding.violations.is_empty();
            if is_bad || finding.verdict == "unknown" {
                may_be_refused.extend(promises);
            }
            if !is_bad {
                continue;
            }
            let is_refused = promises.iter().any(|promise| refused.contains(promise));
            is_good &= promises.is_empty();
            if !promises.is_empty() && !is_refused {
                let check = &finding.checker;
                self.disagreements.push(format!(
                    "{name}: {check} finds a violation, and the judge does not"
                ));
            }
            let counts = self.counts.entry(finding.checker).or_default();
            counts.bad += 1;
            counts.refused += usize::from(is_refused);
        }
        self.good += usize::from(is_good);
        let only_judge = PROMISES
            .iter()
            .filter(|promise| refused.contains(promise) && !may_be_refused.contains(promise));
        let disagreements =
            only_judge.map(|promise| format!("{name}: only the judge refuses it ({promise:?})"));
        self.disagreements.extend(disagreements);
        Ok(())
    }
}

fn print(histories: usize, good: usize, counts: &BTreeMap<String, Counts>) {
    println!(
        "{histories} histories made by hand; {good} of them break no promise that the judge has"
    );
    println!("{:<14} {:>13} {:>8}", "check", "bad histories", "refused");
    for (checker, counts) in counts {
        if COVERED.iter().any(|(covered, _)| covered == checker) {
            println!("{checker:<14} {:>13} {:>8}", counts.bad, counts.refused);
        } else {
            println!(
                "{checker:<14} {:>13}  not a promise that the judge has",
                counts.bad
            );
        }
    }
}
