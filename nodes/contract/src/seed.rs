//! Randomness that can be replayed.

use std::time::{SystemTime, UNIX_EPOCH};

/// The random seed of this test run: the number in the variable `QUORATE_SEED`, or a new seed. A failing test prints
/// its seed, so that the run can be repeated.
pub fn seed() -> u64 {
    match std::env::var("QUORATE_SEED") {
        Ok(text) => text.parse().expect("QUORATE_SEED must be a number"),
        Err(_) => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since_epoch| since_epoch.as_nanos() as u64),
    }
}
