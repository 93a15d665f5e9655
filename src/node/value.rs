//! The value that is stored under a lock: [`StoredValue`] as a master stores it, and [`NewValue`] as a client writes
//! it.

use std::sync::Arc;

use crate::protocol::instant::Instant;

/// The id of one run of a server process, from its start to its end. A restart begins another run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRun(Arc<str>);

impl ServerRun {
    /// Creates the id of a server run from the name that the server reports for it. The name must be one word.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The id of the server run as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The value that is stored under a lock, as one master stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredValue {
    /// The fencing number of the lock when the value was written.
    pub number: u64,
    /// The bytes of the stored value.
    pub bytes: Vec<u8>,
    /// Whether the stored value can be trusted: it was written in the current run of the server process, or the server
    /// is configured to lose nothing in a restart. An untrusted value may be outdated, because a restart may have lost
    /// a later value.
    pub vouched: bool,
}

/// The value to be written under a lock on one master.
#[derive(Debug)]
pub struct NewValue {
    /// The bytes to store; `None` removes the stored value.
    pub bytes: Option<Arc<[u8]>>,
    /// The deadline for sending: the write must not be sent at this time or later. A master that has restarted may
    /// accept a late write, which could replace the value of a later holder.
    pub until: Instant,
    /// The run of the server process that answered the client's read of the value; `None` if this master did not answer
    /// the read. The write is sent only to this run. In this run, the master refuses a write whose fencing number is
    /// smaller than that of a later holder. So the write may be sent even after the lock was released.
    pub run: Option<ServerRun>,
}
