//! The holder of a lock that has ended is notified in time: at the end of its validity, whatever the masters do.

/// Judges how late holders were notified.
#[derive(Clone, Copy, Debug)]
pub struct LossNotice {
    slack: u64,
    worst: u64,
    judged: u64,
}

impl LossNotice {
    /// `slack` is the longest allowed delay: the time from the timer to the holder.
    pub fn new(slack: u64) -> Self {
        Self {
            slack,
            worst: 0,
            judged: 0,
        }
    }

    /// Judges a hold that was valid until `until` and has ended, or still goes on, at `now`. Time `kept`, for which its
    /// process could not run since then, does not count. Returns the delay if it is too long.
    pub fn judge(&mut self, until: u64, now: u64, kept: u64) -> Option<u64> {
        self.judged += 1;
        let late = now.saturating_sub(until).saturating_sub(kept);
        self.worst = self.worst.max(late);
        (late > self.slack).then_some(late)
    }

    /// The longest delay.
    pub fn worst(&self) -> u64 {
        self.worst
    }

    /// The number of holds judged.
    pub fn judged(&self) -> u64 {
        self.judged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_notice_is_found_unless_the_process_could_not_run() {
        let mut notices = LossNotice::new(5);
        assert_eq!(notices.judge(100, 90, 0), None);
        assert_eq!(notices.judge(100, 105, 0), None);
        assert_eq!(notices.judge(100, 106, 0), Some(6));
        assert_eq!(notices.judge(100, 120, 16), None);
        assert_eq!((notices.worst(), notices.judged()), (6, 4));
    }
}
