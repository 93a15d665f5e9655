//! The content of a record: items with their expiry times, encoded as bytes.
//!
//! - If the store has a clock, each item has an expiry time on that clock.
//! - Otherwise each item has a duration, and a stamp that is different at each write. The holder counts the duration
//!   from the moment before its request. Every other client counts from its first read of the stamp, and adds a margin.
//!   The item also has [sightings](super::age). If they show how old the item was at the first read, the client
//!   subtracts this age.
//!
//! So the holder's lease ends before any other client considers the item expired.

use super::age::{self, Reading, Sighting};
use super::micros::{LATEST, read_number};
use super::names::Name;
use crate::node::memory::items::{Item, ItemId, ItemKind};

/// The first byte of every encoded record: the version of the format.
const FORMAT: u8 = 1;

/// An item of a record, together with its expiry as the record stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredItem {
    pub(super) item: Item,
    expiry: Expiry,
    /// Whether this client knows that no other client considers the item expired before `item.until`.
    ///
    /// False if another client wrote the item to a store without a clock. A third client may have read it earlier than
    /// this client, and then counts its lifetime from that earlier time.
    is_certain: bool,
    /// The times on several clocks when a client wrote or found the item. Empty if the store has a clock.
    sightings: Vec<Sighting>,
}

/// A lease that an answer grants or extends. No client may consider the lease expired before `until`.
pub(super) struct PromisedLease {
    pub(super) key: Name,
    pub(super) value: [u8; 32],
    pub(super) until: u64,
    pub(super) since: Since,
}

/// The time from which the duration of a promised lease is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Since {
    /// The first grant of the lock to this claim. If the acquire is repeated and granted again, the lease does not
    /// become longer.
    Before,
    /// The first grant of this hold, on a lock key that several holds can share.
    Joined,
    /// Now, because the lease is extended.
    Extended,
}

impl PromisedLease {
    /// Whether `item` stores this lease. The item is the lock key, or this hold's entry in the list of holds.
    fn is_stored_in(&self, item: &Item) -> bool {
        let ItemId { kind, key, member } = &item.id;
        let is_on_key = **key == *self.key;
        is_on_key && (*kind == ItemKind::Text || *kind == ItemKind::Hold && **member == self.value)
    }
}

/// When an item expires, as stored in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expiry {
    Always,
    /// The item expires at this time on the server's clock, in microseconds.
    Until(u64),
    /// For a store without a clock: the item expires `lifetime` microseconds after the write with this `stamp`. Each
    /// write has a different stamp.
    For {
        stamp: u64,
        lifetime: u64,
    },
}

/// The clock on which the items of a store expire.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clock {
    /// The server's clock. It is at most `slack` microseconds ahead of the time that this client assumes.
    Server { slack: u64 },
    /// The clock of this client's process, for a store without a clock. A write stores `stamp` with each item, and the
    /// time on each clock.
    Own {
        stamp: u64,
        reading: Option<Reading>,
    },
}

/// The moment at which a client reads a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// The time by which items expire, in microseconds: the latest possible time on the store's clock, or the time of
    /// this process if the store has no clock.
    pub(super) now: u64,
    /// The times on several clocks; `None` if the store has a clock.
    pub(super) reading: Option<Reading>,
}

impl From<u64> for Moment {
    fn from(now: u64) -> Self {
        let reading = None;
        Self { now, reading }
    }
}

/// Returns how long a client that reads a lease waits before it considers the lease expired: the duration `lifetime`
/// plus 1 % plus 2 ms. All times are in microseconds.
fn reader_lifetime(lifetime: u64) -> u64 {
    lifetime + lifetime / 100 + 2_000
}

/// Masters keep the expiry of a queue, of a place in a queue, and of a hold in milliseconds. For these, rounds `until`
/// up to a multiple of 1 ms. Returns other expiries unchanged. `until` is in microseconds.
fn round_to_ms(kind: ItemKind, until: u64) -> u64 {
    match kind {
        ItemKind::Text | ItemKind::Foreign | ItemKind::Watcher => until,
        ItemKind::Queue | ItemKind::Place | ItemKind::Hold => until.div_ceil(1000) * 1000,
    }
}

impl StoredItem {
    /// Decodes the record `state`, which was read at the time `at`. `known` are the items that this client last read
    /// from the record or wrote to it. Returns `None` if the record was not written by this library, or is damaged.
    pub(super) fn read(
        state: &[u8],
        known_items: &[Self],
        at: impl Into<Moment>,
    ) -> Option<Vec<Self>> {
        let at = at.into();
        let mut rest = match state.split_first() {
            None => return Some(Vec::new()),
            Some((&FORMAT, rest)) => rest,
            Some(_) => return None,
        };
        let mut items = Vec::new();
        while !rest.is_empty() {
            let mut stored = Self::read_item(&mut rest)?;
            if let Expiry::For { lifetime, .. } = stored.expiry {
                let known_item = known_items.iter().find(|known| {
                    known.item.id == stored.item.id
                        && known.item.value == stored.item.value
                        && known.expiry == stored.expiry
                });
                stored.is_certain = known_item.is_some_and(|known| known.is_certain);
                let until = known_item.and_then(|known| known.item.until);
                let from_now =
                    || round_to_ms(stored.item.id.kind, at.now + reader_lifetime(lifetime));
                let until = until.unwrap_or_else(from_now);
                let by_age = stored
                    .until_by_age(lifetime, at)
                    .filter(|_| !stored.is_certain);
                stored.item.until = Some(by_age.map_or(until, |by_age| by_age.min(until)));
            }
            items.push(stored);
        }
        Some(items)
    }

    /// When this item expires by its age, if its sightings show it. It was read at the time `at`.
    ///
    /// `None` for fencing counters. A client removes a counter only after it has seen the counter for a day.
    fn until_by_age(&self, lifetime: u64, at: Moment) -> Option<u64> {
        if self.item.is_counter() {
            return None;
        }
        let age = age::age(&self.sightings, &at.reading?)?;
        let remaining = (reader_lifetime(lifetime) + age::AGE_MARGIN).saturating_sub(age);
        // `round_to_ms` rounds up by less than 1 ms. An expired item must not seem to live for this time.
        let until = if remaining == 0 {
            at.now.saturating_sub(1_000)
        } else {
            at.now + remaining
        };
        Some(round_to_ms(self.item.id.kind, until))
    }

    /// Adds a sighting of this item, if another client wrote the item and its age is unknown.
    pub(super) fn add_sighting(&mut self, now: &Reading) {
        let expires_by_age = !self.item.is_counter() && matches!(self.expiry, Expiry::For { .. });
        if !self.is_certain && expires_by_age {
            age::add_sighting(&mut self.sightings, now);
        }
    }

    fn read_item(rest: &mut &[u8]) -> Option<Self> {
        let (&kind, remaining) = rest.split_first()?;
        *rest = remaining;
        let (key, member, value) = (read_bytes(rest)?, read_bytes(rest)?, read_bytes(rest)?);
        let (&expiry_code, remaining) = rest.split_first()?;
        *rest = remaining;
        let expiry = match expiry_code {
            0 => Expiry::Always,
            1 => Expiry::Until(read_time(rest)?),
            2 | 3 => Expiry::For {
                stamp: read_number(rest)?,
                lifetime: read_time(rest)?,
            },
            _ => return None,
        };
        let sightings = if expiry_code == 3 {
            age::read_sightings(rest)?
        } else {
            Vec::new()
        };
        let until = match expiry {
            Expiry::Until(until) => Some(until),
            Expiry::Always | Expiry::For { .. } => None,
        };
        let id = ItemId::new(kind_of(kind)?, &key, &member);
        let item = Item { id, value, until };
        let is_certain = !matches!(expiry, Expiry::For { .. });
        Some(Self {
            item,
            expiry,
            is_certain,
            sightings,
        })
    }

    /// Returns the new content of a record: `items`, written at the time `now`. `before` is the old content.
    ///
    /// An unchanged item keeps its stored expiry, unless a new or extended lease in `promised` ends later.
    pub(super) fn updated(
        before: &[Self],
        items: Vec<Item>,
        now: u64,
        clock: Clock,
        promised: &[PromisedLease],
    ) -> Vec<Self> {
        let update_item = |item: Item| {
            let Some(known) = before.iter().find(|known| known.item == item) else {
                return Self::new(item, now, clock);
            };
            let leases = promised.iter().filter(|lease| lease.is_stored_in(&item));
            let counts_from_now = |lease: &PromisedLease| match lease.since {
                Since::Before => false,
                Since::Joined => !before.iter().any(|known| known.is_hold_of(lease, now)),
                Since::Extended => true,
            };
            let latest = leases
                .filter(|lease| counts_from_now(lease))
                .max_by_key(|lease| lease.until);
            latest.map_or_else(
                || known.clone(),
                |latest| known.with_lease(now, latest, clock),
            )
        };
        let mut stored_items: Vec<Self> = items.into_iter().map(update_item).collect();
        stored_items.sort_unstable_by(|a, b| a.item.id.cmp(&b.item.id));
        stored_items
    }

    /// Whether this item is the unexpired entry of the hold that has the lease `promised`.
    fn is_hold_of(&self, promised: &PromisedLease, now: u64) -> bool {
        self.item.id.kind == ItemKind::Hold
            && promised.is_stored_in(&self.item)
            && self.item.lives(now)
    }

    /// Returns this item with an expiry that is late enough for the lease `last`: no client considers the item expired
    /// before the lease ends.
    fn with_lease(&self, now: u64, lease: &PromisedLease, clock: Clock) -> Self {
        let until = lease.until;
        let until = match (self.expiry, clock) {
            // The server's clock may be `slack` ahead of `now`, so the item must expire `slack` after the lease.
            (Expiry::Until(stored), Clock::Server { slack }) if stored < until + slack => until,
            // Another client may have read this stamp earlier, and count `lifetime` from then. So write a new stamp.
            (Expiry::For { lifetime, .. }, _) if !self.is_certain => until.max(now + lifetime),
            _ => return self.clone(),
        };
        let (item, until) = (self.item.clone(), Some(until));
        Self::new(Item { until, ..item }, now, clock)
    }

    fn new(mut item: Item, now: u64, clock: Clock) -> Self {
        let mut sightings = Vec::new();
        let expiry = match (item.until, clock) {
            (None, _) => Expiry::Always,
            (Some(until), Clock::Server { slack }) => {
                let until = round_to_ms(item.id.kind, until + slack);
                item.until = Some(until);
                Expiry::Until(until)
            }
            (Some(until), Clock::Own { stamp, reading }) => {
                if !item.is_counter() {
                    sightings.extend(reading.map(|reading| reading.sighting()));
                }
                let lifetime = until.saturating_sub(now);
                // This process considers the item expired at `until`; all others do so a little later (`seen`).
                item.until = Some(round_to_ms(item.id.kind, until));
                Expiry::For { stamp, lifetime }
            }
        };
        let is_certain = true;
        Self {
            item,
            expiry,
            is_certain,
            sightings,
        }
    }

    /// Encodes the items of a record as the bytes that the store keeps.
    pub(super) fn write(stored_items: &[Self]) -> Vec<u8> {
        let mut state = vec![FORMAT];
        for stored in stored_items {
            let Item { id, value, .. } = &stored.item;
            state.push(id.kind as u8);
            for part in [&id.key, &id.member, value] {
                state.extend((part.len() as u32).to_be_bytes());
                state.extend(part);
            }
            match stored.expiry {
                Expiry::Always => state.push(0),
                Expiry::Until(until) => {
                    state.push(1);
                    state.extend(until.to_be_bytes());
                }
                Expiry::For { stamp, lifetime } => {
                    let has_sightings = !stored.sightings.is_empty();
                    state.push(if has_sightings { 3 } else { 2 });
                    state.extend(stamp.to_be_bytes());
                    state.extend(lifetime.to_be_bytes());
                    if has_sightings {
                        age::write_sightings(&stored.sightings, &mut state);
                    }
                }
            }
        }
        state
    }
}

/// Reads a time. Returns `None` if the time is so large that additions could overflow.
fn read_time(rest: &mut &[u8]) -> Option<u64> {
    read_number(rest).filter(|time| *time <= LATEST)
}

fn read_bytes(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let (length, remaining) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (bytes, remaining) = remaining.split_at_checked(length)?;
    *rest = remaining;
    Some(bytes.to_vec())
}

fn kind_of(byte: u8) -> Option<ItemKind> {
    let kinds = [
        ItemKind::Text,
        ItemKind::Foreign,
        ItemKind::Queue,
        ItemKind::Place,
        ItemKind::Hold,
        ItemKind::Watcher,
    ];
    kinds.into_iter().find(|kind| *kind as u8 == byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: [u8; 32] = [b'a'; 32];

    fn lease_item(until: u64) -> Item {
        Item {
            id: ItemId::new(ItemKind::Text, b"r0", b""),
            value: VALUE.to_vec(),
            until: Some(until),
        }
    }

    fn extended_lease(until: u64) -> PromisedLease {
        PromisedLease {
            key: b"r0"[..].into(),
            value: VALUE,
            until,
            since: Since::Extended,
        }
    }

    #[test]
    fn record_with_a_time_beyond_the_maximum_is_not_decoded() {
        for (expiry_code, time) in [(1, 1 << 60), (2, 1 << 60), (1, u64::MAX), (2, u64::MAX)] {
            let mut state = vec![FORMAT, ItemKind::Text as u8];
            state.extend([0; 12]);
            state.push(expiry_code);
            state.extend(if expiry_code == 2 { &[7; 8][..] } else { &[] });
            state.extend(u64::to_be_bytes(time));
            let read_items = StoredItem::read(&state, &[], LATEST);
            assert_eq!(
                read_items.is_some(),
                time < u64::MAX,
                "{expiry_code} {time}"
            );
        }
    }

    #[test]
    fn stored_expiry_is_never_earlier_than_the_promised_lease_end_plus_clock_slack() {
        let slack = 300_000;
        let stored = StoredItem::new(lease_item(4_000_000), 0, Clock::Server { slack: 0 });
        let updated_until = |until: u64, slack: u64| {
            let items = vec![stored.item.clone()];
            let clock = Clock::Server { slack };
            let before = std::slice::from_ref(&stored);
            StoredItem::updated(before, items, 0, clock, &[extended_lease(until)])[0]
                .item
                .until
        };
        assert_eq!(
            updated_until(3_700_000, slack),
            Some(4_000_000),
            "a stored expiry must not change if it covers the promised lease and the clock slack"
        );
        assert_eq!(updated_until(4_000_000, slack), Some(4_300_000));
        assert_eq!(
            updated_until(4_000_000, 0),
            Some(4_000_000),
            "without clock slack, a stored expiry at the end of the promised lease must not change"
        );
        let repeated_lease = PromisedLease {
            since: Since::Before,
            ..extended_lease(60_000_000)
        };
        let clock = Clock::Server { slack };
        let repeated_grant = StoredItem::updated(
            std::slice::from_ref(&stored),
            vec![stored.item.clone()],
            0,
            clock,
            &[repeated_lease],
        );
        assert_eq!(
            repeated_grant[0].item.until,
            Some(4_000_000),
            "a repeated grant must not change the expiry that the first grant stored"
        );
    }

    /// A repeated acquire of a shared lock answers as the first one did, so it must not move the end of the lock. Only the
    /// unexpired entry of the same hold shows that the acquire is a repetition.
    #[test]
    fn only_an_unexpired_hold_of_the_same_value_makes_a_join_of_a_shared_lock_a_repetition() {
        let (now, stored_until, until) = (1_000_000, 4_000_000, 60_000_000);
        let clock = Clock::Server { slack: 0 };
        let stored = |item: Item| StoredItem::new(item, 0, clock);
        let hold = |value: &[u8], until: u64| {
            stored(Item {
                id: ItemId::new(ItemKind::Hold, b"r0", value),
                value: Vec::new(),
                until: Some(until),
            })
        };
        let joined = PromisedLease {
            since: Since::Joined,
            ..extended_lease(until)
        };
        let lock_key_until = |other: Option<StoredItem>| {
            let lock_key = lease_item(stored_until);
            let mut before = vec![stored(lock_key.clone())];
            before.extend(other);
            let updated = StoredItem::updated(
                &before,
                vec![lock_key],
                now,
                clock,
                std::slice::from_ref(&joined),
            );
            updated[0].item.until
        };
        assert_eq!(
            lock_key_until(Some(hold(&VALUE, 3_000_000))),
            Some(stored_until)
        );
        assert_eq!(
            lock_key_until(Some(hold(&VALUE, now + 1_000))),
            Some(stored_until)
        );
        let not_repetitions = [
            ("no hold", None),
            ("an expired hold", Some(hold(&VALUE, now))),
            ("another hold", Some(hold(&[b'b'; 32], 3_000_000))),
        ];
        for (description, other) in not_repetitions {
            assert_eq!(lock_key_until(other), Some(until), "{description}");
        }
    }

    #[test]
    fn only_a_lease_that_another_client_wrote_without_a_server_clock_gets_sightings() {
        let reading = Reading {
            wall: 1_000_000,
            machine: Some((7, 1_000_000)),
            store: None,
        };
        let own_clock = own_clock(7);
        let stored_with = |clock| StoredItem::new(lease_item(500_000), 0, clock);
        let sightings_of = |stored: StoredItem, is_certain: bool| {
            let mut stored = StoredItem {
                is_certain,
                ..stored
            };
            stored.add_sighting(&reading);
            stored.sightings.len()
        };
        let mut counter = stored_with(own_clock);
        counter.item.id = ItemId::new(ItemKind::Text, b"quorate:fence:r0", b"");
        assert_eq!(sightings_of(stored_with(own_clock), false), 1);
        assert_eq!(sightings_of(stored_with(own_clock), true), 0);
        assert_eq!(sightings_of(counter, false), 0);
        let server_clock = Clock::Server { slack: 0 };
        assert_eq!(sightings_of(stored_with(server_clock), false), 0);
    }

    /// The clock of a client whose store has no clock. Its next write has this stamp.
    fn own_clock(stamp: u64) -> Clock {
        Clock::Own {
            stamp,
            reading: None,
        }
    }

    /// How long the lease lasts that another client wrote, and the time at which this client reads it.
    const LIFETIME: u64 = 500_000;
    const READ_AT: u64 = 400_000;

    /// The record of another client in a store without a clock, as this client reads it at [`READ_AT`].
    fn read_from_another_client() -> (Vec<u8>, Vec<StoredItem>) {
        let written_item = StoredItem::new(lease_item(LIFETIME), 0, own_clock(7));
        let state = StoredItem::write(&[written_item]);
        let read = StoredItem::read(&state, &[], READ_AT).expect("the record must be decoded");
        (state, read)
    }

    /// The content of an unchanged record after this lease was promised at [`READ_AT`].
    fn with_promise(
        before: &[StoredItem],
        stamp: u64,
        promised: Option<PromisedLease>,
    ) -> Vec<StoredItem> {
        let items = before.iter().map(|stored| stored.item.clone()).collect();
        let promised = Vec::from_iter(promised);
        StoredItem::updated(before, items, READ_AT, own_clock(stamp), &promised)
    }

    /// If the stamp stayed the same, a client that read it earlier would consider the lease expired too early.
    #[test]
    fn extension_of_a_record_written_by_another_client_stores_a_new_write_stamp() {
        let (state, first_read) = read_from_another_client();
        assert_eq!(
            first_read[0].item.until,
            Some(READ_AT + LIFETIME + LIFETIME / 100 + 2_000),
            "a lease that was just read must last for its whole ttl, plus drift and rounding, on the clock of this client"
        );
        let unchanged = with_promise(&first_read, 8, None);
        assert_eq!(
            StoredItem::write(&unchanged),
            state,
            "the record must not change if no lease was promised"
        );
        let extended = with_promise(&first_read, 8, Some(extended_lease(READ_AT + LIFETIME)));
        assert_ne!(StoredItem::write(&extended), state);
        let reread = StoredItem::read(&StoredItem::write(&extended), &extended, READ_AT)
            .expect("the record must be decoded");
        let extended_again = with_promise(&reread, 9, Some(extended_lease(READ_AT + LIFETIME)));
        assert_eq!(
            extended_again, reread,
            "an extension to the same end must not change a record that this client wrote"
        );
    }

    #[test]
    fn lease_is_stored_in_the_lock_key_and_in_the_entry_of_its_hold() {
        let other = [b'b'; 32];
        for (kind, key, member, is_stored) in [
            (ItemKind::Text, b"r0", &b""[..], true),
            (ItemKind::Text, b"r1", b"", false),
            (ItemKind::Hold, b"r0", &VALUE, true),
            (ItemKind::Hold, b"r0", &other, false),
            (ItemKind::Place, b"r0", &VALUE, false),
            (ItemKind::Watcher, b"r0", &VALUE, false),
        ] {
            let item = Item {
                id: ItemId::new(kind, key, member),
                ..lease_item(1)
            };
            let is_found = extended_lease(1).is_stored_in(&item);
            assert_eq!(is_found, is_stored, "{:?}", item.id);
        }
    }

    #[test]
    fn only_an_item_that_was_not_written_again_keeps_the_expiry_that_this_client_knows() {
        let known = [StoredItem::new(lease_item(LIFETIME), 0, own_clock(7))];
        let expiry_of = |key: &[u8], value: &[u8], stamp: u64| {
            let item = Item {
                id: ItemId::new(ItemKind::Text, key, b""),
                value: value.to_vec(),
                until: Some(LIFETIME),
            };
            let state = StoredItem::write(&[StoredItem::new(item, 0, own_clock(stamp))]);
            let read = StoredItem::read(&state, &known, READ_AT);
            let read = read.expect("the record must be decoded");
            (read[0].item.until, read[0].is_certain)
        };
        assert_eq!(expiry_of(b"r0", &VALUE, 7), (Some(LIFETIME), true));
        let from_now = (Some(READ_AT + reader_lifetime(LIFETIME)), false);
        assert_eq!(expiry_of(b"r1", &VALUE, 7), from_now, "another key");
        assert_eq!(expiry_of(b"r0", b"b", 7), from_now, "another value");
        assert_eq!(expiry_of(b"r0", &VALUE, 8), from_now, "another write");
        // A second read does not show whether a third client has read the item earlier.
        let (state, first_read) = read_from_another_client();
        let second_read = StoredItem::read(&state, &first_read, READ_AT + 1_000);
        assert_eq!(second_read, Some(first_read));
    }

    /// The clocks of a client at this time, in microseconds after the first write of these tests.
    fn reading_at(time: u64) -> Reading {
        let shown = 1_000_000_000 + time;
        Reading {
            wall: shown,
            machine: Some((7, shown)),
            store: None,
        }
    }

    #[test]
    fn age_of_a_lease_ends_it_earlier_but_only_for_clients_that_did_not_write_it() {
        let clock = Clock::Own {
            stamp: 7,
            reading: Some(reading_at(0)),
        };
        let written = StoredItem::new(lease_item(LIFETIME), 0, clock);
        let counter = StoredItem {
            item: Item {
                id: ItemId::new(ItemKind::Text, b"quorate:fence:r0", b""),
                ..lease_item(LIFETIME)
            },
            ..written.clone()
        };
        let until = |stored: &StoredItem, known: &[StoredItem], now: u64, age: u64| {
            let state = StoredItem::write(std::slice::from_ref(stored));
            let reading = Some(reading_at(age));
            let read = StoredItem::read(&state, known, Moment { now, reading });
            read.expect("the record must be decoded")[0].item.until
        };
        let from_now = Some(READ_AT + reader_lifetime(LIFETIME));
        assert_eq!(until(&written, &[], READ_AT, 0), from_now);
        let by_age = READ_AT + reader_lifetime(LIFETIME) + age::AGE_MARGIN - 1_000_000;
        assert_eq!(until(&written, &[], READ_AT, 1_000_000), Some(by_age));
        assert!(until(&written, &[], READ_AT, 2_000_000) < Some(READ_AT));
        assert_eq!(until(&counter, &[], READ_AT, 1_000_000), from_now);
        let own = std::slice::from_ref(&written);
        assert!(by_age < LIFETIME);
        assert_eq!(until(&written, own, READ_AT, 1_000_000), Some(LIFETIME));
        // The first read was without the clocks. By the age, the lease would end later.
        let state = StoredItem::write(own);
        let first_read = StoredItem::read(&state, &[], READ_AT);
        let first_read = first_read.expect("the record must be decoded");
        let second_read_at = READ_AT + 300_000;
        assert_eq!(until(&written, &first_read, second_read_at, 100), from_now);
    }

    #[test]
    fn lease_that_another_client_wrote_is_never_shortened_and_not_changed_by_a_repeated_grant() {
        let (state, first_read) = read_from_another_client();
        let shorter = extended_lease(READ_AT + LIFETIME / 2);
        let extended = with_promise(&first_read, 8, Some(shorter));
        assert_eq!(
            extended[0].item.until,
            Some(READ_AT + LIFETIME),
            "the other clients must not consider the lock free earlier than before"
        );
        let repeated_grant = PromisedLease {
            since: Since::Before,
            ..extended_lease(READ_AT + 9 * LIFETIME)
        };
        let repeated = with_promise(&first_read, 8, Some(repeated_grant));
        assert_eq!(
            StoredItem::write(&repeated),
            state,
            "a repeated grant must not change the expiry that the first grant stored"
        );
    }
}
