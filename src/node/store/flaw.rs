//! Bugs that a simulation seeds in the driver of stores, to test that the simulation's checks detect them (feature
//! `seeded-bugs`). No released program may contain this module.

use std::cell::Cell;

/// A bug that a simulation seeds in [`StoreNode`](super::StoreNode), to test that the simulation's checks detect the
/// bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFlaw {
    /// If a session is lost before the store has answered a change, the next session does not give the record a new
    /// version. So the change can still take effect later.
    Unsoiled,
    /// The client ignores how far the server's clock may be ahead of its own estimate. So other clients can consider a
    /// lease expired before it ends for its holder.
    NoSlack,
    /// If the store has no clock, a client considers another client's lease expired after a third of its duration.
    EarlyEnd,
    /// If the store has no clock, a client that reads a lease for the first time believes the age that the store's dates
    /// show, whatever the wall clocks of the clients show.
    StoreAlone,
    /// If the store has no clock, a client that reads a lease for the first time believes the age that the wall clocks
    /// of the clients show, whatever the store's dates show.
    WallAlone,
    /// A client compares dates that different leaders of the store gave.
    AnyEra,
    /// A client that finds a lease of unknown age leaves no note of it in the record.
    NoSightings,
}

/// Every program with this module contains this text, so that a test can search for it in a program.
#[used]
static SEEDED_BUGS_MARK: [u8; 19] = *b"quorate-seeded-bugs";

thread_local! {
    static FLAW: Cell<Option<StoreFlaw>> = const { Cell::new(None) };
}

/// Seeds the bug `flaw` in every [`StoreNode`](super::StoreNode) that runs on this thread; `None` removes the bug.
pub fn set_flaw(flaw: Option<StoreFlaw>) {
    FLAW.set(flaw);
}

/// An age by one clock, in microseconds; `None` if the clock does not show it.
type Age = Option<i64>;

/// The ages of a sighting that a client believes: by the clock of the machine, the clock of the store, and the wall
/// clock. With a seeded bug, the client believes a single clock. `None` if this clock shows no age.
pub(super) fn believed(machine: Age, store: Age, wall: Age) -> Option<(Age, Age, Age)> {
    let alone = if has(StoreFlaw::StoreAlone) {
        store?
    } else if has(StoreFlaw::WallAlone) {
        wall?
    } else {
        return Some((machine, store, wall));
    };
    Some((None, Some(alone), Some(alone)))
}

/// Whether the drivers of this thread have this seeded bug.
pub(super) fn has(flaw: StoreFlaw) -> bool {
    FLAW.get() == Some(flaw)
}
