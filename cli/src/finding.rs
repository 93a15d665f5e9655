//! A finding of `doctor` (a problem or a note), and the client settings on which the findings depend.

use std::time::Duration;

use serde::Serialize;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Information only: nothing needs to be changed.
    Note,
    /// Locks work on this master, with a restriction.
    Warning,
    /// Locks do not work, or are not safe.
    Error,
}

/// One finding of `doctor`: a problem or a note about one master or all masters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// The name of the check that reported this finding, for example `acl`. Names of checks do not change between
    /// versions.
    pub(crate) check: &'static str,
    /// The master that the finding is about; `None` if the finding is about several masters together.
    pub(crate) master: Option<String>,
    /// The problem or the note, without the name of the master.
    #[serde(rename = "finding")]
    pub(crate) what: String,
    /// The recommended change.
    pub(crate) advice: String,
}

/// The client settings on which the checks of `doctor` depend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// The setting `max_ttl`: the longest ttl that any client uses.
    pub(crate) max_ttl: Duration,
    /// Whether the clients use the restart guard. With the restart guard, clients ignore the votes of a master for
    /// `max_ttl` after its restart.
    pub(crate) restart_guard: bool,
    /// Whether the setting `prefix` is set. If so, the names of the keys are known, so `doctor` can check the rights to
    /// them.
    pub(crate) prefix: bool,
}

/// A function that creates a [`Finding`] and adds it to the list of findings. Its arguments are `severity`, `check`,
/// `what` and `advice`.
pub(crate) trait Add: FnMut(Severity, &'static str, String, &str) {}

impl<F: FnMut(Severity, &'static str, String, &str)> Add for F {}

/// A finding that explains why no lock can be taken on a master: the name of the check, the problem, and the advice.
pub(crate) type FaultAdvice<'a> = (&'static str, String, &'a str);

/// The advice at the end of the text of a fault, after the last colon.
pub(crate) fn advice_of(why: &str) -> Option<&str> {
    let (_, advice) = why.strip_suffix(')')?.rsplit_once(": ")?;
    Some(advice)
}
