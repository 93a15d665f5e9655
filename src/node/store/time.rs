//! The time on the store's clock, as far as this client knows it.

use crate::protocol::instant::Instant;

use super::age::{MAX_DATE_AGE, MAX_DRIFT_PER_MILLE, Reading, StoreReading};
use super::codec::Clock;
use super::contract::Date;
use super::micros::LATEST;
use crate::node::memory::Dates;

/// The age at which a date that the store has sent is too old: 12 hours, in microseconds. The client then requests
/// another date, because the store's clock may have been corrected.
const DATE_LIFETIME: u64 = 43_200_000_000;

/// How long a reading of the server's clock can be used: 10 s, in microseconds.
const MAX_READING_AGE: u64 = 10_000_000;

/// The time that this client uses for the records of a store: the time of the store's clock or, if the store has no
/// clock, the time of this process.
pub(super) struct StoreTime {
    /// The wall clock of this process at `origin`, in microseconds.
    wall: u64,
    origin: Instant,
    last_reading: Option<ClockReading>,
    /// Whether the store has no clock, so that this process's own clock is used.
    has_own_clock: bool,
    /// The latest date that the store has sent; `None` if there is no date.
    last_date: Option<ReceivedDate>,
    /// Identifies this machine since its last start, see [`Runtime::machine`](crate::runtime::Runtime::machine).
    machine: Option<u64>,
}

/// A date that the store gave at some moment between two times on this process's clock.
#[derive(Clone, Copy)]
struct ReceivedDate {
    date: Date,
    asked_at: Instant,
    answered_at: Instant,
}

impl ReceivedDate {
    /// The earliest possible time on the store's clock at `now`, in microseconds.
    fn earliest(&self, now: Instant) -> u64 {
        self.date.micros + micros(now, self.answered_at)
    }
}

/// A reading of the server's clock: the server showed `shown` at some moment between two times on this process's clock.
#[derive(Clone, Copy)]
struct ClockReading {
    server_time: u64,
    asked_at: Instant,
    answered_at: Instant,
}

impl StoreTime {
    pub(super) fn new(wall: u64, origin: Instant, machine: Option<u64>) -> Self {
        Self {
            wall,
            origin,
            last_reading: None,
            has_own_clock: false,
            last_date: None,
            machine,
        }
    }

    /// Stores the server's time from an answer. The request was sent at `asked_at` and answered at `answered_at`.
    pub(super) fn learn(
        &mut self,
        server_time: Option<u64>,
        asked_at: Instant,
        answered_at: Instant,
    ) {
        match server_time {
            Some(server_time) => {
                self.last_reading = Some(ClockReading {
                    server_time: server_time.min(LATEST),
                    asked_at,
                    answered_at,
                });
            }
            None => self.has_own_clock = true,
        }
    }

    /// Stores the date of the session's last acknowledged change; `None` if the store gives no dates. If the date is
    /// new, the store gave it between `asked_at` and `answered_at`.
    pub(super) fn learn_date(
        &mut self,
        date: Option<Date>,
        asked_at: Instant,
        answered_at: Instant,
    ) {
        let limit_date = |date: Date| Date {
            micros: date.micros.min(LATEST),
            ..date
        };
        let date = date.map(limit_date);
        if date != self.last_date.map(|last| last.date) {
            self.last_date = date.map(|date| ReceivedDate {
                date,
                asked_at,
                answered_at,
            });
        }
    }

    /// The times on several clocks at `now`, when the wall clock of this process shows `wall`. `None` if the store has its own
    /// clock, which then decides alone when items expire.
    pub(super) fn reading(&self, now: Instant, wall: u64) -> Option<Reading> {
        if !self.has_own_clock {
            return None;
        }
        let store = self.last_date.and_then(|last| {
            StoreReading::estimate(now, last.date, last.asked_at, last.answered_at)
        });
        Some(Reading {
            wall,
            machine: self.machine.map(|machine| (machine, now.as_nanos() / 1000)),
            store,
        })
    }

    /// Forgets all readings of the clock and the date, because a new session may be connected to another server.
    pub(super) fn forget(&mut self) {
        self.last_reading = None;
        self.last_date = None;
    }

    /// The source of the times from which this client derives fencing numbers:
    ///
    /// - `Own`: the store's clock, which also decides when keys expire.
    /// - `Shown`: the last date that the store sent, plus the time since then. This limits the store's time to a range,
    ///   because the date may be coarse ([`Date::grain`]). The wall clock of this process decides within the range.
    /// - `Unknown`: the wall clock of this process, because the store has no clock and has sent no date.
    pub(super) fn dates(&self, now: Instant) -> Dates {
        match self.last_date {
            _ if !self.has_own_clock => Dates::Own,
            Some(last) => {
                let max_age = micros(now, last.asked_at) + super::micros::micros(last.date.grain);
                let latest = last.date.micros.saturating_add(max_age);
                Dates::Shown(self.wall_time(now).clamp(last.earliest(now), latest))
            }
            None => Dates::Unknown,
        }
    }

    /// The earliest possible time on the store's clock, by the last date that the store sent. `None` unless
    /// [`dates`](Self::dates) returns `Dates::Shown`.
    pub(super) fn earliest_date(&self, now: Instant) -> Option<u64> {
        let last_date = self.last_date.filter(|_| self.has_own_clock);
        last_date.map(|last| last.earliest(now))
    }

    /// The time on the wall clock of this process, if nobody has set this clock since the start.
    fn wall_time(&self, now: Instant) -> u64 {
        self.wall + micros(now, self.origin)
    }

    /// Whether the last date is too old to judge the age of a lease. False if the store gives no dates.
    pub(super) fn is_date_stale(&self, now: Instant) -> bool {
        let is_stale =
            |last_date: ReceivedDate| now.saturating_since(last_date.answered_at) > MAX_DATE_AGE;
        self.has_own_clock && self.last_date.is_some_and(is_stale)
    }

    /// Whether the last date was received more than [`DATE_LIFETIME`] ago, so that a new date is needed.
    pub(super) fn is_date_old(&self, now: Instant) -> bool {
        self.last_date
            .is_some_and(|last| micros(now, last.answered_at) > DATE_LIFETIME)
    }

    /// The time that decides which fencing counters may be removed: the [`earliest_date`](Self::earliest_date) or the
    /// time of this process's wall clock, whichever is earlier. So a single clock that is ahead cannot remove a counter
    /// too early.
    pub(super) fn removal_date(&self, now: Instant) -> Option<u64> {
        let date = self.earliest_date(now)?;
        Some(date.min(self.wall_time(now)))
    }

    /// The earliest possible time on the store's clock at `now`, and the difference between the latest and the earliest
    /// possible time. Both are in microseconds. `None` without a recent reading of the store's clock.
    pub(super) fn now(&self, now: Instant) -> Option<(u64, u64)> {
        if self.has_own_clock {
            return Some((self.wall_time(now), 0));
        }
        let reading = self.last_reading?;
        let (min_age, max_age) = (
            micros(now, reading.answered_at),
            micros(now, reading.asked_at),
        );
        if max_age > MAX_READING_AGE {
            return None;
        }
        let drift = max_age * MAX_DRIFT_PER_MILLE / 1000 + 1;
        Some((
            reading.server_time + min_age.saturating_sub(drift),
            max_age - min_age + 2 * drift,
        ))
    }

    /// The clock on which new items expire.
    ///
    /// - `slack`: the store's clock may be ahead of the time that this client assumes by this many microseconds.
    /// - `stamp`: a number that differs for each write. It is used only if the store has no clock.
    /// - `reading`: the times on several clocks now. It is used only if the store has no clock.
    pub(super) fn clock(&self, slack: u64, stamp: u64, reading: Option<Reading>) -> Clock {
        if self.has_own_clock {
            Clock::Own { stamp, reading }
        } else {
            Clock::Server { slack }
        }
    }
}

fn micros(later: Instant, earlier: Instant) -> u64 {
    super::micros::micros(later.saturating_since(earlier))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::age::age as age_of;
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    #[test]
    fn server_time_lies_between_the_estimate_and_the_estimate_plus_slack() {
        let mut time = StoreTime::new(5_000_000, at(0), None);
        assert_eq!(
            time.now(at(1)),
            None,
            "the server time must be unknown before the clock was read"
        );
        // The server's clock was read at some moment between 100 and 400 µs.
        time.learn(Some(9_000_000), at(100), at(400));
        let (least, slack) = time
            .now(at(1_000))
            .expect("the time must be known after the clock was read");
        assert!(least <= 9_000_600 && least + slack >= 9_000_900);
        assert!(slack < 400);
        let (least, slack) = time
            .now(at(5_000_000))
            .expect("the time must be known after the clock was read");
        assert!(least <= 9_000_000 + 4_999_600 * 999 / 1000);
        assert!(least + slack >= 9_000_000 + 4_999_900 * 1001 / 1000);
        assert_eq!(
            time.now(at(20_000_000)),
            None,
            "the server time must be unknown when the last reading is too old"
        );
    }

    #[test]
    fn server_time_estimate_is_correct_if_clock_drift_is_within_its_limit() {
        for (rate, elapsed_us) in [(1.008, 2_000_000), (0.992, 2_000_000), (1.0095, 9_000_000)] {
            let mut time = StoreTime::new(5_000_000, at(0), None);
            time.learn(Some(9_000_000), at(1_000), at(1_000));
            let (least, slack) = time
                .now(at(1_000 + elapsed_us))
                .expect("the time must be known after the clock was read");
            let server_time = 9_000_000 + (elapsed_us as f64 * rate) as u64;
            assert!(
                least <= server_time && server_time <= least + slack,
                "the server time must be within the estimate if the server clock has the rate {rate}"
            );
        }
    }

    #[test]
    fn largest_possible_server_time_does_not_overflow() {
        let mut time = StoreTime::new(5_000_000, at(0), None);
        time.learn(Some(u64::MAX), at(100), at(400));
        let (least, slack) = time
            .now(at(1_000))
            .expect("the time must be known after the clock was read");
        assert!(
            least
                .checked_add(slack)
                .is_some_and(|most| most < 2 * LATEST)
        );
    }

    #[test]
    fn fencing_numbers_use_the_date_of_a_change_only_if_the_store_has_no_clock() {
        let shown_dates = |time: &StoreTime, now: u64| match time.dates(at(now)) {
            Dates::Own => None,
            Dates::Unknown => Some(0),
            Dates::Shown(date) => Some(date),
        };
        let mut time = StoreTime::new(5_000_000, at(100), None);
        time.learn(Some(9_000_000), at(100), at(400));
        time.learn_date(Some(Date::new(7_000_000, 1)), at(100), at(400));
        assert_eq!(
            shown_dates(&time, 500),
            None,
            "fencing numbers must not use the stored date if the store has a clock"
        );
        let mut time = StoreTime::new(5_000_000, at(100), None);
        time.learn(None, at(100), at(400));
        assert_eq!(shown_dates(&time, 500), Some(0));
        time.learn_date(Some(Date::new(9_000_000, 1)), at(100), at(400));
        assert_eq!(shown_dates(&time, 700), Some(9_000_300));
        // The date is unchanged, so its age still counts from 400 µs, when this client first received it.
        time.learn_date(Some(Date::new(9_000_000, 1)), at(100), at(900));
        assert_eq!(shown_dates(&time, 1_000), Some(9_000_600));
        time.learn_date(Some(Date::new(8_000_000, 1)), at(100), at(1_000));
        assert_eq!(shown_dates(&time, 1_000), Some(8_000_000));
        time.forget();
        assert_eq!(shown_dates(&time, 1_000), Some(0));
    }

    /// A store whose clock shows `at + AHEAD`, and whose dates have whole seconds. At `asked_at`, a client requests a
    /// date; the store gives it after `delays.0`, and the client has the answer after another `delays.1` microseconds.
    fn time_with_coarse_date(wall: u64, asked_at: u64, delays: (u64, u64)) -> StoreTime {
        let given_at = asked_at + delays.0;
        let answered_at = given_at + delays.1;
        let mut time = StoreTime::new(wall, at(0), None);
        time.learn(None, at(asked_at), at(answered_at));
        let second = (given_at + AHEAD) / 1_000_000 * 1_000_000;
        let date = Date::new(second, 1).grain(Duration::from_secs(1));
        time.learn_date(Some(date), at(asked_at), at(answered_at));
        time
    }

    /// How far the store's clock is ahead of the monotonic clock of the tests, in microseconds.
    const AHEAD: u64 = 1_790_000_000_000_000;

    #[test]
    fn coarse_dates_never_count_more_time_than_the_store_shows() {
        for asked_at in (0..2_000_000).step_by(49_999) {
            for delays in [(0, 0), (300, 300), (0, 240_000), (240_000, 0)] {
                // The client's wall clock is an hour behind, slightly wrong, correct, or an hour ahead.
                for wrong in [-3_600_000_000, -400_000, 0, 400_000, 3_600_000_000] {
                    let wall = AHEAD.saturating_add_signed(wrong);
                    let time = time_with_coarse_date(wall, asked_at, delays);
                    let answered_at = asked_at + delays.0 + delays.1;
                    for now in [answered_at, answered_at + 1, answered_at + 70_000_000] {
                        let (store_time, grain) = (now + AHEAD, 1_000_000);
                        let earliest = time.earliest_date(at(now)).expect("there is a date");
                        assert!(earliest <= store_time, "{earliest} > {store_time}");
                        let removal_date = time.removal_date(at(now)).expect("there is a date");
                        assert!(removal_date <= earliest && removal_date <= now + wall);
                        let store = time
                            .reading(at(now), wall + now)
                            .expect("no own clock")
                            .store;
                        let store = store.expect("the date is fresh");
                        assert!(store.earliest <= store_time && store_time <= store.latest);
                        // Fencing numbers differ from the store's clock by the range of the date at most.
                        let Dates::Shown(date) = time.dates(at(now)) else {
                            panic!("the store has sent a date");
                        };
                        let range = grain + delays.0 + delays.1;
                        assert!(date.abs_diff(store_time) <= range, "{date} {store_time}");
                        if wrong == 0 {
                            assert_eq!(date, store_time, "a correct wall clock decides");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn lease_never_seems_older_by_coarse_dates_than_it_is() {
        for written_at in (0..1_000_000).step_by(99_999) {
            for age in [0, 1, 999_999, 1_000_000, 5_000_000, 29_000_001] {
                for delays in [(0, 0), (300, 300), (0, 240_000), (240_000, 0)] {
                    let duration = delays.0 + delays.1;
                    let reading = |asked_at: u64| {
                        let time = time_with_coarse_date(AHEAD, asked_at, delays);
                        let now = asked_at + duration;
                        time.reading(at(now), AHEAD + now).expect("no own clock")
                    };
                    let sighting = reading(written_at).sighting();
                    let counted = age_of(&[sighting], &reading(written_at + age));
                    let counted = counted.unwrap_or(0);
                    assert!(counted <= age, "{counted} of {age} were counted");
                    let lost = 1_000_000 + duration + age / 25;
                    assert!(counted + lost >= age, "{counted} of {age} were counted");
                }
            }
        }
    }

    #[test]
    fn store_time_without_a_server_clock_is_the_initial_time_plus_elapsed_time() {
        let mut time = StoreTime::new(5_000_000, at(100), None);
        time.learn(None, at(100), at(400));
        assert_eq!(time.now(at(700)), Some((5_000_600, 0)));
    }
}
