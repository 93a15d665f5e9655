//! How a scenario is played.

use crate::canary::Flaw;

/// How to play a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Play {
    /// A wrong locker in the library's place.
    pub flaw: Option<Flaw>,
    /// Whether a trace is written.
    pub trace: bool,
    /// Only the rules are checked whose breach does harm by itself ([`HARM`](crate::HARM)).
    pub harm: bool,
}
