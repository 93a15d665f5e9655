//! The arguments with which a client raises the age record of a master.

/// The arguments of the script that raises the age record, and restores a lost generation marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, reason = "public if the feature `testing` is on")]
pub struct AgeCall<'a> {
    /// The run id of the server, as the client knows it.
    pub run: &'a str,
    /// The name of the age record that the client has watched; empty if it has found no record of this run.
    pub life: &'a str,
    /// For how long clients have watched this run, in milliseconds.
    pub age_ms: u64,
    /// The name that a new age record gets.
    pub new_life: &'a str,
    /// The lost generation marker; empty if the client restores none.
    pub marker: &'a str,
}
