//! A runtime of a client whose wall clock is wrong, or whose process pauses when it reads the clock.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use quorate::Instant;
use quorate::runtime::{BoxFuture, Runtime};

/// The tasks, timers and monotonic clock of this process. The function receives the time of its wall clock in
/// microseconds since 1970, and returns the time that the client sees.
#[derive(Debug)]
pub struct WallClock<F>(pub F);

/// The wall clock of this process, in microseconds since 1970.
///
/// # Panics
///
/// If the clock shows a time before 1970.
pub fn wall_micros() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.expect("after 1970").as_micros() as u64
}

impl<F: Fn(u64) -> u64 + Send + Sync + 'static> Runtime for WallClock<F> {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wall_micros(&self) -> u64 {
        self.0(wall_micros())
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<()> {
        Box::pin(tokio::time::sleep(at.saturating_since(self.now())))
    }

    fn spawn(&self, task: BoxFuture<()>) -> bool {
        tokio::spawn(task);
        true
    }

    fn random(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random_bytes = RandomState::new().hash_one(0).to_le_bytes();
            chunk.copy_from_slice(&random_bytes[..chunk.len()]);
        }
    }
}
