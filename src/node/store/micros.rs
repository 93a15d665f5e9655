//! Times in microseconds, as the records of a store contain them.

use std::time::Duration;

/// The latest time in a record, in microseconds. Later clock readings are replaced by this time. A record with a later
/// time is damaged.
pub(super) const LATEST: u64 = 1 << 61;

/// Reads a number of eight bytes, and removes it from `rest`. `None` if fewer bytes are left.
pub(super) fn read_number(rest: &mut &[u8]) -> Option<u64> {
    let (number, remaining) = rest.split_first_chunk::<8>()?;
    *rest = remaining;
    Some(u64::from_be_bytes(*number))
}

/// The duration in whole microseconds.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 4)
}
