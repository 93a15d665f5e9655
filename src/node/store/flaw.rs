//! Bugs that a simulation seeds in the driver of stores, to test that the simulation's checks detect them.

use std::cell::Cell;

/// A bug that a simulation seeds in [`StoreNode`](super::StoreNode), to test that the simulation's checks detect the
/// bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFlaw {
    /// After a session was lost, the next session does not write the records with unanswered changes again. So these
    /// changes can still take effect later.
    Unsoiled,
    /// The client ignores that the server's clock may be ahead. So the server's clock can reach the expiry of a lease
    /// too early.
    NoSlack,
    /// If the store has no clock, a client considers another client's lease expired after a third of its duration.
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
