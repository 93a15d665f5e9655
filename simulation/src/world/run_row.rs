//! The row of a store's run, and the facts about a store that its answers show.

use std::time::Duration;

/// The facts that the row of a run must contain: the file of the records, and when the server was started, in
/// microseconds on its wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) file: u32,
    pub(super) started_us: u64,
}

/// The row of the current run, which a server keeps next to its records.
#[derive(Clone, Debug)]
pub(crate) struct RunRow {
    pub(crate) id: String,
    pub(crate) place: Place,
    /// For how long clients have watched the run.
    pub(crate) aged: Duration,
}

/// A statement of a client about the row of the run.
pub(crate) enum RowChange {
    /// Inserts a row if there is none.
    Insert(Place),
    /// Replaces the row if it does not fit.
    Replace(Place),
    /// Ends the run with this id, and begins another.
    BeginAgain(String),
    /// Raises the age of the run with this id.
    Raise(String, Duration),
}

/// The facts about a store that each of its answers shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreState {
    /// A number that an administrator changes after the store was set back.
    pub(crate) identity: u32,
    pub(crate) place: Place,
    /// The number of the latest change.
    pub(crate) number: u64,
    /// The id of the current run; `None` if there is no row.
    pub(crate) run: Option<String>,
}
