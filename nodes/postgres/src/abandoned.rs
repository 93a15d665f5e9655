//! Ends the backends of sessions that were dropped before the answer to their last request arrived.
//!
//! # Why like this
//!
//! A commit that waits for a synchronous standby does not end when its client closes the connection, and no timeout of
//! the server ends it. Without a standby, each try of a client would leave another backend behind, until the server
//! accepts no more connections.
//!
//! So the next session of the process terminates these backends. Each user may terminate the backends of the same user.
//! To cancel the statement instead would be wrong: the server then reports the commit as done. A terminated commit is
//! never answered, but is applied on this server, as a late commit may be.
//!
//! Not solved: a process that ends leaves at most one backend per lane behind.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The largest number of backends that a process remembers.
const MOST: usize = 64;

/// A backend process of the server. The server uses the numbers of processes again, so the time belongs to the identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backend {
    pub(crate) pid: i32,
    /// When the backend was started, by the wall clock of the server, in microseconds since 1970.
    pub(crate) started: i64,
}

/// The backends to end.
#[derive(Debug, Default)]
pub(crate) struct Abandoned(Mutex<Vec<Backend>>);

impl Abandoned {
    fn list(&self) -> MutexGuard<'_, Vec<Backend>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, backend: Backend) {
        let mut list = self.list();
        if list.len() < MOST {
            list.push(backend);
        }
    }

    pub(crate) fn all(&self) -> Vec<Backend> {
        self.list().clone()
    }

    pub(crate) fn remove(&self, ended: &[Backend]) {
        self.list().retain(|backend| !ended.contains(backend));
    }
}

/// The statement that ends these backends.
pub(crate) fn end(backends: &[Backend]) -> String {
    let each = backends.iter().map(|Backend { pid, started }| {
        format!(" OR pid={pid} AND (extract(epoch from backend_start)*1000000)::bigint={started}")
    });
    let any: String = each.collect();
    format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE false{any}")
}
