//! Which run of which server this is, and how long it has lasted.
//!
//! `Uptime` is the difference of two looks at the wall clock, and jumps with it: a server that began an hour behind and has its
//! clock set right says two seconds after a crash that it has been up for an hour. MariaDB's `UUID()` reads a
//! monotonic clock that was set by the wall clock once, when the server began. With the wall clock and `Uptime` of one and the
//! same statement, which together say what the wall clock showed when the server began, it tells how long ago that was,
//! whatever the wall clock has done since. MySQL's `UUID()` follows the wall clock, and nothing else there tells the time to
//! an ordinary user: a run of a MySQL server lasts from when this process has first seen it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mysql_async::Row;

use crate::session::{number, word};

/// Asks what [`Told::read`] reads.
pub(crate) const QUESTION: &str = "SELECT UUID(),@@hostname,@@port,@@datadir/*M!,\
    TIMESTAMPDIFF(SECOND,'1970-01-01',UTC_TIMESTAMP()),\
    (SELECT variable_value FROM information_schema.global_status WHERE variable_name='UPTIME')*/";

/// A server that says that it has been up for longer does not know.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);
/// Between the first day of the calendar of UUIDs and 1970, in units of 100 ns.
const EPOCH: u64 = 0x01b2_1dd2_1381_4000;

/// What a server says of its run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// Its monotonic clock, and what that showed when the server began, in microseconds.
    clocks: Option<(u64, u64)>,
    /// The same in all databases of one server, and in those of no other.
    server: String,
}

impl Told {
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

    /// `wall` and `uptime` are in seconds; `uptime` has wrapped around where the clock was put back.
    fn of(uuid: &str, place: &str, wall: Option<(u64, u64)>) -> Option<Self> {
        // The time, lowest part first; what is behind it was drawn when the server began.
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

    /// The monotonic clock, where there is one.
    pub(crate) fn clock(&self) -> Option<u64> {
        self.clocks.map(|(clock, _)| clock)
    }

    /// For how long the server remembers what it was told, at least: since it began, or since it was
    /// prepared where [`Run::since`] says that. Up to a second too much, as both ends of an uptime are cut.
    pub(crate) fn lasts(&self, run: &Run) -> Duration {
        let (clock, began) = self.clocks.unwrap_or_default();
        let lasts = clock.saturating_sub(began.max(run.since));
        Some(Duration::from_micros(lasts))
            .filter(|lasts| *lasts < LONGEST)
            .unwrap_or_default()
    }
}

/// The one row of `quorate_run`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) id: String,
    /// The table of the records was made then, by the server's monotonic clock: it knows nothing from before.
    since: u64,
}

impl Run {
    pub(crate) fn read(text: &str) -> Self {
        let (id, since) = text.split_once('@').unwrap_or((text, "0"));
        Self {
            id: id.to_owned(),
            // What cannot be read does not lie in the past.
            since: since.parse().unwrap_or(u64::MAX),
        }
    }

    /// How it is written.
    pub(crate) fn text(id: &str, since: Option<u64>) -> String {
        since.map_or_else(|| id.to_owned(), |since| format!("{id}@{since}"))
    }
}

/// The run that this process has met last at one address, and when.
#[derive(Debug, Default)]
pub(crate) struct FirstSight(Mutex<Option<(String, Instant)>>);

impl FirstSight {
    /// For how long this run has been known.
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

/// The names of servers. Each database has one in its `quorate_schema`, and databases that were prepared by administrators
/// who see only their own have different ones.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// By what all databases of a running server say.
    running: HashMap<String, String>,
    /// Another name of the same server, which stays when it restarts.
    same: HashMap<String, String>,
}

impl Names {
    /// The one name of the server whose database calls it `name`.
    pub(crate) fn of(&mut self, name: String, told: &Told) -> String {
        let known = self.same.get(&name).unwrap_or(&name).clone();
        let one = self
            .running
            .entry(told.server.clone())
            .or_insert(known)
            .clone();
        self.same.insert(name, one.clone());
        one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-23 07:37:41 UTC.
    const UUID: &str = "f2206ef9-e708-11f1-893b-02fc00000001";

    fn told(wall: Option<(u64, u64)>) -> Told {
        Told::of(UUID, "h:3306 /d", wall).expect("a UUID")
    }

    fn lasts(wall: Option<(u64, u64)>) -> Duration {
        told(wall).lasts(&Run::read("a"))
    }

    #[test]
    fn age_of_a_run_does_not_depend_on_the_wall_clock() {
        let clock = told(Some((0, 0))).clock().expect("a clock");
        let now = clock / 1_000_000;
        let began = now - 10;
        let age = Duration::from_micros(clock - began * 1_000_000);
        assert!(age >= Duration::from_secs(10));
        for forward in [0, 3600, 86_400] {
            assert_eq!(lasts(Some((now + forward, 10 + forward))), age, "{forward}");
        }
        // Put back by an hour: the uptime is less than nothing.
        let wrapped = 10_u64.wrapping_sub(3600);
        assert_eq!(lasts(Some((now - 3600, wrapped))), age);
    }

    #[test]
    fn run_whose_age_is_not_told_has_just_begun() {
        assert_eq!(lasts(None), Duration::ZERO);
        assert_eq!(lasts(Some((5, u64::MAX / 2))), Duration::ZERO);
        for odd in [
            "",
            "x",
            "00000000-0000-1000-8000-000000000000",
            "f2206ef9-e708-zzzz-893b-02",
        ] {
            assert_eq!(Told::of(odd, "h", Some((9, 1))), None, "{odd}");
        }
        // A random one shows no time.
        let random = Told::of("f2206ef9-e708-41f1-893b-02fc00000001", "h", Some((9, 1)));
        assert_eq!(random.expect("a name").clock(), None);
    }

    #[test]
    fn run_with_a_later_beginning_counts_from_there() {
        let clock = told(Some((0, 0))).clock().expect("a clock");
        let told = told(Some((clock / 1_000_000, 3600)));
        let since = |since| told.lasts(&Run::read(&Run::text("a", Some(since))));
        assert_eq!(since(clock - 5), Duration::from_micros(5));
        assert_eq!(since(clock + 5), Duration::ZERO);
        assert!(since(1) > Duration::from_secs(3599));
        assert_eq!(told.lasts(&Run::read("a@x")), Duration::ZERO);
        assert_eq!(Run::read(&Run::text("a", None)).id, "a");
    }

    #[test]
    fn run_that_was_seen_before_is_as_old_as_that() {
        let seen = FirstSight::default();
        assert_eq!(seen.ago("one"), Duration::ZERO);
        std::thread::sleep(Duration::from_millis(2));
        assert!(seen.ago("one") >= Duration::from_millis(2));
        assert_eq!(seen.ago("two"), Duration::ZERO);
        assert!(seen.ago("one") < Duration::from_millis(2), "it is met anew");
    }

    #[test]
    fn names_of_one_running_server_are_one_name_and_stay_it() {
        let run = |server: &str| Told {
            clocks: None,
            server: server.into(),
        };
        let mut names = Names::default();
        let mut name = |name: &str, server: &str| names.of(name.into(), &run(server));
        assert_eq!(name("a", "first run"), "a");
        assert_eq!(name("b", "first run"), "a");
        assert_eq!(name("c", "another server"), "c");
        assert_eq!(name("b", "second run"), "a", "also where it comes first");
        assert_eq!(name("a", "second run"), "a");
    }
}
