//! Bugs that a simulation seeds in the driver of stores, to test that the simulation's checks detect them.

use std::cell::Cell;

/// A seeded bug in the driver of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFlaw {
    /// When a session is lost, the records of its unanswered changes are read again but not changed again. So an
    /// unanswered change can still take effect later.
    Unsoiled,
    /// The uncertainty about the server's clock is ignored when leases are written, so a lease can expire too early.
    NoSlack,
    /// At a store without a clock, an observer considers a lease expired after only a third of it.
    EarlyEnd,
}

thread_local! {
    static FLAW: Cell<Option<StoreFlaw>> = const { Cell::new(None) };
}

/// Seeds this bug in all drivers that run on this thread; `None` removes the seeded bug.
pub fn set_flaw(flaw: Option<StoreFlaw>) {
    FLAW.set(flaw);
}

/// Whether the drivers of this thread have this seeded bug.
pub(super) fn has(flaw: StoreFlaw) -> bool {
    FLAW.get() == Some(flaw)
}
