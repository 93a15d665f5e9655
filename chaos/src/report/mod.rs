//! The files and the output of a run:
//!
//! - `scenario.json` and `history.jsonl`: the data with which the run can be checked again
//! - `summary.json`: the results for programs
//! - `timeline.html`: the run as a picture
//! - `changes.txt`: the effect of changes of masters, if there were any
//! - a table for the terminal

mod changes;
mod drawing;
mod summary;
mod table;
mod timeline;

use std::fs;
use std::path::Path;

use anyhow::Context;

pub use summary::{FaultCount, ResourceUse, Summary};
pub use table::table;

use crate::checks::Findings;
use crate::history::History;
use crate::scenario::Scenario;

const SCENARIO: &str = "scenario.json";
const HISTORY: &str = "history.jsonl";

/// Stores the files that the checkers need: the scenario and the history.
///
/// # Errors
///
/// If the files cannot be written.
pub fn store(scenario: &Scenario, history: &History, out: &Path) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(scenario)?;
    fs::write(out.join(SCENARIO), text).with_context(|| format!("write to {}", out.display()))?;
    history.store(&out.join(HISTORY))
}

/// Reads the scenario and the history that a run has stored.
///
/// # Errors
///
/// If the files do not exist or are malformed.
pub fn load(out: &Path) -> anyhow::Result<(Scenario, History)> {
    let path = out.join(SCENARIO);
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    Ok((
        serde_json::from_str(&text)?,
        History::load(&out.join(HISTORY))?,
    ))
}

/// Writes the files that are computed from the history.
///
/// # Errors
///
/// If the files cannot be written.
pub fn write(
    scenario: &Scenario,
    history: &History,
    findings: &Findings,
    out: &Path,
) -> anyhow::Result<()> {
    let summary = Summary::of(scenario, history, findings);
    let text = serde_json::to_string_pretty(&summary)?;
    fs::write(out.join("summary.json"), text)?;
    let page = timeline::page(&summary, history, findings)?;
    fs::write(out.join("timeline.html"), page)?;
    if let Some(text) = changes(scenario, history) {
        fs::write(out.join("changes.txt"), text)?;
    }
    Ok(())
}

/// The text of `changes.txt`; `None` if the scenario replaces no masters.
pub fn changes(scenario: &Scenario, history: &History) -> Option<String> {
    let changes = scenario.changes.as_ref()?;
    Some(changes::text(changes, history, &history.attempts()))
}
