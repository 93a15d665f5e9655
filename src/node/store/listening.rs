//! The wake-ups that this process listens for at one store.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::names::Name;
use super::pace::{Pace, Pacer};
use crate::protocol::instant::Instant;

/// How many waiters behind the first are notified that they are near the front.
pub(crate) const NEAR: usize = 2;

/// The records and elections of one store for which a process listens.
#[derive(Default)]
pub(super) struct Listening {
    state: Mutex<State>,
    pub(super) over: Notify,
    pub(super) pacer: Pacer,
}

#[derive(Default)]
pub(super) struct State {
    /// The records to listen for. A waiter of this process is queued in each of them.
    wanted: BTreeMap<Name, Wanted>,
    /// The elections to listen for, because this process observes them.
    pub(super) watched: HashSet<Name>,
    /// Whether a listening task runs.
    pub(super) runs: bool,
    closed: bool,
}

/// The state of a waiter of this process that the listener knows.
struct Wanted {
    /// The time until which this process listens for the record.
    until: Instant,
    /// The last known number of waiters before the waiter of this process; `None` after that waiter has stopped
    /// waiting.
    ahead: Option<u64>,
}

impl State {
    /// Listens for these records until the time `until`, because a waiter of this process is queued there.
    pub(super) fn want(&mut self, names: Vec<Name>, until: Instant) {
        for name in names {
            let ahead = Some(u64::MAX);
            let wanted = self.wanted.entry(name).or_insert(Wanted { until, ahead });
            wanted.until = until;
            wanted.ahead = wanted.ahead.or(ahead);
        }
    }

    fn pace(&self) -> Pace {
        let of = |wanted: &Wanted| match wanted.ahead {
            None => Pace::Idle,
            Some(ahead) if ahead > NEAR as u64 => Pace::Waiting,
            Some(_) => Pace::Next,
        };
        let paces = self.wanted.values().map(of);
        // A notification of a new leader is not urgent, so the pace `Waiting` is enough.
        let watches = (!self.watched.is_empty()).then_some(Pace::Waiting);
        paces.chain(watches).max().unwrap_or(Pace::Idle)
    }
}

impl Listening {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the handle of the store as dropped, so that the listening task ends.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.over.notify_one();
    }

    /// Stores the number of waiters before the waiter of this process; `None` if that waiter has stopped waiting.
    pub(super) fn note_ahead(&self, names: &[Name], ahead: Option<u64>) {
        let mut state = self.state();
        for name in names {
            if let Some(wanted) = state.wanted.get_mut(name) {
                wanted.ahead = ahead;
            }
        }
        self.pacer.set(state.pace());
    }

    /// Notes that the waiter of this process is near the front of the queue in this record.
    pub(super) fn draw_near(&self, name: &Name) {
        let mut state = self.state();
        if let Some(wanted) = state.wanted.get_mut(name) {
            // Ignore a waiter that has stopped waiting.
            wanted.ahead = wanted.ahead.map(|ahead| ahead.min(NEAR as u64));
        }
        self.pacer.set(state.pace());
    }

    /// Recomputes how soon a wake-up may arrive, after the waiters have changed.
    pub(super) fn repace(&self) {
        let pace = self.state().pace();
        self.pacer.set(pace);
    }

    /// Whether there is anything to listen for. If not, the listening task must end.
    pub(super) fn goes_on(&self, now: Instant) -> bool {
        let mut state = self.state();
        state.wanted.retain(|_, wanted| now < wanted.until);
        let nothing = state.watched.is_empty() && state.wanted.is_empty();
        state.runs = !state.closed && !nothing;
        self.pacer.set(state.pace());
        state.runs
    }

    pub(super) fn wanted(&self) -> Vec<Name> {
        self.state().wanted.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_is_polled_often_only_while_a_waiter_is_next() {
        let listening = Listening::default();
        let pace = || listening.pacer.pace();
        let [a, b]: [Name; 2] = [b"a"[..].into(), b"b"[..].into()];
        let until = Instant::from_nanos(1_000);
        listening.state().want(vec![a.clone(), b.clone()], until);
        listening.repace();
        assert_eq!(pace(), Pace::Waiting);
        listening.note_ahead(std::slice::from_ref(&a), Some(7));
        assert_eq!(pace(), Pace::Waiting);
        listening.draw_near(&a);
        assert_eq!(pace(), Pace::Next);
        // A waiter that asks again keeps its place.
        listening.state().want(vec![a.clone()], until);
        listening.repace();
        assert_eq!(pace(), Pace::Next);
        listening.note_ahead(std::slice::from_ref(&a), None);
        assert_eq!(pace(), Pace::Waiting, "the other waiter is still queued");
        listening.note_ahead(std::slice::from_ref(&b), None);
        assert_eq!(pace(), Pace::Idle);
        // This message arrives after the waiter has stopped waiting.
        listening.draw_near(&a);
        assert_eq!(pace(), Pace::Idle);
        listening.state().watched.insert(b);
        listening.repace();
        assert_eq!(pace(), Pace::Waiting);
        listening.note_ahead(&[a], Some(0));
        assert_eq!(pace(), Pace::Next);
        assert!(listening.goes_on(until));
        assert_eq!(pace(), Pace::Waiting, "only the election is observed");
    }
}
