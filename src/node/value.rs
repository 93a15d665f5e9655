//! A value under a lock, as a master keeps it and as it is written.

use std::sync::Arc;

use crate::protocol::instant::Instant;

/// The id of one run of a server: from its start to its end. A restart begins another run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRun(Arc<str>);

impl ServerRun {
    /// The run with this name, as the server reports it: one word.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name of the run.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A value under a lock, as one master keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredValue {
    /// The fencing number of the lock under which it was written.
    pub number: u64,
    /// The value.
    pub bytes: Vec<u8>,
    /// Whether the value can be trusted: it was written in this run of the server, or the server is configured as
    /// losing nothing. Otherwise the value may be older than one that this master had before a restart.
    pub vouched: bool,
}

/// A value to be written under a lock on one master.
#[derive(Debug)]
pub struct NewValue {
    /// The value; `None` removes the stored value.
    pub bytes: Option<Arc<[u8]>>,
    /// The time from which the write is not sent any more, because a master that restarted meanwhile would accept
    /// a value that later holders have overwritten.
    pub until: Instant,
    /// The run of the server that answered the read. The write is sent to no other run. Within this run the master
    /// refuses a late write if a later holder has been there, so the write is sent even after the lock is released.
    pub run: Option<ServerRun>,
}
