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
    use crate::node::memory::items::{Item, ItemId, ItemKind};
    use crate::node::store::codec::{Clock, StoredItem};

    #[test]
    fn first_removal_is_due_after_30_s_to_a_minute() {
        let start = Instant::from_nanos(1_000_000_000);
        let second = Duration::from_secs(1);
        for (seed, due_after) in [(0, 30), (500, 45), (1_000, 30), (1_500, 45)] {
            let sweep = Sweep::new(start, seed);
            let due_at = start + due_after * second;
            let just_before = Instant::from_nanos(due_at.as_nanos() - 1);
            assert!(!sweep.is_due(just_before), "{seed}");
            assert!(sweep.is_due(due_at), "{seed}");
        }
        assert!(!Sweep::new(start, 999).is_due(start + 59 * second));
    }

    #[test]
    fn record_that_was_used_after_the_last_removal_is_kept_by_the_next_one() {
        let clock = Clock::Server { slack: 0 };
        let expired = |name: &Name| {
            let item = Item {
                id: ItemId::new(ItemKind::Text, name, b""),
                value: Vec::new(),
                until: Some(1),
            };
            StoredItem::updated(&[], vec![item], 0, clock, &[])
        };
        let (unused, used) = (Name::from(&b"a"[..]), Name::from(&b"b"[..]));
        let mut cache = RecordCache::default();
        for name in [&unused, &used] {
            cache.note_written(name, 7, expired(name));
        }
        cache.start_batch();
        let start = Instant::from_nanos(1_000_000_000);
        let mut sweep = Sweep::new(start, 999);
        assert_eq!(sweep.obsolete(start, (2, None), &cache), []);
        assert!(sweep.is_due(start + INTERVAL), "the next removal");
        assert!(!sweep.is_due(start + INTERVAL / 2), "the next removal");
        cache.note_written(&used, 8, expired(&used));
        assert_eq!(sweep.obsolete(start, (2, None), &cache), [(unused, 7)]);
    }

    #[test]
    fn search_for_obsolete_records_begins_again_after_a_page_that_is_not_full() {
        let mut sweep = Sweep::new(Instant::from_nanos(0), 0);
        let full = PAGE as usize;
        for (record_count, page) in [(full, 64), (full + 1, 129), (full - 1, 0), (full, 64)] {
            sweep.advance_page(record_count);
            assert_eq!(sweep.page(), page);
        }
    }
}
