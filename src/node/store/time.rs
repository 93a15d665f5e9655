//! The time on the store's clock, as far as this client knows it.

use crate::protocol::instant::Instant;

use super::age::{FRESH, RATE, Reading, StoreReading};
use super::codec::Clock;
use super::contract::Date;
use super::micros::LATEST;
use crate::node::memory::Dates;

/// The age at which a date that the store has sent is too old: 12 hours, in microseconds. The client then requests
/// another date, because the store's clock may have been corrected.
const DATED: u64 = 43_200_000_000;

/// How long a reading of the server's clock can be used: 10 s, in microseconds.
const STALE: u64 = 10_000_000;

/// The time that this client uses for the records of a store: the time of the store's clock or, if the store has no
/// clock, the time of this process.
pub(super) struct StoreTime {
    /// The wall clock of this process at `origin`, in microseconds.
    wall: u64,
    origin: Instant,
    looked: Option<Look>,
    /// Whether the store has no clock, so that this process's own clock is used.
    own: bool,
    /// The latest date that the store has sent; `None` if there is no date.
    dated: Option<Dated>,
    /// Identifies this machine since its last start, see [`Runtime::machine`](crate::runtime::Runtime::machine).
    machine: Option<u64>,
}

/// A date that the store gave at some moment between two times on this process's clock.
#[derive(Clone, Copy)]
struct Dated {
    date: Date,
    asked: Instant,
    answered: Instant,
}

/// A reading of the server's clock: the server showed `shown` at some moment between two times on this process's clock.
#[derive(Clone, Copy)]
struct Look {
    shown: u64,
    asked: Instant,
    answered: Instant,
}

impl StoreTime {
    pub(super) fn new(wall: u64, origin: Instant, machine: Option<u64>) -> Self {
        Self {
            wall,
            origin,
            looked: None,
            own: false,
            dated: None,
            machine,
        }
    }

    /// Stores the server's time from an answer. The request was sent at `asked` and answered at `answered`.
    pub(super) fn learn(&mut self, shown: Option<u64>, asked: Instant, answered: Instant) {
        match shown {
            Some(shown) => {
                self.looked = Some(Look {
                    shown: shown.min(LATEST),
                    asked,
                    answered,
                });
            }
            None => self.own = true,
        }
    }

    /// Stores the date of the session's last acknowledged change; `None` if the store gives no dates. If the date is
    /// new, the store gave it between `asked` and `answered`.
    pub(super) fn learn_date(&mut self, date: Option<Date>, asked: Instant, answered: Instant) {
        let limited = |date: Date| Date {
            micros: date.micros.min(LATEST),
            ..date
        };
        let date = date.map(limited);
        if date != self.dated.map(|known| known.date) {
            self.dated = date.map(|date| Dated {
                date,
                asked,
                answered,
            });
        }
    }

    /// The times on several clocks at `now`, when the wall clock of this process shows `wall`. `None` if the store has its own
    /// clock, which then decides alone when items expire.
    pub(super) fn reading(&self, now: Instant, wall: u64) -> Option<Reading> {
        if !self.own {
            return None;
        }
        let store = self
            .dated
            .and_then(|dated| StoreReading::at(now, dated.date, dated.asked, dated.answered));
        Some(Reading {
            wall,
            machine: self.machine.map(|machine| (machine, now.as_nanos() / 1000)),
            store,
        })
    }

    /// Forgets all readings of the clock and the date, because a new session may be connected to another server.
    pub(super) fn forget(&mut self) {
        self.looked = None;
        self.dated = None;
    }

    /// The source of the times from which this client derives fencing numbers:
    ///
    /// - `Own`: the store's clock, which also decides when keys expire.
    /// - `Shown`: the last date that the store sent, plus the time since then.
    /// - `Unknown`: the wall clock of this process, because the store has no clock and has sent no date.
    pub(super) fn dates(&self, now: Instant) -> Dates {
        match self.dated {
            _ if !self.own => Dates::Own,
            Some(Dated { date, answered, .. }) => Dates::Shown(date.micros + micros(now, answered)),
            None => Dates::Unknown,
        }
    }

    /// Whether the last date is too old to judge the age of a lease. False if the store gives no dates.
    pub(super) fn is_date_stale(&self, now: Instant) -> bool {
        let stale = |dated: Dated| now.saturating_since(dated.answered) > FRESH;
        self.own && self.dated.is_some_and(stale)
    }

    /// Whether the last date was received more than [`DATED`] ago, so that a new date is needed.
    pub(super) fn is_date_old(&self, now: Instant) -> bool {
        self.dated
            .is_some_and(|dated| micros(now, dated.answered) > DATED)
    }

    /// The time that decides which fencing counters may be removed: the time in [`Dates::Shown`] or that of this
    /// process's wall clock, whichever is earlier. So a single clock that is ahead cannot remove a counter too early.
    ///
    /// `None` if [`dates`](Self::dates) does not return `Dates::Shown`.
    pub(super) fn removal_date(&self, now: Instant) -> Option<u64> {
        match self.dates(now) {
            Dates::Shown(date) => Some(date.min(self.wall + micros(now, self.origin))),
            Dates::Own | Dates::Unknown => None,
        }
    }

    /// The earliest possible time on the store's clock at `now`, and the difference between the latest and the earliest
    /// possible time. Both are in microseconds. `None` without a recent reading of the store's clock.
    pub(super) fn now(&self, now: Instant) -> Option<(u64, u64)> {
        if self.own {
            let passed = micros(now, self.origin);
            return Some((self.wall + passed, 0));
        }
        let look = self.looked?;
        let (least, most) = (micros(now, look.answered), micros(now, look.asked));
        if most > STALE {
            return None;
        }
        let apart = most * RATE / 1000 + 1;
        Some((
            look.shown + least.saturating_sub(apart),
            most - least + 2 * apart,
        ))
    }

    /// The clock on which new items expire.
    ///
    /// - `slack`: the store's clock may be ahead of the time that this client assumes by this many microseconds.
    /// - `stamp`: a number that differs for each write. It is used only if the store has no clock.
    /// - `reading`: the times on several clocks now. It is used only if the store has no clock.
    pub(super) fn clock(&self, slack: u64, stamp: u64, reading: Option<Reading>) -> Clock {
        if self.own {
            Clock::Own { stamp, reading }
        } else {
            #[cfg(feature = "seeded-bugs")]
            let slack = if super::flaw::has(super::flaw::StoreFlaw::NoSlack) {
                0
            } else {
                slack
            };
            Clock::Server { slack }
        }
    }
}

fn micros(later: Instant, earlier: Instant) -> u64 {
    super::micros::micros(later.saturating_since(earlier))
}

#[cfg(test)]
mod tests {
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
        for (gained, lasts) in [(1.008, 2_000_000), (0.992, 2_000_000), (1.0095, 9_000_000)] {
            let mut time = StoreTime::new(5_000_000, at(0), None);
            time.learn(Some(9_000_000), at(1_000), at(1_000));
            let (least, slack) = time
                .now(at(1_000 + lasts))
                .expect("the time must be known after the clock was read");
            let shows = 9_000_000 + (lasts as f64 * gained) as u64;
            assert!(
                least <= shows && shows <= least + slack,
                "the server time must be within the estimate if the server clock has the rate {gained}"
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
        let shown = |time: &StoreTime, now: u64| match time.dates(at(now)) {
            Dates::Own => None,
            Dates::Unknown => Some(0),
            Dates::Shown(date) => Some(date),
        };
        let mut time = StoreTime::new(5_000_000, at(100), None);
        time.learn(Some(9_000_000), at(100), at(400));
        time.learn_date(Some(Date::new(7_000_000, 1)), at(100), at(400));
        assert_eq!(
            shown(&time, 500),
            None,
            "fencing numbers must not use the stored date if the store has a clock"
        );
        let mut time = StoreTime::new(5_000_000, at(100), None);
        time.learn(None, at(100), at(400));
        assert_eq!(shown(&time, 500), Some(0));
        time.learn_date(Some(Date::new(9_000_000, 1)), at(100), at(400));
        assert_eq!(shown(&time, 700), Some(9_000_300));
        // The date is unchanged, so its age still counts from 400 µs, when this client first received it.
        time.learn_date(Some(Date::new(9_000_000, 1)), at(100), at(900));
        assert_eq!(shown(&time, 1_000), Some(9_000_600));
        time.learn_date(Some(Date::new(8_000_000, 1)), at(100), at(1_000));
        assert_eq!(shown(&time, 1_000), Some(8_000_000));
        time.forget();
        assert_eq!(shown(&time, 1_000), Some(0));
    }

    #[test]
    fn store_time_without_a_server_clock_is_the_initial_time_plus_elapsed_time() {
        let mut time = StoreTime::new(5_000_000, at(100), None);
        time.learn(None, at(100), at(400));
        assert_eq!(time.now(at(700)), Some((5_000_600, 0)));
    }
}
