//! The period for which `quorate once` runs its command, and the messages about it: why the command does not run now,
//! and when it runs again.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use crate::calendar::Schedule;
use crate::exit::Failure;
use crate::last_run::LastRun;
use crate::output::{self, human};

/// How far in the future a recorded period may begin by the clock of this machine without a warning. The masters allow
/// the same difference between clocks.
const ALLOWED_CLOCK_DIFFERENCE: Duration = Duration::from_secs(60);

/// The period in which `quorate once` runs its command, and the options that depend on it.
#[derive(Clone, Debug)]
pub(crate) struct JobPeriod {
    /// The period for which the command runs. It is the period in which `quorate once` was started, even if the wait
    /// for the lock ends in a later one.
    range: Range<SystemTime>,
    /// `--per`, `--at` and `--tz`.
    schedule: Schedule,
    /// `--at-least`: if the command fails or crashes, a later `quorate once` runs it again in the same period. If
    /// false, the command runs at most once per period.
    at_least: bool,
    /// `--done-exit-code`: the exit code if the period was already recorded as done.
    done_exit_code: u8,
}

/// The content of the record if it shows that the command must not run in the period of this call.
#[derive(Clone, Debug, Default)]
pub(crate) struct DoneRecord {
    /// The start of the last period that is recorded as done; `None` if the record could not be read again.
    pub(crate) last_start: Option<SystemTime>,
    /// The last run of the command; `None` if the record does not contain it.
    pub(crate) last_run: Option<LastRun>,
}

/// The message about a command that does not run, because the period is already recorded as done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SkipMessage {
    pub(crate) text: String,
    /// Whether the record shows that a clock or an option of a machine is wrong. If false, another call has done the
    /// work of this period, as intended.
    pub(crate) is_suspicious: bool,
}

impl JobPeriod {
    /// The period of `schedule` that contains `now`.
    ///
    /// # Errors
    ///
    /// Those of [`Schedule::period`].
    pub(crate) fn new(
        schedule: Schedule,
        now: SystemTime,
        at_least: bool,
        done_exit_code: u8,
    ) -> Result<Self, Failure> {
        Ok(Self {
            range: schedule.period(now)?,
            schedule,
            at_least,
            done_exit_code,
        })
    }

    pub(crate) fn range(&self) -> &Range<SystemTime> {
        &self.range
    }

    /// Whether the command may run again in the same period, if it has failed (`--at-least`).
    pub(crate) fn at_least(&self) -> bool {
        self.at_least
    }

    /// The exit code of a call that finds the period done.
    pub(crate) fn done_exit_code(&self) -> u8 {
        self.done_exit_code
    }

    /// Whether, and when, a command runs again that has been started or whose period may be recorded.
    pub(crate) fn next_run_text(&self, name: &[u8]) -> String {
        if self.at_least {
            return "the next call in this period runs it again (--at-least)".to_owned();
        }
        format!(
            "it does not run again before {}; to run it by hand: quorate run {} -- COMMAND",
            self.schedule.time_text(self.range.end),
            output::shell_word(name)
        )
    }

    /// The message about a command that failed with the exit code `code`: whether, and when, it runs again.
    pub(crate) fn failure_text(&self, name: &[u8], code: u8) -> String {
        format!(
            "'{}' failed with exit code {code}; {}",
            output::printable(name),
            self.next_run_text(name)
        )
    }

    /// The message about a command that does not run, because `record` shows that the period is done. It says which run
    /// used the period, when the next period begins, and which clock or option looks wrong.
    pub(crate) fn skip_message(
        &self,
        name: &[u8],
        record: &DoneRecord,
        now: SystemTime,
    ) -> SkipMessage {
        let last_start = record.last_start.unwrap_or(self.range.start);
        let last_period = self.schedule.period(last_start).ok();
        let state_text = if last_start >= self.range.end {
            "the command does not run, because a later period is already recorded as done"
        } else if self.at_least {
            "already recorded as done in this period (--at-least)"
        } else {
            "already started in this period (at most once per period)"
        };
        let run_text = record.last_run.as_ref().map_or_else(String::new, |run| {
            let run_text = output::printable(run.start_text().as_bytes());
            format!("; the last run began {run_text}")
        });
        let next_start = last_period
            .as_ref()
            .map_or(self.range.end, |last_period| last_period.end);
        let next_text = match next_start.duration_since(now) {
            Ok(rest) => format!(
                "begins in {}, at {}",
                human(rest),
                self.schedule.time_text(next_start)
            ),
            Err(_) => "has begun meanwhile".to_owned(),
        };
        let begins_a_period = last_period.is_none_or(|period| period.start == last_start);
        let start_text = self.schedule.time_text(last_start);
        let warning = if last_start > now + ALLOWED_CLOCK_DIFFERENCE {
            format!(
                "; warning: by the clock of this machine, the recorded period begins in the future, at {start_text}: \
                 correct the clock of this machine, or of the machine that ran the command"
            )
        } else if begins_a_period {
            String::new()
        } else {
            format!(
                "; warning: the recorded period began at {start_text}, and no period with this --per, --at and --tz \
                 begins then: use the same options on all machines"
            )
        };
        let name = output::printable(name);
        SkipMessage {
            text: format!("'{name}': {state_text}{run_text}; the next period {next_text}{warning}"),
            is_suspicious: !warning.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::calendar::{parse_period_length, parse_time_zone};

    fn time(text: &str) -> SystemTime {
        let time: Timestamp = text.parse().expect("a time");
        SystemTime::try_from(time).expect("a time of the system")
    }

    fn day(zone: Option<&str>, now: &str) -> JobPeriod {
        let per = parse_period_length("day").expect("a length");
        let zone = zone.map(|zone| parse_time_zone(zone).expect("a zone"));
        let schedule = Schedule::new(per, None, zone).expect("a schedule");
        JobPeriod::new(schedule, time(now), false, 0).expect("a period")
    }

    fn skip_message(period: &JobPeriod, last_start: &str, now: &str) -> SkipMessage {
        let note = r#"{"host":"db1","pid":7,"began":"2026-03-29T00:30:01Z","ended":null,"exit_code":null}"#;
        let record = DoneRecord {
            last_start: Some(time(last_start)),
            last_run: LastRun::from_note(note),
        };
        period.skip_message(b"report", &record, time(now))
    }

    /// At 01:30 in Berlin, the nights before and after the change to summer time belong to the same day in UTC.
    #[test]
    fn skipped_run_names_the_last_run_and_the_next_period_in_its_time_zone() {
        let now = "2026-03-29T23:30:00Z";
        let message = skip_message(&day(None, now), "2026-03-29T00:00:00Z", now);
        assert_eq!(
            message.text,
            "'report': already started in this period (at most once per period); the last run began \
             2026-03-29T00:30:01Z on db1 (pid 7); the next period begins in 30m, at 2026-03-30T00:00:00Z (UTC)"
        );
        assert!(!message.is_suspicious);
        let berlin = day(Some("Europe/Berlin"), now);
        let message = skip_message(&berlin, "2026-03-29T22:00:00Z", now);
        let expected_text =
            "; the next period begins in 22h 30m, at 2026-03-31T00:00:00+02:00 (Europe/Berlin)";
        assert!(message.text.ends_with(expected_text), "{message:?}");
        assert!(!message.is_suspicious);
        let expected_text = "it does not run again before 2026-03-31T00:00:00+02:00 (Europe/Berlin); to run it by \
                             hand: quorate run report -- COMMAND";
        assert_eq!(berlin.next_run_text(b"report"), expected_text);
    }

    #[test]
    fn period_that_another_schedule_or_a_wrong_clock_has_used_is_suspicious() {
        let begin = "2026-11-29T08:00:00Z";
        let other_options = "no period with this --per, --at and --tz begins then";
        let wrong_clock = "by the clock of this machine, the recorded period begins in the future";
        let later = "a later period is already recorded as done";
        for (last_start, now, texts) in [
            ("2026-11-29T00:00:00Z", begin, &[][..]),
            // The call waited for the lock until the next day, in which another machine ran the command.
            ("2026-11-30T00:00:00Z", "2026-11-30T00:05:00Z", &[later]),
            // The clock of the other machine is 50 s ahead.
            ("2026-11-30T00:00:00Z", "2026-11-29T23:59:10Z", &[later]),
            ("2026-11-30T00:00:00Z", begin, &[later, wrong_clock]),
            ("2026-11-29T23:00:00Z", begin, &[wrong_clock]),
            ("2026-11-29T07:00:00Z", begin, &[other_options]),
        ] {
            let message = skip_message(&day(None, begin), last_start, now);
            for text in [later, wrong_clock, other_options] {
                let is_expected = texts.contains(&text);
                assert_eq!(message.text.contains(text), is_expected, "{message:?}");
            }
            let is_suspicious = texts.iter().any(|text| *text != later);
            assert_eq!(message.is_suspicious, is_suspicious, "{message:?}");
        }
    }

    #[test]
    fn skipped_run_is_described_even_if_the_record_could_not_be_read_again() {
        let now = "2026-11-29T08:00:00Z";
        let message = day(None, now).skip_message(b"r", &DoneRecord::default(), time(now));
        assert_eq!(
            message.text,
            "'r': already started in this period (at most once per period); the next period begins in 16h, at \
             2026-11-30T00:00:00Z (UTC)"
        );
        assert!(!message.is_suspicious);
    }
}
