//! What this client knows about the servers behind the addresses of the masters: the current run of each server
//! process, and whether its votes count.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::node::{NodeName, ServerRun};
use crate::protocol::instant::Instant;

/// Whether the server of one connection still has all data that was written to it.
#[derive(Clone, Debug)]
pub(in crate::node) struct Memory {
    /// The present run of the server process. The connection cannot outlive this run.
    pub(in crate::node) run: ServerRun,
    /// Whether the server is configured to lose nothing in a restart. Then values that were written in earlier runs of
    /// the server process are trusted too.
    pub(in crate::node) lasts: bool,
}

impl Memory {
    /// Creates the state for a server in this `run`. `None` if the server does not report its run id: the restart guard
    /// refuses such a server, and without the guard the run id does not matter.
    pub(in crate::node) fn of(run: Option<&str>, lasts: bool) -> Self {
        let one_word = |run: &&str| !run.is_empty() && !run.contains(char::is_whitespace);
        let run = ServerRun::new(run.filter(one_word).unwrap_or("-"));
        Self { run, lasts }
    }

    /// Whether a stored value that was written in the server run `run` is certainly the newest value. This is so if the
    /// server cannot have lost a later value in a restart.
    pub(in crate::node) fn vouches_for(&self, run: &[u8]) -> bool {
        self.lasts || self.run.as_str().as_bytes() == run
    }
}

/// The runs of one master's server process that this client has seen, across connections.
#[derive(Default)]
pub(in crate::node) struct Acquaintance(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// The run id that the server reported on the first connection.
    first_run: Option<String>,
    /// The run id of the server on the last connection, and the client id that the server gave that connection.
    last: Option<(String, i64)>,
    /// The run id that was seen last. The restart guard withholds the master's votes until the given time, because an
    /// earlier connection showed another run id.
    run: Option<(String, Instant)>,
}

impl Acquaintance {
    /// Returns a copy for an additional connection. It contains the seen runs, but not the id of the last connection.
    pub(in crate::node) fn beside(&self) -> Self {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Self(Mutex::new(Seen {
            first_run: seen.first_run.clone(),
            last: None,
            run: seen.run.clone(),
        }))
    }

    /// The time until which the restart guard withholds the votes of a master, because its run id has changed. The
    /// server's uptime does not matter. If the address now leads to another server, that server may have been up for
    /// long, but it knows none of the earlier grants.
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
    pub(in crate::node) fn is_first_run(&self, run: &str) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.first_run.get_or_insert_with(|| run.to_owned()) == run
    }

    /// Stores the present connection. Returns the client id of the previous connection if the server is still in the
    /// same run. After a restart that id may belong to another client, so nothing is returned.
    pub(in crate::node) fn replace(&self, run: &str, id: i64) -> Option<i64> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, last) = seen.last.replace((run.to_owned(), id))?;
        (known == run).then_some(last)
    }
}

/// The servers behind the addresses of one `Redlock`, so that one server with two addresses does not get two votes.
#[derive(Debug, Default)]
pub(crate) struct Roster(Mutex<HashMap<String, NodeName>>);

impl Roster {
    /// Records that the address `name` leads to the server in this run. If another address already leads to that
    /// server, that address is returned as an error.
    ///
    /// An address keeps its server after its connection has ended, because its recent vote must not be counted again
    /// for another address. It loses the server only when it leads to another server.
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
    fn server_run_is_accepted_under_one_name_only() {
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
            "a name that leads to another server now must be accepted"
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
    fn stored_value_is_trusted_from_this_server_run_or_on_a_durable_server() {
        let memory = |lasts| Memory::of(Some("run"), lasts);
        assert!(memory(false).vouches_for(b"run") && !memory(false).vouches_for(b"other"));
        assert!(memory(true).vouches_for(b"other"));
        assert_eq!(Memory::of(Some("two words"), true).run.as_str(), "-");
    }

    #[test]
    fn server_that_replaced_a_master_is_guarded_despite_its_long_uptime() {
        let seen = Acquaintance::default();
        let at = |secs: u64| Instant::from_nanos(secs * 1_000_000_000);
        let guarded = |run, now| seen.guarded(run, at(now), Duration::from_secs(30));
        assert_eq!(
            guarded("run 1", 5),
            at(0),
            "the first run of the server must not be guarded"
        );
        assert_eq!(guarded("run 1", 9), at(0));
        assert_eq!(guarded("run 2", 10), at(40));
        assert_eq!(
            guarded("run 2", 20),
            at(40),
            "a new connection to the same run of the server must not extend the guard"
        );
        assert_eq!(
            guarded("run 1", 21),
            at(51),
            "the first run of the server must be guarded when it comes back, because its data is outdated"
        );
        assert_eq!(
            seen.beside()
                .guarded("run 1", at(30), Duration::from_secs(30)),
            at(51)
        );
    }

    #[test]
    fn connection_to_a_restarted_server_is_not_closed_by_a_client_id_from_before_the_restart() {
        let seen = Acquaintance::default();
        assert_eq!(seen.replace("run 1", 5), None);
        assert_eq!(seen.replace("run 1", 9), Some(5));
        assert_eq!(seen.replace("run 2", 3), None);
        assert!(seen.is_first_run("run 1") && !seen.is_first_run("run 2"));
    }
}
