//! Faults that a simulation seeds in the driver of stores, to check that they are caught.

use std::cell::Cell;

/// A fault in the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFlaw {
    /// Requests of a lost session are not made harmless.
    Unsoiled,
    /// The server's clock is used without its uncertainty, even for writing leases.
    NoSlack,
    /// With a store without a clock, an observer waits only for a third of a lease.
    EarlyEnd,
}

thread_local! {
    static FLAW: Cell<Option<StoreFlaw>> = const { Cell::new(None) };
}

/// Sets the fault of this thread's drivers, or none.
pub fn set_flaw(flaw: Option<StoreFlaw>) {
    FLAW.set(flaw);
}

/// Whether this thread's drivers have this fault.
pub(super) fn has(flaw: StoreFlaw) -> bool {
    FLAW.get() == Some(flaw)
}
