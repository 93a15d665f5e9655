//! A finding of `doctor`, and the settings that the checks depend on.

use std::time::Duration;

use serde::Serialize;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Information only.
    Note,
    /// Locks work, with a restriction.
    Warning,
    /// Locks do not work on this master, or are not safe.
    Error,
}

/// One finding of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// The name of the check; stable across versions.
    pub(crate) check: &'static str,
    /// The master, if the finding is about a single one.
    pub(crate) master: Option<String>,
    /// The observation.
    #[serde(rename = "finding")]
    pub(crate) what: String,
    /// The recommended change.
    pub(crate) advice: String,
}

/// The settings of the deployment that the checks depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// The longest ttl that any client uses.
    pub(crate) max_ttl: Duration,
    /// Whether the restart guard is on.
    pub(crate) restart_guard: bool,
    /// Whether a prefix of all lock keys is set.
    pub(crate) prefix: bool,
}

/// Adds a finding about one master: severity, name of the check, what was found, what to change.
pub(crate) trait Add: FnMut(Severity, &'static str, String, &str) {}

impl<F: FnMut(Severity, &'static str, String, &str)> Add for F {}
