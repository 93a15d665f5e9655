//! Values that requests contain and that replies are compared with.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorate::node::{Answer, Extended};

use crate::requests;
use crate::time::secs;

/// A TTL of ten minutes, which is longer than any test runs.
pub const LONG: Duration = secs(600);

/// The key of the fencing counter of a lock.
pub fn counter_key(lock: &[u8]) -> Vec<u8> {
    [b"quorate:fence:", lock].concat()
}

/// The wall clock in microseconds since 1970. It is also the masters' clock, because the masters run on this machine.
pub fn now() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.expect("after 1970").as_micros() as u64
}

/// The value of token `n` in a lock key.
pub fn token_text(n: u8) -> Vec<u8> {
    requests::token(n).to_hex().to_vec()
}

/// The expected answer to an extension of several locks.
pub fn extended(locks: &[Extended]) -> Answer {
    Answer::Extended(locks.to_vec())
}

/// Checks that `remaining` is close to `ttl`, which was just set. A store without a clock may report a slightly longer
/// remaining time.
#[track_caller]
pub fn assert_about(remaining: Option<Duration>, ttl: Duration) {
    let remaining =
        remaining.unwrap_or_else(|| panic!("the key must expire after {ttl:?}, but has no expiry"));
    assert!(
        remaining <= ttl + ttl / 64 && remaining + secs(60) > ttl,
        "the remaining time {remaining:?} must be close to {ttl:?}"
    );
}
