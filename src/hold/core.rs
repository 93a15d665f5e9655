//! The state that all locks of one `Redlock` share.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::schedule::Renewal;
use crate::options::Options;
use crate::rounds::coordinator::Coordinator;
use crate::waiting::local_queue::LocalQueues;

/// The state that all locks of one `Redlock` share: the masters, the renewal schedule, the queues of waiters in this
/// process, and the options.
pub(crate) struct Core {
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) renewal: Arc<Renewal>,
    pub(crate) local_queues: Arc<LocalQueues>,
    /// The number for the next waiter's id. It is not a static variable, because each simulation run must start at the
    /// same number.
    pub(crate) waiters: AtomicU64,
    pub(crate) options: Options,
}
