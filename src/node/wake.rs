//! The receiver of the wake-ups of one master.

use std::fmt;
use std::sync::Arc;

/// The subscription of one process to the wake-ups from one master.
#[derive(Clone)]
pub struct Subscriber {
    /// The id of the process: 16 hexadecimal digits.
    pub process: Arc<str>,
    /// The index of the master that sends the wake-ups.
    pub node: usize,
    /// The receiver of the wake-ups.
    pub sink: Arc<dyn WakeSink>,
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber")
            .field("process", &self.process)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// Receives the masters' wake-up messages for waiters. A message is only a hint: it can be lost, repeated or late.
pub trait WakeSink: Send + Sync + 'static {
    /// Called when the master with the index `node` reports that `key` may be free. Must not block.
    fn woken(&self, node: usize, key: &[u8]);

    /// Called when the master with the index `node` reports that the lock on `key` has a newly elected holder. Must not
    /// block. The default implementation does nothing.
    fn announced(&self, _node: usize, _key: &[u8]) {}
}
