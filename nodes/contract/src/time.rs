//! Durations, and waiting for a condition.

use std::time::{Duration, Instant};

/// The time limit for everything that must happen in a test. It is generous, for a machine that is busy with other
/// work.
pub const PATIENCE: Duration = secs(20);

/// A duration in milliseconds.
pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A duration in seconds.
pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Waits until `is_met` returns true. After [`PATIENCE`] without success, the test fails with the message `what`.
pub async fn eventually(what: &str, mut is_met: impl FnMut() -> bool) {
    let started_at = Instant::now();
    while !is_met() {
        assert!(started_at.elapsed() < PATIENCE, "timed out: {what}");
        tokio::time::sleep(ms(5)).await;
    }
}
