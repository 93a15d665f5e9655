//! Measures the age of a run of a server, without the wall clock of the server or of a client.
//!
//! # Why like this
//!
//! No function of PostgreSQL that an ordinary user may call shows a monotonic clock, and each time of the server moves
//! with its wall clock. So the age of a run is what clients have counted on their own monotonic clocks:
//!
//! - A client that has watched a run for some time writes this age into the row of `quorate.run` (`aged`).
//! - A client that meets the run for the first time begins to count at the age in the row.
//!
//! A crash of the server empties the table, and so also forgets the age. A new process does not wait, and processes
//! that end soon add up their ages. An age that nobody counted, for example while no client ran, is lost: the guard
//! then waits longer than necessary.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quorate::fork::PerProcess;

/// An age in a row above this limit (100 years) is not credible and counts as zero.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);
/// An age below this limit (10 min) is written again when it has grown by a 32nd part of itself, but at least by 100 ms
/// and at most by 1 s. A command that tries once stays connected for a 32nd part of `max_ttl`, but at most for about
/// 1 s. So each such process adds to the age while the votes of the server do not count.
const YOUNG: Duration = Duration::from_secs(600);
/// A larger age is written again when it has grown by a tenth. So a new process believes at least 10/11 of the true age.
const OLD_GROWTH: u32 = 10;

/// The last run that this process saw at one address.
#[derive(Debug, Default)]
pub(crate) struct FirstSight(Mutex<Option<Seen>>);

#[derive(Debug)]
struct Seen {
    run: String,
    at: Instant,
    /// The age of the run at the time `at`.
    base: Duration,
    /// The largest age that is known to be in the row.
    written: Duration,
    /// The highest position in the WAL that this process has seen in this run, in bytes.
    position: u64,
}

impl Seen {
    fn age(&self, now: Instant) -> Duration {
        self.base + now.saturating_duration_since(self.at)
    }
}

impl FirstSight {
    fn seen(&self) -> MutexGuard<'_, Option<Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last run, and the highest position in the WAL that this process has seen in it. A lower position shows that
    /// the server was set back.
    pub(crate) fn position(&self) -> Option<(String, u64)> {
        let seen = self.seen();
        seen.as_ref().map(|seen| (seen.run.clone(), seen.position))
    }

    /// Whether no session of this process has met another run since it met `run`.
    pub(crate) fn is_current(&self, run: &str) -> bool {
        self.seen().as_ref().is_none_or(|seen| seen.run == run)
    }

    /// The age of the run `run`, whose row shows the age `aged` in microseconds. Notes the run and the position of its
    /// server in the WAL.
    pub(crate) fn age(&self, run: &str, aged: i64, position: Option<u64>) -> Duration {
        let age = self.age_at(Instant::now(), run, aged);
        let mut seen = self.seen();
        if let Some(seen) = seen.as_mut().filter(|seen| seen.run == run) {
            seen.position = seen.position.max(position.unwrap_or(0));
        }
        age
    }

    fn age_at(&self, now: Instant, run: &str, aged: i64) -> Duration {
        let aged = Duration::from_micros(u64::try_from(aged).unwrap_or(0));
        let aged = Some(aged)
            .filter(|aged| *aged < LONGEST)
            .unwrap_or_default();
        let mut seen = self.seen();
        let known = seen.as_ref().filter(|seen| seen.run == run);
        let age = known.map_or(Duration::ZERO, |seen| seen.age(now)).max(aged);
        let written = known.map_or(Duration::ZERO, |seen| seen.written).max(aged);
        let position = known.map_or(0, |seen| seen.position);
        *seen = Some(Seen {
            run: run.to_owned(),
            at: now,
            base: age,
            written,
            position,
        });
        age
    }

    /// The age to write into the row of the run `run`; `None` if the row shows nearly this age.
    pub(crate) fn due(&self, run: &str) -> Option<Duration> {
        self.due_at(Instant::now(), run)
    }

    fn due_at(&self, now: Instant, run: &str) -> Option<Duration> {
        let mut seen = self.seen();
        let seen = seen.as_mut().filter(|seen| seen.run == run)?;
        let age = seen.age(now);
        if age < seen.written + growth(seen.written) {
            return None;
        }
        seen.written = age;
        Some(age)
    }
}

/// How much an age must have grown before it is written again.
fn growth(written: Duration) -> Duration {
    let (least, most) = (Duration::from_millis(100), Duration::from_secs(1));
    if written < YOUNG {
        (written / 32).clamp(least, most)
    } else {
        written / OLD_GROWTH
    }
}

/// The statement that writes this age into the row of the run `run`.
pub(crate) fn raise(run: &str, age: Duration) -> String {
    let age = i64::try_from(age.as_micros()).unwrap_or(0);
    // The next request of the session waits behind this statement.
    format!(
        "SELECT set_config('lock_timeout','30',true);\
         UPDATE quorate.run SET aged={age} WHERE id='{run}' AND aged<{age}"
    )
}

/// The latest timelines that this process has seen, by the system identifier of the server.
static TIMELINES: PerProcess<Mutex<HashMap<String, u32>>> = PerProcess::new();

/// Notes that the server `server` is on this timeline. Returns the latest timeline that this process has seen of it, if
/// that one is later: then the server is an old primary, whose standby was promoted.
pub(crate) fn outdated(server: &str, timeline: u32) -> Option<u32> {
    let seen = TIMELINES.get_or_init(Mutex::default);
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let latest = seen.entry(server.to_owned()).or_insert(timeline);
    *latest = timeline.max(*latest);
    (*latest > timeline).then_some(*latest)
}

/// The names that this process uses for servers.
#[derive(Debug, Default)]
struct ServerNames {
    /// By the time at which the server was started.
    by_start: HashMap<i64, String>,
    /// By the system identifier of the server.
    by_identity: HashMap<String, String>,
}

impl ServerNames {
    fn name(&mut self, identity: &str, started: i64) -> String {
        let preferred = match identity {
            "" => format!("postgres started at {started}"),
            identity => {
                let known = self.by_identity.get(identity).cloned();
                known.unwrap_or_else(|| format!("postgres {identity}"))
            }
        };
        let name = self.by_start.entry(started).or_insert(preferred).clone();
        if !identity.is_empty() {
            self.by_identity.insert(identity.to_owned(), name.clone());
        }
        name
    }
}

/// The name that this process uses for the server with this system identifier (empty if the user may not read it), which
/// was started at this time.
///
/// Two servers with the same name are taken for one. The system identifier is equal on standbys and copies. The time of
/// the start is equal in all databases of a server, also for users who may not read the identifier.
pub(crate) fn server_name(identity: &str, started: i64) -> String {
    static NAMES: PerProcess<Mutex<ServerNames>> = PerProcess::new();
    let names = NAMES.get_or_init(Mutex::default);
    let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
    names.name(identity, started)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn age_of_a_run_begins_at_the_age_in_the_row_and_grows() {
        let (seen, start) = (FirstSight::default(), Instant::now());
        assert!(seen.is_current("a"), "no session has begun");
        assert_eq!(seen.age_at(start, "a", 0), Duration::ZERO);
        assert!(seen.is_current("a") && !seen.is_current("b"));
        assert_eq!(seen.age_at(start + 5 * SECOND, "a", 0), 5 * SECOND);
        let later = seen.age_at(start + 6 * SECOND, "a", 60_000_000);
        assert_eq!(later, 60 * SECOND, "another client has counted longer");
        assert_eq!(seen.age_at(start + 7 * SECOND, "a", 0), 61 * SECOND);
        assert_eq!(seen.age_at(start + 8 * SECOND, "b", 0), Duration::ZERO);
        assert_eq!(
            seen.age_at(start + 9 * SECOND, "a", 3_000_000),
            3 * SECOND,
            "after the run b, only the age in the row counts"
        );
        for incredible in [-1, i64::MIN, i64::MAX] {
            let seen = FirstSight::default();
            assert_eq!(seen.age_at(start, "a", incredible), Duration::ZERO);
        }
    }

    #[test]
    fn age_is_written_when_it_has_grown_by_a_second_and_later_by_a_tenth() {
        let (seen, start) = (FirstSight::default(), Instant::now());
        assert_eq!(seen.due_at(start, "a"), None);
        seen.age_at(start, "a", 0);
        assert_eq!(seen.due_at(start + SECOND / 20, "a"), None);
        assert_eq!(seen.due_at(start + SECOND, "b"), None);
        assert_eq!(seen.due_at(start + SECOND, "a"), Some(SECOND));
        assert_eq!(seen.due_at(start + SECOND, "a"), None);
        assert_eq!(seen.due_at(start + 100 * SECOND, "a"), Some(100 * SECOND));
        assert_eq!(seen.due_at(start + 100 * SECOND + SECOND / 2, "a"), None);
        assert_eq!(seen.due_at(start + 101 * SECOND, "a"), Some(101 * SECOND));
        assert_eq!(seen.due_at(start + 900 * SECOND, "a"), Some(900 * SECOND));
        assert_eq!(seen.due_at(start + 989 * SECOND, "a"), None);
        assert_eq!(seen.due_at(start + 990 * SECOND, "a"), Some(990 * SECOND));
        let times =
            (991..86_400).filter(|second| seen.due_at(start + *second * SECOND, "a").is_some());
        assert!(times.count() < 100);
    }

    #[test]
    fn servers_with_the_same_identifier_or_start_have_the_same_name() {
        for is_known_first in [true, false] {
            let mut names = ServerNames::default();
            let users = if is_known_first { ["7", ""] } else { ["", "7"] };
            let [one, other] = users.map(|identity| names.name(identity, 100));
            assert_eq!(one, other);
            let standby = names.name("7", 200);
            assert_eq!(standby, one);
            assert_ne!(names.name("8", 300), one);
            assert_ne!(names.name("", 400), one);
        }
    }

    #[test]
    fn server_on_an_earlier_timeline_than_seen_is_outdated() {
        let server = "the server of this test";
        assert_eq!(outdated(server, 2), None);
        assert_eq!(outdated(server, 1), Some(2));
        assert_eq!(outdated(server, 3), None);
        assert_eq!(outdated(server, 2), Some(3));
        assert_eq!(outdated("another server of this test", 1), None);
    }
}
