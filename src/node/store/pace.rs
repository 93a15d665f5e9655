//! How soon a waiter of this process may be woken, so that a listener that polls knows how often to poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// How soon a wake-up may arrive from one store. A [`Listener`](super::Listener) that polls uses it to decide how
/// often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pace {
    /// No waiter of this process is queued at the moment.
    Idle,
    /// A waiter of this process is queued, with other waiters before it.
    Waiting,
    /// A waiter of this process is first in its queue, or near the front.
    Next,
}

/// Reports the present [`Pace`] of the waiters of this process. Any thread may use it.
#[derive(Clone, Debug)]
pub struct Pacer(Arc<AtomicU8>);

impl Default for Pacer {
    fn default() -> Self {
        Self(Arc::new(AtomicU8::new(Pace::Waiting as u8)))
    }
}

impl Pacer {
    /// How soon a waiter of this process may be woken.
    pub fn pace(&self) -> Pace {
        match self.0.load(Ordering::Relaxed) {
            0 => Pace::Idle,
            1 => Pace::Waiting,
            _ => Pace::Next,
        }
    }

    pub(super) fn set(&self, pace: Pace) {
        self.0.store(pace as u8, Ordering::Relaxed);
    }
}
