//! How many requests may be under way on one connection.

use std::time::Duration;

use crate::protocol::instant::Instant;

/// The most requests under way on one connection. Many, so that far masters are kept busy; what
/// does not fit waits in the mailbox, where it can still be withdrawn.
pub(in crate::node) const UNDER_WAY: usize = 8_192;

/// How many are let through while nobody knows how fast the master is, and however slow it is.
const NARROW: usize = 512;

/// How many requests may be under way: as many as stand in line at the master for a small part of
/// the node timeout. A crowd that outruns its master waits here and not there: it is slow then, but
/// does not time out and come again
/// (`a_crowd_that_outruns_a_master_waits_and_does_not_time_out`).
pub(in crate::node) struct Window {
    width: usize,
    limit: Duration,
    /// The fastest answer so far: the way there and back.
    least: Duration,
    /// It was narrowed, and what was under way then does not count once more.
    narrowed: Option<Instant>,
}

impl Window {
    pub(in crate::node) fn new(limit: Duration) -> Self {
        Self {
            width: NARROW,
            limit,
            least: Duration::MAX,
            narrowed: None,
        }
    }

    /// How many may be under way now.
    pub(in crate::node) fn width(&self) -> usize {
        self.width
    }

    /// An answer has come to what was asked at `at`.
    pub(in crate::node) fn learn(&mut self, at: Instant, now: Instant) {
        let took = now.saturating_since(at);
        self.least = self.least.min(took);
        let stood = took.saturating_sub(self.least);
        if stood < self.limit / 6 {
            self.width = (self.width + 1).min(UNDER_WAY);
        } else if stood > self.limit / 3 && self.narrowed.is_none_or(|since| since < at) {
            self.width = (self.width / 2).max(NARROW);
            self.narrowed = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_follows_the_speed_of_the_master() {
        let ms = Duration::from_millis;
        let start = Instant::from_nanos(1_000_000_000);
        let mut window = Window::new(ms(60));
        window.learn(start, start + ms(30));
        for _ in 1..1_000 {
            window.learn(start, start + ms(39));
        }
        assert_eq!(window.width, NARROW + 1_000, "far, but not crowded");
        for _ in 0..1_000 {
            window.learn(start, start + ms(45));
        }
        assert_eq!(window.width, NARROW + 1_000, "fast enough to stay");
        for _ in 0..1_000 {
            window.learn(start, start + ms(51));
        }
        assert_eq!(
            window.width,
            NARROW.midpoint(1_000),
            "once for all that was under way"
        );
        for n in 1..1_000 {
            window.learn(start + ms(100 * n), start + ms(100 * n + 51));
        }
        assert_eq!(window.width, NARROW, "never closed");
        for _ in 0..100_000 {
            window.learn(start, start + ms(30));
        }
        assert_eq!(window.width, UNDER_WAY);
    }
}
