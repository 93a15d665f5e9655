//! The home thread: a native thread with a runtime, on which all tasks of one `Redlock` run.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

use quorate::{Redlock, RedlockBuilder};
use tokio::runtime::{EnterGuard, Handle};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::held_lock::Slot;
use crate::sync::lock;

/// How long the home thread sends releases after its stop was requested.
const FLUSH_LIMIT: Duration = Duration::from_millis(350);

/// A `Redlock` and its home thread. The thread ends after the last reference is dropped.
pub(crate) struct Home {
    pub(crate) redlock: Redlock,
    runtime: Handle,
    /// Each task owns a clone, so the receiver on the home thread knows when all tasks have ended. `None` after the
    /// stop was requested.
    task_token: Mutex<Option<mpsc::Sender<Infallible>>>,
    stop: Mutex<Option<oneshot::Sender<()>>>,
    ended: Arc<Ended>,
    /// The held locks by the address of their slot.
    held: Mutex<HashMap<usize, Weak<Slot>>>,
}

/// Whether the home thread has ended.
#[derive(Default)]
struct Ended {
    has_ended: Mutex<bool>,
    changed: Condvar,
}

impl Home {
    /// Builds the `Redlock` and starts its home thread. Connects to no master.
    ///
    /// # Errors
    ///
    /// The text of the error for the user.
    pub(crate) fn start(builder: RedlockBuilder) -> Result<Arc<Self>, String> {
        let redlock = builder.build().map_err(|error| error.to_string())?;
        let (stop, stop_requested) = oneshot::channel();
        let (task_token, mut tasks) = mpsc::channel(1);
        let (handle_sender, handle_receiver) = std::sync::mpsc::channel();
        let ended = Arc::new(Ended::default());
        let (ended_on_thread, redlock_on_thread) = (ended.clone(), redlock.clone());
        let run_runtime = move || {
            let runtime = match quorate::one_thread() {
                Ok(runtime) => runtime,
                Err(error) => return drop(handle_sender.send(Err(error.to_string()))),
            };
            let _ = handle_sender.send(Ok(runtime.handle().clone()));
            runtime.block_on(async move {
                let _ = stop_requested.await;
                let finish = async {
                    while tasks.recv().await.is_some() {}
                    redlock_on_thread.flush().await;
                };
                let _ = tokio::time::timeout(FLUSH_LIMIT, finish).await;
            });
            runtime.shutdown_background();
            *lock(&ended_on_thread.has_ended) = true;
            ended_on_thread.changed.notify_all();
        };
        let thread = std::thread::Builder::new().name("quorate".to_owned());
        let no_thread = |error: &dyn std::fmt::Display| {
            format!("cannot start the thread of the locks: {error}")
        };
        thread
            .spawn(run_runtime)
            .map_err(|error| no_thread(&error))?;
        let runtime = handle_receiver.recv().map_err(|error| no_thread(&error))?;
        Ok(Arc::new(Self {
            redlock,
            runtime: runtime.map_err(|error| no_thread(&error))?,
            task_token: Mutex::new(Some(task_token)),
            stop: Mutex::new(Some(stop)),
            ended,
            held: Mutex::default(),
        }))
    }

    /// Runs the task on the home thread. After the stop was requested, the task is dropped instead.
    pub(crate) fn spawn(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Option<AbortHandle> {
        let token = lock(&self.task_token).clone()?;
        let task = async move {
            let _token = token;
            task.await;
        };
        Some(self.runtime.spawn(task).abort_handle())
    }

    /// Enters the runtime of the home thread, for values whose drop starts tasks.
    pub(crate) fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }

    /// Adds a held lock to the locks that the end of the process releases.
    pub(crate) fn register(&self, slot: &Arc<Slot>) {
        lock(&self.held).insert(Arc::as_ptr(slot) as usize, Arc::downgrade(slot));
    }

    pub(crate) fn unregister(&self, slot: &Arc<Slot>) {
        lock(&self.held).remove(&(Arc::as_ptr(slot) as usize));
    }

    /// Drops the guards of all held locks, and returns their number.
    pub(crate) fn release_all(&self) -> u32 {
        let _entered = self.enter();
        let slots: Vec<Weak<Slot>> = lock(&self.held).drain().map(|(_, slot)| slot).collect();
        let slots = slots.iter().filter_map(Weak::upgrade);
        let guards = slots.filter_map(|slot| lock(&slot).take());
        guards.map(drop).count() as u32
    }

    /// Requests the end of the home thread. The thread first waits until its tasks have ended and the releases have
    /// been sent, for at most 350 ms.
    pub(crate) fn request_stop(&self) {
        drop(lock(&self.task_token).take());
        if let Some(stop) = lock(&self.stop).take() {
            let _ = stop.send(());
        }
    }

    /// Waits until the home thread has ended, but not after `deadline`.
    pub(crate) fn wait_for_end(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let has_ended = lock(&self.ended.has_ended);
        let result = self
            .ended
            .changed
            .wait_timeout_while(has_ended, left, |has_ended| !*has_ended);
        drop(result);
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.request_stop();
    }
}
