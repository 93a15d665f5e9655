//! Removes obsolete records, a few at a time.
//!
//! A client removes records that it has used when all items in them are over and it has not used them for a while. It
//! also checks a page of the other records now and then. A removal names the record's version, and the record holds
//! nothing that its next change would keep. So it does not matter which client removes it, when, how often, or how
//! late.

use std::time::Duration;

use super::cache::RecordCache;
use super::names::Name;
use crate::protocol::instant::Instant;

/// About how often a session removes records.
const EVERY: Duration = Duration::from_secs(30);

/// The number of records that are removed at a time.
const MOST: usize = 16;

/// The number of other records that are checked at a time.
pub(super) const PAGE: u32 = 64;

/// When one session removes records, and how far its scan has come.
pub(super) struct Sweep {
    at: Instant,
    /// The round of the last removal.
    since: u64,
    /// Where the next page begins.
    page: u64,
}

impl Sweep {
    /// Starts at a random time for each process and session.
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

    /// The records to remove now, at a time that the store has certainly reached, and at that date.
    pub(super) fn obsolete(
        &mut self,
        now: Instant,
        at: (u64, Option<u64>),
        cache: &RecordCache,
    ) -> Vec<(Name, u64)> {
        self.at = now + EVERY;
        let obsolete = cache.obsolete(at, self.since, MOST);
        self.since = cache.round();
        obsolete
    }

    pub(super) fn page(&self) -> u64 {
        self.page
    }

    /// Records how many records the page had.
    pub(super) fn looked(&mut self, found: usize) {
        let more = found >= PAGE as usize;
        self.page = if more { self.page + found as u64 } else { 0 };
    }
}
