//! What a simulation breaks in the driver of stores, to see that it would be caught.

use std::cell::Cell;

/// What is wrong with the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFlaw {
    /// What a lost session may still do is not made harmless.
    Unsoiled,
    /// The server's clock is taken for what it certainly shows, also where leases are written by it.
    NoSlack,
    /// Of a lease at a store without a clock, an observer waits for a third only.
    EarlyEnd,
}

thread_local! {
    static FLAW: Cell<Option<StoreFlaw>> = const { Cell::new(None) };
}

/// From now on the drivers of this thread have that flaw, or none.
pub fn set_flaw(flaw: Option<StoreFlaw>) {
    FLAW.set(flaw);
}

/// Whether they have this one.
pub(super) fn has(flaw: StoreFlaw) -> bool {
    FLAW.get() == Some(flaw)
}
