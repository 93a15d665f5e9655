//! What the lock takes from the outside world: time, timers, tasks and random bytes.
//!
//! One trait, so that a simulation can run the very same coordinator, renewal and waiting code
//! under a clock and a scheduler of its own. It deliberately offers no I/O: that is the node's.

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

/// A future that has been put on the heap.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// The outside world of a [`Redlock`](crate::Redlock): clocks, timers, tasks, random bytes.
///
/// Only simulations implement this; everybody else gets tokio and the operating system.
pub trait Runtime: Send + Sync + 'static {
    /// The present time on the suspend-aware monotonic clock.
    fn now(&self) -> Instant;
    /// The wall clock, microseconds since 1970. Used for fencing proposals only.
    fn wall_micros(&self) -> u64;
    /// Ends when [`now`](Self::now) has reached `at`, or a little later.
    fn sleep_until(&self, at: Instant) -> BoxFuture<()>;
    /// Runs a task; `false` when there is nothing to run it on.
    fn spawn(&self, task: BoxFuture<()>) -> bool;
    /// Fills `bytes` from a generator that nobody can predict.
    fn random(&self, bytes: &mut [u8]);
}

/// The longest single sleep. tokio's timers stand still while the machine sleeps, so a long one
/// is cut into pieces: a suspend is noticed within this time after the resume.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// tokio's timers and tasks, the operating system's clocks and generator.
#[derive(Debug)]
pub(crate) struct Tokio {
    /// The last runtime seen, for callers that are outside of one.
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
    /// With tokio's own clock, which tests stop and push on.
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
            // On a runtime that has been shut down the task is dropped at once.
            Some(handle) => {
                handle.spawn(task);
                true
            }
            None => false,
        }
    }

    fn random(&self, bytes: &mut [u8]) {
        // The operating system's generator fails only before it is seeded, at boot. A lock value
        // that could repeat is worse than no process: there is nothing sensible to go on with.
        SysRng
            .try_fill_bytes(bytes)
            .expect("the operating system has random bytes");
    }
}

/// Lets other tasks run, on any runtime.
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
