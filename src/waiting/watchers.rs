//! The observers in this process that wait for announcements of new leaders.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use crate::sync::{Mutex, MutexGuard, Notify};

type Watching = HashMap<Arc<[u8]>, Vec<Arc<Notify>>>;

/// The observers of elections in one process, grouped by the lock key of the election.
#[derive(Default)]
pub(crate) struct Watchers(Mutex<Watching>);

impl Watchers {
    fn map(&self) -> MutexGuard<'_, Watching> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers an observer. It is notified of each announcement of a new leader, until [`end`](Self::end).
    pub(crate) fn begin(&self, key: &Arc<[u8]>) -> Arc<Notify> {
        let called = Arc::new(Notify::new());
        let mut map = self.map();
        map.entry(key.clone()).or_default().push(called.clone());
        called
    }

    /// Removes an observer. Returns true if the key has no observer left.
    pub(crate) fn end(&self, key: &[u8], called: &Arc<Notify>) -> bool {
        let mut map = self.map();
        let Some(watchers) = map.get_mut(key) else {
            return false;
        };
        watchers.retain(|other| !Arc::ptr_eq(other, called));
        let last = watchers.is_empty();
        if last {
            map.remove(key);
        }
        last
    }

    /// Notifies the observers of this key, because a master announced a new leader.
    pub(super) fn call(&self, key: &[u8]) {
        for called in self.map().get(key).into_iter().flatten() {
            called.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn observer_receives_a_notification_sent_before_it_waits() {
        let watchers = Watchers::default();
        let key: Arc<[u8]> = b"job".as_slice().into();
        let [first, second] = [(); 2].map(|()| watchers.begin(&key));
        watchers.call(b"other");
        watchers.call(&key);
        first.notified().await;
        second.notified().await;
        assert!(!watchers.end(&key, &first));
        assert!(watchers.end(&key, &second));
        assert!(!watchers.end(&key, &second));
        watchers.call(&key);
    }
}
