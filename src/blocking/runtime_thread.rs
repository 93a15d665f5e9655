//! The background thread, and how callers wait for it.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::{EnterGuard, Handle};

use crate::background_runtime::{BackgroundError, BackgroundRuntime};
use crate::error::{BuildError, CannotBlock};
use crate::redlock::Redlock;

/// How long the background thread may take to send the last releases before it ends, in addition to the node timeout.
const FLUSH_MARGIN: Duration = Duration::from_millis(300);

/// A handle of the background thread, whose runtime runs the locks of blocking callers.
#[derive(Clone)]
pub(super) struct RuntimeThread {
    background: Arc<Background>,
    /// Whether callers may wait even on a thread of a Tokio runtime. True only for a handle from `in_spawn_blocking`.
    allows_runtime_threads: bool,
}

/// The background thread. It ends when the last [`RuntimeThread`] that refers to it is dropped.
struct Background {
    runtime: BackgroundRuntime,
    handle: Handle,
    redlock: Redlock,
}

thread_local! {
    /// True while this thread is inside `wait`. `wait` then also accepts a nested call, for example from a `scope` body
    /// or from an observer, and does not mistake it for a call on a thread of a Tokio runtime.
    static IS_BLOCKED: Cell<bool> = const { Cell::new(false) };
}

impl RuntimeThread {
    pub(super) fn start(redlock: Redlock) -> Result<Self, BuildError> {
        let runtime = BackgroundRuntime::new();
        let handle = runtime.handle().cloned().map_err(|error| match error {
            BackgroundError::NoThread(why) => BuildError::NoThread(why),
            other => BuildError::NoThread(other.to_string()),
        })?;
        Ok(Self {
            background: Arc::new(Background {
                runtime,
                handle,
                redlock,
            }),
            allows_runtime_threads: false,
        })
    }

    /// Whether the background thread exists only in the parent of this process.
    pub(super) fn is_forked(&self) -> bool {
        self.background.runtime.is_forked()
    }

    pub(super) fn allowing_runtime_threads(&self) -> Self {
        Self {
            allows_runtime_threads: true,
            ..self.clone()
        }
    }

    /// Enters the runtime of the background thread. Until the returned guard is dropped, this runtime drives the
    /// requests of the calling thread.
    pub(super) fn enter(&self) -> EnterGuard<'_> {
        self.background.handle.enter()
    }

    /// Spawns a task on the background runtime.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let _ = self.background.runtime.spawn(task);
    }

    /// Waits for the future on the calling thread; the background thread drives timers and sockets.
    pub(super) fn wait<T>(&self, future: impl Future<Output = T>) -> Result<T, CannotBlock> {
        if self.is_forked() {
            // The future may own guards, whose locks belong to the parent process.
            std::mem::forget(future);
            return Err(CannotBlock::FORKED);
        }
        let is_nested = IS_BLOCKED.get();
        if !self.allows_runtime_threads && !is_nested && Handle::try_current().is_ok() {
            // Enter the background runtime. If the future drops guards, the background thread then releases their
            // locks.
            let _entered = self.enter();
            drop(future);
            return Err(CannotBlock::ON_RUNTIME);
        }
        let _entered = self.enter();
        let _blocked_mark = BlockedMark::set(is_nested);
        let thread_waker = Arc::new(ThreadWaker {
            thread: thread::current(),
            woken: AtomicBool::new(false),
        });
        let waker = Waker::from(thread_waker.clone());
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Ok(output);
            }
            // The thread may have been woken by other code, so check the flag of this wait.
            while !thread_waker.woken.swap(false, Ordering::Acquire) {
                thread::park();
            }
        }
    }

    /// Waits for the future on the calling thread, at most for the given time.
    pub(super) fn wait_for<T>(
        &self,
        limit: Duration,
        future: impl Future<Output = T>,
    ) -> Result<Option<T>, CannotBlock> {
        self.wait(async { tokio::time::timeout(limit, future).await.ok() })
    }
}

/// Marks the calling thread as waiting until this value is dropped.
struct BlockedMark {
    was_blocked: bool,
}

impl BlockedMark {
    fn set(was_blocked: bool) -> Self {
        IS_BLOCKED.set(true);
        Self { was_blocked }
    }
}

impl Drop for BlockedMark {
    fn drop(&mut self) {
        IS_BLOCKED.set(self.was_blocked);
    }
}

/// Wakes a thread that is parked while it waits for a future.
struct ThreadWaker {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let redlock = self.redlock.clone();
        if self.runtime.is_forked() {
            // Leak what the `Redlock` refers to: its connections belong to the parent process.
            std::mem::forget(redlock);
            return;
        }
        let within = redlock.core.coordinator.patience.answer + FLUSH_MARGIN;
        let last_work = async move { redlock.flush().await };
        // On a thread of a Tokio runtime, this call does not wait, and returns an error.
        let _ = self.runtime.end(within, last_work);
    }
}
