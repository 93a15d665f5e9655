//! Limits how many requests may be outstanding on one connection.

use std::time::Duration;

use crate::protocol::instant::Instant;

/// The largest number of outstanding requests on one connection. Further requests wait in the mailbox. The number is
/// high, so that a long round trip does not limit the throughput.
pub(in crate::node) const MAX_OUTSTANDING: usize = 8_192;

/// The smallest limit on outstanding requests. Each connection begins with this limit, which grows if the master
/// answers quickly.
const MIN_OUTSTANDING: usize = 512;

/// Computes how many requests may be outstanding on a connection, so that a slow master answers each request before the
/// node timeout. Further requests wait in the mailbox.
pub(in crate::node) struct Window {
    width: usize,
    limit: Duration,
    /// The shortest time from sending a request to its answer on this connection. It estimates the round trip.
    shortest_round_trip: Duration,
    /// The time at which the limit on outstanding requests (`width`) was last reduced; `None` if it never was. Slow
    /// answers to requests that were not sent after this time do not reduce the limit again.
    narrowed_at: Option<Instant>,
}

impl Window {
    pub(in crate::node) fn new(limit: Duration) -> Self {
        Self {
            width: MIN_OUTSTANDING,
            limit,
            shortest_round_trip: Duration::MAX,
            narrowed_at: None,
        }
    }

    /// The largest number of requests that may be outstanding on the connection now.
    pub(in crate::node) fn width(&self) -> usize {
        self.width
    }

    /// Adapts the limit on outstanding requests after an answer. The request was sent at `sent_at`, and its answer
    /// arrived at `answered_at`.
    pub(in crate::node) fn learn(&mut self, sent_at: Instant, answered_at: Instant) {
        let elapsed = answered_at.saturating_since(sent_at);
        self.shortest_round_trip = self.shortest_round_trip.min(elapsed);
        let queued_for = elapsed.saturating_sub(self.shortest_round_trip);
        if queued_for < self.limit / 6 {
            self.width = (self.width + 1).min(MAX_OUTSTANDING);
        } else if queued_for > self.limit / 3
            && self.narrowed_at.is_none_or(|since| since < sent_at)
        {
            self.width = (self.width / 2).max(MIN_OUTSTANDING);
            self.narrowed_at = Some(answered_at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_window_widens_for_a_fast_master_and_narrows_for_a_slow_one() {
        let ms = Duration::from_millis;
        let start = Instant::from_nanos(1_000_000_000);
        let mut window = Window::new(ms(60));
        window.learn(start, start + ms(30));
        for _ in 1..1_000 {
            window.learn(start, start + ms(39));
        }
        assert_eq!(
            window.width,
            MIN_OUTSTANDING + 1_000,
            "a distant master must not narrow the window of requests"
        );
        for _ in 0..1_000 {
            window.learn(start, start + ms(45));
        }
        assert_eq!(
            window.width,
            MIN_OUTSTANDING + 1_000,
            "the window of requests must keep its width if answers take only 45 ms"
        );
        for _ in 0..1_000 {
            window.learn(start, start + ms(51));
        }
        assert_eq!(
            window.width,
            MIN_OUTSTANDING.midpoint(1_000),
            "slow answers to requests sent at the same time must narrow the window only once"
        );
        for n in 1..1_000 {
            window.learn(start + ms(100 * n), start + ms(100 * n + 51));
        }
        assert_eq!(
            window.width, MIN_OUTSTANDING,
            "the window of requests must keep its smallest width"
        );
        for _ in 0..100_000 {
            window.learn(start, start + ms(30));
        }
        assert_eq!(window.width, MAX_OUTSTANDING);
    }

    #[test]
    fn request_window_keeps_its_width_if_answers_are_neither_fast_nor_slow() {
        let ms = Duration::from_millis;
        let start = Instant::from_nanos(1_000_000_000);
        // A sixth and a third of the limit of 60 ms.
        for (queued_ms, change) in [(9, 1), (10, 0), (20, 0), (21, -1)] {
            let mut window = Window::new(ms(60));
            window.width = 4 * MIN_OUTSTANDING;
            window.shortest_round_trip = ms(5);
            window.learn(start, start + ms(5 + queued_ms));
            let width = match change {
                1 => 4 * MIN_OUTSTANDING + 1,
                0 => 4 * MIN_OUTSTANDING,
                _ => 2 * MIN_OUTSTANDING,
            };
            assert_eq!(window.width, width, "{queued_ms} ms in the queue");
        }
    }

    #[test]
    fn slow_answer_narrows_the_window_again_only_if_its_request_was_sent_later() {
        let ms = Duration::from_millis;
        let start = Instant::from_nanos(1_000_000_000);
        for (sent_later_by, width) in [(0, 4), (1, 2)] {
            let mut window = Window::new(ms(60));
            window.width = 8 * MIN_OUTSTANDING;
            window.shortest_round_trip = ms(5);
            let narrowed_at = start + ms(100);
            window.learn(start, narrowed_at);
            assert_eq!(window.width, 4 * MIN_OUTSTANDING);
            let sent_at = narrowed_at + ms(sent_later_by);
            window.learn(sent_at, sent_at + ms(100));
            assert_eq!(window.width, width * MIN_OUTSTANDING, "{sent_later_by} ms");
        }
    }
}
