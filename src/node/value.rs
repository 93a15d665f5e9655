//! The value under a lock, as a master stores it and as a client writes it.

use std::sync::Arc;

use crate::protocol::instant::Instant;

/// The id of one run of a server process, from its start to its end. A restart begins another run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRun(Arc<str>);

impl ServerRun {
    /// Creates the id of a server run from the name that the server reports. The name is one word.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The id of the server run as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A value under a lock, as one master keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredValue {
    /// The fencing number of the lock under which it was written.
    pub number: u64,
    /// The bytes of the stored value.
    pub bytes: Vec<u8>,
    /// Whether the stored value can be trusted: it was written in the present run of the server, or the server is
    /// configured to lose nothing in a restart. Otherwise this master may have had a newer value before a restart.
    pub vouched: bool,
}

/// A value to be written under a lock on one master.
#[derive(Debug)]
pub struct NewValue {
    /// The bytes to store; `None` removes the stored value.
    pub bytes: Option<Arc<[u8]>>,
    /// The write must not be sent at or after this time. If the master restarted meanwhile, it would accept a late
    /// write that replaces the value of a later holder.
    pub until: Instant,
    /// The run of the server that answered the read. The write is sent to no other run. Within this run the master
    /// refuses a write with a number below a later holder's, so the write may be sent even after the lock is released.
    pub run: Option<ServerRun>,
}
