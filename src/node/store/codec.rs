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
use super::micros::LATEST;
use super::names::Name;
use crate::node::memory::items::{Id, Item, Kind};

/// The first byte of every encoded record: the version of the format.
const FORMAT: u8 = 1;

/// An item of a record, together with its expiry as the record stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredItem {
    pub(super) item: Item,
    when: When,
    /// Whether this client knows that no other client considers the item expired before `item.until`.
    ///
    /// False if another client wrote the item to a store without a clock. A third client may have read it earlier than
    /// this client, and then counts its lifetime from that earlier time.
    sure: bool,
    /// The times on several clocks when a client wrote or found the item. Empty if the store has a clock.
    sightings: Vec<Sighting>,
}

/// A lease that an answer grants or extends. No client may consider the lease expired before `until`.
pub(super) struct Promised {
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

impl Promised {
    /// Whether `item` stores this lease. The item is the lock key, or this hold's entry in the list of holds.
    fn rests_on(&self, item: &Item) -> bool {
        let Id { kind, key, member } = &item.id;
        let here = **key == *self.key;
        here && (*kind == Kind::Text || *kind == Kind::Hold && **member == self.value)
    }
}

/// When an item expires, as stored in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Always,
    /// The item expires at this time on the server's clock, in microseconds.
    Until(u64),
    /// For a store without a clock: the item expires `life` microseconds after the write with this `stamp`. Each write
    /// has a different stamp.
    For {
        stamp: u64,
        life: u64,
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

/// Returns how long a client that reads a lease waits before it considers the lease expired: the duration `life` plus 1
/// % plus 2 ms. All times are in microseconds.
fn seen(life: u64) -> u64 {
    #[cfg(feature = "seeded-bugs")]
    if super::flaw::has(super::flaw::StoreFlaw::EarlyEnd) {
        return life / 3;
    }
    life + life / 100 + 2_000
}

/// Masters keep the expiry of a queue, of a place in a queue, and of a hold in milliseconds. For these, rounds `until`
/// up to a multiple of 1 ms. Returns other expiries unchanged. `until` is in microseconds.
fn whole(kind: Kind, until: u64) -> u64 {
    match kind {
        Kind::Text | Kind::Foreign | Kind::Watcher => until,
        Kind::Line | Kind::Place | Kind::Hold => until.div_ceil(1000) * 1000,
    }
}

impl StoredItem {
    /// Decodes the record `state`, which was read at the time `at`. `known` are the items that this client last read
    /// from the record or wrote to it. Returns `None` if the record was not written by this library, or is damaged.
    pub(super) fn read(state: &[u8], known: &[Self], at: impl Into<Moment>) -> Option<Vec<Self>> {
        let at = at.into();
        let mut rest = match state.split_first() {
            None => return Some(Vec::new()),
            Some((&FORMAT, rest)) => rest,
            Some(_) => return None,
        };
        let mut all = Vec::new();
        while !rest.is_empty() {
            let mut stored = Self::take(&mut rest)?;
            if let When::For { life, .. } = stored.when {
                let before = known.iter().find(|known| {
                    known.item.id == stored.item.id
                        && known.item.what == stored.item.what
                        && known.when == stored.when
                });
                stored.sure = before.is_some_and(|known| known.sure);
                let until = before.and_then(|known| known.item.until);
                let from_now = || whole(stored.item.id.kind, at.now + seen(life));
                let until = until.unwrap_or_else(from_now);
                let by_age = stored.until_by_age(life, at).filter(|_| !stored.sure);
                stored.item.until = Some(by_age.map_or(until, |by_age| by_age.min(until)));
            }
            all.push(stored);
        }
        Some(all)
    }

    /// When this item expires by its age, if its sightings show it. It was read at the time `at`.
    ///
    /// `None` for fencing counters. A client removes a counter only after it has seen the counter for a day.
    fn until_by_age(&self, life: u64, at: Moment) -> Option<u64> {
        let age = age::age(&self.sightings, &at.reading?);
        if age == 0 || self.item.is_counter() {
            return None;
        }
        let left = (seen(life) + age::SLACK).saturating_sub(age);
        // `whole` rounds up by less than 1 ms. An expired item must not seem to live for this time.
        let until = if left == 0 {
            at.now.saturating_sub(1_000)
        } else {
            at.now + left
        };
        Some(whole(self.item.id.kind, until))
    }

    /// Adds a sighting of this item, if another client wrote the item and its age is unknown. Returns whether it did.
    pub(super) fn sight(&mut self, now: &Reading) -> bool {
        if self.sure || self.item.is_counter() || !matches!(self.when, When::For { .. }) {
            return false;
        }
        age::add(&mut self.sightings, now)
    }

    fn take(rest: &mut &[u8]) -> Option<Self> {
        let (&kind, behind) = rest.split_first()?;
        *rest = behind;
        let (key, member, what) = (bytes(rest)?, bytes(rest)?, bytes(rest)?);
        let (&form, behind) = rest.split_first()?;
        *rest = behind;
        let when = match form {
            0 => When::Always,
            1 => When::Until(time(rest)?),
            2 | 3 => When::For {
                stamp: number(rest)?,
                life: time(rest)?,
            },
            _ => return None,
        };
        let sightings = if form == 3 {
            age::read(rest)?
        } else {
            Vec::new()
        };
        let until = match when {
            When::Until(until) => Some(until),
            When::Always | When::For { .. } => None,
        };
        let id = Id::of(kind_of(kind)?, &key, &member);
        let item = Item { id, what, until };
        let sure = !matches!(when, When::For { .. });
        Some(Self {
            item,
            when,
            sure,
            sightings,
        })
    }

    /// Returns the new content of a record: `items`, written at the time `now`. `before` is the old content.
    ///
    /// An unchanged item keeps its stored expiry, unless a new or extended lease in `promised` ends later.
    pub(super) fn after(
        before: &[Self],
        items: Vec<Item>,
        now: u64,
        clock: Clock,
        promised: &[Promised],
    ) -> Vec<Self> {
        let keep = |item: Item| {
            let Some(known) = before.iter().find(|known| known.item == item) else {
                return Self::new(item, now, clock);
            };
            let on_it = promised.iter().filter(|one| one.rests_on(&item));
            let from_now = |one: &Promised| match one.since {
                Since::Before => false,
                Since::Joined => !before.iter().any(|known| known.is_hold_of(one, now)),
                Since::Extended => true,
            };
            let last = on_it
                .filter(|one| from_now(one))
                .max_by_key(|one| one.until);
            last.map_or_else(|| known.clone(), |last| known.promised(now, last, clock))
        };
        let mut all: Vec<Self> = items.into_iter().map(keep).collect();
        all.sort_unstable_by(|one, other| one.item.id.cmp(&other.item.id));
        all
    }

    /// Whether this item is the unexpired entry of the hold that has the lease `promised`.
    fn is_hold_of(&self, promised: &Promised, now: u64) -> bool {
        self.item.id.kind == Kind::Hold && promised.rests_on(&self.item) && self.item.lives(now)
    }

    /// Returns this item with an expiry that is late enough for the lease `last`: no client considers the item expired
    /// before the lease ends.
    fn promised(&self, now: u64, last: &Promised, clock: Clock) -> Self {
        let until = last.until;
        let until = match (self.when, clock) {
            // The server's clock may be `slack` ahead of `now`, so the item must expire `slack` after the lease.
            (When::Until(stored), Clock::Server { slack }) if stored < until + slack => until,
            // Another client may have read this stamp earlier, and count `life` from then. So write a new stamp.
            (When::For { life, .. }, _) if !self.sure => until.max(now + life),
            _ => return self.clone(),
        };
        let (item, until) = (self.item.clone(), Some(until));
        Self::new(Item { until, ..item }, now, clock)
    }

    fn new(mut item: Item, now: u64, clock: Clock) -> Self {
        let mut sightings = Vec::new();
        let when = match (item.until, clock) {
            (None, _) => When::Always,
            (Some(until), Clock::Server { slack }) => {
                let until = whole(item.id.kind, until + slack);
                item.until = Some(until);
                When::Until(until)
            }
            (Some(until), Clock::Own { stamp, reading }) => {
                if !item.is_counter() {
                    sightings.extend(reading.map(|reading| reading.sighting()));
                }
                let life = until.saturating_sub(now);
                // This process considers the item expired at `until`; all others do so a little later (`seen`).
                item.until = Some(whole(item.id.kind, until));
                When::For { stamp, life }
            }
        };
        let sure = true;
        Self {
            item,
            when,
            sure,
            sightings,
        }
    }

    /// Encodes the items of a record as the bytes that the store keeps.
    pub(super) fn write(all: &[Self]) -> Vec<u8> {
        let mut state = vec![FORMAT];
        for stored in all {
            let Item { id, what, .. } = &stored.item;
            state.push(id.kind as u8);
            for part in [&id.key, &id.member, what] {
                state.extend((part.len() as u32).to_be_bytes());
                state.extend(part);
            }
            match stored.when {
                When::Always => state.push(0),
                When::Until(until) => {
                    state.push(1);
                    state.extend(until.to_be_bytes());
                }
                When::For { stamp, life } => {
                    let seen = !stored.sightings.is_empty();
                    state.push(if seen { 3 } else { 2 });
                    state.extend(stamp.to_be_bytes());
                    state.extend(life.to_be_bytes());
                    if seen {
                        age::write(&stored.sightings, &mut state);
                    }
                }
            }
        }
        state
    }
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let (number, behind) = rest.split_first_chunk::<8>()?;
    *rest = behind;
    Some(u64::from_be_bytes(*number))
}

/// Reads a time. Returns `None` if the time is so large that additions could overflow.
fn time(rest: &mut &[u8]) -> Option<u64> {
    number(rest).filter(|time| *time <= LATEST)
}

fn bytes(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let (length, behind) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (bytes, behind) = behind.split_at_checked(length)?;
    *rest = behind;
    Some(bytes.to_vec())
}

fn kind_of(byte: u8) -> Option<Kind> {
    let all = [
        Kind::Text,
        Kind::Foreign,
        Kind::Line,
        Kind::Place,
        Kind::Hold,
        Kind::Watcher,
    ];
    all.into_iter().find(|kind| *kind as u8 == byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: [u8; 32] = [b'a'; 32];

    fn held(until: u64) -> Item {
        Item {
            id: Id::of(Kind::Text, b"r0", b""),
            what: VALUE.to_vec(),
            until: Some(until),
        }
    }

    fn promised(until: u64) -> Promised {
        Promised {
            key: b"r0"[..].into(),
            value: VALUE,
            until,
            since: Since::Extended,
        }
    }

    #[test]
    fn record_with_a_time_beyond_the_maximum_is_not_decoded() {
        for (form, ours) in [(1, 1 << 60), (2, 1 << 60), (1, u64::MAX), (2, u64::MAX)] {
            let mut state = vec![FORMAT, Kind::Text as u8];
            state.extend([0; 12]);
            state.push(form);
            state.extend(if form == 2 { &[7; 8][..] } else { &[] });
            state.extend(u64::to_be_bytes(ours));
            let read = StoredItem::read(&state, &[], LATEST);
            assert_eq!(read.is_some(), ours < u64::MAX, "{form} {ours}");
        }
    }

    #[test]
    fn stored_expiry_is_never_earlier_than_the_promised_lease_end_plus_clock_slack() {
        let slack = 300_000;
        let stored = StoredItem::new(held(4_000_000), 0, Clock::Server { slack: 0 });
        let after = |until: u64, slack: u64| {
            let items = vec![stored.item.clone()];
            let clock = Clock::Server { slack };
            let before = std::slice::from_ref(&stored);
            StoredItem::after(before, items, 0, clock, &[promised(until)])[0]
                .item
                .until
        };
        assert_eq!(
            after(3_700_000, slack),
            Some(4_000_000),
            "a stored expiry must not change if it covers the promised lease and the clock slack"
        );
        assert_eq!(after(4_000_000, slack), Some(4_300_000));
        assert_eq!(
            after(4_000_000, 0),
            Some(4_000_000),
            "without clock slack, a stored expiry at the end of the promised lease must not change"
        );
        let again = Promised {
            since: Since::Before,
            ..promised(60_000_000)
        };
        let clock = Clock::Server { slack };
        let granted = StoredItem::after(
            std::slice::from_ref(&stored),
            vec![stored.item.clone()],
            0,
            clock,
            &[again],
        );
        assert_eq!(
            granted[0].item.until,
            Some(4_000_000),
            "a repeated grant must not change the expiry that the first grant stored"
        );
    }

    /// If the stamp stayed the same, a client that read it earlier would consider the lease expired too early.
    #[test]
    fn extension_of_a_record_written_by_another_client_stores_a_new_write_stamp() {
        let (stamp, life) = (7, 500_000);
        let written = StoredItem::new(
            held(life),
            0,
            Clock::Own {
                stamp,
                reading: None,
            },
        );
        let state = StoredItem::write(&[written]);
        let now = 400_000;
        let met = StoredItem::read(&state, &[], now).expect("the record must be decoded");
        let until = met[0].item.until.expect("the item must have an expiry");
        assert!(
            until >= now + life,
            "a lease that was just read must last for its whole ttl on the clock of this client"
        );
        let clock = Clock::Own {
            stamp: 8,
            reading: None,
        };
        let items = || met.iter().map(|stored| stored.item.clone()).collect();
        let looked = StoredItem::after(&met, items(), now, clock, &[]);
        assert_eq!(
            StoredItem::write(&looked),
            state,
            "the record must not change if no lease was promised"
        );
        let extended = StoredItem::after(&met, items(), now, clock, &[promised(now + life)]);
        assert_ne!(StoredItem::write(&extended), state);
        let again = StoredItem::read(&StoredItem::write(&extended), &extended, now)
            .expect("the record must be decoded");
        let items = again.iter().map(|stored| stored.item.clone()).collect();
        let same = StoredItem::after(&again, items, now, clock, &[promised(now + life)]);
        assert_eq!(
            same, again,
            "an extension to the same end must not change a record that this client wrote"
        );
        let granted = Promised {
            since: Since::Before,
            ..promised(now + 9 * life)
        };
        let items = met.iter().map(|stored| stored.item.clone()).collect();
        let repeated = StoredItem::after(&met, items, now, clock, &[granted]);
        assert_eq!(
            StoredItem::write(&repeated),
            state,
            "a repeated grant must not change the expiry that the first grant stored"
        );
    }
}
