//! The options of a run.

use crate::seeded_bugs::Flaw;

/// The options of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Play {
    /// The seeded bug that replaces a part of the library or of the masters.
    pub flaw: Option<Flaw>,
    /// Whether to write a trace.
    pub trace: bool,
    /// Whether to check only the rules whose breach does harm by itself ([`HARM`](crate::HARM)).
    pub harm: bool,
}
