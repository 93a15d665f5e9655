//! Simulated clocks, which have an offset and a rate error, and can jump.

/// The true time at the beginning of a run, in nanoseconds. It is larger than zero, so that a clock that is behind the
/// true time shows no negative time.
pub(crate) const BEGIN: u64 = 1_000_000_000_000;

/// The reading of the wall clock at [`BEGIN`], in microseconds since 1970.
pub(crate) const EPOCH_US: u64 = 1_790_000_000_000_000;

/// One millisecond of simulated time, in nanoseconds.
pub(crate) const MS: u64 = 1_000_000;

/// A clock in nanoseconds. It runs at a fixed rate until it is set again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// The true time at which the clock was last set. `set_to` is its reading at that time.
    set_at: u64,
    set_to: u64,
    ppm: i64,
}

impl Clock {
    /// Creates a clock that shows `begins` (nanoseconds) at [`BEGIN`] and gains `ppm` parts per million.
    pub(crate) fn new(begins: u64, ppm: i64) -> Self {
        Self {
            set_at: BEGIN,
            set_to: begins,
            ppm,
        }
    }

    /// Returns the reading at the true time `now`; both in nanoseconds.
    pub(crate) fn read(&self, now: u64) -> u64 {
        let passed = now.saturating_sub(self.set_at);
        let gained = passed as i64 / 1000 * self.ppm / 1000;
        self.set_to
            .saturating_add(passed)
            .saturating_add_signed(gained)
    }

    /// Returns the first true time at which the clock shows `reading` or more; both in nanoseconds. `None` if the
    /// reading is too large to be reached.
    pub(crate) fn when(&self, reading: u64) -> Option<u64> {
        let wanted = reading.saturating_sub(self.set_to);
        if wanted > u64::MAX / 4 {
            return None;
        }
        let rate = (1_000_000 + self.ppm) as u128;
        let mut at = self.set_at + (u128::from(wanted) * 1_000_000 / rate) as u64;
        while self.read(at) < reading {
            at += (reading - self.read(at)).max(1);
        }
        Some(at)
    }

    /// Moves the clock by `by` nanoseconds at the true time `now`; backwards if `by` is negative.
    pub(crate) fn jump(&mut self, now: u64, by: i64) {
        self.set_to = self.read(now).saturating_add_signed(by);
        self.set_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_clock_gains_time_and_slow_clock_loses_time() {
        let (fast, slow) = (Clock::new(50, 4_000), Clock::new(50, -4_000));
        let at = BEGIN + 1000 * MS;
        assert_eq!(fast.read(at), 50 + 1004 * MS);
        assert_eq!(slow.read(at), 50 + 996 * MS);
        for clock in [fast, slow] {
            let there = clock
                .when(50 + 777 * MS)
                .expect("the clock must reach 777 ms");
            assert!(clock.read(there) >= 50 + 777 * MS);
            assert!(clock.read(there - 1_000) < 50 + 777 * MS);
        }
        assert_eq!(fast.when(u64::MAX), None);
    }
}
