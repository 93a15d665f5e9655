//! Removes obsolete records from a store, a few at a time. `RecordCache::obsolete` decides which records are obsolete.
//!
//! - Every 30 s, each session removes obsolete records that are in its cache.
//! - One session per process also reads a page of the store's records, to find obsolete records of other clients.
//!
//! A removal names the record's version, so it has no effect if another client has changed or removed the record.

use std::time::Duration;

use super::cache::RecordCache;
use super::names::Name;
use crate::protocol::instant::Instant;

/// How often a session removes obsolete records: every 30 s.
const EVERY: Duration = Duration::from_secs(30);

/// The largest number of records that one sweep removes.
const MOST: usize = 16;

/// The number of records in one page of the search for obsolete records.
pub(super) const PAGE: u32 = 64;

/// When a session next removes obsolete records, and which page of the store's records it reads next.
pub(super) struct Sweep {
    at: Instant,
    /// The number of the batch of requests in which the last removal was sent. The next removal keeps every record that
    /// was used in this batch or in a later one.
    since: u64,
    /// The position at which the next page of records begins.
    page: u64,
}

impl Sweep {
    /// Creates the state of a session's removals. The time of the first removal is random, so that it differs between
    /// processes and sessions.
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

    /// The obsolete records to remove now. `at` contains two times. By the first, items expire: it is the earliest
    /// possible time on the store's clock. By the second, fencing counters are judged: it is `StoreTime::removal_date`.
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

    /// Moves the search to the next page. `found` is the number of records on this page. After the last page, the
    /// search begins again.
    pub(super) fn looked(&mut self, found: usize) {
        let more = found >= PAGE as usize;
        self.page = if more { self.page + found as u64 } else { 0 };
    }
}
