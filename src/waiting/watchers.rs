//! The observers in this process that wait for announcements of new leaders.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use crate::sync::{Mutex, MutexGuard, Notify};

type SignalsByKey = HashMap<Arc<[u8]>, Vec<Arc<Notify>>>;

/// The observers of elections in one process, grouped by the lock key of the election.
#[derive(Default)]
pub(crate) struct Watchers(Mutex<SignalsByKey>);

impl Watchers {
    fn signals(&self) -> MutexGuard<'_, SignalsByKey> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers an observer. It is notified of each announcement of a new leader, until [`end`](Self::end).
    pub(crate) fn begin(&self, key: &Arc<[u8]>) -> Arc<Notify> {
        let signal = Arc::new(Notify::new());
        let mut signals = self.signals();
        signals.entry(key.clone()).or_default().push(signal.clone());
        signal
    }

    /// Removes an observer. Returns true if the key has no observer left.
    pub(crate) fn end(&self, key: &[u8], signal: &Arc<Notify>) -> bool {
        let mut signals = self.signals();
        let Some(watchers) = signals.get_mut(key) else {
            return false;
        };
        watchers.retain(|watcher| !Arc::ptr_eq(watcher, signal));
        let was_last = watchers.is_empty();
        if was_last {
            signals.remove(key);
        }
        was_last
    }

    /// Notifies the observers of this key, because a master announced a new leader.
    pub(super) fn notify(&self, key: &[u8]) {
        for signal in self.signals().get(key).into_iter().flatten() {
            signal.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn observer_is_notified_until_it_ends_whatever_other_observers_do() {
        let watchers = Watchers::default();
        let key: Arc<[u8]> = b"job".as_slice().into();
        let [first, second] = [(); 2].map(|()| watchers.begin(&key));
        let are_notified = || {
            watchers.notify(&key);
            [&first, &second].map(|signal| signal.notified().now_or_never().is_some())
        };
        assert_eq!(are_notified(), [true, true]);
        watchers.end(&key, &first);
        assert_eq!(are_notified(), [false, true]);
    }

    #[tokio::test]
    async fn observer_receives_a_notification_sent_before_it_waits() {
        let watchers = Watchers::default();
        let key: Arc<[u8]> = b"job".as_slice().into();
        let [first, second] = [(); 2].map(|()| watchers.begin(&key));
        watchers.notify(b"other");
        watchers.notify(&key);
        first.notified().await;
        second.notified().await;
        assert!(!watchers.end(&key, &first));
        assert!(watchers.end(&key, &second));
        assert!(!watchers.end(&key, &second));
        watchers.notify(&key);
    }
}
