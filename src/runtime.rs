//! The environment of the library: time, timers, tasks and random bytes.
//!
//! The trait [`Runtime`] provides them. A simulation implements the trait with its own clock and scheduler, and so runs
//! the library's own code. The trait has no I/O, because only nodes (the connections to masters) do I/O.

#[cfg(test)]
pub(crate) mod manual;

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use rand::TryRng;
use rand::rngs::SysRng;
use tokio::runtime::Handle;

use crate::clock;
use crate::fork;
use crate::hosting::{self, background, current_or_background};
use crate::protocol::instant::Instant;

/// A boxed future that can be sent to another thread.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// A function that makes a task. It is called only if there is an executor that can run the task.
pub type MakeTask = Box<dyn FnOnce() -> BoxFuture<()> + Send + 'static>;

/// The environment of a [`Redlock`](crate::Redlock): clocks, timers, tasks, random bytes.
///
/// Only simulations implement this trait. The default is tokio and the operating system.
pub trait Runtime: Send + Sync + 'static {
    /// The current time on the monotonic clock that measures leases. This clock should also advance while the machine
    /// is suspended.
    fn now(&self) -> Instant;
    /// The wall clock in microseconds since 1970. Fencing tokens and the notes of holders use this clock. Leases use
    /// [`now`](Self::now).
    fn wall_micros(&self) -> u64;
    /// Identifies the clock of [`now`](Self::now): all processes with the same number read the same clock. For example,
    /// they run on the same machine, and it has not been restarted in between. `None`, the default, if the clock
    /// belongs to this process alone.
    #[cfg_attr(not(any(feature = "node", feature = "testing")), allow(dead_code))]
    fn machine(&self) -> Option<u64> {
        None
    }
    /// Completes when [`now`](Self::now) has reached `at`, or a little later.
    fn sleep_until(&self, at: Instant) -> BoxFuture<()>;
    /// Spawns a task; returns `false` if there is no executor to run it on.
    fn spawn(&self, task: BoxFuture<()>) -> bool;
    /// Replaces a task whose executor was shut down: calls `make` to create a new task, and spawns it on a different
    /// executor. Returns `false` if there is no other executor. The default implementation always returns `false`.
    fn take_over(&self, make: MakeTask) -> bool {
        drop(make);
        false
    }
    /// Fills `bytes` from a cryptographically secure generator.
    fn random(&self, bytes: &mut [u8]);
}

/// A number of random bytes of `runtime`.
pub(crate) fn random_number(runtime: &dyn Runtime) -> u64 {
    let mut bytes = [0; 8];
    runtime.random(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// The longest single sleep. tokio's timers stop while the machine is suspended, so a long sleep is split: a deadline
/// that passed during a suspension is noticed within this time.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The longest sleep in a thread without a timer: 1 ms. It blocks the thread, so it is short.
const SHORT_SLEEP: Duration = Duration::from_millis(1);

/// Wraps a future that uses timers or sockets of tokio, so that any executor can poll it. If the caller has no tokio
/// runtime, these timers and sockets belong to the background runtime.
pub(crate) async fn in_runtime<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        let handle = current_or_background();
        let _entered = handle.as_ref().map(Handle::enter);
        future.as_mut().poll(cx)
    })
    .await
}

/// Timers and tasks of tokio, clocks and random numbers of the operating system.
#[derive(Debug)]
pub(crate) struct Tokio {
    now: fn() -> Instant,
    wall_micros: fn() -> u64,
    #[cfg_attr(not(any(feature = "node", feature = "testing")), allow(dead_code))]
    machine: fn() -> Option<u64>,
    /// Whether the library may move a task to its background runtime if the caller's runtime stops running tasks.
    may_move_tasks: bool,
}

impl Default for Tokio {
    fn default() -> Self {
        Self {
            now: Instant::now,
            wall_micros: clock::wall_micros,
            machine: clock::machine_id,
            may_move_tasks: true,
        }
    }
}

impl Tokio {
    /// Uses tokio's own clock, which tests can pause and advance. All tasks stay in the caller's runtime, because the
    /// clocks of other runtimes differ from a paused clock.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn paced() -> Self {
        Self {
            now: clock::paced::now,
            wall_micros: clock::paced::wall_micros,
            machine: || None,
            may_move_tasks: false,
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

    fn machine(&self) -> Option<u64> {
        (self.machine)()
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<()> {
        let now = self.now;
        Box::pin(async move {
            loop {
                let remaining = at.saturating_since(now());
                if remaining.is_zero() {
                    return;
                }
                let Some(handle) = current_or_background() else {
                    // The operating system refuses the background runtime. Sleep in the caller's thread, and try again.
                    std::thread::sleep(remaining.min(SHORT_SLEEP));
                    yield_once().await;
                    continue;
                };
                let sleep = {
                    let _entered = handle.enter();
                    tokio::time::sleep(remaining.min(LONGEST_SLEEP))
                };
                sleep.await;
            }
        })
    }

    fn spawn(&self, task: BoxFuture<()>) -> bool {
        if self.may_move_tasks {
            return hosting::spawn(task);
        }
        // If the runtime is being shut down, it drops the task immediately.
        let task = fork::bind_to_process(task);
        current_or_background()
            .map(|handle| handle.spawn(task))
            .is_some()
    }

    fn take_over(&self, make: MakeTask) -> bool {
        let spawn =
            |handle: Handle| handle.spawn(fork::bind_to_process(Box::pin(async { make().await })));
        background().map(spawn).is_some()
    }

    fn random(&self, bytes: &mut [u8]) {
        // The operating system's generator fails only at boot, before it is seeded. Panic then, because two locks could
        // otherwise get the same value.
        SysRng
            .try_fill_bytes(bytes)
            .expect("the operating system must provide random bytes");
    }
}

/// Lets other tasks run once, then continues. Works in every executor.
pub(crate) async fn yield_once() {
    let mut has_yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::manual::{ManualClock, RANDOM_BYTE};
    use super::*;

    #[test]
    fn random_number_consists_of_the_random_bytes_of_the_runtime() {
        let number = random_number(&ManualClock::default());
        assert_eq!(number, u64::from_le_bytes([RANDOM_BYTE; 8]));
        let runtime = Tokio::default();
        assert_ne!(random_number(&runtime), random_number(&runtime));
    }
}
