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
//!
//! The library counts ([`LastRun`]), so that its simulation tests this rule.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quorate::Instant;
use quorate::fork::PerProcess;
use quorate::node::store::{LastRun, SeenPosition};

/// The last run that this process saw at one address.
#[derive(Debug, Default)]
pub(crate) struct FirstSight(LastRun);

impl FirstSight {
    /// The highest position in the WAL that this process has seen in the last run. A lower position shows that the
    /// server was set back.
    pub(crate) fn position(&self) -> Option<SeenPosition> {
        self.0.position()
    }

    /// Whether no session of this process has met another run since it met `run`.
    pub(crate) fn is_current(&self, run: &str) -> bool {
        self.0.is_current(run)
    }

    /// The age of the run `run`, whose row shows the age `aged` in microseconds. Notes the run and the position of its
    /// server in the WAL, in bytes.
    pub(crate) fn age(&self, run: &str, aged: i64, position: Option<u64>) -> Duration {
        let aged = Duration::from_micros(u64::try_from(aged).unwrap_or(0));
        self.0.meet(Instant::now(), run, aged, position)
    }

    /// The age to write into the row of the run `run`; `None` if the row shows nearly this age.
    pub(crate) fn due(&self, run: &str) -> Option<Duration> {
        self.0.due(Instant::now(), run)
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

    #[test]
    fn age_in_a_row_counts_only_if_it_is_credible() {
        let aged = |aged: i64| FirstSight::default().age("a", aged, None);
        assert_eq!(aged(60_000_000), Duration::from_secs(60));
        for incredible in [-1, i64::MIN, i64::MAX] {
            assert_eq!(aged(incredible), Duration::ZERO);
        }
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
