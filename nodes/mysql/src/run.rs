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

use crate::session::{number, word};

/// The query whose result row [`RunReport::read`] parses.
pub(crate) const QUESTION: &str = "SELECT UUID(),@@hostname,@@port,@@datadir/*M!,\
    TIMESTAMPDIFF(SECOND,'1970-01-01',UTC_TIMESTAMP()),\
    (SELECT variable_value FROM information_schema.global_status WHERE variable_name='UPTIME')*/";

/// An age of a server run above this limit (100 years) is not credible and counts as zero.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);
/// The time from the start of the UUID calendar (15 October 1582) to the beginning of 1970, in units of 100 ns.
pub(crate) const EPOCH: u64 = 0x01b2_1dd2_1381_4000;

/// A server's report about its current run. A run lasts from one start of the server to the next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RunReport {
    /// The server's monotonic clock now, and its value when the server started, both in microseconds. `None` if the
    /// server reports no monotonic clock.
    clocks: Option<(u64, u64)>,
    /// The identity of the running server. All databases of one server report the same identity.
    server: String,
}

impl RunReport {
    pub(crate) fn read(row: &mut Row) -> Option<Self> {
        let uuid = word(row, 0)?;
        let port = number(row, 2)?;
        let (host, data) = (word(row, 1)?, word(row, 3)?);
        Self::of(
            &uuid,
            &format!("{host}:{port} {data}"),
            number(row, 4).zip(number(row, 5)),
        )
    }

    /// Parses a report. `wall` contains the wall clock and the uptime, both in seconds; `None` if the server does not
    /// report them. If the wall clock was set back, the uptime can be a negative number that wraps to a large `u64`.
    fn of(uuid: &str, place: &str, wall: Option<(u64, u64)>) -> Option<Self> {
        // A UUID begins with a timestamp, low-order bits first. The rest stays the same during a server run.
        let (time, drawn) = uuid.split_at_checked(18)?;
        let mut parts = time
            .split('-')
            .map(|part| u64::from_str_radix(part, 16).ok());
        let (low, middle, high) = (parts.next()??, parts.next()??, parts.next()??);
        let ticks = (high & 0xfff) << 48 | middle << 32 | low;
        let clock = ticks.checked_sub(EPOCH)? / 10;
        let is_timed = high >> 12 == 1;
        let clocks = wall.filter(|_| is_timed).map(|(now, uptime)| {
            let began = now.wrapping_sub(uptime);
            (clock, began.saturating_mul(1_000_000))
        });
        let server = format!("{drawn} {place}");
        Some(Self { clocks, server })
    }

    /// The reading of the server's monotonic clock in this report, in microseconds; `None` if the server offers no such
    /// clock.
    pub(crate) fn clock(&self) -> Option<u64> {
        self.clocks.map(|(clock, _)| clock)
    }

    /// The age of the run: the time since the server started, or since its table of records was created
    /// ([`Run::since`]) if that was later. Zero if unknown.
    ///
    /// The result can be up to one second too large, because the server reports whole seconds.
    pub(crate) fn lasts(&self, run: &Run) -> Duration {
        let (clock, began) = self.clocks.unwrap_or_default();
        let lasts = clock.saturating_sub(began.max(run.since));
        Some(Duration::from_micros(lasts))
            .filter(|lasts| *lasts < LONGEST)
            .unwrap_or_default()
    }
}

/// The content of the only row of `quorate_run`, which describes the current run of the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) id: String,
    /// When the table of records was created, by the server's monotonic clock, in microseconds.
    since: u64,
}

impl Run {
    pub(crate) fn read(text: &str) -> Self {
        let (id, since) = text.split_once('@').unwrap_or((text, "0"));
        Self {
            id: id.to_owned(),
            // If this text is not a number, use the largest number: the run then counts as just begun.
            since: since.parse().unwrap_or(u64::MAX),
        }
    }

    /// Formats a server run as the text that the row stores: `ID@SINCE`, or `ID` if the server has no monotonic clock.
    pub(crate) fn text(id: &str, since: Option<u64>) -> String {
        since.map_or_else(|| id.to_owned(), |since| format!("{id}@{since}"))
    }
}

/// The last server run that this process saw at one address, and when this process first saw that run. `None` before
/// the first connection.
#[derive(Debug, Default)]
pub(crate) struct FirstSight(Mutex<Option<(String, Instant)>>);

impl FirstSight {
    /// How long this process has known the server run `run`; zero if it sees this run for the first time.
    pub(crate) fn ago(&self, run: &str) -> Duration {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*seen {
            Some((known, at)) if known == run => at.elapsed(),
            _ => {
                *seen = Some((run.to_owned(), Instant::now()));
                Duration::ZERO
            }
        }
    }
}

/// The names that this process uses for servers. If the databases of one server store different names (in
/// `quorate_schema`), the process uses the first name that it read for all of them.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The name of each running server, by the server's identity.
    running: HashMap<String, String>,
    /// Maps each name that a database stores to the name that this process uses for the server.
    same: HashMap<String, String>,
}

impl Names {
    /// Returns the one name that this process uses for the server whose database stores `name`.
    pub(crate) fn of(&mut self, name: String, report: &RunReport) -> String {
        let known = self.same.get(&name).unwrap_or(&name).clone();
        let one = self
            .running
            .entry(report.server.clone())
            .or_insert(known)
            .clone();
        self.same.insert(name, one.clone());
        one
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A UUID with the time 2026-11-23 07:37:41 UTC.
    const UUID: &str = "f2206ef9-e708-11f1-893b-02fc00000001";

    fn report(wall: Option<(u64, u64)>) -> RunReport {
        RunReport::of(UUID, "h:3306 /d", wall).expect("a UUID")
    }

    fn lasts(wall: Option<(u64, u64)>) -> Duration {
        report(wall).lasts(&Run::read("a"))
    }

    #[test]
    fn uptime_of_the_server_process_does_not_depend_on_the_wall_clock() {
        let clock = report(Some((0, 0))).clock().expect("a clock");
        let now = clock / 1_000_000;
        let began = now - 10;
        let age = Duration::from_micros(clock - began * 1_000_000);
        assert!(age >= Duration::from_secs(10));
        for forward in [0, 3600, 86_400] {
            assert_eq!(lasts(Some((now + forward, 10 + forward))), age, "{forward}");
        }
        // The clock was set back by an hour, so the uptime is negative and wraps to a large `u64`.
        let wrapped = 10_u64.wrapping_sub(3600);
        assert_eq!(lasts(Some((now - 3600, wrapped))), age);
    }

    #[test]
    fn server_process_without_a_monotonic_clock_counts_as_just_started() {
        assert_eq!(lasts(None), Duration::ZERO);
        assert_eq!(lasts(Some((5, u64::MAX / 2))), Duration::ZERO);
        for odd in [
            "",
            "x",
            "00000000-0000-1000-8000-000000000000",
            "f2206ef9-e708-zzzz-893b-02",
        ] {
            assert_eq!(RunReport::of(odd, "h", Some((9, 1))), None, "{odd}");
        }
        // A random UUID (version 4) contains no time.
        let random = RunReport::of("f2206ef9-e708-41f1-893b-02fc00000001", "h", Some((9, 1)));
        assert_eq!(random.expect("a name").clock(), None);
    }

    #[test]
    fn server_uptime_counts_from_the_later_of_process_start_and_table_creation() {
        let clock = report(Some((0, 0))).clock().expect("a clock");
        let report = report(Some((clock / 1_000_000, 3600)));
        let since = |since| report.lasts(&Run::read(&Run::text("a", Some(since))));
        assert_eq!(since(clock - 5), Duration::from_micros(5));
        assert_eq!(since(clock + 5), Duration::ZERO);
        assert!(since(1) > Duration::from_secs(3599));
        assert_eq!(report.lasts(&Run::read("a@x")), Duration::ZERO);
        assert_eq!(Run::read(&Run::text("a", None)).id, "a");
    }

    proptest! {
        #[test]
        fn no_reported_number_causes_a_panic_or_an_age_above_the_limit(
            high in any::<u16>(),
            now in hostile(),
            uptime in hostile(),
            since in hostile(),
        ) {
            let uuid = format!("f2206ef9-e708-{high:04x}-893b-02fc00000001");
            if let Some(report) = RunReport::of(&uuid, "h", Some((now, uptime))) {
                let lasts = report.lasts(&Run::read(&format!("a@{since}")));
                prop_assert!(lasts < LONGEST, "{lasts:?}");
            }
        }
    }

    /// Numbers near the limits of the types and of the checks.
    fn hostile() -> impl Strategy<Value = u64> {
        let near =
            prop::sample::select(vec![0, 1 << 31, 1_800_000_000, 1 << 53, 1 << 63, u64::MAX]);
        prop_oneof![
            (near, 0..9_u64).prop_map(|(near, off)| near.wrapping_add(off)),
            any::<u64>()
        ]
    }

    #[test]
    fn age_of_a_server_run_begins_when_this_client_first_sees_the_run() {
        let seen = FirstSight::default();
        assert_eq!(seen.ago("one"), Duration::ZERO);
        std::thread::sleep(Duration::from_millis(2));
        assert!(seen.ago("one") >= Duration::from_millis(2));
        assert_eq!(seen.ago("two"), Duration::ZERO);
        assert!(
            seen.ago("one") < Duration::from_millis(2),
            "after run `two` was seen, run `one` must count as a newly seen run"
        );
    }

    #[test]
    fn databases_of_one_server_keep_one_server_name_after_a_restart() {
        let run = |server: &str| RunReport {
            clocks: None,
            server: server.into(),
        };
        let mut names = Names::default();
        let mut name = |name: &str, server: &str| names.of(name.into(), &run(server));
        assert_eq!(name("a", "first run"), "a");
        assert_eq!(name("b", "first run"), "a");
        assert_eq!(name("c", "another server"), "c");
        assert_eq!(
            name("b", "second run"),
            "a",
            "the name of the server must still be `a` if master `b` is the first to report the second run"
        );
        assert_eq!(name("a", "second run"), "a");
    }
}
