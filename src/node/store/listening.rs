//! Records which wake-ups this process needs from one store: for which records, and for which elections.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::names::Name;
use super::pace::{Pace, Pacer};
use crate::protocol::instant::Instant;

#[derive(Default)]
pub(super) struct Listening {
    state: Mutex<State>,
    pub(super) stopped: Notify,
    pub(super) pacer: Pacer,
}

#[derive(Default)]
pub(super) struct State {
    /// The records whose wake-ups this process needs. Each contains a lock that a waiter of this process has requested.
    wanted: BTreeMap<Name, WantedRecord>,
    /// The elections that this process observes.
    pub(super) watched: HashSet<Name>,
    /// Whether the task that receives wake-ups for this process is running.
    pub(super) is_running: bool,
    is_closed: bool,
}

/// A record whose wake-ups this process needs.
struct WantedRecord {
    /// The time until which this process needs the wake-ups.
    until: Instant,
    /// The queued waiter of this process. `None` until the store has answered the waiter's first request, and after the
    /// waiter has stopped waiting.
    waiter: Option<QueuedWaiter>,
}

/// A waiter of this process that is queued in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueuedWaiter {
    /// The id of the waiter.
    pub(super) id: Arc<str>,
    /// The wait lock (a named lock of the server) of the client directly ahead of this waiter. `None` if there are
    /// several such clients, or if that client has no wait lock.
    pub(super) behind: Option<Arc<str>>,
}

impl State {
    /// Makes this process listen for wake-ups of these records until the time `until`. Called when a waiter of this
    /// process requests the locks in these records.
    pub(super) fn request_wake_ups(&mut self, names: Vec<Name>, until: Instant) {
        for name in names {
            let waiter = None;
            let wanted_record = self
                .wanted
                .entry(name)
                .or_insert(WantedRecord { until, waiter });
            wanted_record.until = until;
        }
    }

    fn pace(&self) -> Pace {
        let mut waiters = self
            .wanted
            .values()
            .filter_map(|record| record.waiter.as_ref());
        let Some(first) = waiters.next() else {
            return if self.watched.is_empty() {
                Pace::Idle
            } else {
                Pace::Observing
            };
        };
        // A waiter for several locks has an equal entry for each lock. Count these entries as one waiter.
        let is_alone = self.watched.is_empty() && waiters.all(|other| other == first);
        match first.behind.clone().filter(|_| is_alone) {
            Some(wait_lock) => Pace::Behind {
                waiter: first.id.clone(),
                wait_lock,
            },
            None => Pace::Waiting,
        }
    }
}

impl Listening {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the handle of the store as dropped, so that the listening task ends.
    pub(super) fn close(&self) {
        self.state().is_closed = true;
        self.stopped.notify_one();
    }

    /// Stores that `waiter` is this process's queued waiter in these records; `None` if the waiter has stopped waiting.
    pub(super) fn note_waiter(&self, names: &[Name], waiter: Option<&QueuedWaiter>) {
        let mut state = self.state();
        for name in names {
            if let Some(wanted) = state.wanted.get_mut(name) {
                wanted.waiter = waiter.cloned();
            }
        }
        self.pacer.set(state.pace());
    }

    /// Recomputes the [`Pace`](super::Pace) of this process. Call this function after a change of `wanted` or
    /// `watched`.
    pub(super) fn update_pace(&self) {
        let pace = self.state().pace();
        self.pacer.set(pace);
    }

    /// Whether this process still needs wake-ups at the time `now`. If not, the listening task must end.
    pub(super) fn must_continue(&self, now: Instant) -> bool {
        let mut state = self.state();
        state.wanted.retain(|_, wanted| now < wanted.until);
        let is_idle = state.watched.is_empty() && state.wanted.is_empty();
        state.is_running = !state.is_closed && !is_idle;
        self.pacer.set(state.pace());
        state.is_running
    }

    pub(super) fn wanted_names(&self) -> Vec<Name> {
        self.state().wanted.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_ups_are_needed_until_the_time_of_the_latest_request() {
        let listening = Listening::default();
        let name: Name = b"a"[..].into();
        let [first, second] = [1_000, 2_000].map(Instant::from_nanos);
        for until in [first, second] {
            let names = vec![name.clone()];
            listening.state().request_wake_ups(names, until);
        }
        assert!(listening.must_continue(first));
        assert!(!listening.must_continue(second));
    }

    #[test]
    fn listener_uses_a_wait_lock_only_for_a_single_waiter_behind_a_single_client() {
        let listening = Listening::default();
        let current_pace = || listening.pacer.pace();
        let [a, b]: [Name; 2] = [b"a"[..].into(), b"b"[..].into()];
        let until = Instant::from_nanos(1_000);
        let queued_waiter = |id: &str, behind: Option<&str>| QueuedWaiter {
            id: id.into(),
            behind: behind.map(Into::into),
        };
        let pace_behind = |waiter: &str, wait_lock: &str| Pace::Behind {
            waiter: waiter.into(),
            wait_lock: wait_lock.into(),
        };
        listening
            .state()
            .request_wake_ups(vec![a.clone(), b.clone()], until);
        listening.update_pace();
        assert_eq!(
            current_pace(),
            Pace::Idle,
            "a listener must be idle until a waiter is queued"
        );
        let first_waiter = queued_waiter("1", Some("9"));
        listening.note_waiter(std::slice::from_ref(&a), Some(&first_waiter));
        assert_eq!(current_pace(), pace_behind("1", "9"));
        // If the waiter requests the lock `a` again, the listener still waits for the wait lock `9`.
        listening.state().request_wake_ups(vec![a.clone()], until);
        listening.update_pace();
        assert_eq!(current_pace(), pace_behind("1", "9"));
        listening.note_waiter(std::slice::from_ref(&b), Some(&first_waiter));
        assert_eq!(
            current_pace(),
            pace_behind("1", "9"),
            "a waiter that is queued for two locks must wait for only one wait lock"
        );
        listening.note_waiter(
            std::slice::from_ref(&b),
            Some(&queued_waiter("2", Some("9"))),
        );
        assert_eq!(
            current_pace(),
            Pace::Waiting,
            "two waiters must not share one wait lock"
        );
        listening.note_waiter(std::slice::from_ref(&b), None);
        assert_eq!(current_pace(), pace_behind("1", "9"));
        listening.note_waiter(std::slice::from_ref(&a), Some(&queued_waiter("1", None)));
        assert_eq!(
            current_pace(),
            Pace::Waiting,
            "a waiter must not use a wait lock if it waits for several clients to release the lock"
        );
        listening.note_waiter(std::slice::from_ref(&a), None);
        assert_eq!(current_pace(), Pace::Idle);
        listening.state().watched.insert(b);
        listening.update_pace();
        assert_eq!(current_pace(), Pace::Observing);
        listening.note_waiter(&[a], Some(&first_waiter));
        assert_eq!(
            current_pace(),
            Pace::Waiting,
            "a listener that also observes an election must not use a wait lock"
        );
        assert!(listening.must_continue(until));
        assert_eq!(current_pace(), Pace::Observing);
    }
}
