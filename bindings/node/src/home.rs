//! The home thread: a native thread with a runtime, on which all tasks of one `Redlock` run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use quorate::blocking::{BackgroundRuntime, BackgroundTask};
use quorate::{Redlock, RedlockBuilder};

use crate::held_lock::Slot;
use crate::sync::lock;

/// How long the home thread sends releases after its end was requested.
const FLUSH_LIMIT: Duration = Duration::from_millis(350);

/// A `Redlock` and its home thread. The thread ends after the last reference is dropped.
pub(crate) struct Home {
    pub(crate) redlock: Redlock,
    runtime: BackgroundRuntime,
    held: HeldSlots,
}

/// The held locks by the address of their slot.
type HeldSlots = Arc<Mutex<HashMap<usize, Weak<Slot>>>>;

/// Releases all held locks in the background, and returns their number. Must run inside the runtime.
fn release_held(held: &HeldSlots) -> u32 {
    let slots: Vec<Weak<Slot>> = lock(held).drain().map(|(_, slot)| slot).collect();
    let slots = slots.iter().filter_map(Weak::upgrade);
    let holds = slots.filter_map(|slot| lock(&slot).take());
    // The call queues the releases. Its future only waits for the answers.
    holds.map(|hold| drop(hold.guard().release())).count() as u32
}

impl Home {
    /// Builds the `Redlock` and starts its home thread. Connects to no master.
    ///
    /// # Errors
    ///
    /// The text of the error for the user.
    pub(crate) fn start(builder: RedlockBuilder) -> Result<Arc<Self>, String> {
        let redlock = builder.build().map_err(|error| error.to_string())?;
        let runtime = BackgroundRuntime::new();
        runtime.enter(|| ()).map_err(|error| error.to_string())?;
        Ok(Arc::new(Self {
            redlock,
            runtime,
            held: HeldSlots::default(),
        }))
    }

    /// Runs the task on the home thread. After the end was requested, the task is dropped instead.
    pub(crate) fn spawn(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Option<BackgroundTask> {
        self.runtime.spawn(task).ok()
    }

    /// Runs `body` on the calling thread, as a part of the runtime of the home thread. Use it to drop values that send
    /// releases. After the end was requested, drops `body` and returns `None`.
    pub(crate) fn enter<T>(&self, body: impl FnOnce() -> T) -> Option<T> {
        self.runtime.enter(body).ok()
    }

    /// Adds a held lock to the locks that the end of the process releases.
    pub(crate) fn register(&self, slot: &Arc<Slot>) {
        lock(&self.held).insert(Arc::as_ptr(slot).addr(), Arc::downgrade(slot));
    }

    pub(crate) fn unregister(&self, slot: &Arc<Slot>) {
        lock(&self.held).remove(&Arc::as_ptr(slot).addr());
    }

    /// Releases all held locks in the background, and returns their number.
    pub(crate) fn release_all(&self) -> u32 {
        self.enter(|| release_held(&self.held)).unwrap_or_default()
    }

    /// Requests the end of the home thread. The thread drops its tasks, and sends the releases for at most 350 ms.
    pub(crate) fn request_end(&self) {
        let (redlock, held) = (self.redlock.clone(), self.held.clone());
        let last_work = async move {
            // A task may have acquired a lock after the call of `release_all`.
            release_held(&held);
            redlock.flush().await;
        };
        // Inside the runtime, `end` does not wait.
        self.enter(|| self.runtime.end(FLUSH_LIMIT, last_work));
    }

    /// Waits until the home thread has ended, but not longer than 50 ms after `deadline`. Call `request_end` before.
    pub(crate) fn wait_for_end(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        // An error means that the thread needs more time. Keys that are left expire after their ttl.
        let _ = self.runtime.end(left, async {});
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.request_end();
    }
}
