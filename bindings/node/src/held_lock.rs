//! A held lock of any kind, with the home thread that renews it.

use std::sync::{Arc, Mutex};

use quorate::{Leadership, LockGuard};

use crate::home::Home;
use crate::sync::lock;

/// The guard of a held lock: `None` after its release.
pub(crate) type Slot = Mutex<Option<Arc<Hold>>>;

/// A guard of the library.
pub(crate) enum Hold {
    Lock(LockGuard),
    Leadership(Leadership),
}

impl Hold {
    pub(crate) fn guard(&self) -> &LockGuard {
        match self {
            Self::Lock(guard) => guard,
            Self::Leadership(leadership) => leadership.guard(),
        }
    }
}

/// A held lock. Dropping it releases the lock in the background.
pub(crate) struct HeldLock {
    pub(crate) slot: Arc<Slot>,
    pub(crate) home: Arc<Home>,
}

impl HeldLock {
    pub(crate) fn new(hold: Hold, home: Arc<Home>) -> Self {
        let slot = Arc::new(Mutex::new(Some(Arc::new(hold))));
        home.register(&slot);
        Self { slot, home }
    }

    /// The guard; `None` after the release.
    pub(crate) fn hold(&self) -> Option<Arc<Hold>> {
        lock(&self.slot).clone()
    }

    /// Takes the guard for a release; `None` after the release.
    pub(crate) fn take(&self) -> Option<Arc<Hold>> {
        lock(&self.slot).take()
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        self.home.unregister(&self.slot);
        let hold = self.take();
        self.home.enter(|| drop(hold));
    }
}
