//! Times in microseconds, as the records of a store contain them.

use std::time::Duration;

/// The latest time in a record, in microseconds. Later clock readings are replaced by this time. A record with a later
/// time is damaged.
pub(super) const LATEST: u64 = 1 << 61;

/// The duration in whole microseconds.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 4)
}
