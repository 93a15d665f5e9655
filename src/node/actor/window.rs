//! Limits how many requests may be outstanding on one connection.

use std::time::Duration;

use crate::protocol::instant::Instant;

/// The largest number of outstanding requests on one connection. It is high, so that distant masters are kept busy.
/// Further requests wait in the mailbox, where they can still be withdrawn.
pub(in crate::node) const UNDER_WAY: usize = 8_192;

/// The limit on outstanding requests before the master's speed is known. It is also the smallest limit for a slow
/// master.
const NARROW: usize = 512;

/// Computes how many requests may be outstanding: as many as the master can answer within a small part of the node
/// timeout. In a burst that is too fast for the master, the further requests wait in this process and not at the
/// master. They are slow then, but do not time out and are not repeated
/// (`more_requests_than_a_master_can_process_wait_without_timeouts`).
pub(in crate::node) struct Window {
    width: usize,
    limit: Duration,
    /// The shortest time from a request to its answer so far. It is taken as the round trip.
    least: Duration,
    /// When the width was last reduced. Slow answers to requests that were sent before then do not reduce it again.
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

    /// How many requests may be outstanding now.
    pub(in crate::node) fn width(&self) -> usize {
        self.width
    }

    /// Adapts the width to an answer that arrived at `now`; its request was sent at `at`.
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
    fn request_window_follows_the_speed_of_the_master() {
        let ms = Duration::from_millis;
        let start = Instant::from_nanos(1_000_000_000);
        let mut window = Window::new(ms(60));
        window.learn(start, start + ms(30));
        for _ in 1..1_000 {
            window.learn(start, start + ms(39));
        }
        assert_eq!(
            window.width,
            NARROW + 1_000,
            "a distant master does not narrow the window"
        );
        for _ in 0..1_000 {
            window.learn(start, start + ms(45));
        }
        assert_eq!(
            window.width,
            NARROW + 1_000,
            "answers are fast enough to keep the width"
        );
        for _ in 0..1_000 {
            window.learn(start, start + ms(51));
        }
        assert_eq!(
            window.width,
            NARROW.midpoint(1_000),
            "narrowed once for all requests that were outstanding"
        );
        for n in 1..1_000 {
            window.learn(start + ms(100 * n), start + ms(100 * n + 51));
        }
        assert_eq!(window.width, NARROW, "the window is never closed");
        for _ in 0..100_000 {
            window.learn(start, start + ms(30));
        }
        assert_eq!(window.width, UNDER_WAY);
    }
}
