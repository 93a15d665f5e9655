//! How soon a waiter of a process may be woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// How soon a wake-up may come at one store. It determines how often a [`Listener`](super::Listener) that polls should
/// do so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pace {
    /// No waiter in this process at the moment.
    Idle,
    /// A waiter is queued, with others before it.
    Waiting,
    /// A waiter is the next one, or nearly.
    Next,
}

/// Reports the present [`Pace`]; usable from any thread.
#[derive(Clone, Debug)]
pub struct Pacer(Arc<AtomicU8>);

impl Default for Pacer {
    fn default() -> Self {
        Self(Arc::new(AtomicU8::new(Pace::Waiting as u8)))
    }
}

impl Pacer {
    /// The present pace.
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
