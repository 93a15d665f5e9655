//! One thing that doctor has to say, and the rules that it goes by.

use std::time::Duration;

use serde::Serialize;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Worth knowing; all is well.
    Note,
    /// Locking works, with less than it could.
    Warning,
    /// Locking does not work here, or is not safe.
    Error,
}

/// One thing that doctor has to say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// How bad.
    pub(crate) severity: Severity,
    /// Which check found it; stable.
    pub(crate) check: &'static str,
    /// The master, where it is about one.
    pub(crate) master: Option<String>,
    /// What is the case.
    #[serde(rename = "finding")]
    pub(crate) what: String,
    /// What to change.
    pub(crate) advice: String,
}

/// The deployment's rules that facts are judged by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// The longest ttl in use.
    pub(crate) max_ttl: Duration,
    /// Whether restarted masters sit out.
    pub(crate) restart_guard: bool,
    /// Whether it is said what the names of all lock keys begin with.
    pub(crate) prefix: bool,
}

/// Takes down one finding about one master: how bad, which check, what is the case, what to change.
pub(crate) trait Add: FnMut(Severity, &'static str, String, &str) {}

impl<F: FnMut(Severity, &'static str, String, &str)> Add for F {}
