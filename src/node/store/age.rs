//! How old the content of a record is, in a store without a clock.
//!
//! A client that reads a lease for the first time was not there when the lease was written. It computes the age of the
//! lease from **sightings**, which the record contains: notes of what the clocks showed when a client wrote the lease,
//! or when a later client found it.
//!
//! No clock is believed alone. An age counts only if at least two clocks show nearly the same age. The client then
//! takes the smallest of these ages. The clocks are:
//!
//! - the wall clock of the client that made the sighting, and the wall clock of the client that reads it;
//! - the clock of the store, if the same clock gave both dates ([`Date::era`]);
//! - the clock of the machine, if both clients ran on the same machine since its last start.
//!
//! # Why like this
//!
//! - **A session of the store** (ZooKeeper's ephemeral znodes) was rejected: after a long pause, a server ends all
//!   sessions at once, and all locks would be lost (docs/nodes.md, "Leases").
//! - **The client's own monotonic clock** was the first rule: a client watched each lease for its whole TTL. A process
//!   that tries once then never got the lock of a dead holder (docs/protocol.md, "The age of a lease in a store without
//!   a clock"). This rule is still used if no age can be computed.
//! - **The dates of the store alone** (seeded bug `store-alone`) and **the wall clocks alone** (`wall-alone`) were
//!   rejected: if one clock is wrong, valid leases seem expired.
//! - **The dates of two leaders** (`any-era`) were rejected, because a leader and a client can be wrong by the same
//!   time.
//!
//! Not solved: two clocks that are wrong by nearly the same time can end a lease early.

use std::time::Duration;

use super::contract::Date;
use super::micros::{LATEST, micros, read_number};
use crate::protocol::instant::Instant;

/// How much faster or slower than this client's clock the store's clock may run: 10 per thousand (1 %), like the
/// default drift of a lease.
pub(super) const MAX_DRIFT_PER_MILLE: u64 = 10;

/// The largest difference between two clocks' ages of one sighting, in microseconds: 2 s. An eighth of the age is
/// allowed in addition. If the difference is larger, one of the clocks was set, so the sighting does not count.
const MAX_CLOCK_DIFFERENCE: u64 = 2_000_000;

/// An age that was computed from a sighting must exceed the duration of a lease by this time (500 ms, in microseconds).
/// So small corrections of the clocks do no harm.
pub(super) const AGE_MARGIN: u64 = 500_000;

/// A date that the store gave longer ago than this (10 min) is not used, because the clock of this client may run
/// slower or faster than the clock of the store.
pub(super) const MAX_DATE_AGE: Duration = Duration::from_secs(600);

/// The largest number of sightings that a record contains for one item.
const MAX_SIGHTINGS: usize = 8;

/// The length of an encoded sighting, in bytes.
const SIGHTING_BYTES: usize = 40;

/// The times on several clocks when a client wrote an item, or found it. All times are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sighting {
    /// The wall clock of the client.
    wall: u64,
    /// The clock of the client's machine, and a number that identifies the machine since its last start.
    machine: Option<(u64, u64)>,
    /// The latest possible time on the store's clock, and a number that identifies this clock.
    store: Option<(u64, u64)>,
}

/// The times on several clocks at one moment, as a client reads them. All times are in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) wall: u64,
    /// The clock of the client's machine, and a number that identifies the machine since its last start.
    pub(super) machine: Option<(u64, u64)>,
    pub(super) store: Option<StoreReading>,
}

/// The time on the store's clock: at least `earliest`, and at most `latest`, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreReading {
    pub(super) era: u64,
    pub(super) earliest: u64,
    pub(super) latest: u64,
}

impl StoreReading {
    /// The time on the store's clock at `now`. The store gave `date` at some moment between `asked_at` and
    /// `answered_at`. `None` if this was too long ago.
    pub(super) fn estimate(
        now: Instant,
        date: Date,
        asked_at: Instant,
        answered_at: Instant,
    ) -> Option<Self> {
        let (min_age, max_age) = (
            now.saturating_since(answered_at),
            now.saturating_since(asked_at) + date.grain,
        );
        if now.saturating_since(answered_at) > MAX_DATE_AGE {
            return None;
        }
        let (min_age, max_age) = (micros(min_age), micros(max_age));
        let date_us = date.micros.min(LATEST);
        Some(Self {
            era: date.era,
            earliest: date_us + min_age - min_age * MAX_DRIFT_PER_MILLE / 1000,
            latest: date_us + max_age + max_age * MAX_DRIFT_PER_MILLE / 1000 + 1,
        })
    }
}

impl Reading {
    /// The sighting of an item that this client writes or finds now.
    pub(super) fn sighting(&self) -> Sighting {
        Sighting {
            wall: self.wall.min(LATEST),
            machine: self.machine,
            store: self.store.map(|store| (store.era, store.latest)),
        }
    }
}

impl Sighting {
    /// How long ago the sighting was made, at least. `None` if fewer than two clocks show it, or if they disagree.
    fn age(&self, now: &Reading) -> Option<u64> {
        let elapsed = |later: u64, earlier: u64| later.min(LATEST) as i64 - earlier as i64;
        let by_machine = self.machine.zip(now.machine);
        let by_machine = by_machine
            .filter(|((a, _), (b, _))| a == b)
            .map(|((_, then), (_, now))| elapsed(now, then));
        let by_store = self.store.zip(now.store);
        let by_store = by_store
            .filter(|((era, _), now)| *era == now.era)
            .map(|((_, then), now)| elapsed(now.earliest, then));
        let by_wall = Some(elapsed(now.wall, self.wall));
        let ages = [by_wall, by_machine, by_store].into_iter().flatten();
        let (clock_count, min_age, max_age) = ages
            .fold((0, i64::MAX, i64::MIN), |(n, min_age, max_age), age| {
                (n + 1, min_age.min(age), max_age.max(age))
            });
        let age = u64::try_from(min_age).unwrap_or(0);
        let do_agree =
            clock_count >= 2 && max_age.abs_diff(min_age) <= MAX_CLOCK_DIFFERENCE + age / 8;
        do_agree.then_some(age)
    }

    fn write(&self, state: &mut Vec<u8>) {
        let (machine, machine_time) = self.machine.unwrap_or_default();
        let (era, date) = self.store.unwrap_or_default();
        for number in [self.wall, machine, machine_time, era, date] {
            state.extend(number.to_be_bytes());
        }
    }

    fn read(mut bytes: &[u8]) -> Option<Self> {
        let mut next = || read_number(&mut bytes);
        let (wall, machine, machine_time, era, date) =
            (next()?, next()?, next()?, next()?, next()?);
        let is_valid = wall <= LATEST && machine_time <= LATEST && date <= LATEST;
        is_valid.then_some(Self {
            wall,
            machine: (machine_time > 0).then_some((machine, machine_time)),
            store: (date > 0).then_some((era, date)),
        })
    }
}

/// How long ago the item with these sightings was written, at least, in microseconds; `None` if nothing is known.
pub(super) fn age(sightings: &[Sighting], now: &Reading) -> Option<u64> {
    let ages = sightings.iter().filter_map(|sighting| sighting.age(now));
    ages.max()
}

/// Adds a sighting of an item that another client wrote, unless one of its sightings already tells this client the age
/// of the item. A process that starts later, with the same clocks as this client, then knows how long ago this was.
///
/// A sighting that counts for other clients is kept, as long as there is room.
pub(super) fn add_sighting(sightings: &mut Vec<Sighting>, now: &Reading) {
    let has_lasting_clock = now.machine.is_some() || now.store.is_some();
    if !has_lasting_clock || sightings.iter().any(|sighting| sighting.age(now).is_some()) {
        return;
    }
    let own_sighting = now.sighting();
    if sightings.len() >= MAX_SIGHTINGS {
        let era_of = |sighting: &Sighting| sighting.store.map(|(era, _)| era);
        let Some(other_index) = sightings
            .iter()
            .position(|sighting| era_of(sighting) != era_of(&own_sighting))
        else {
            return;
        };
        sightings.remove(other_index);
    }
    sightings.push(own_sighting);
}

/// Encodes the sightings of one item.
pub(super) fn write_sightings(sightings: &[Sighting], state: &mut Vec<u8>) {
    state.push(sightings.len() as u8);
    for sighting in sightings {
        sighting.write(state);
    }
}

/// Decodes the sightings of one item, and removes them from `rest`. `None` if they are damaged.
pub(super) fn read_sightings(rest: &mut &[u8]) -> Option<Vec<Sighting>> {
    let (&count, remaining) = rest.split_first()?;
    let (bytes, remaining) = remaining.split_at_checked(usize::from(count) * SIGHTING_BYTES)?;
    *rest = remaining;
    bytes
        .chunks_exact(SIGHTING_BYTES)
        .map(Sighting::read)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const NOW: u64 = 1_790_000_000 * SECOND;

    fn reading(wall: u64, machine: Option<(u64, u64)>, store: Option<(u64, u64)>) -> Reading {
        let store = store.map(|(era, date)| StoreReading {
            era,
            earliest: date,
            latest: date,
        });
        Reading {
            wall,
            machine,
            store,
        }
    }

    /// The age of a sighting at 100 s, by clocks that show these times later.
    fn age_after(wall: u64, machine: Option<(u64, u64)>, store: Option<(u64, u64)>) -> Option<u64> {
        let sighting = reading(NOW, Some((7, 100 * SECOND)), Some((1, NOW))).sighting();
        let later = reading(
            NOW + wall * SECOND,
            machine.map(|(machine, age)| (machine, (100 + age) * SECOND)),
            store.map(|(era, age)| (era, NOW + age * SECOND)),
        );
        sighting.age(&later).map(|age| age / SECOND)
    }

    #[test]
    fn age_counts_only_if_two_clocks_show_it() {
        assert_eq!(age_after(30, None, Some((1, 30))), Some(30));
        assert_eq!(age_after(30, Some((7, 30)), None), Some(30));
        assert_eq!(age_after(30, Some((7, 30)), Some((1, 30))), Some(30));
        assert_eq!(age_after(30, None, None), None, "the wall clock alone");
        assert_eq!(
            age_after(30, Some((8, 30)), Some((2, 30))),
            None,
            "the clocks of another machine and of another leader must not be compared"
        );
    }

    #[test]
    fn age_does_not_count_if_a_clock_was_set() {
        assert_eq!(
            age_after(3_600, None, Some((1, 1))),
            None,
            "the client's clock"
        );
        assert_eq!(
            age_after(1, None, Some((1, 3_600))),
            None,
            "the store's clock"
        );
        assert_eq!(
            age_after(3_600, Some((7, 1)), Some((1, 3_600))),
            None,
            "the clock of the machine must count although both other clocks were set"
        );
        assert_eq!(
            age_after(0, Some((7, 3_600)), None),
            None,
            "a cloned machine"
        );
        assert_eq!(
            age_after(31, None, Some((1, 30))),
            Some(30),
            "the smallest age must count if the clocks nearly agree"
        );
        let behind = reading(NOW - SECOND, None, Some((1, NOW + SECOND)));
        let sighting = reading(NOW, None, Some((1, NOW))).sighting();
        assert_eq!(sighting.age(&behind), Some(0));
        assert_eq!(age_after(80, None, Some((1, 92))), Some(80));
        assert_eq!(
            age_after(80, None, Some((1, 93))),
            None,
            "the clocks may differ by 2 s and an eighth of the age"
        );
    }

    #[test]
    fn clocks_that_show_a_time_beyond_the_latest_one_show_a_long_age() {
        let sighting = reading(NOW, Some((7, NOW)), None).sighting();
        let now = reading(u64::MAX, Some((7, u64::MAX)), None);
        assert_eq!(sighting.age(&now), Some(LATEST - NOW));
    }

    #[test]
    fn store_reading_contains_the_time_on_the_stores_clock() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        // The store's clock showed a time of up to 1 ms after `date` at some moment between 100 and 400 ms.
        let date = Date::new(NOW, 3);
        let reading =
            StoreReading::estimate(at(1_400), date, at(100), at(400)).expect("a fresh date");
        assert!(reading.earliest <= NOW + 995_000 && reading.earliest >= NOW + 980_000);
        assert!(reading.latest >= NOW + 1_305_000 && reading.latest <= NOW + 1_320_000);
        let too_late = at(400) + MAX_DATE_AGE + Duration::from_millis(1);
        assert!(StoreReading::estimate(too_late, date, at(100), at(400)).is_none());
    }

    #[test]
    fn sighting_is_added_only_if_no_other_sighting_counts() {
        let mut sightings = vec![reading(NOW, None, Some((1, NOW))).sighting()];
        let now = reading(NOW + SECOND, None, Some((1, NOW + SECOND)));
        add_sighting(&mut sightings, &now);
        assert_eq!(sightings.len(), 1, "the writer's sighting counts");
        let ahead_reading = reading(NOW + 3_600 * SECOND, None, Some((1, NOW + SECOND)));
        add_sighting(&mut sightings, &ahead_reading);
        add_sighting(&mut sightings, &ahead_reading);
        assert_eq!(sightings.len(), 2, "the wall clock of this client is ahead");
        let undated_reading = reading(NOW + SECOND, None, None);
        add_sighting(&mut sightings, &undated_reading);
        assert_eq!(sightings.len(), 2, "a wall clock alone shows no age");
        for era in 2..20 {
            add_sighting(&mut sightings, &reading(NOW, None, Some((era, NOW))));
        }
        assert_eq!(sightings.len(), MAX_SIGHTINGS);
        let now = reading(NOW + 5 * SECOND, None, Some((19, NOW + 5 * SECOND)));
        assert_eq!(age(&sightings, &now), Some(5 * SECOND));
        assert_eq!(age(&[], &now), None);
        for wall in 0..20 {
            let wall = NOW + wall * 3_600 * SECOND;
            add_sighting(&mut sightings, &reading(wall, None, Some((19, NOW))));
        }
        assert_eq!(sightings.len(), MAX_SIGHTINGS);
        assert_eq!(
            age(&sightings, &now),
            Some(5 * SECOND),
            "the sighting of a client with other clocks must be kept"
        );
    }

    #[test]
    fn sightings_are_unchanged_after_encoding_and_decoding() {
        let sightings = vec![
            reading(NOW, None, None).sighting(),
            reading(NOW, Some((u64::MAX, 1)), Some((u64::MAX, LATEST))).sighting(),
            reading(NOW, None, Some((7, 1))).sighting(),
        ];
        let mut state = Vec::new();
        write_sightings(&sightings, &mut state);
        let mut rest = &state[..];
        assert_eq!(read_sightings(&mut rest), Some(sightings));
        assert!(rest.is_empty());
        for cut in 0..state.len() {
            assert_eq!(read_sightings(&mut &state[..cut]), None);
        }
        let damaged = [&[1][..], &[u8::MAX; SIGHTING_BYTES]].concat();
        assert_eq!(read_sightings(&mut &damaged[..]), None);
    }

    #[test]
    fn sighting_with_a_time_that_no_clock_can_show_is_damaged() {
        let read_again = |sighting: Sighting| {
            let mut state = Vec::new();
            write_sightings(&[sighting], &mut state);
            read_sightings(&mut &state[..])
        };
        let sighting = || reading(NOW, Some((7, SECOND)), Some((1, NOW))).sighting();
        assert!(read_again(sighting()).is_some());
        for latest in [LATEST, LATEST + 1] {
            let too_late = [
                Sighting {
                    wall: latest,
                    ..sighting()
                },
                Sighting {
                    machine: Some((7, latest)),
                    ..sighting()
                },
                Sighting {
                    store: Some((1, latest)),
                    ..sighting()
                },
            ];
            for sighting in too_late {
                assert_eq!(read_again(sighting).is_some(), latest == LATEST);
            }
        }
    }
}
