//! Chaos runs of the copy: real masters, and client processes in which one seeded bug is switched on.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;

use super::list::{Bound, Caught, SeededBug};
use super::process::wait_or_kill;
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

/// How much longer than its faults a run may take. It starts masters and clients, and ends with pauses; on a busy machine,
/// each of these takes a minute at most.
const LIMIT: Duration = Duration::from_secs(180);

/// The result of one chaos run.
struct Run {
    /// The file `summary.json` of its report; `Null` if the run has no result.
    summary: Value,
    /// The last line that the run printed.
    last_line: String,
}

/// Makes chaos runs with this bug, each longer than the one before, until each rule has been broken in one of them.
/// `caught` are the rules that name the same run. Returns one verdict for each of them.
///
/// If `has_control` is true, also makes a run of the same copy without the bug. A rule that this run breaks has not
/// caught the bug.
pub(super) fn judge(
    chaos: &Path,
    bug: &SeededBug,
    caught: &[&Caught],
    has_control: bool,
) -> Result<Vec<Verdict>> {
    let _turn = wait_for_turn(chaos)?;
    let started_at = Instant::now();
    let mut verdicts: Vec<Verdict> = caught.iter().map(|_| Verdict::default()).collect();
    for seconds in run_lengths(caught) {
        let run = make_run(chaos, bug, caught[0], Some(bug.id), seconds)?;
        let open = caught.iter().zip(&mut verdicts);
        for (caught, verdict) in open.filter(|(_, verdict)| verdict.found.is_none()) {
            let violation = violation(&run.summary, caught);
            let found = violation.as_ref().map(|_| Bound::Seconds(seconds));
            let why = || match run.summary {
                Value::Null => format!("no result: {}", run.last_line),
                _ => format!("no violation of {} in a run of {seconds} s", caught.by),
            };
            *verdict = Verdict {
                found,
                message: violation.unwrap_or_else(why),
                elapsed: started_at.elapsed(),
            };
        }
        if verdicts.iter().all(|verdict| verdict.found.is_some()) {
            break;
        }
    }
    if has_control {
        refuse_false_alarms(chaos, bug, caught, &mut verdicts)?;
    }
    Ok(verdicts)
}

/// Makes a run without the bug, as long as the run that caught it. Clears the verdicts of the rules that this run breaks
/// as well.
fn refuse_false_alarms(
    chaos: &Path,
    bug: &SeededBug,
    caught: &[&Caught],
    verdicts: &mut [Verdict],
) -> Result<()> {
    let lengths = verdicts.iter().filter_map(|verdict| verdict.found);
    let Some(Bound::Seconds(seconds)) = lengths.max() else {
        return Ok(());
    };
    let run = make_run(chaos, bug, caught[0], None, seconds)?;
    for (caught, verdict) in caught.iter().zip(verdicts) {
        let false_alarm = match violation(&run.summary, caught) {
            Some(violation) => format!("also without the bug: {violation}"),
            None if run.summary.is_null() => {
                format!("no result without the bug: {}", run.last_line)
            }
            None => continue,
        };
        verdict.found = None;
        verdict.message = false_alarm;
    }
    Ok(())
}

/// Makes one chaos run, with the bug of this number or without one.
fn make_run(
    chaos: &Path,
    bug: &SeededBug,
    caught: &Caught,
    number: Option<usize>,
    seconds: u64,
) -> Result<Run> {
    let (mut command, report) = command(chaos, bug, caught, number, seconds);
    fs::create_dir_all(&report)?;
    let log = report.with_extension("log");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log)?)
        .spawn()
        .context("the chaos run")?;
    // The masters and clients of a run end when it is gone.
    wait_or_kill(&mut child, LIMIT + Duration::from_secs(seconds))?;
    let summary = fs::read(report.join("summary.json")).ok();
    let log = fs::read(log)?;
    Ok(Run {
        summary: summary
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default(),
        last_line: String::from_utf8_lossy(&log)
            .lines()
            .last()
            .unwrap_or_default()
            .to_owned(),
    })
}

/// Makes the longest chaos run of this rule, and shows what it prints. Returns whether it has broken the rule.
pub(super) fn show(chaos: &Path, bug: &SeededBug, caught: &Caught, seconds: u64) -> Result<bool> {
    let _turn = wait_for_turn(chaos)?;
    let (mut command, report) = command(chaos, bug, caught, Some(bug.id), seconds);
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
fn command(
    chaos: &Path,
    bug: &SeededBug,
    caught: &Caught,
    number: Option<usize>,
    seconds: u64,
) -> (Command, PathBuf) {
    let report = chaos.with_file_name("reports").join(&bug.name);
    let _ = fs::remove_dir_all(&report);
    let mut command = Command::new(chaos);
    command.arg("run").args(OPTIONS).args(caught.arguments());
    command.args(["--duration", &format!("{seconds}s")]);
    if let Some(number) = number {
        command.args(["--seeded-bug", &number.to_string()]);
    }
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
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| chaos.with_file_name(".."));
    let folder = target.join("tmp");
    fs::create_dir_all(&folder)?;
    let file = File::create(folder.join("chaos.turn"))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .context("waiting for other chaos runs")
}
