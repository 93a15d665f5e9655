//! What of one store somebody of this process waits for.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::names::Name;
use crate::protocol::instant::Instant;

/// What is listened for.
#[derive(Default)]
pub(super) struct Listening {
    state: Mutex<State>,
    pub(super) over: Notify,
}

#[derive(Default)]
pub(super) struct State {
    /// Until when each record is listened for.
    pub(super) wanted: BTreeMap<Name, Instant>,
    /// The elections whose new leaders are listened for.
    pub(super) watched: HashSet<Name>,
    /// A task listens.
    pub(super) runs: bool,
    closed: bool,
}

impl Listening {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle is gone.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.over.notify_one();
    }

    /// Whether there is anything to listen for. Who is told that there is not must end.
    pub(super) fn goes_on(&self, now: Instant) -> bool {
        let mut state = self.state();
        state.wanted.retain(|_, until| now < *until);
        let nothing = state.watched.is_empty() && state.wanted.is_empty();
        state.runs = !state.closed && !nothing;
        state.runs
    }

    pub(super) fn wanted(&self) -> Vec<Name> {
        self.state().wanted.keys().cloned().collect()
    }
}
