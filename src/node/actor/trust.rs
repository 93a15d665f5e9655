//! What is known of the servers behind the addresses: which run, and whether it may vote.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::node::{NodeName, ServerRun};

/// What the memory of the server behind one connection is worth.
#[derive(Clone, Debug)]
pub(in crate::node) struct Memory {
    /// The run of the server. A connection never outlives it.
    pub(in crate::node) run: ServerRun,
    /// It is said to lose nothing: what an earlier run wrote counts as well.
    pub(in crate::node) lasts: bool,
}

impl Memory {
    /// Of a server that does not tell its run. The restart guard lets none pass; without it nothing depends on
    /// the run.
    pub(in crate::node) fn of(run: Option<&str>, lasts: bool) -> Self {
        let one_word = |run: &&str| !run.is_empty() && !run.contains(char::is_whitespace);
        let run = ServerRun::new(run.filter(one_word).unwrap_or("-"));
        Self { run, lasts }
    }

    /// Whether what was written in this run is all that this server was ever told.
    pub(in crate::node) fn vouches_for(&self, run: &[u8]) -> bool {
        self.lasts || self.run.as_str().as_bytes() == run
    }
}

/// What one node has seen of its master, across connections.
#[derive(Default)]
pub(in crate::node) struct Acquaintance(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// The run id of the first contact.
    first_run: Option<String>,
    /// The last connection: the server's run id, and its number there.
    last: Option<(String, i64)>,
}

impl Acquaintance {
    /// What is known of the run met first, and of no connection.
    pub(in crate::node) fn beside(&self) -> Self {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Self(Mutex::new(Seen {
            first_run: seen.first_run.clone(),
            last: None,
        }))
    }

    /// Whether this is the run that was met first.
    pub(in crate::node) fn is_first_run(&self, run: &str) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.first_run.get_or_insert_with(|| run.to_owned()) == run
    }

    /// Notes a connection, and gives the number of the one before it. Only within one run of the
    /// server: after a restart the number may be somebody else's.
    pub(in crate::node) fn replace(&self, run: &str, id: i64) -> Option<i64> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, last) = seen.last.replace((run.to_owned(), id))?;
        (known == run).then_some(last)
    }
}

/// Which server each address of one `Redlock` leads to: one server under two names must not have two
/// votes.
#[derive(Debug, Default)]
pub(crate) struct Roster(Mutex<HashMap<String, NodeName>>);

impl Roster {
    /// `name` leads to this run of a server; an error with the name that led there first.
    ///
    /// The first one keeps its place when its connection ends: its vote of a moment ago must not be
    /// counted again under another name. It loses it only by leading to another server.
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
    fn one_server_has_one_name_for_as_long_as_it_runs() {
        let (a, b) = (NodeName::new("a"), NodeName::new("b"));
        let roster = Roster::default();
        assert_eq!(roster.enter("run 1", &a), Ok(()));
        assert_eq!(roster.enter("run 1", &a), Ok(()), "a new connection");
        assert_eq!(roster.enter("run 1", &b), Err(a.clone()));
        assert_eq!(roster.enter("run 2", &b), Ok(()), "put right");
        assert_eq!(roster.enter("run 3", &a), Ok(()), "restarted");
        assert_eq!(roster.enter("run 1", &b), Ok(()), "the old place is free");
    }

    #[test]
    fn a_server_vouches_for_what_it_wrote_in_this_run_unless_it_loses_nothing() {
        let memory = |lasts| Memory::of(Some("run"), lasts);
        assert!(memory(false).vouches_for(b"run") && !memory(false).vouches_for(b"other"));
        assert!(memory(true).vouches_for(b"other"));
        assert_eq!(Memory::of(Some("two words"), true).run.as_str(), "-");
    }

    #[test]
    fn a_number_of_another_run_is_not_ours() {
        let seen = Acquaintance::default();
        assert_eq!(seen.replace("run 1", 5), None);
        assert_eq!(seen.replace("run 1", 9), Some(5));
        assert_eq!(seen.replace("run 2", 3), None);
        assert!(seen.is_first_run("run 1") && !seen.is_first_run("run 2"));
    }
}
