//! Checks that the holder of a lock is notified of a loss in time: not later than the end of the lock's validity plus
//! an allowed delay, even if no master answers.

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

    /// Checks how late a holder was notified that its lock was lost. The delay is `now - until - kept`. Returns the
    /// delay if it is longer than allowed, otherwise `None`.
    ///
    /// - `until`: the end of the lock's validity.
    /// - `now`: the time of the notification, or the current time if the holder has not been notified yet.
    /// - `excused_time`: how long the holder's process did not run (e.g. was suspended) between `until` and `now`.
    pub fn judge(&mut self, until: u64, now: u64, excused_time: u64) -> Option<u64> {
        self.judged += 1;
        let delay = now.saturating_sub(until).saturating_sub(excused_time);
        self.worst = self.worst.max(delay);
        (delay > self.slack).then_some(delay)
    }

    /// The longest delay of any notification that was checked, in the unit of the times that were passed to `judge`.
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
    fn checker_excuses_a_loss_notification_delayed_while_the_process_cannot_run() {
        let mut notices = LossNotice::new(5);
        assert_eq!(notices.judge(100, 90, 0), None);
        assert_eq!(notices.judge(100, 105, 0), None);
        assert_eq!(notices.judge(100, 106, 0), Some(6));
        assert_eq!(notices.judge(100, 120, 16), None);
        assert_eq!((notices.worst(), notices.judged()), (6, 4));
    }
}
