//! Ends the backends of sessions that were dropped before the answer to their last request arrived.
//!
//! # Why like this
//!
//! The server may still execute a request whose client has gone, for example while it waits for a row. So the next
//! session of the process terminates these backends. Each user may terminate the backends of the same user.
//!
//! A commit that waits for a synchronous standby is different: no timeout of the server ends it. It must be neither
//! canceled nor terminated, because it then takes effect without the standby. Without a standby, each further commit
//! would leave another backend behind, until the server accepts no more connections.
//!
//! So no session begins while such a commit of this process waits, or one of another process for longer than the timeout
//! in the URL, and for more than a second. The client tries to connect again after pauses that grow up to 2 s, and
//! writes nothing meanwhile.
//!
//! Not solved: a process leaves at most one waiting backend per lane behind, until the standby is back.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorate::node::Fault;

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

/// A commit of another client is not noticed before it has waited for this time (1 s).
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

/// Whether a backend executes a commit that waits for a synchronous standby.
const WAITS: &str = "wait_event IS NOT DISTINCT FROM 'SyncRep'";

/// The statement that ends these backends, except those that wait for a synchronous standby. Its rows contain `t` for
/// each commit that waits for a standby: of these backends, or of another client for longer than `timeout`.
///
/// A pooler may add the address of the client to the name of the program.
pub(crate) fn end(backends: &[Backend], timeout: Duration) -> String {
    let limit = timeout.max(SHORTEST_WAIT).as_millis();
    let each = backends.iter().map(|Backend { pid, started }| {
        format!(" OR pid={pid} AND (extract(epoch from backend_start)*1000000)::bigint={started}")
    });
    let any: String = each.collect();
    format!(
        "SELECT CASE WHEN {WAITS} THEN true ELSE pg_terminate_backend(pid) AND false END FROM pg_stat_activity \
         WHERE application_name LIKE 'quorate%' AND {WAITS} AND clock_timestamp()-state_change>'{limit} ms'{any}"
    )
}

/// The fault of a server whose commits wait for a synchronous standby.
pub(crate) fn unconfirmed() -> Fault {
    let why = "an earlier commit still waits for a synchronous standby: start the standby, or remove it from \
               synchronous_standby_names";
    Fault::Server(why.into())
}
