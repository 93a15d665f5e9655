//! The records that one session of a store has cached.

use std::collections::HashMap;

use super::codec::{Moment, StoredItem};
use super::contract::Record;
use super::names::Name;
use crate::node::memory::Master;
use crate::node::memory::items::Item;

/// If the cache has more records than this, it drops the records that the last 64 batches of requests did not use.
const MAX_RECORDS: usize = 16_384;

/// The records of the store that one session has read or written, with their content.
#[derive(Default)]
pub(super) struct RecordCache {
    records: HashMap<Name, CachedRecord>,
    /// The records with an unanswered change. The number is that of the batch that sent the change.
    ///
    /// The change may still take effect later. So the next request for the record first gives it a new version. The old
    /// change then fails, because it expects the earlier version.
    dirty: HashMap<Name, u64>,
    /// The number of the current batch of requests.
    batch_number: u64,
}

struct CachedRecord {
    version: u64,
    stored: Vec<StoredItem>,
    /// The batch in which the record was last read or written.
    used_in: u64,
    /// Whether the record must be read again, because another session may have changed it.
    is_doubtful: bool,
}

impl CachedRecord {
    /// Whether the record is no longer needed at `now`. A record is needed while it contains one of these items:
    ///
    /// - an item that has not expired;
    /// - a hold that expired less than a day ago;
    /// - a fencing counter that is still needed at `date`, in microseconds since 1970. `date` can be from another clock
    ///   than `now`. If it is `None`, fencing counters are treated like other items.
    fn is_expired(&self, now: u64, date: Option<u64>) -> bool {
        let items = || self.stored.iter().map(|stored| &stored.item);
        let is_needed = |item: &Item| date.is_some_and(|date| item.is_counter_needed_at(date));
        if items().any(|item| item.lives(now) || is_needed(item)) {
            return false;
        }
        let mut master = Master::default();
        items().for_each(|item| master.put(item.clone()));
        master.items(now).is_empty()
    }
}

impl RecordCache {
    /// Starts the next batch of requests. No record is fresh until it is read or written in this batch.
    pub(super) fn start_batch(&mut self) {
        self.batch_number += 1;
        if self.records.len() > MAX_RECORDS {
            let since = self.batch_number.saturating_sub(64);
            self.records.retain(|_, cached| cached.used_in >= since);
        }
        if self.dirty.len() > MAX_RECORDS {
            let since = self.batch_number.saturating_sub(MAX_RECORDS as u64);
            self.dirty.retain(|_, batch_number| *batch_number >= since);
        }
    }

    /// The number of the current batch of requests.
    pub(super) fn batch_number(&self) -> u64 {
        self.batch_number
    }

    /// Whether the cache has room for records that no request needs. They are read to find and remove obsolete records.
    pub(super) fn has_room(&self) -> bool {
        self.records.len() < MAX_RECORDS / 2
    }

    /// At most `limit` obsolete records, with their versions. A record is obsolete if all of these conditions are met:
    ///
    /// - [`CachedRecord::is_expired`] returns true for `now` and `date`.
    /// - No request has used it in the batch `since` or in a later batch.
    /// - The cached content is certain: no other session may have changed the record, and every change of it was
    ///   answered.
    pub(super) fn obsolete(
        &self,
        (now, date): (u64, Option<u64>),
        since: u64,
        limit: usize,
    ) -> Vec<(Name, u64)> {
        let obsolete = self.records.iter().filter(|(_, cached)| {
            let is_unused = cached.used_in < since && cached.version > 0 && !cached.is_doubtful;
            is_unused && cached.is_expired(now, date)
        });
        let obsolete = obsolete.filter(|(name, _)| !self.is_dirty(name));
        obsolete
            .map(|(name, cached)| (name.clone(), cached.version))
            .take(limit)
            .collect()
    }

    /// Removes a record from the cache.
    pub(super) fn remove(&mut self, name: &Name) {
        self.records.remove(name);
    }

    /// The versions and the cached items of these records; `None` if at least one of them is not cached or is doubtful.
    pub(super) fn get_all(&self, names: &[Name]) -> Option<Vec<(u64, &[StoredItem])>> {
        let versioned_items = |name: &Name| {
            let cached = self
                .records
                .get(name)
                .filter(|cached| !cached.is_doubtful)?;
            Some((cached.version, &cached.stored[..]))
        };
        names.iter().map(versioned_items).collect()
    }

    /// Whether all of these records were read or written in the current batch.
    pub(super) fn are_fresh(&self, names: &[Name]) -> bool {
        let is_fresh = |name: &Name| {
            let cached = self.records.get(name);
            cached.is_some_and(|cached| cached.used_in == self.batch_number && !cached.is_doubtful)
        };
        names.iter().all(is_fresh)
    }

    /// Whether the record is dirty: the store has not answered a change of it, so this change may still take effect.
    pub(super) fn is_dirty(&self, name: &Name) -> bool {
        self.dirty.contains_key(name)
    }

    /// Marks the record as dirty: the store has not answered a change of it, so the change may take effect at any later
    /// time or never.
    pub(super) fn mark_dirty(&mut self, name: &Name) {
        self.dirty.insert(name.clone(), self.batch_number);
        self.mark_doubtful(name);
    }

    /// Marks the record as doubtful: another session may have changed it, so it must be read again.
    pub(super) fn mark_doubtful(&mut self, name: &Name) {
        if let Some(cached) = self.records.get_mut(name) {
            cached.is_doubtful = true;
        }
    }

    /// Marks all records as doubtful after a restart of the server. If the restart lost changes, later changes may
    /// reuse their versions.
    pub(super) fn mark_all_doubtful(&mut self) {
        for cached in self.records.values_mut() {
            cached.is_doubtful = true;
        }
    }

    /// Stores a record that was read at `at`. Returns `false` if the record was not written by this library, or is
    /// damaged.
    pub(super) fn read(&mut self, name: &Name, record: &Record, at: impl Into<Moment>) -> bool {
        let cached_items = self.records.get(name);
        let cached_items = cached_items.map_or(&[][..], |cached| &cached.stored);
        let Some(stored) = StoredItem::read(&record.state, cached_items, at) else {
            return false;
        };
        self.insert(name, record.version, stored);
        true
    }

    /// Stores a record that was read at `at` without a request for it. The read does not count as a use, so the record
    /// can still become obsolete.
    pub(super) fn read_unrequested(&mut self, name: &Name, record: &Record, at: impl Into<Moment>) {
        let used_in = self.records.get(name).map_or(0, |cached| cached.used_in);
        if self.read(name, record, at)
            && let Some(cached) = self.records.get_mut(name)
        {
            cached.used_in = used_in;
        }
    }

    /// Stores the content of a record after the store has confirmed a change. The change gave the record a new version,
    /// so unanswered older changes can no longer take effect.
    pub(super) fn note_written(&mut self, name: &Name, version: u64, stored: Vec<StoredItem>) {
        self.dirty.remove(name);
        self.insert(name, version, stored);
    }

    fn insert(&mut self, name: &Name, version: u64, stored: Vec<StoredItem>) {
        let cached = CachedRecord {
            version,
            stored,
            used_in: self.batch_number,
            is_doubtful: false,
        };
        self.records.insert(name.clone(), cached);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::memory::items::{ItemId, ItemKind};
    use crate::node::store::codec::Clock;
    use crate::protocol::fencing::COUNTER_TTL_US;

    fn name(number: usize) -> Name {
        number.to_be_bytes().as_slice().into()
    }

    /// The content of a record that contains only one lock key. The lock key expires at `until`.
    fn lease(until: u64) -> Vec<StoredItem> {
        let item = Item {
            id: ItemId::new(ItemKind::Text, b"nightly", b""),
            value: b"x".to_vec(),
            until: Some(until),
        };
        StoredItem::updated(&[], vec![item], 0, Clock::Server { slack: 0 }, &[])
    }

    fn start_batches(cache: &mut RecordCache, count: u64) {
        (0..count).for_each(|_| cache.start_batch());
    }

    #[test]
    fn overfull_record_cache_drops_records_unused_for_more_than_64_batches() {
        let mut cache = RecordCache::default();
        let (old, recent) = (name(1), name(2));
        cache.note_written(&old, 1, lease(1));
        cache.start_batch();
        cache.note_written(&recent, 1, lease(1));
        start_batches(&mut cache, 63);
        for number in 3..=MAX_RECORDS {
            cache.note_written(&name(number), 1, lease(1));
        }
        let has_record = |cache: &RecordCache, name: &Name| cache.records.contains_key(name);
        cache.start_batch();
        assert!(
            has_record(&cache, &old),
            "a cache within its limit must keep old records"
        );
        // With this record, the cache is above its limit. `recent` was used in the last 64 batches; `old` was not.
        cache.note_written(&name(MAX_RECORDS + 1), 1, lease(1));
        for name in [&old, &recent] {
            let cached = cache.records.get_mut(name);
            cached.expect("the record must be cached").used_in += 1;
        }
        cache.start_batch();
        assert!(!has_record(&cache, &old));
        assert!(has_record(&cache, &recent));
        assert_eq!(cache.records.len(), MAX_RECORDS);
    }

    #[test]
    fn overfull_record_cache_forgets_which_old_records_are_dirty() {
        let mut cache = RecordCache::default();
        let (old, recent) = (name(1), name(2));
        cache.start_batch();
        cache.mark_dirty(&old);
        cache.start_batch();
        cache.mark_dirty(&recent);
        start_batches(&mut cache, MAX_RECORDS as u64 - 1);
        for number in 3..=MAX_RECORDS {
            cache.mark_dirty(&name(number));
        }
        cache.start_batch();
        assert!(
            cache.is_dirty(&old),
            "a cache within its limit must not forget that an old record is dirty"
        );
        cache.dirty.insert(recent.clone(), 3);
        cache.mark_dirty(&name(MAX_RECORDS + 1));
        cache.start_batch();
        assert_eq!(cache.batch_number(), MAX_RECORDS as u64 + 3);
        assert!(!cache.is_dirty(&old));
        assert!(cache.is_dirty(&recent));
    }

    #[test]
    fn record_with_an_unanswered_change_is_read_again_and_is_dirty_until_a_later_change_is_confirmed()
     {
        let mut cache = RecordCache::default();
        let names = [name(1)];
        cache.start_batch();
        cache.note_written(&names[0], 1, lease(1_000));
        assert!(cache.get_all(&names).is_some() && !cache.is_dirty(&names[0]));
        cache.mark_dirty(&names[0]);
        assert!(cache.is_dirty(&names[0]));
        assert!(
            cache.get_all(&names).is_none() && !cache.are_fresh(&names),
            "the cached content must not be used: the change may have taken effect"
        );
        let record = Record::new(1, StoredItem::write(&lease(1_000)));
        assert!(cache.read(&names[0], &record, 0));
        assert!(
            cache.get_all(&names).is_some() && cache.is_dirty(&names[0]),
            "a read does not show that the change cannot take effect any more"
        );
        cache.note_written(&names[0], 2, lease(1_000));
        assert!(!cache.is_dirty(&names[0]));
    }

    #[test]
    fn record_is_obsolete_only_if_it_expired_and_was_not_requested_recently() {
        let mut cache = RecordCache::default();
        let names: Vec<Name> = (0..6).map(name).collect();
        let [expired, unexpired, dirty, doubtful, missing, requested] = &names[..] else {
            unreachable!()
        };
        cache.note_written(expired, 1, lease(1_000));
        cache.note_written(unexpired, 7, lease(3_000));
        cache.note_written(dirty, 7, lease(1_000));
        cache.mark_dirty(dirty);
        cache
            .records
            .get_mut(dirty)
            .expect("the record must be cached")
            .is_doubtful = false;
        cache.note_written(doubtful, 7, lease(1_000));
        cache.mark_doubtful(doubtful);
        cache.note_written(missing, 0, Vec::new());
        cache.start_batch();
        let since = cache.batch_number();
        cache.note_written(requested, 7, lease(1_000));
        assert_eq!(
            cache.obsolete((2_000, None), since, 9),
            [(expired.clone(), 1)]
        );
        assert_eq!(cache.obsolete((2_000, None), since, 0), []);
        assert_eq!(
            cache.obsolete((999, None), since, 9),
            [],
            "a record must be kept until its item has expired"
        );
        assert_eq!(cache.obsolete((2_000, None), since + 1, 9).len(), 2);
    }

    #[test]
    fn cached_records_are_fresh_only_in_the_batch_that_read_or_wrote_them() {
        let mut cache = RecordCache::default();
        let names = [name(1), name(2)];
        cache.note_written(&names[0], 1, lease(1));
        assert!(
            !cache.are_fresh(&names),
            "are_fresh() must be false if one of the records is not cached"
        );
        assert!(cache.get_all(&names).is_none());
        cache.note_written(&names[1], 1, lease(1));
        assert!(cache.are_fresh(&names) && cache.get_all(&names).is_some());
        cache.mark_doubtful(&names[1]);
        assert!(!cache.are_fresh(&names) && cache.get_all(&names).is_none());
        cache.note_written(&names[1], 2, lease(1));
        cache.start_batch();
        assert!(
            !cache.are_fresh(&names),
            "are_fresh() must be false for records that were last read in an earlier batch"
        );
        assert!(
            cache.get_all(&names).is_some(),
            "records of an earlier batch must stay in the cache"
        );
        cache.mark_all_doubtful();
        assert!(cache.get_all(&names[..1]).is_none());
    }

    #[test]
    fn record_read_without_a_request_does_not_count_as_used() {
        let mut cache = RecordCache::default();
        let (first, second) = (name(1), name(2));
        let state = StoredItem::write(&lease(1_000));
        let record = Record::new(7, state);
        assert!(cache.read(&first, &record, 0));
        start_batches(&mut cache, 5);
        cache.read_unrequested(&first, &record, 0);
        cache.read_unrequested(&second, &record, 0);
        let mut expired = cache.obsolete((2_000, None), 1, 9);
        expired.sort();
        assert_eq!(expired, [(first.clone(), 7), (second, 7)]);
        let state = b"\x09junk".to_vec();
        let foreign = Record::new(8, state);
        assert!(
            !cache.read(&first, &foreign, 0),
            "a record that quorate did not write must be refused"
        );
    }

    #[test]
    fn unrequested_records_fill_at_most_half_of_the_cache() {
        let mut cache = RecordCache::default();
        for number in 1..MAX_RECORDS / 2 {
            cache.note_written(&name(number), 1, Vec::new());
        }
        assert!(cache.has_room());
        cache.note_written(&name(0), 1, Vec::new());
        assert!(!cache.has_room());
    }

    #[test]
    fn record_of_a_hold_is_obsolete_one_day_after_the_hold_expires() {
        let expired_at = 1_000_000;
        let item = Item {
            id: ItemId::new(ItemKind::Hold, b"nightly", &[b'a'; 32]),
            value: Vec::new(),
            until: Some(expired_at),
        };
        let stored = StoredItem::updated(&[], vec![item], 0, Clock::Server { slack: 0 }, &[]);
        let mut cache = RecordCache::default();
        cache.note_written(&name(1), 7, stored);
        let day_later = expired_at + COUNTER_TTL_US;
        assert_eq!(cache.obsolete((day_later - 1, None), 1, 9), []);
        assert_eq!(cache.obsolete((day_later, None), 1, 9), [(name(1), 7)]);
    }

    #[test]
    fn record_of_one_observer_is_obsolete_when_the_observer_expires() {
        let item = Item {
            id: ItemId::new(ItemKind::Watcher, b"boss", b"0123456789abcdef"),
            value: Vec::new(),
            until: Some(1_000),
        };
        let stored = StoredItem::updated(&[], vec![item], 0, Clock::Server { slack: 0 }, &[]);
        let mut cache = RecordCache::default();
        cache.note_written(&name(1), 7, stored);
        assert_eq!(cache.obsolete((999, None), 1, 9), []);
        assert_eq!(cache.obsolete((1_000, None), 1, 9), [(name(1), 7)]);
    }
}
