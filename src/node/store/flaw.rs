//! Bugs that a simulation seeds in the driver of stores, to test that the simulation's checks detect them.

use std::cell::Cell;

/// A bug that a simulation seeds in [`StoreNode`](super::StoreNode), to test that the simulation's checks detect the
/// bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFlaw {
    /// After a session was lost, the next session does not rewrite the records of unanswered changes. So an unanswered
    /// change of the lost session can still take effect later.
    Unsoiled,
    /// The client ignores that the server's clock may be ahead of the client's estimate of the server's time. So a
    /// stored lease can expire too early.
    NoSlack,
    /// At a store without a clock, an observer considers a lease expired after a third of its duration.
    EarlyEnd,
}

thread_local! {
    static FLAW: Cell<Option<StoreFlaw>> = const { Cell::new(None) };
}

/// Seeds the bug `flaw` in every [`StoreNode`](super::StoreNode) that runs on this thread; `None` removes the bug.
pub fn set_flaw(flaw: Option<StoreFlaw>) {
    FLAW.set(flaw);
}

/// Whether the drivers of this thread have this seeded bug.
pub(super) fn has(flaw: StoreFlaw) -> bool {
    FLAW.get() == Some(flaw)
}
