//! The scope of an inspection.

/// The settings of the locks for which a master is inspected.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The key prefix of the resources.
    pub(crate) prefix: Box<str>,
    /// Whether fencing is on.
    pub(crate) fencing: bool,
    /// Whether waiters queue.
    pub(crate) fair: bool,
    /// A word that no key and no channel contains.
    pub(crate) unheard_of: Box<str>,
}
