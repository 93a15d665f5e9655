//! The scope of an inspection: the settings that decide which rights it checks.

/// The settings of the locks for which a master is inspected.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The prefix that the lock keys have.
    pub(crate) prefix: Box<str>,
    /// Whether locks use fencing tokens.
    pub(crate) fencing: bool,
    /// Whether waiters wait in the order of a queue.
    pub(crate) fair: bool,
    /// A random word, used in names of keys and channels so that no client uses the same names.
    pub(crate) unheard_of: Box<str>,
}
