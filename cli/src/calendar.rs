//! Computes the period of `quorate once` to which a moment belongs: a day, week or month of a calendar in a time zone,
//! or a period of a fixed length.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};

use crate::config;
use crate::exit::Failure;
use crate::last_run::rfc3339_text;

/// The length of a period: the value of `--per`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeriodLength {
    /// A fixed length, such as 24h.
    Fixed(Duration),
    /// A day, week or month of the calendar. Such periods differ in length.
    Calendar(CalendarUnit),
}

/// A unit of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CalendarUnit {
    Day,
    /// A week, which begins on Monday.
    Week,
    Month,
}

/// Parses the value of `--per`.
pub(crate) fn parse_period_length(text: &str) -> Result<PeriodLength, String> {
    let unit = match text {
        "day" => CalendarUnit::Day,
        "week" => CalendarUnit::Week,
        "month" => CalendarUnit::Month,
        _ => return parse_fixed_length(text).map(PeriodLength::Fixed),
    };
    Ok(PeriodLength::Calendar(unit))
}

fn parse_fixed_length(text: &str) -> Result<Duration, String> {
    let length = config::duration(text);
    let length = length.map_err(|why| format!("{why}, or day, week or month"))?;
    let mut units = text.split(|c: char| !c.is_ascii_alphabetic());
    let has_varying_length = |unit: &str| {
        ["M", "y"].contains(&unit) || unit.starts_with("month") || unit.starts_with("year")
    };
    if units.any(has_varying_length) {
        return Err("months and years vary in length: use --per month, or a number of days".into());
    }
    if length < Duration::from_millis(1) {
        return Err("a period must be at least 1ms: give for example 24h".into());
    }
    Ok(length)
}

/// Parses the value of `--at`: `03:00` or `03:00:30`.
pub(crate) fn parse_time_of_day(text: &str) -> Result<Time, String> {
    let is_time = text.bytes().all(|c| c.is_ascii_digit() || c == b':') && text.contains(':');
    let time = is_time.then(|| text.parse().ok()).flatten();
    time.ok_or_else(|| "not a time of day: give a time such as 03:00".into())
}

/// Parses the value of `--tz`: the name of a time zone.
pub(crate) fn parse_time_zone(text: &str) -> Result<TimeZone, String> {
    let zone = TimeZone::get(text);
    zone.map_err(|_| "no such time zone: give a name such as Europe/Berlin or UTC".into())
}

/// The schedule of `quorate once`: the length of its periods, and the time of day and time zone at which they begin.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    per: PeriodLength,
    start_time: Time,
    tz: TimeZone,
}

impl Schedule {
    /// Creates a schedule with periods of the length `per`. Periods begin at the time of day `start_time` (default:
    /// midnight) in the time zone `tz` (default: UTC).
    ///
    /// # Errors
    ///
    /// If `per` is a fixed length and `tz` is given: only days, weeks and months depend on a time zone.
    pub(crate) fn new(
        per: PeriodLength,
        start_time: Option<Time>,
        tz: Option<TimeZone>,
    ) -> Result<Self, Failure> {
        if matches!(per, PeriodLength::Fixed(_)) && tz.is_some() {
            return Err(Failure::usage(
                "--tz works only with --per day, week or month: periods of a fixed length do not follow local time",
            ));
        }
        let (start_time, tz) = (
            start_time.unwrap_or(Time::midnight()),
            tz.unwrap_or(TimeZone::UTC),
        );
        Ok(Self {
            per,
            start_time,
            tz,
        })
    }

    /// The period that contains `moment`: from its beginning up to the beginning of the next period.
    ///
    /// # Errors
    ///
    /// If the period is outside the years that the calendar library supports.
    pub(crate) fn period(&self, moment: SystemTime) -> Result<Range<SystemTime>, Failure> {
        let period = Timestamp::try_from(moment).and_then(|moment| {
            let period = match self.per {
                PeriodLength::Fixed(length) => self.fixed_period(length, moment),
                PeriodLength::Calendar(unit) => self.calendar_period(unit, moment),
            }?;
            Ok(SystemTime::try_from(period.start)?..SystemTime::try_from(period.end)?)
        });
        period.map_err(|why| Failure::usage(format!("cannot compute the period: {why}")))
    }

    /// A time as it is shown to users: in RFC 3339 with whole seconds, in the time zone of this schedule, and with the
    /// name of this time zone.
    pub(crate) fn time_text(&self, time: SystemTime) -> String {
        let zone = self.tz.iana_name().filter(|_| self.tz != TimeZone::UTC);
        let local_time = zone.and_then(|zone| {
            let time = Timestamp::try_from(time)
                .ok()?
                .to_zoned_datetime(self.tz.clone());
            Some(format!(
                "{} ({zone})",
                time.strftime("%Y-%m-%dT%H:%M:%S%:z")
            ))
        });
        local_time.unwrap_or_else(|| format!("{} (UTC)", rfc3339_text(time)))
    }

    fn fixed_period(
        &self,
        length: Duration,
        moment: Timestamp,
    ) -> Result<Range<Timestamp>, jiff::Error> {
        let length = SignedDuration::try_from(length)?;
        let first_start = Timestamp::UNIX_EPOCH + self.start_time.duration_since(Time::midnight());
        let since_start = moment
            .duration_since(first_start)
            .as_millis()
            .rem_euclid(length.as_millis());
        let start = moment.as_millisecond() - i64::try_from(since_start).unwrap_or_default();
        let start = Timestamp::from_millisecond(start)?;
        Ok(start..start.checked_add(length)?)
    }

    fn calendar_period(
        &self,
        unit: CalendarUnit,
        moment: Timestamp,
    ) -> Result<Range<Timestamp>, jiff::Error> {
        let start_on = |date: Date| self.tz.to_timestamp(date.to_datetime(self.start_time));
        let mut date = unit.first_day(self.tz.to_datetime(moment).date())?;
        // The period of this date begins at the time `start_time`. If that is after `moment`, take the previous period.
        while start_on(date)? > moment {
            date = unit.first_day(date.yesterday()?)?;
        }
        loop {
            let next = unit.next_first_day(date)?;
            if start_on(next)? > moment {
                return Ok(start_on(date)?..start_on(next)?);
            }
            date = next;
        }
    }
}

impl CalendarUnit {
    /// The first date of the unit that contains `date`.
    fn first_day(self, date: Date) -> Result<Date, jiff::Error> {
        match self {
            Self::Day => Ok(date),
            Self::Week => {
                date.checked_sub(i64::from(date.weekday().to_monday_zero_offset()).days())
            }
            Self::Month => Ok(date.first_of_month()),
        }
    }

    /// The first date of the next day, week or month. `first_day` is the first date of the current one.
    fn next_first_day(self, first_day: Date) -> Result<Date, jiff::Error> {
        first_day.checked_add(match self {
            Self::Day => 1.days(),
            Self::Week => 1.weeks(),
            Self::Month => 1.months(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(moment: Timestamp) -> SystemTime {
        SystemTime::try_from(moment).expect("a time")
    }

    fn period(options: [&str; 3], moment: &str) -> String {
        let [length, time, zone] = options;
        let non_empty = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let time = non_empty(time).map(|time| parse_time_of_day(&time).expect("a time"));
        let zone = non_empty(zone).map(|zone| parse_time_zone(&zone).expect("a zone"));
        let schedule = Schedule::new(parse_period_length(length).expect("a length"), time, zone)
            .expect("a schedule");
        let moment: Timestamp = moment.parse().expect("a moment");
        let period = schedule.period(system(moment)).expect("a period");
        assert!(period.contains(&system(moment)), "{options:?} {moment}");
        let to_text = |time| humantime::format_rfc3339_seconds(time).to_string();
        format!("{} {}", to_text(period.start), to_text(period.end))
    }

    #[test]
    fn error_about_an_unknown_period_names_the_periods_of_the_calendar() {
        let error_text = parse_period_length("daily").expect_err("an error");
        assert!(
            error_text.starts_with("'daily' is not a duration"),
            "{error_text}"
        );
        assert!(
            error_text.ends_with(", or day, week or month"),
            "{error_text}"
        );
    }

    #[test]
    fn period_begins_at_the_configured_time_of_day() {
        for (options, moment, expected) in [
            (
                ["24h", "", ""],
                "2026-11-23T22:00:00Z",
                "2026-11-23T00:00:00Z 2026-11-24T00:00:00Z",
            ),
            (
                ["24h", "03:00", ""],
                "2026-11-23T02:59:59Z",
                "2026-11-22T03:00:00Z 2026-11-23T03:00:00Z",
            ),
            (
                ["1h", "00:15", ""],
                "2026-11-23T02:14:00Z",
                "2026-11-23T01:15:00Z 2026-11-23T02:15:00Z",
            ),
            (
                ["day", "", ""],
                "2026-11-23T22:00:00Z",
                "2026-11-23T00:00:00Z 2026-11-24T00:00:00Z",
            ),
            (
                ["day", "03:00", "Europe/Berlin"],
                "2026-11-23T01:00:00Z",
                "2026-11-22T02:00:00Z 2026-11-23T02:00:00Z",
            ),
            (
                ["week", "", ""],
                "2026-11-23T00:00:00Z",
                "2026-11-23T00:00:00Z 2026-11-30T00:00:00Z",
            ),
            (
                ["week", "", ""],
                "2026-11-22T23:00:00Z",
                "2026-11-16T00:00:00Z 2026-11-23T00:00:00Z",
            ),
            (
                ["month", "04:30", ""],
                "2026-03-01T04:00:00Z",
                "2026-02-01T04:30:00Z 2026-03-01T04:30:00Z",
            ),
            // In Berlin, 2026-03-29 has 23 hours (without 02:30), and 2026-10-25 has 25 hours.
            (
                ["day", "", "Europe/Berlin"],
                "2026-03-29T12:00:00Z",
                "2026-03-28T23:00:00Z 2026-03-29T22:00:00Z",
            ),
            (
                ["day", "", "Europe/Berlin"],
                "2026-10-25T12:00:00Z",
                "2026-10-24T22:00:00Z 2026-10-25T23:00:00Z",
            ),
            (
                ["day", "02:30", "Europe/Berlin"],
                "2026-03-29T12:00:00Z",
                "2026-03-29T01:30:00Z 2026-03-30T00:30:00Z",
            ),
        ] {
            assert_eq!(period(options, moment), expected, "{options:?} {moment}");
        }
    }

    #[test]
    fn monthly_job_that_starts_on_the_third_of_each_month_runs_in_every_month() {
        let count_of_periods = |length: &str| {
            let months = (2026..2029).flat_map(|year| {
                (1..=12).map(move |month| format!("{year}-{month:02}-03T05:00:00Z"))
            });
            let mut periods: Vec<String> = months
                .map(|moment| period([length, "", ""], &moment))
                .collect();
            periods.dedup();
            periods.len()
        };
        assert_eq!(count_of_periods("month"), 36);
        assert!(
            count_of_periods("2630016s") < 36,
            "a period of fixed length, the average of all months, must give fewer than 36 runs in 36 months"
        );
    }

    #[test]
    fn periods_of_a_year_follow_each_other_without_gap_or_overlap() {
        for zone in [
            "Europe/Berlin",
            "America/Sao_Paulo",
            "Australia/Lord_Howe",
            "Pacific/Apia",
        ] {
            for unit in ["day", "week", "month"] {
                let start_time = Some(parse_time_of_day("00:10").expect("a time"));
                let schedule = Schedule::new(
                    parse_period_length(unit).expect("a unit"),
                    start_time,
                    parse_time_zone(zone).ok(),
                )
                .expect("a schedule");
                let begin: Timestamp = "2011-01-01T00:00:00Z".parse().expect("a moment");
                let mut previous = schedule.period(system(begin)).expect("a period");
                for half_hours in 1..(366 * 48) {
                    let moment = system(begin) + Duration::from_secs(1_800 * half_hours);
                    let next = schedule.period(moment).expect("a period");
                    assert!(next.contains(&moment), "{zone} {unit}");
                    assert!(
                        next == previous || next.start == previous.end,
                        "{zone} {unit} {previous:?} {next:?}"
                    );
                    previous = next;
                }
            }
        }
    }

    #[test]
    fn invalid_period_time_of_day_or_time_zone_is_refused() {
        for text in ["1month", "1M", "2 years", "1y", "0s", "fortnight"] {
            assert!(parse_period_length(text).is_err(), "{text}");
        }
        for text in ["3", "25:00", "03:00Z", "noon", "2026-01-01 03:00"] {
            assert!(parse_time_of_day(text).is_err(), "{text}");
        }
        assert!(parse_time_zone("Europe/Atlantis").is_err());
        let hours = PeriodLength::Fixed(Duration::from_secs(3_600));
        assert!(Schedule::new(hours, None, Some(TimeZone::UTC)).is_err());
    }
}
