//! Simulated clocks, which have an offset and a rate error, and can jump.

/// The true time at the beginning of a run, in nanoseconds. It is larger than zero, so that a clock that is behind the
/// true time shows no negative time.
pub(crate) const RUN_START: u64 = 1_000_000_000_000;

/// The reading of the wall clock at [`RUN_START`], in microseconds since 1970.
pub(crate) const EPOCH_US: u64 = 1_790_000_000_000_000;

/// One millisecond of simulated time, in nanoseconds.
pub(crate) const MS: u64 = 1_000_000;

/// The number of random bits in the duration of a clock reading. So a reading takes between 0 and 2^11 - 1 nanoseconds.
pub(crate) const READING_BITS: u32 = 11;

/// One reading of a clock takes less than this time, in nanoseconds: about two microseconds.
pub(crate) const LONGEST_READING: u64 = 1 << READING_BITS;

/// A clock in nanoseconds. It runs at a fixed rate until it is set again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// The true time at which the clock was last set. `set_to` is its reading at that time.
    set_at: u64,
    set_to: u64,
    ppm: i64,
}

impl Clock {
    /// Creates a clock that shows `first_reading` (nanoseconds) at [`RUN_START`] and gains `ppm` parts per million.
    pub(crate) fn new(first_reading: u64, ppm: i64) -> Self {
        Self {
            set_at: RUN_START,
            set_to: first_reading,
            ppm,
        }
    }

    /// Returns the reading at the true time `now`; both in nanoseconds.
    pub(crate) fn read(&self, now: u64) -> u64 {
        let elapsed = now.saturating_sub(self.set_at);
        let gained = elapsed as i64 / 1000 * self.ppm / 1000;
        self.set_to
            .saturating_add(elapsed)
            .saturating_add_signed(gained)
    }

    /// Returns the first true time at which the clock shows `reading` or more; both in nanoseconds. `None` if the
    /// reading is too large to be reached.
    pub(crate) fn time_of_reading(&self, reading: u64) -> Option<u64> {
        let clock_advance = reading.saturating_sub(self.set_to);
        if clock_advance > u64::MAX / 4 {
            return None;
        }
        let rate = (1_000_000 + self.ppm) as u128;
        let mut time = self.set_at + (u128::from(clock_advance) * 1_000_000 / rate) as u64;
        while self.read(time) < reading {
            time += (reading - self.read(time)).max(1);
        }
        Some(time)
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
        let one_second_later = RUN_START + 1000 * MS;
        assert_eq!(fast.read(one_second_later), 50 + 1004 * MS);
        assert_eq!(slow.read(one_second_later), 50 + 996 * MS);
        for clock in [fast, slow] {
            let reached_at = clock
                .time_of_reading(50 + 777 * MS)
                .expect("the clock must reach 777 ms");
            assert!(clock.read(reached_at) >= 50 + 777 * MS);
            assert!(clock.read(reached_at - 1_000) < 50 + 777 * MS);
        }
        assert_eq!(fast.time_of_reading(u64::MAX), None);
    }
}
