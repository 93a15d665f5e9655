//! A holder whose lock has ended is told in time: at the end of its validity, whatever the masters do.

/// By how much holders were late.
#[derive(Clone, Copy, Debug)]
pub struct LossNotice {
    slack: u64,
    worst: u64,
    judged: u64,
}

impl LossNotice {
    /// A holder may be late by `slack`: the way from the timer to the holder.
    pub fn new(slack: u64) -> Self {
        Self {
            slack,
            worst: 0,
            judged: 0,
        }
    }

    /// A hold that was valid until then has ended, or goes on, `now`. Time for which its process was `kept`
    /// from running since does not count. By how much it is late, if that is too much.
    pub fn judge(&mut self, until: u64, now: u64, kept: u64) -> Option<u64> {
        self.judged += 1;
        let late = now.saturating_sub(until).saturating_sub(kept);
        self.worst = self.worst.max(late);
        (late > self.slack).then_some(late)
    }

    /// The latest of all.
    pub fn worst(&self) -> u64 {
        self.worst
    }

    /// How many holds were looked at.
    pub fn judged(&self) -> u64 {
        self.judged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_told_late_is_found_unless_it_was_kept_from_running() {
        let mut told = LossNotice::new(5);
        assert_eq!(told.judge(100, 90, 0), None);
        assert_eq!(told.judge(100, 105, 0), None);
        assert_eq!(told.judge(100, 106, 0), Some(6));
        assert_eq!(told.judge(100, 120, 16), None);
        assert_eq!((told.worst(), told.judged()), (6, 4));
    }
}
