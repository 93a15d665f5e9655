//! Removes obsolete records from a store, a few at a time.
//!
//! A client removes a record that it has used when all items in the record have expired and the client has not used the
//! record for a while. Every 30 s it also checks a page of records that it has not used. A removal names the record's
//! version, so it never removes a record that has changed since. Nothing in an obsolete record is needed by a later
//! change. So it does not matter which client removes the record or when, or whether the removal is repeated.

use std::time::Duration;

use super::cache::RecordCache;
use super::names::Name;
use crate::protocol::instant::Instant;

/// The pause between two removals of records by a session: 30 s.
const EVERY: Duration = Duration::from_secs(30);

/// The largest number of records that one sweep removes.
const MOST: usize = 16;

/// The number of records that are checked at a time, most of which this client has not used.
pub(super) const PAGE: u32 = 64;

/// When a session next removes obsolete records, and the position of its search for further obsolete records.
pub(super) struct Sweep {
    at: Instant,
    /// The number of the batch in which records were last removed. Records used in this batch or later are kept.
    since: u64,
    /// The position at which the next page of records begins.
    page: u64,
}

impl Sweep {
    /// Sets the time of the first removal at random, so that it differs between processes and sessions.
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

    /// The obsolete records to remove now. `at` contains a time that the store's clock has certainly reached, and the
    /// date that decides which fencing counters are still needed.
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

    /// Moves the position of the next page forward by `found`, the number of records in the page that was read. After
    /// the last page it returns to the first record.
    pub(super) fn looked(&mut self, found: usize) {
        let more = found >= PAGE as usize;
        self.page = if more { self.page + found as u64 } else { 0 };
    }
}
