//! Counters of a proxy: the values that tests read, and the atomics that store them.

use std::sync::atomic::{AtomicU64, Ordering};

/// The connections that a proxy has accepted since its start, and the bytes that it has forwarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// The number of accepted connections, including refused ones.
    pub accepted: u64,
    /// The number of connections that were refused by [`Fault::Refuse`](crate::Fault::Refuse).
    pub refused: u64,
    /// The number of connections that are open now.
    pub open: u64,
    /// The bytes of the requests: from the clients to the server.
    pub to_server: Flow,
    /// The bytes of the replies: from the server to the clients.
    pub to_client: Flow,
}

/// The byte counts of one direction. If `delivered` and `dropped` together are less than `received`, the other bytes
/// are in transit, or were lost when a connection ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Flow {
    /// The number of bytes read from the sender.
    pub received: u64,
    /// The number of bytes written to the receiver.
    pub delivered: u64,
    /// The number of bytes that a fault has discarded.
    pub dropped: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) open: AtomicU64,
    pub(crate) to_server: FlowStats,
    pub(crate) to_client: FlowStats,
}

#[derive(Debug, Default)]
pub(crate) struct FlowStats {
    pub(crate) received: AtomicU64,
    pub(crate) delivered: AtomicU64,
    pub(crate) dropped: AtomicU64,
}

impl Stats {
    pub(crate) fn read(&self) -> Counters {
        let flow_of = |stats: &FlowStats| Flow {
            received: stats.received.load(Ordering::Relaxed),
            delivered: stats.delivered.load(Ordering::Relaxed),
            dropped: stats.dropped.load(Ordering::Relaxed),
        };
        Counters {
            accepted: self.accepted.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            open: self.open.load(Ordering::Relaxed),
            to_server: flow_of(&self.to_server),
            to_client: flow_of(&self.to_client),
        }
    }
}
