//! The value that is stored under a lock: [`StoredValue`] as a master stores it, and [`NewValue`] as a client writes
//! it.

use std::sync::Arc;

use crate::protocol::instant::Instant;

/// The id of one run of a server process, from its start to its end. A restart begins a new run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRun(Arc<str>);

impl ServerRun {
    /// Creates the id of a server run from `name`: one word by which the server identifies this run.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The id of the server run as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The value that one master stores under a lock: a quota or a once-per-period record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredValue {
    /// The fencing number of the lock when the value was written.
    pub number: u64,
    /// The bytes of the stored value.
    pub bytes: Vec<u8>,
    /// Whether the stored value can be trusted. True if it was written in the current run of the server process, or if
    /// the server is configured to lose nothing in a restart. Otherwise the value may be outdated, because a restart
    /// may have lost a later value.
    pub trusted: bool,
}

/// The value to be written under a lock on one master.
#[derive(Debug)]
pub struct NewValue {
    /// The bytes to store; `None` removes the stored value.
    pub bytes: Option<Arc<[u8]>>,
    /// The client must send the write before this time. On a restarted master, a later write could overwrite the value
    /// of a later holder.
    pub until: Instant,
    /// The master's server run at the time when the client read the value; `None` if the master did not answer this
    /// read.
    ///
    /// - `Some`: the client sends the write only to this server run, even if the holder's claim was withdrawn.
    /// - `None`: the client does not send the write after the holder's claim was withdrawn.
    pub run: Option<ServerRun>,
}
