//! The options for playing a scenario.

use crate::check::CheckedRules;
use crate::flaw::Flaw;

/// The options for playing a scenario: a bug of the simulated world, the rules to check, and what to record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// The bug of the simulated world; `None` for no bug.
    pub flaw: Option<Flaw>,
    /// Whether to write a trace of the run, as text lines that describe its events.
    pub trace: bool,
    /// Whether to record the history of the run, for the check against the model.
    pub history: bool,
    /// The rules of which the run reports violations.
    pub checked_rules: CheckedRules,
}
