//! An environment for unit tests. The test advances its clock. It accepts no tasks, as if it had been shut down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use super::{BoxFuture, MakeTask, Runtime};
use crate::protocol::instant::Instant;

/// The value of each random byte.
pub(crate) const RANDOM_BYTE: u8 = 5;

/// A runtime whose clock advances only when the test advances it. Its clones share the clock.
#[derive(Clone, Default)]
pub(crate) struct ManualClock {
    nanos: Arc<AtomicU64>,
    /// Whether each sleep ends at once, and advances the clock to its end. Otherwise, a sleep ends when it is polled
    /// after the test has advanced the clock. An advance wakes no task.
    is_advanced_by_sleeps: bool,
    /// Whether another executor takes over the tasks.
    has_other_executor: bool,
}

#[cfg_attr(
    quorate_loom,
    allow(dead_code, reason = "the models of loom use a clock that stands still")
)]
impl ManualClock {
    /// A clock that each sleep advances.
    pub(crate) fn advanced_by_sleeps() -> Self {
        Self {
            is_advanced_by_sleeps: true,
            ..Self::default()
        }
    }

    /// A runtime that was shut down. `has_other_executor` is whether another executor takes over its tasks.
    pub(crate) fn shut_down(has_other_executor: bool) -> Self {
        Self {
            has_other_executor,
            ..Self::default()
        }
    }

    pub(crate) fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// Advances the clock to the time `ms`. A clock that is ahead stays there.
    pub(crate) fn advance_to(&self, ms: u64) {
        self.reach(Self::at(ms));
    }

    pub(crate) fn advance_by(&self, time: Duration) {
        self.reach(self.now() + time);
    }

    fn reach(&self, at: Instant) {
        self.nanos.fetch_max(at.as_nanos(), Ordering::Relaxed);
    }
}

impl Runtime for ManualClock {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    fn wall_micros(&self) -> u64 {
        0
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<()> {
        let clock = self.clone();
        Box::pin(std::future::poll_fn(move |_| {
            if clock.is_advanced_by_sleeps {
                clock.reach(at);
            }
            if clock.now() < at {
                return Poll::Pending;
            }
            Poll::Ready(())
        }))
    }

    fn spawn(&self, _: BoxFuture<()>) -> bool {
        false
    }

    fn take_over(&self, _: MakeTask) -> bool {
        self.has_other_executor
    }

    fn random(&self, bytes: &mut [u8]) {
        bytes.fill(RANDOM_BYTE);
    }
}
