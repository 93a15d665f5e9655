//! What the library needs from its environment: time, timers, tasks and random bytes.
//!
//! One trait contains all of these. A simulation implements the trait with its own clock and scheduler, and runs the
//! same code for locking, renewing and waiting. The trait has no I/O, because only nodes (the connections to masters)
//! do I/O.

use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::Poll;
use std::time::Duration;

use rand::TryRng;
use rand::rngs::SysRng;
use tokio::runtime::Handle;

use crate::clock;
use crate::protocol::instant::Instant;

/// A boxed future.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// The environment of a [`Redlock`](crate::Redlock): clocks, timers, tasks, random bytes.
///
/// Only simulations implement this trait. The default is tokio and the operating system.
pub trait Runtime: Send + Sync + 'static {
    /// The present time on the monotonic clock that measures leases; it should also advance during a suspend.
    fn now(&self) -> Instant;
    /// The wall clock in microseconds since 1970, for example for fencing tokens and notes. Leases are measured with
    /// [`now`](Self::now).
    fn wall_micros(&self) -> u64;
    /// Completes when [`now`](Self::now) has reached `at`, or a little later.
    fn sleep_until(&self, at: Instant) -> BoxFuture<()>;
    /// Spawns a task; returns `false` if there is no executor to run it on.
    fn spawn(&self, task: BoxFuture<()>) -> bool;
    /// Fills `bytes` from a cryptographically secure generator.
    fn random(&self, bytes: &mut [u8]);
}

/// The longest single sleep. tokio's timers stop while the machine is suspended. Long sleeps are split, so that a
/// deadline is noticed within this time after a suspend.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// Timers and tasks of tokio, clocks and random numbers of the operating system.
#[derive(Debug)]
pub(crate) struct Tokio {
    /// The tokio runtime that was used last. Callers outside of a runtime use this one.
    last: Mutex<Option<Handle>>,
    now: fn() -> Instant,
    wall_micros: fn() -> u64,
}

impl Default for Tokio {
    fn default() -> Self {
        Self {
            last: Mutex::default(),
            now: Instant::now,
            wall_micros: clock::wall_micros,
        }
    }
}

impl Tokio {
    /// Uses tokio's own clock, which tests can pause and advance.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn paced() -> Self {
        Self {
            now: clock::paced::now,
            wall_micros: clock::paced::wall_micros,
            ..Self::default()
        }
    }
}

impl Runtime for Tokio {
    fn now(&self) -> Instant {
        (self.now)()
    }

    fn wall_micros(&self) -> u64 {
        (self.wall_micros)()
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<()> {
        let now = self.now;
        Box::pin(async move {
            loop {
                let left = at.saturating_since(now());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(LONGEST_NAP)).await;
            }
        })
    }

    fn spawn(&self, task: BoxFuture<()>) -> bool {
        let current = Handle::try_current().ok();
        let mut last = self
            .last
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(current) = current {
            *last = Some(current);
        }
        match &*last {
            // If the runtime has been shut down, the task is dropped at once.
            Some(handle) => {
                handle.spawn(task);
                true
            }
            None => false,
        }
    }

    fn random(&self, bytes: &mut [u8]) {
        // The operating system's generator fails only at boot, before it is seeded. A panic is better than a lock value
        // that could repeat.
        SysRng
            .try_fill_bytes(bytes)
            .expect("the operating system has random bytes");
    }
}

/// Yields once to other tasks, on any runtime.
pub(crate) async fn pause() {
    let mut paused = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut paused, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
