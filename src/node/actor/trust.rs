//! The known state of the servers behind the addresses: the run that each server is in, and whether it may vote.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::node::{NodeName, ServerRun};
use crate::protocol::instant::Instant;

/// Whether the server behind one connection still has all its data from before.
#[derive(Clone, Debug)]
pub(in crate::node) struct Memory {
    /// The run of the server process. A connection never outlives the run.
    pub(in crate::node) run: ServerRun,
    /// Whether the server is configured to lose nothing in a restart. Then values written in earlier runs count as
    /// well.
    pub(in crate::node) lasts: bool,
}

impl Memory {
    /// Creates the state for a server that reports `run`, or may not report its run. The restart guard refuses a server
    /// that does not; without the guard nothing depends on the run.
    pub(in crate::node) fn of(run: Option<&str>, lasts: bool) -> Self {
        let one_word = |run: &&str| !run.is_empty() && !run.contains(char::is_whitespace);
        let run = ServerRun::new(run.filter(one_word).unwrap_or("-"));
        Self { run, lasts }
    }

    /// Whether a value that was written in the run `run` is certainly the newest: the server cannot have forgotten a
    /// later one.
    pub(in crate::node) fn vouches_for(&self, run: &[u8]) -> bool {
        self.lasts || self.run.as_str().as_bytes() == run
    }
}

/// The server runs that one node has seen at its master, across connections.
#[derive(Default)]
pub(in crate::node) struct Acquaintance(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// The run id that the first connection saw.
    first_run: Option<String>,
    /// The last connection: the run id of the server, and the client id that the server gave the connection.
    last: Option<(String, i64)>,
    /// The last run seen, and until when the restart guard withholds its votes because it differs from the run before.
    run: Option<(String, Instant)>,
}

impl Acquaintance {
    /// Returns a copy with the runs that were seen, but without the last connection.
    pub(in crate::node) fn beside(&self) -> Self {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Self(Mutex::new(Seen {
            first_run: seen.first_run.clone(),
            last: None,
            run: seen.run.clone(),
        }))
    }

    /// Until when the restart guard withholds the votes of a run that differs from the run before, however long the
    /// server has been up. If the address leads to another server now, that server may have run at the same time and
    /// knows none of the earlier grants.
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

    /// Whether `run` is the run that the first connection saw.
    pub(in crate::node) fn is_first_run(&self, run: &str) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.first_run.get_or_insert_with(|| run.to_owned()) == run
    }

    /// Stores the present connection, and returns the client id of the one before if the server is still in the same
    /// run. After a restart that id may be another client's.
    pub(in crate::node) fn replace(&self, run: &str, id: i64) -> Option<i64> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, last) = seen.last.replace((run.to_owned(), id))?;
        (known == run).then_some(last)
    }
}

/// Which server each address of one `Redlock` leads to, so that one server under two names does not get two votes.
#[derive(Debug, Default)]
pub(crate) struct Roster(Mutex<HashMap<String, NodeName>>);

impl Roster {
    /// Records that `name` leads to this run of a server. Returns an error with the other name if another name led
    /// there first.
    ///
    /// The first name keeps its place when its connection ends, because its recent vote must not be counted again under
    /// another name. It loses the place only when it leads to another server.
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
            "a new connection to the same run"
        );
        assert_eq!(roster.enter("run 1", &b), Err(a.clone()));
        assert_eq!(
            roster.enter("run 2", &b),
            Ok(()),
            "the other name leads to another server now"
        );
        assert_eq!(
            roster.enter("run 3", &a),
            Ok(()),
            "the first server restarted"
        );
        assert_eq!(roster.enter("run 1", &b), Ok(()), "the old run is free");
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
        assert_eq!(guarded("run 1", 5), at(0), "the first run is not guarded");
        assert_eq!(guarded("run 1", 9), at(0));
        assert_eq!(guarded("run 2", 10), at(40));
        assert_eq!(
            guarded("run 2", 20),
            at(40),
            "a new connection to the same run"
        );
        assert_eq!(
            guarded("run 1", 21),
            at(51),
            "the first run is back, with outdated memory"
        );
        assert_eq!(
            seen.beside()
                .guarded("run 1", at(30), Duration::from_secs(30)),
            at(51)
        );
    }

    #[test]
    fn client_id_of_another_server_run_is_not_replaced() {
        let seen = Acquaintance::default();
        assert_eq!(seen.replace("run 1", 5), None);
        assert_eq!(seen.replace("run 1", 9), Some(5));
        assert_eq!(seen.replace("run 2", 3), None);
        assert!(seen.is_first_run("run 1") && !seen.is_first_run("run 2"));
    }
}
