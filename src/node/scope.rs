//! The lock settings that decide which rights an inspection checks.

/// The settings of a `Redlock` that decide which rights an inspection checks.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The prefix that the lock keys have.
    pub(crate) prefix: Box<str>,
    /// Whether locks use fencing tokens.
    pub(crate) fencing: bool,
    /// Whether waiters wait in a queue on the masters, in a fixed order.
    pub(crate) fair: bool,
    /// A random word in the names of the keys and channels that the inspection uses, so that no client uses the same
    /// names.
    pub(crate) unused_word: Box<str>,
}
