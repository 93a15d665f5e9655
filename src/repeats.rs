//! Limits how often similar events are logged as warnings: a connection that is lost and restored ten times a second
//! must not fill the log. The other events are logged at level debug.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::protocol::instant::Instant;

/// The minimum time between two warnings of one source, for example the connection to one master: one minute.
///
/// The first [`MAX_TEXTS`] warnings with different texts are logged without this pause. If the source has had no event
/// for one minute, the next warnings count as the first ones again.
const PAUSE_BETWEEN_LOGS: Duration = Duration::from_secs(60);

/// The largest number of warnings with different texts that are logged before the limit of one per minute applies.
const MAX_TEXTS: usize = 4;

/// Limits the warnings of one source, for example of the connection to one master.
#[derive(Debug, Default)]
pub(crate) struct Repeats(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The different texts that were logged without a pause, at most [`MAX_TEXTS`]. Cleared when the source has had no
    /// event, logged or not, for [`PAUSE_BETWEEN_LOGS`].
    texts: Vec<Box<str>>,
    /// The time of the last event, logged or not.
    last_seen_at: Option<Instant>,
    /// The time of the last event that was logged.
    last_logged_at: Option<Instant>,
    skipped: u64,
}

/// How many similar events were logged only at level debug since the last warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Skipped(u64);

impl Skipped {
    /// The number, to be logged as the field `not_logged` of the next warning. `None` if it is 0, so that the warning
    /// has no such field.
    pub(crate) fn field(self) -> Option<u64> {
        (self.0 > 0).then_some(self.0)
    }
}

impl Repeats {
    /// Decides whether an event with this text is logged as a warning: returns the number of skipped events if so.
    /// Otherwise counts this event as skipped, and returns `None`.
    pub(crate) fn should_log(&self, text: &str, now: Instant) -> Option<Skipped> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .should_log(text, now)
    }
}

impl State {
    fn should_log(&mut self, text: &str, now: Instant) -> Option<Skipped> {
        let is_pause_over = |last_at: Option<Instant>| {
            last_at.is_none_or(|last_at| now.saturating_since(last_at) >= PAUSE_BETWEEN_LOGS)
        };
        if is_pause_over(self.last_seen_at) {
            self.texts.clear();
        }
        self.last_seen_at = Some(now);
        let is_new = self.texts.len() < MAX_TEXTS
            && !self.texts.iter().any(|known_text| **known_text == *text);
        if is_new {
            self.texts.push(text.into());
        }
        if !is_new && !is_pause_over(self.last_logged_at) {
            self.skipped += 1;
            return None;
        }
        self.last_logged_at = Some(now);
        Some(Skipped(std::mem::take(&mut self.skipped)))
    }
}

/// Logs an event as a warning if `Repeats` allows it, and otherwise at level debug. `$text` distinguishes the events of
/// one source.
macro_rules! warn_seldom {
    (($repeats:expr, $text:expr, $now:expr), $($fields:tt)*) => {
        match $repeats.should_log($text, $now) {
            Some(skipped) => tracing::warn!(not_logged = skipped.field(), $($fields)*),
            None => tracing::debug!($($fields)*),
        }
    };
}
pub(crate) use warn_seldom;

#[cfg(test)]
mod tests {
    use super::*;

    fn at_ms(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn alternating_events_are_logged_once_each_and_then_once_a_minute() {
        let repeats = Repeats::default();
        let mut logged = Vec::new();
        for millis in (0..180_000).step_by(100) {
            let text = if millis % 200 == 0 { "lost" } else { "none" };
            if let Some(skipped) = repeats.should_log(text, at_ms(millis)) {
                logged.push((millis, skipped.field()));
            }
        }
        let expected = [
            (0, None),
            (100, None),
            (60_100, Some(599)),
            (120_100, Some(599)),
        ];
        assert_eq!(logged, expected);
    }

    #[test]
    fn repeated_event_is_logged_again_after_a_minute_without_events() {
        let repeats = Repeats::default();
        for millis in [0, 61_000, 122_000] {
            assert_eq!(repeats.should_log("lost", at_ms(millis)), Some(Skipped(0)));
        }
        assert_eq!(repeats.should_log("lost", at_ms(123_000)), None);
        assert_eq!(repeats.should_log("lost", at_ms(184_000)), Some(Skipped(1)));
    }

    #[test]
    fn warnings_whose_text_differs_each_time_are_still_limited() {
        let repeats = Repeats::default();
        let texts = (0..1_000).filter(|n| repeats.should_log(&n.to_string(), at_ms(*n)).is_some());
        assert_eq!(texts.count(), MAX_TEXTS);
    }
}
