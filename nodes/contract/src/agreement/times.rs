//! The durations in random sequences of operations.

use std::time::Duration;

use crate::fixtures::LONG;
use crate::time::{ms, secs};

/// The number of clients that wait for locks.
pub(super) const WAITERS: usize = 4;

/// The number of TTLs from which an operation selects one.
pub(super) const TTLS: usize = 3;

/// The durations used in one random sequence of operations.
#[derive(Clone, Copy)]
pub struct Times {
    pub(super) ttls: [Duration; TTLS],
    /// The heartbeat time of each waiter.
    pub(super) heartbeats: [Duration; WAITERS],
}

impl Times {
    /// Durations that outlast every test. The TTLs differ by far more than one second, so a comparison notices a wrong
    /// TTL.
    pub const LASTING: Self = Self {
        ttls: [secs(60), secs(240), LONG],
        heartbeats: [secs(240); WAITERS],
    };

    /// Durations for tests of expiry. Some of them end during a test, so some locks expire and some waiters die.
    pub const FLEETING: Self = Self {
        ttls: [BLINK, BLINK, LONG],
        heartbeats: [BLINK, BLINK, secs(240), secs(240)],
    };

    /// Whether some of these durations end during a test.
    pub(super) fn are_fleeting(&self) -> bool {
        self.ttls.contains(&BLINK)
    }
}

/// The short TTLs and heartbeat times, which end during a test.
pub(super) const BLINK: Duration = ms(60);

/// Each of the two compared masters rounds the expiry time of a key to whole milliseconds. So the two expiry times may
/// differ by this much.
pub(super) const GRAIN: Duration = ms(2);

/// The test reads the remaining time of a key on one master and then on the other. So the two results may differ by
/// this much.
pub(super) const BLUR: Duration = secs(1);
