//! A point in time on the monotonic clock that measures leases.

use std::ops::Add;
use std::time::Duration;

/// A point in time on a monotonic clock that also advances while the machine is suspended.
///
/// On Linux this is `CLOCK_BOOTTIME`. [`std::time::Instant`] stops while the machine is suspended: after the
/// suspension, a lease measured with `std::time::Instant` would still seem valid, although it has already expired on
/// the masters.
///
/// ```
/// use std::time::Duration;
///
/// let now = quorate::Instant::now();
/// let deadline = now + Duration::from_secs(1);
/// assert!(deadline > now);
/// assert_eq!(deadline.saturating_since(now), Duration::from_secs(1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The largest point in time, used for "never".
    pub(crate) const NEVER: Self = Self(u64::MAX);

    /// The point in time `nanos` nanoseconds after the clock's origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's origin (on Linux: since boot).
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates at the maximum instead of panicking.
    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanos(by)))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
