//! Durations: milliseconds in JavaScript, [`Duration`] in Rust.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorate_bindings::quorate::Wait;

/// Converts milliseconds. Negative and invalid numbers become zero; JavaScript has already refused them.
pub(crate) fn from_ms(milliseconds: f64) -> Duration {
    Duration::try_from_secs_f64(milliseconds / 1000.0).unwrap_or_default()
}

/// Converts a duration to milliseconds.
pub(crate) fn to_ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Converts the option `wait`: a negative number means without a limit, zero means one attempt.
pub(crate) fn wait_from_ms(milliseconds: f64) -> Wait {
    if milliseconds < 0.0 {
        Wait::Forever
    } else if milliseconds == 0.0 {
        Wait::None
    } else {
        Wait::For(from_ms(milliseconds))
    }
}

/// Milliseconds since 1970; negative for earlier times.
pub(crate) fn epoch_ms(time: SystemTime) -> f64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => to_ms(since),
        Err(before) => -to_ms(before.duration()),
    }
}
