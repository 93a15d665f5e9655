//! Checks that the holder of a lock is notified of a loss in time: at the latest when the validity ends, whatever the
//! masters do.

/// Judges how late holders were notified that their lock was lost.
#[derive(Clone, Copy, Debug)]
pub struct LossNotice {
    slack: u64,
    worst: u64,
    judged: u64,
}

impl LossNotice {
    /// Creates the checker. `slack` is the longest allowed time from the end of the validity until the holder is
    /// notified.
    pub fn new(slack: u64) -> Self {
        Self {
            slack,
            worst: 0,
            judged: 0,
        }
    }

    /// Checks how late the holder of a lock was notified that the lock was lost. The validity of the lock ended at
    /// `until`. `now` is the time of the notification, or the present time if the holder has not been notified. `kept`
    /// is the time since `until` in which the holder's process could not run; it does not count as delay. Returns the
    /// delay from `until` to `now` if it is longer than allowed, otherwise `None`.
    pub fn judge(&mut self, until: u64, now: u64, kept: u64) -> Option<u64> {
        self.judged += 1;
        let late = now.saturating_sub(until).saturating_sub(kept);
        self.worst = self.worst.max(late);
        (late > self.slack).then_some(late)
    }

    /// The longest delay of any notification that was checked.
    pub fn worst(&self) -> u64 {
        self.worst
    }

    /// The number of delays that were checked.
    pub fn judged(&self) -> u64 {
        self.judged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_loss_notification_is_found_unless_the_process_could_not_run() {
        let mut notices = LossNotice::new(5);
        assert_eq!(notices.judge(100, 90, 0), None);
        assert_eq!(notices.judge(100, 105, 0), None);
        assert_eq!(notices.judge(100, 106, 0), Some(6));
        assert_eq!(notices.judge(100, 120, 16), None);
        assert_eq!((notices.worst(), notices.judged()), (6, 4));
    }
}
