//! Chaos runs of the copy: real masters, and client processes in which one seeded bug is switched on.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;

use super::list::{Bound, Caught, SeededBug};
use super::verdict::Verdict;

/// The options of all chaos runs for seeded bugs. Clients with short pauses compete for the locks all the time.
const OPTIONS: [&str; 8] = [
    "--seed",
    "8",
    "--masters",
    "3",
    "--clients",
    "5",
    "--pause",
    "20ms",
];

/// Makes chaos runs with this bug, each longer than the one before, until one of them breaks all of the rules. `caught`
/// are the rules that name the same run. Returns one verdict for each of them.
pub(super) fn judge(chaos: &Path, bug: &SeededBug, caught: &[&Caught]) -> Result<Vec<Verdict>> {
    let _turn = wait_for_turn(chaos)?;
    let started_at = Instant::now();
    let mut verdicts = Vec::new();
    for seconds in run_lengths(caught) {
        let (mut command, report) = command(chaos, bug, caught[0], seconds);
        let output = command
            .stdin(Stdio::null())
            .output()
            .context("the chaos run")?;
        let summary = fs::read(report.join("summary.json")).ok();
        let summary: Value = summary
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        let last_line = String::from_utf8_lossy(&output.stderr)
            .lines()
            .last()
            .map(str::to_owned);
        let verdict_of = |caught: &&Caught| {
            let violation = violation(&summary, caught);
            let found = violation.as_ref().map(|_| Bound::Seconds(seconds));
            let why = || match &last_line {
                Some(line) if summary.is_null() => format!("no result: {line}"),
                _ => format!("no violation of {} in a run of {seconds} s", caught.by),
            };
            Verdict {
                found,
                message: violation.unwrap_or_else(why),
                elapsed: started_at.elapsed(),
            }
        };
        verdicts = caught.iter().map(verdict_of).collect();
        if verdicts.iter().all(|verdict| verdict.found.is_some()) {
            break;
        }
    }
    Ok(verdicts)
}

/// Makes the longest chaos run of this rule, and shows what it prints. Returns whether it has broken the rule.
pub(super) fn show(chaos: &Path, bug: &SeededBug, caught: &Caught, seconds: u64) -> Result<bool> {
    let _turn = wait_for_turn(chaos)?;
    let (mut command, report) = command(chaos, bug, caught, seconds);
    command.status().context("the chaos run")?;
    let summary = fs::read(report.join("summary.json")).context("the chaos run has no result")?;
    Ok(violation(&serde_json::from_slice(&summary)?, caught).is_some())
}

/// The lengths of the runs in seconds: a sixth of the bound, half of it, and the bound.
fn run_lengths(caught: &[&Caught]) -> Vec<u64> {
    let seconds = caught.iter().map(|caught| match caught.bound {
        Bound::Seconds(seconds) => seconds,
        Bound::Seeds(_) => 0,
    });
    let bound = seconds.max().unwrap_or(0);
    vec![bound.div_ceil(6), bound.div_ceil(2), bound]
}

/// The command of one chaos run, and the folder of its report.
fn command(chaos: &Path, bug: &SeededBug, caught: &Caught, seconds: u64) -> (Command, PathBuf) {
    let report = chaos.with_file_name("reports").join(&bug.name);
    let _ = fs::remove_dir_all(&report);
    let mut command = Command::new(chaos);
    command.arg("run").args(OPTIONS).args(caught.arguments());
    command.args(["--duration", &format!("{seconds}s")]);
    command.args(["--seeded-bug", &bug.id.to_string()]);
    command.arg("--out").arg(&report);
    (command, report)
}

/// Returns the first violation of the rule that no fault of the run excuses; `None` if there is none.
fn violation(summary: &Value, caught: &Caught) -> Option<String> {
    let findings = summary["findings"]["findings"].as_array()?;
    let finding = findings
        .iter()
        .find(|finding| finding["checker"] == *caught.by)?;
    let unexcused = finding["violations"]
        .as_array()?
        .iter()
        .filter(|violation| violation["excused"].is_null());
    let mut descriptions = unexcused.filter_map(|violation| violation["what"].as_str());
    let description = descriptions.find(|description| description.contains(&caught.says))?;
    Some(format!("{}: {description}", caught.by))
}

/// Waits until no other chaos run is active on this machine: the tests of `chaos/` lock the same file.
fn wait_for_turn(chaos: &Path) -> Result<Flock<File>> {
    let folder = chaos.with_file_name("").join("../tmp");
    fs::create_dir_all(&folder)?;
    let file = File::create(folder.join("chaos.turn"))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .context("waiting for other chaos runs")
}
