//! How soon somebody of a process may be woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// How soon a wake-up is to be expected at one store: how often a [`Listener`](super::Listener) has to look that
/// cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pace {
    /// Nobody of the process waits any more, though somebody may come back soon.
    Idle,
    /// Somebody waits, and others go before.
    Waiting,
    /// Somebody stands next in line, or nearly.
    Next,
}

/// Tells the present [`Pace`], from any thread.
#[derive(Clone, Debug)]
pub struct Pacer(Arc<AtomicU8>);

impl Default for Pacer {
    fn default() -> Self {
        Self(Arc::new(AtomicU8::new(Pace::Waiting as u8)))
    }
}

impl Pacer {
    /// What it is now.
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
