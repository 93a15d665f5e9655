//! The promises that the judge can refuse.

/// A promise that the judge can refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// Never two holders, and never more holders of a semaphore than permits.
    Holds,
    /// Later holders have larger tokens.
    Tokens,
    /// No write to a file under a lock is lost, and no transfer changes the sum of all accounts.
    Values,
    /// A quota hands out no unit twice, and never more than it has.
    Quotas,
}
