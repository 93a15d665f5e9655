//! The value under a lock, as a master stores it and as a client writes it.

use std::sync::Arc;

use crate::protocol::instant::Instant;

/// The id of one run of a server process, from its start to its end. A restart begins another run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRun(Arc<str>);

impl ServerRun {
    /// Creates the id from the name that the server reports, which is one word.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A value under a lock, as one master keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredValue {
    /// The fencing number of the lock under which it was written.
    pub number: u64,
    /// The stored bytes.
    pub bytes: Vec<u8>,
    /// Whether the value can be trusted: it was written in this run of the server, or the server is configured to lose
    /// nothing in a restart. Otherwise this master may have had a newer value before a restart.
    pub vouched: bool,
}

/// A value to be written under a lock on one master.
#[derive(Debug)]
pub struct NewValue {
    /// The bytes to store; `None` removes the stored value.
    pub bytes: Option<Arc<[u8]>>,
    /// The time from which the write must not be sent any more. If the master restarted meanwhile, it would accept a
    /// late write that replaces the value of a later holder.
    pub until: Instant,
    /// The run of the server that answered the read; the write is sent to no other run. Within this run the master
    /// refuses a late write after a later holder, so the write may be sent even after the lock is released.
    pub run: Option<ServerRun>,
}
