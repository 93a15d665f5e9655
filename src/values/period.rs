//! Decides which period a call belongs to, and whether the work of this period is already done.

use std::ops::Range;
use std::time::{Duration, SystemTime};

/// The maximum length of a period in milliseconds: ten years.
const LONGEST_PERIOD_MS: u64 = 10 * 365 * 24 * 3_600_000;

/// The periods of work that runs once per period.
#[derive(Clone, Debug)]
pub(crate) enum Periods {
    /// Periods of this length. The first period begins at 1970-01-01 UTC.
    Every(Duration),
    /// A single period, which the caller has computed.
    One(Range<SystemTime>),
}

/// One period. Times are in milliseconds, and `start` counts from 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period {
    pub(crate) start: u64,
    length: u64,
}

impl Periods {
    /// The period of a call that is made at `now`, in milliseconds since 1970; an error text if the period is invalid.
    pub(crate) fn current_period(&self, now: u64) -> Result<Period, &'static str> {
        match self {
            Self::Every(length) => {
                let length = valid_length(*length)?;
                let start = now - now % length;
                Ok(Period { start, length })
            }
            Self::One(range) => Period::of(range),
        }
    }
}

impl Period {
    /// The period that a caller has computed; an error text if it is invalid.
    pub(crate) fn of(range: &Range<SystemTime>) -> Result<Self, &'static str> {
        let start = range.start.duration_since(SystemTime::UNIX_EPOCH);
        let start = millis(start.map_err(|_| "the period begins before 1970")?);
        let length = range.end.duration_since(range.start).unwrap_or_default();
        let length = valid_length(length)?;
        Ok(Self { start, length })
    }

    /// Returns `None` if the work of this period must be done. Otherwise returns the start of the next period that is
    /// not done.
    ///
    /// `last` is the start of the last period that is recorded as done. Its length is not recorded, so the current
    /// length is used.
    pub(crate) fn next_start_if_done(self, last: Option<u64>) -> Option<u64> {
        let since_start = last?.checked_sub(self.start)?;
        let periods_done = (since_start / self.length).saturating_add(1);
        Some(
            self.start
                .saturating_add(periods_done.saturating_mul(self.length)),
        )
    }
}

/// The length of a period in milliseconds; an error text if no period may have it.
fn valid_length(length: Duration) -> Result<u64, &'static str> {
    match millis(length) {
        0 => Err("the period is 0: it must be at least 1ms"),
        length @ 1..=LONGEST_PERIOD_MS => Ok(length),
        _ => Err("the period is longer than ten years, which is the maximum"),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_period_is_not_due_again_even_if_a_clock_is_wrong() {
        let hour = 3_600_000;
        for (now, length, last, next) in [
            (7 * hour + 5, hour, None, None),
            (7 * hour + 5, hour, Some(6 * hour), None),
            (7 * hour + 5, hour, Some(7 * hour), Some(8 * hour)),
            (8 * hour, hour, Some(7 * hour), None),
            // The last period was done by a machine whose clock is ahead.
            (7 * hour + 5, hour, Some(9 * hour), Some(10 * hour)),
            // The recorded start is the largest number. No later start exists, so the same number is returned.
            (7 * hour, hour, Some(u64::MAX), Some(u64::MAX)),
            // The recorded period began at 6:00, when the periods were shorter than a day.
            (7 * hour, 24 * hour, Some(6 * hour), Some(24 * hour)),
        ] {
            let periods = Periods::Every(Duration::from_millis(length));
            let period = periods
                .current_period(now)
                .expect("the length of the period must be valid");
            assert_eq!(
                period.next_start_if_done(last),
                next,
                "{now} {length} {last:?}"
            );
        }
    }

    #[test]
    fn period_computed_by_the_caller_does_not_depend_on_the_clock() {
        let at_millis = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        let period = Periods::One(at_millis(1_000)..at_millis(4_000));
        for now in [0, 1_000, 2_000, 9_000] {
            let period = period
                .current_period(now)
                .expect("the period must be valid");
            assert_eq!(period.start, 1_000);
            assert_eq!(period.next_start_if_done(Some(999)), None);
            assert_eq!(period.next_start_if_done(Some(1_000)), Some(4_000));
        }
        for wrong in [
            at_millis(4_000)..at_millis(1_000),
            at_millis(1_000)..at_millis(1_000),
            at_millis(0)..at_millis(LONGEST_PERIOD_MS + 1),
            SystemTime::UNIX_EPOCH - Duration::from_secs(1)..at_millis(1_000),
        ] {
            assert!(
                Periods::One(wrong.clone()).current_period(0).is_err(),
                "{wrong:?}"
            );
        }
    }
}
