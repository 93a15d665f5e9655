//! Records which server process runs at the address of each master. Decides whether the votes of that process count,
//! and which of its stored values are trusted.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::node::{NodeName, ServerRun};
use crate::protocol::instant::Instant;

/// Decides which stored values of the server at the other end of a connection are trusted.
#[derive(Clone, Debug)]
pub(in crate::node) struct Memory {
    /// The current run of the server process. The connection cannot outlive this run.
    pub(in crate::node) run: ServerRun,
    /// Whether the restart guard is off, because the server loses no data in a restart. Then values that were written
    /// in earlier runs of the server process are trusted too.
    pub(in crate::node) lasts: bool,
}

impl Memory {
    /// Creates the state for a server.
    ///
    /// - `run` is the server's run id; `None` if the server does not report one.
    /// - `lasts` is true if the restart guard is off, because the server loses no data in a restart.
    pub(in crate::node) fn of(run: Option<&str>, lasts: bool) -> Self {
        let one_word = |run: &&str| !run.is_empty() && !run.contains(char::is_whitespace);
        let run = ServerRun::new(run.filter(one_word).unwrap_or("-"));
        Self { run, lasts }
    }

    /// Whether a stored value that was written in the server run `run` is certainly the newest value. True if the
    /// server is still in this run, or if the server loses nothing in a restart.
    pub(in crate::node) fn vouches_for(&self, run: &[u8]) -> bool {
        self.lasts || self.run.as_str().as_bytes() == run
    }
}

/// The runs of one master's server process that this client has seen, across connections.
#[derive(Default)]
pub(in crate::node) struct Acquaintance(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// The run id that the server reported on the first connection; `None` before the first connection.
    first_run: Option<String>,
    /// The server's run id, and the client id that the server assigned, both from the last connection. `None` before
    /// the first connection.
    last: Option<(String, i64)>,
    /// The latest run id, and the time until which the restart guard ignores the master's votes (the zero `Instant` if
    /// the run id has never changed). `None` before the first connection.
    run: Option<(String, Instant)>,
}
    /// The latest run id, and when this client first saw it. `None` before the first connection.
    since: Option<(String, Instant)>,

impl Acquaintance {
    /// Returns a copy for an additional connection to the same master. A new connection closes the connection whose
    /// client id is stored here. So the copy has no client id, and the first connection stays open.
    pub(in crate::node) fn beside(&self) -> Self {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Self(Mutex::new(Seen {
            first_run: seen.first_run.clone(),
            last: None,
            run: seen.run.clone(),
        }))
            since: seen.since.clone(),
    }

    /// Records the run id `run`, which the master reported at `answered`. Returns the time until which the restart
    /// guard withholds the master's votes: `max_ttl` after the run id last changed. If the run id has never changed,
    /// returns the time 0, and no vote is withheld.
    ///
    /// A change of the run id counts even if the server reports a long uptime: a different server may now have this
    /// address.
    pub(in crate::node) fn guarded(
        &self,
        run: &str,
        answered: Instant,
        max_ttl: Duration,
    ) -> Instant {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let until = match &seen.run {
            Some((known, until)) if known == run => return *until,
            Some(_) => answered + max_ttl,
            None => Instant::from_nanos(0),
        };
        seen.run = Some((run.to_owned(), until));
        until
    }

    /// Whether `run` is the run id that the first connection reported.
    /// The time at which this client first saw the run `run` of the server. A run that the client sees for the first time
    /// was first seen at `now`.
    pub(in crate::node) fn first_seen(&self, run: &str, now: Instant) -> Instant {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &seen.since {
            Some((known, since)) if known == run => *since,
            _ => {
                seen.since = Some((run.to_owned(), now));
                now
            }
        }
    }

    pub(in crate::node) fn is_first_run(&self, run: &str) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.first_run.get_or_insert_with(|| run.to_owned()) == run
    }

    /// Stores the server run and the client id of the current connection. Returns the client id of the previous
    /// connection if the server is still in the same run. Otherwise returns `None`, because after a restart that id may
    /// belong to another client.
    pub(in crate::node) fn replace(&self, run: &str, id: i64) -> Option<i64> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, last) = seen.last.replace((run.to_owned(), id))?;
        (known == run).then_some(last)
    }
}

/// For the run id of each server, the address under which one `Redlock` reached it. A server with two addresses must
/// not get two votes.
#[derive(Debug, Default)]
pub(crate) struct Roster(Mutex<HashMap<String, NodeName>>);

impl Roster {
    /// Records that the address `name` leads to the server with the run id `run`. If another address already leads to
    /// that server, returns that address as an error.
    ///
    /// The record stays after the connection has ended, so that the server cannot vote under two addresses. The record
    /// is removed only when the address `name` leads to a different server.
    pub(in crate::node) fn enter(&self, run: &str, name: &NodeName) -> Result<(), NodeName> {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match runs.get(run) {
            Some(other) if other != name => Err(other.clone()),
            Some(_) => Ok(()),
            None => {
                runs.retain(|_, other| other != name);
                runs.insert(run.to_owned(), name.clone());
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_address_of_the_same_server_process_is_refused() {
        let (a, b) = (NodeName::new("a"), NodeName::new("b"));
        let roster = Roster::default();
        assert_eq!(roster.enter("run 1", &a), Ok(()));
        assert_eq!(
            roster.enter("run 1", &a),
            Ok(()),
            "a new connection to the same run of the server must be accepted"
        );
        assert_eq!(roster.enter("run 1", &b), Err(a.clone()));
        assert_eq!(
            roster.enter("run 2", &b),
            Ok(()),
            "master b must be accepted if it reports a server run that no other master uses"
        );
        assert_eq!(
            roster.enter("run 3", &a),
            Ok(()),
            "a master whose server has restarted must be accepted"
        );
        assert_eq!(
            roster.enter("run 1", &b),
            Ok(()),
            "a server run that no master uses any more must be accepted"
        );
    }

    #[test]
    fn value_written_in_an_earlier_server_run_is_trusted_only_on_a_durable_server() {
        let memory = |lasts| Memory::of(Some("run"), lasts);
        assert!(memory(false).vouches_for(b"run") && !memory(false).vouches_for(b"other"));
        assert!(memory(true).vouches_for(b"other"));
        assert_eq!(Memory::of(Some("two words"), true).run.as_str(), "-");
    }

    #[test]
    fn votes_of_a_new_server_at_a_known_address_are_ignored_for_max_ttl() {
        let seen = Acquaintance::default();
        let at = |secs: u64| Instant::from_nanos(secs * 1_000_000_000);
        let guarded = |run, now| seen.guarded(run, at(now), Duration::from_secs(30));
        assert_eq!(
            guarded("run 1", 5),
            at(0),
            "the restart guard must not apply to the first server run"
        );
        assert_eq!(guarded("run 1", 9), at(0));
        assert_eq!(guarded("run 2", 10), at(40));
        assert_eq!(
            guarded("run 2", 20),
            at(40),
            "a new connection to the same server run must not extend the restart guard"
        );
        assert_eq!(
            guarded("run 1", 21),
            at(51),
            "the restart guard must apply when the first server run returns, because its data is outdated"
        );
        assert_eq!(
            seen.beside()
                .guarded("run 1", at(30), Duration::from_secs(30)),
            at(51)
        );
    }

    #[test]
    fn client_id_of_the_previous_connection_is_forgotten_after_a_server_restart() {
        let seen = Acquaintance::default();
        assert_eq!(seen.replace("run 1", 5), None);
        assert_eq!(seen.replace("run 1", 9), Some(5));
        assert_eq!(seen.replace("run 2", 3), None);
        assert!(seen.is_first_run("run 1") && !seen.is_first_run("run 2"));
    }
}
