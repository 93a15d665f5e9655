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
const INTERVAL: Duration = Duration::from_secs(30);

/// The largest number of records that one sweep removes.
const MAX_REMOVALS: usize = 16;

/// The number of records in one page of the search for obsolete records.
pub(super) const PAGE: u32 = 64;

/// When a session next removes obsolete records, and which page of the store's records it reads next.
pub(super) struct Sweep {
    next_at: Instant,
    /// The number of the batch of requests in which the last removal was sent. The next removal keeps every record that
    /// was used in this batch or in a later one.
    last_batch: u64,
    /// The position at which the next page of records begins.
    page: u64,
}

impl Sweep {
    /// Creates the state of a session's removals. The time of the first removal is random, so that it differs between
    /// processes and sessions.
    pub(super) fn new(now: Instant, seed: u64) -> Self {
        Self {
            next_at: now + INTERVAL + INTERVAL.mul_f64((seed % 1_000) as f64 / 1_000.0),
            last_batch: 0,
            page: 0,
        }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next_at
    }

    /// The obsolete records to remove now. `times` contains two times. By the first, items expire: it is the earliest
    /// possible time on the store's clock. By the second, fencing counters are judged: it is `StoreTime::removal_date`.
    pub(super) fn obsolete(
        &mut self,
        now: Instant,
        times: (u64, Option<u64>),
        cache: &RecordCache,
    ) -> Vec<(Name, u64)> {
        self.next_at = now + INTERVAL;
        let obsolete = cache.obsolete(times, self.last_batch, MAX_REMOVALS);
        self.last_batch = cache.batch_number();
        obsolete
    }

    pub(super) fn page(&self) -> u64 {
        self.page
    }

    /// Moves the search to the next page. `record_count` is the number of records on this page. After the last page,
    /// the search begins again.
    pub(super) fn advance_page(&mut self, record_count: usize) {
        let has_more = record_count >= PAGE as usize;
        self.page = if has_more {
            self.page + record_count as u64
        } else {
            0
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_removal_is_due_after_30_s_to_a_minute() {
        let start = Instant::from_nanos(1_000_000_000);
        let second = Duration::from_secs(1);
        for seed in [0, 1, 500, 999] {
            let sweep = Sweep::new(start, seed);
            assert!(!sweep.is_due(start + 29 * second), "{seed}");
            assert!(sweep.is_due(start + 60 * second), "{seed}");
        }
    }
}
