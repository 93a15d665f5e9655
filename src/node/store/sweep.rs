//! Removing records in which nothing is of use any more, a few at a time.
//!
//! Who has used a record removes it when all in it is over, and nobody has asked for it here for a while; of the others a
//! page is looked at now and then. Each is removed by its version, and holds nothing that the next change of it would
//! not drop: so it does not matter who removes it, when, how often, or whether it is done late.

use std::time::Duration;

use super::names::Name;
use super::shelf::Shelf;
use crate::protocol::instant::Instant;

/// About how often a lane sweeps.
const EVERY: Duration = Duration::from_secs(30);

/// So many records are removed at a time.
const MOST: usize = 16;

/// So many records are looked at besides.
pub(super) const PAGE: u32 = 64;

/// When one lane sweeps, and how far it has come.
pub(super) struct Sweep {
    at: Instant,
    /// The round of the shelf in which it swept last.
    since: u64,
    /// Where the next page begins.
    page: u64,
}

impl Sweep {
    /// Begins at another time in each process, and each lane.
    pub(super) fn new(now: Instant, seed: u64) -> Self {
        Self {
            at: now + EVERY + EVERY.mul_f64((seed % 1_000) as f64 / 1_000.0),
            since: 0,
            page: 0,
        }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.at
    }

    /// What is to be removed now, at a time that the store has certainly reached, and at that date.
    pub(super) fn over(
        &mut self,
        now: Instant,
        at: (u64, Option<u64>),
        shelf: &Shelf,
    ) -> Vec<(Name, u64)> {
        self.at = now + EVERY;
        let over = shelf.over(at, self.since, MOST);
        self.since = shelf.round();
        over
    }

    pub(super) fn page(&self) -> u64 {
        self.page
    }

    /// So many records were on the page.
    pub(super) fn looked(&mut self, found: usize) {
        let more = found >= PAGE as usize;
        self.page = if more { self.page + found as u64 } else { 0 };
    }
}
