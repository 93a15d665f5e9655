//! The result of one judgement of a seeded bug.

use std::time::Duration;

use super::list::Bound;

/// The result of one judgement.
#[derive(Default)]
pub(super) struct Verdict {
    /// The seed that revealed the bug, or the length of the chaos run that did; `None` if the bug was not caught.
    pub(super) found: Option<Bound>,
    /// The last line that the simulation printed, or the violation that the chaos run showed.
    pub(super) message: String,
    pub(super) elapsed: Duration,
}
