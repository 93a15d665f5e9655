//! The wake-ups that this process needs from one store, so that a listener that polls knows how to wait for them.

use std::sync::Arc;

use tokio::sync::watch;

/// The wake-ups that a process needs from one store. A [`Listener`](super::Listener) that polls uses the pace to decide
/// how to wait for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pace {
    /// No waiter of this process is queued, and the process observes no election.
    Idle,
    /// The process only observes elections. The announcement of a new leader is not urgent.
    Observing,
    /// Waiters of this process are queued, but not in the way of [`Behind`](Self::Behind): they need wake-ups that no
    /// single wait lock can replace.
    Waiting,
    /// One waiter of this process is queued, directly behind another client.
    Behind {
        /// The id of the waiter.
        waiter: Arc<str>,
        /// The [wait lock](super::WaitLock) of the client ahead. Its session releases this wait lock when that client
        /// leaves the queue or releases the lock.
        wait_lock: Arc<str>,
    },
}

/// Reports the current [`Pace`] of this process at one store. Several threads may use the pacer at the same time.
#[derive(Clone, Debug)]
pub struct Pacer(Arc<watch::Sender<Pace>>);

impl Default for Pacer {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Pace::Waiting)))
    }
}

impl Pacer {
    /// The current [`Pace`]: the wake-ups that this process needs now.
    pub fn pace(&self) -> Pace {
        self.0.borrow().clone()
    }

    /// Waits until the pace of this process is one for which `fits` returns true.
    pub async fn until(&self, fits: impl Fn(&Pace) -> bool + Send) {
        let mut paces = self.0.subscribe();
        // The sender is part of `self`, so waiting cannot fail.
        let _ = paces.wait_for(|pace| fits(pace)).await;
    }

    pub(super) fn set(&self, pace: Pace) {
        self.0.send_if_modified(|known| {
            let changed = *known != pace;
            *known = pace;
            changed
        });
    }
}
