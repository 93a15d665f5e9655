//! The time that leases are measured with: monotonic, and going on while the machine sleeps.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::protocol::instant::Instant;

impl Instant {
    /// The present time on the suspend-aware monotonic clock.
    pub fn now() -> Self {
        monotonic()
    }
}

/// `CLOCK_BOOTTIME`: tokio's and std's clock stand still while the machine sleeps, the masters'
/// ttl does not.
#[cfg(target_os = "linux")]
fn monotonic() -> Instant {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::Boottime);
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Instant::from_nanos(secs * 1_000_000_000 + nanos)
}

#[cfg(not(target_os = "linux"))]
fn monotonic() -> Instant {
    use std::sync::LazyLock;
    static ORIGIN: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    Instant::from_nanos(u64::try_from(ORIGIN.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// The wall clock in microseconds since 1970, only ever used to propose fencing numbers.
pub(crate) fn wall_micros() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
