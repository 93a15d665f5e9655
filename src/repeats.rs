//! Limits how often similar events are logged as warnings: a connection that is lost and restored ten times a second
//! must not fill the log. The other events are logged at level debug.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::protocol::instant::Instant;

/// The minimum time between two warnings of one source, for example the connection to one master: one minute.
///
/// The first [`TEXTS`] warnings with different texts are logged without this pause. If the source has had no event for
/// one minute, the next warnings count as the first ones again.
const PAUSE: Duration = Duration::from_secs(60);

/// The largest number of warnings with different texts that are logged before the limit of one per minute applies.
const TEXTS: usize = 4;

/// Limits the warnings of one source, for example of the connection to one master.
#[derive(Debug, Default)]
pub(crate) struct Repeats(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The different texts that were logged without a pause, at most [`TEXTS`]. Cleared when the source has had no
    /// event, logged or not, for [`PAUSE`].
    texts: Vec<Box<str>>,
    /// The time of the last event, logged or not.
    seen: Option<Instant>,
    /// The time of the last event that was logged.
    logged: Option<Instant>,
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
    pub(crate) fn warns(&self, text: &str, now: Instant) -> Option<Skipped> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .warns(text, now)
    }
}

impl State {
    fn warns(&mut self, text: &str, now: Instant) -> Option<Skipped> {
        let paused =
            |since: Option<Instant>| since.is_none_or(|since| now.saturating_since(since) >= PAUSE);
        if paused(self.seen) {
            self.texts.clear();
        }
        self.seen = Some(now);
        let is_new = self.texts.len() < TEXTS && !self.texts.iter().any(|seen| **seen == *text);
        if is_new {
            self.texts.push(text.into());
        }
        if !is_new && !paused(self.logged) {
            self.skipped += 1;
            return None;
        }
        self.logged = Some(now);
        Some(Skipped(std::mem::take(&mut self.skipped)))
    }
}

/// Logs an event as a warning if `Repeats` allows it, and otherwise at level debug. `$text` distinguishes the events of
/// one source.
macro_rules! warn_seldom {
    (($repeats:expr, $text:expr, $now:expr), $($fields:tt)*) => {
        match $repeats.warns($text, $now) {
            Some(skipped) => tracing::warn!(not_logged = skipped.field(), $($fields)*),
            None => tracing::debug!($($fields)*),
        }
    };
}
pub(crate) use warn_seldom;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn alternating_events_are_logged_once_each_and_then_once_a_minute() {
        let repeats = Repeats::default();
        let mut logged = Vec::new();
        for millis in (0..180_000).step_by(100) {
            let text = if millis % 200 == 0 { "lost" } else { "none" };
            if let Some(skipped) = repeats.warns(text, at(millis)) {
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
            assert_eq!(repeats.warns("lost", at(millis)), Some(Skipped(0)));
        }
        assert_eq!(repeats.warns("lost", at(123_000)), None);
        assert_eq!(repeats.warns("lost", at(184_000)), Some(Skipped(1)));
    }

    #[test]
    fn warnings_whose_text_differs_each_time_are_still_limited() {
        let repeats = Repeats::default();
        let texts = (0..1_000).filter(|n| repeats.warns(&n.to_string(), at(*n)).is_some());
        assert_eq!(texts.count(), TEXTS);
    }
}
