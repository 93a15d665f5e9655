//! Identifies the current run of a server, and measures the age of the run.
//!
//! The status variable `Uptime` alone is not the age, because the server computes it from the wall clock. If the wall
//! clock is set forward by an hour, `Uptime` grows by an hour.
//!
//! On MariaDB, the age is the difference of two times:
//!
//! - Now: a monotonic clock in `UUID()`. MariaDB sets this clock from the wall clock once, when the server starts.
//! - The start of the server: the wall clock minus `Uptime`, both read in one statement.
//!
//! On MySQL, an ordinary user cannot read a monotonic clock. So the age counts from the time at which this process
//! first saw the run.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mysql_async::Row;

use crate::session::{number_at, text_at};

/// The query whose result row [`RunReport::from_row`] parses.
pub(crate) const RUN_QUERY: &str = "SELECT UUID(),@@hostname,@@port,@@datadir/*M!,\
    TIMESTAMPDIFF(SECOND,'1970-01-01',UTC_TIMESTAMP()),\
    (SELECT variable_value FROM information_schema.global_status WHERE variable_name='UPTIME')*/";

/// An age of a server run above this limit (100 years) is not credible and counts as zero.
const LONGEST_AGE: Duration = Duration::from_secs(100 * 365 * 86_400);
/// The time from the start of the UUID calendar (15 October 1582) to the beginning of 1970, in units of 100 ns.
pub(crate) const UUID_EPOCH: u64 = 0x01b2_1dd2_1381_4000;

/// A server's report about its current run. A run lasts from one start of the server to the next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RunReport {
    /// The server's monotonic clock now, and its value when the server started, both in microseconds. `None` if the
    /// server reports no monotonic clock.
    clocks: Option<(u64, u64)>,
    /// The identity of the running server. All databases of one server report the same identity.
    identity: String,
}

impl RunReport {
    pub(crate) fn from_row(row: &mut Row) -> Option<Self> {
        let uuid = text_at(row, 0)?;
        let port = number_at(row, 2)?;
        let (host, data) = (text_at(row, 1)?, text_at(row, 3)?);
        Self::parse(
            &uuid,
            &format!("{host}:{port} {data}"),
            number_at(row, 4).zip(number_at(row, 5)),
        )
    }

    /// Parses a report. `wall_clock` contains the wall clock and the uptime, both in seconds; `None` if the server does
    /// not report them. If the wall clock was set back, the uptime can be a negative number that wraps to a large
    /// `u64`.
    fn parse(uuid: &str, location: &str, wall_clock: Option<(u64, u64)>) -> Option<Self> {
        // A UUID begins with a timestamp, low-order bits first. The rest stays the same during a server run.
        let (time, random_part) = uuid.split_at_checked(18)?;
        let mut parts = time
            .split('-')
            .map(|part| u64::from_str_radix(part, 16).ok());
        let (low, middle, high) = (parts.next()??, parts.next()??, parts.next()??);
        let ticks = (high & 0xfff) << 48 | middle << 32 | low;
        let clock = ticks.checked_sub(UUID_EPOCH)? / 10;
        let is_timed = high >> 12 == 1;
        let clocks = wall_clock.filter(|_| is_timed).map(|(now, uptime)| {
            let started_at_s = now.wrapping_sub(uptime);
            (clock, started_at_s.saturating_mul(1_000_000))
        });
        let identity = format!("{random_part} {location}");
        Some(Self { clocks, identity })
    }

    /// The reading of the server's monotonic clock in this report, in microseconds; `None` if the server offers no such
    /// clock.
    pub(crate) fn clock(&self) -> Option<u64> {
        self.clocks.map(|(clock, _)| clock)
    }

    /// The age of the run: the time since the server started, or since its table of records was created
    /// ([`Run::records_created_at`]) if that was later. Zero if unknown.
    ///
    /// The result can be up to one second too large, because the server reports whole seconds.
    pub(crate) fn age(&self, run: &Run) -> Duration {
        let (clock, started_at) = self.clocks.unwrap_or_default();
        let age = clock.saturating_sub(started_at.max(run.records_created_at));
        Some(Duration::from_micros(age))
            .filter(|age| *age < LONGEST_AGE)
            .unwrap_or_default()
    }
}

/// The content of the only row of `quorate_run`, which describes the current run of the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) id: String,
    /// When the table of records was created, by the server's monotonic clock, in microseconds.
    records_created_at: u64,
}

impl Run {
    pub(crate) fn parse(text: &str) -> Self {
        let (id, records_created_at) = text.split_once('@').unwrap_or((text, "0"));
        Self {
            id: id.to_owned(),
            // If this text is not a number, use the largest number: the run then counts as just begun.
            records_created_at: records_created_at.parse().unwrap_or(u64::MAX),
        }
    }

    /// Formats a server run as the text that the row stores: `ID@SINCE`, or `ID` if the server has no monotonic clock.
    pub(crate) fn format_text(id: &str, records_created_at: Option<u64>) -> String {
        records_created_at.map_or_else(
            || id.to_owned(),
            |records_created_at| format!("{id}@{records_created_at}"),
        )
    }
}

/// The last server run that this process saw at one address, and when this process first saw that run. `None` before
/// the first connection.
#[derive(Debug, Default)]
pub(crate) struct FirstSight(Mutex<Option<(String, Instant)>>);

impl FirstSight {
    /// How long this process has known the server run `run`; zero if it sees this run for the first time.
    pub(crate) fn known_for(&self, run: &str) -> Duration {
        let mut last_run = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last_run {
            Some((last_id, first_seen_at)) if last_id == run => first_seen_at.elapsed(),
            _ => {
                *last_run = Some((run.to_owned(), Instant::now()));
                Duration::ZERO
            }
        }
    }
}

/// The names that this process uses for servers. If the databases of one server store different names (in
/// `quorate_schema`), the process uses the first name that it read for all of them.
#[derive(Debug, Default)]
pub(crate) struct ServerNames {
    /// The name of each running server, by the server's identity.
    name_by_identity: HashMap<String, String>,
    /// Maps each name that a database stores to the name that this process uses for the server.
    name_by_stored_name: HashMap<String, String>,
}

impl ServerNames {
    /// Returns the one name that this process uses for the server whose database stores `stored_name`.
    pub(crate) fn name_for(&mut self, stored_name: String, report: &RunReport) -> String {
        let preferred = self
            .name_by_stored_name
            .get(&stored_name)
            .unwrap_or(&stored_name)
            .clone();
        let name = self
            .name_by_identity
            .entry(report.identity.clone())
            .or_insert(preferred)
            .clone();
        self.name_by_stored_name.insert(stored_name, name.clone());
        name
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A UUID with the time 2026-11-23 07:37:41 UTC.
    const UUID: &str = "f2206ef9-e708-11f1-893b-02fc00000001";

    fn report(wall: Option<(u64, u64)>) -> RunReport {
        RunReport::parse(UUID, "h:3306 /d", wall).expect("a UUID")
    }

    fn age_of_run(wall: Option<(u64, u64)>) -> Duration {
        report(wall).age(&Run::parse("a"))
    }

    #[test]
    fn uptime_of_the_server_process_does_not_depend_on_the_wall_clock() {
        let clock = report(Some((0, 0))).clock().expect("a clock");
        let now_s = clock / 1_000_000;
        let started_at_s = now_s - 10;
        let age = Duration::from_micros(clock - started_at_s * 1_000_000);
        assert!(age >= Duration::from_secs(10));
        for forward_s in [0, 3600, 86_400] {
            assert_eq!(
                age_of_run(Some((now_s + forward_s, 10 + forward_s))),
                age,
                "{forward_s}"
            );
        }
        // The clock was set back by an hour, so the uptime is negative and wraps to a large `u64`.
        let negative_uptime = 10_u64.wrapping_sub(3600);
        assert_eq!(age_of_run(Some((now_s - 3600, negative_uptime))), age);
    }

    #[test]
    fn server_process_without_a_monotonic_clock_counts_as_just_started() {
        assert_eq!(age_of_run(None), Duration::ZERO);
        assert_eq!(age_of_run(Some((5, u64::MAX / 2))), Duration::ZERO);
        for malformed_uuid in [
            "",
            "x",
            "00000000-0000-1000-8000-000000000000",
            "f2206ef9-e708-zzzz-893b-02",
        ] {
            assert_eq!(
                RunReport::parse(malformed_uuid, "h", Some((9, 1))),
                None,
                "{malformed_uuid}"
            );
        }
        // A random UUID (version 4) contains no time.
        let random = RunReport::parse("f2206ef9-e708-41f1-893b-02fc00000001", "h", Some((9, 1)));
        assert_eq!(random.expect("a name").clock(), None);
    }

    #[test]
    fn server_uptime_counts_from_the_later_of_process_start_and_table_creation() {
        let clock = report(Some((0, 0))).clock().expect("a clock");
        let report = report(Some((clock / 1_000_000, 3600)));
        let age_since = |records_created_at| {
            report.age(&Run::parse(&Run::format_text(
                "a",
                Some(records_created_at),
            )))
        };
        assert_eq!(age_since(clock - 5), Duration::from_micros(5));
        assert_eq!(age_since(clock + 5), Duration::ZERO);
        assert!(age_since(1) > Duration::from_secs(3599));
        assert_eq!(report.age(&Run::parse("a@x")), Duration::ZERO);
        assert_eq!(Run::parse(&Run::format_text("a", None)).id, "a");
    }

    proptest! {
        #[test]
        fn no_reported_number_causes_a_panic_or_an_age_above_the_limit(
            high in any::<u16>(),
            now in number_near_a_limit(),
            uptime in number_near_a_limit(),
            records_created_at in number_near_a_limit(),
        ) {
            let uuid = format!("f2206ef9-e708-{high:04x}-893b-02fc00000001");
            if let Some(report) = RunReport::parse(&uuid, "h", Some((now, uptime))) {
                let age = report.age(&Run::parse(&format!("a@{records_created_at}")));
                prop_assert!(age < LONGEST_AGE, "{age:?}");
            }
        }
    }

    /// Numbers near the limits of the types and of the checks.
    fn number_near_a_limit() -> impl Strategy<Value = u64> {
        let any_limit =
            prop::sample::select(vec![0, 1 << 31, 1_800_000_000, 1 << 53, 1 << 63, u64::MAX]);
        prop_oneof![
            (any_limit, 0..9_u64).prop_map(|(limit, offset)| limit.wrapping_add(offset)),
            any::<u64>()
        ]
    }

    #[test]
    fn age_of_a_server_run_begins_when_this_client_first_sees_the_run() {
        let first_sight = FirstSight::default();
        assert_eq!(first_sight.known_for("one"), Duration::ZERO);
        std::thread::sleep(Duration::from_millis(2));
        assert!(first_sight.known_for("one") >= Duration::from_millis(2));
        assert_eq!(first_sight.known_for("two"), Duration::ZERO);
        assert!(
            first_sight.known_for("one") < Duration::from_millis(2),
            "after run `two` was seen, run `one` must count as a newly seen run"
        );
    }

    #[test]
    fn databases_of_one_server_keep_one_server_name_after_a_restart() {
        let run_report = |server: &str| RunReport {
            clocks: None,
            identity: server.into(),
        };
        let mut names = ServerNames::default();
        let mut name_for =
            |name: &str, server: &str| names.name_for(name.into(), &run_report(server));
        assert_eq!(name_for("a", "first run"), "a");
        assert_eq!(name_for("b", "first run"), "a");
        assert_eq!(name_for("c", "another server"), "c");
        assert_eq!(
            name_for("b", "second run"),
            "a",
            "the name of the server must still be `a` if master `b` is the first to report the second run"
        );
        assert_eq!(name_for("a", "second run"), "a");
    }
}
