//! What is asked of a master that is inspected.

/// What an inspection is to look for.
#[derive(Clone, Debug)]
pub struct Scope {
    /// What stands before every resource in its lock key.
    pub(crate) prefix: Box<str>,
    /// Whether acquisitions are numbered.
    pub(crate) fencing: bool,
    /// Whether waiters stand in line.
    pub(crate) fair: bool,
    /// A word that no key and no channel has in its name.
    pub(crate) unheard_of: Box<str>,
}
