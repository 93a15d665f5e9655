//! The state of one quota or one job that runs once per period.

use std::sync::Arc;

use quorate::printable::json_name;
use quorate::{SeenContent, SeenValue};
use serde::Serialize;

use crate::event::{Event, EventKind};
use crate::lock::unix_ms;
use crate::text::shell_word;
use crate::verdict::ValueFacts;

/// A job is late if its next period began longer ago than this part of the period: one twentieth.
const GRACE_PART: u64 = 20;

/// A job is late at the latest this long after its next period began: 30 minutes, in milliseconds.
const MAX_GRACE_MS: u64 = 30 * 60_000;

/// A quota or a job.
#[derive(Clone, Debug)]
pub(crate) struct ValueRecord {
    /// The name as the masters have it.
    pub(crate) bytes: Vec<u8>,
    pub(crate) name: Arc<str>,
    word: String,
    content: SeenContent,
    missing_on: Vec<String>,
    /// The time between the starts of the last two periods that a job recorded; `None` until the page has seen two.
    every_ms: Option<u64>,
}

/// A quota or a job as the page shows it.
#[derive(Debug, Serialize)]
pub(crate) struct ShownValue<'a> {
    name: &'a str,
    /// `quota`, `job` or `unknown`.
    kind: &'static str,
    left: Option<u64>,
    last_ms: Option<u64>,
    every_ms: Option<u64>,
    late: bool,
    missing_on: &'a [String],
}

impl ValueRecord {
    /// A value that was just found. `starts` has the starts of the periods that the history knows, oldest first.
    pub(crate) fn new(seen: &SeenValue, starts: &[u64]) -> Self {
        let mut record = Self {
            bytes: seen.name.clone(),
            name: json_name(&seen.name).into(),
            word: shell_word(&seen.name),
            content: seen.content.clone(),
            missing_on: Vec::new(),
            every_ms: None,
        };
        if let [.., before, last] = starts {
            record.every_ms = last.checked_sub(*before).filter(|every| *every > 0);
        }
        record.take_missing(seen);
        record
    }

    fn take_missing(&mut self, seen: &SeenValue) {
        self.missing_on = seen.missing_on.iter().map(ToString::to_string).collect();
    }

    /// Takes in a new answer of the masters, and returns the event that it means.
    pub(crate) fn update(&mut self, seen: &SeenValue, now_ms: u64) -> Option<Event> {
        self.take_missing(seen);
        // While a value is being written, no majority shows the same content.
        if seen.content == SeenContent::Unknown || seen.content == self.content {
            return None;
        }
        let before = std::mem::replace(&mut self.content, seen.content.clone());
        match (before, &self.content) {
            (before, SeenContent::Once(Some(start))) => {
                let start = unix_ms(*start);
                if let SeenContent::Once(Some(before)) = before {
                    self.every_ms = start
                        .checked_sub(unix_ms(before))
                        .filter(|every| *every > 0);
                }
                Some(Event {
                    detail: Some(self.name.clone()),
                    from_ms: Some(start),
                    ..Event::new(EventKind::JobRecorded, now_ms)
                })
            }
            (SeenContent::Quota(before), SeenContent::Quota(left)) => Some(Event {
                detail: Some(format!("'{}': {left} units left, before {before}", self.name).into()),
                ..Event::new(EventKind::UnitsChanged, now_ms)
            }),
            _ => None,
        }
    }

    /// The start of the last period that a job recorded.
    fn last_ms(&self) -> Option<u64> {
        match &self.content {
            SeenContent::Once(Some(start)) => Some(unix_ms(*start)),
            _ => None,
        }
    }

    /// Whether the job should have recorded its next period by now. It has a grace period after the start of each period.
    fn is_late(&self, now_ms: u64) -> bool {
        let (Some(last), Some(every)) = (self.last_ms(), self.every_ms) else {
            return false;
        };
        let grace = (every / GRACE_PART).min(MAX_GRACE_MS);
        now_ms > last.saturating_add(every).saturating_add(grace)
    }

    pub(crate) fn facts(&self, now_ms: u64) -> ValueFacts {
        ValueFacts {
            name: self.name.to_string(),
            word: self.word.clone(),
            missing_on: self.missing_on.len(),
            is_late: self.is_late(now_ms),
            last_ago_ms: self.last_ms().map(|last| now_ms.saturating_sub(last)),
            every_ms: self.every_ms,
        }
    }

    pub(crate) fn shown(&self, now_ms: u64) -> ShownValue<'_> {
        let (kind, left) = match &self.content {
            SeenContent::Quota(left) => ("quota", Some(*left)),
            SeenContent::Once(_) => ("job", None),
            _ => ("unknown", None),
        };
        ShownValue {
            name: &self.name,
            kind,
            left,
            last_ms: self.last_ms(),
            every_ms: self.every_ms,
            late: self.is_late(now_ms),
            missing_on: &self.missing_on,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    const DAY: u64 = 86_400_000;

    fn seen(content: SeenContent) -> SeenValue {
        SeenValue::new(b"nightly".to_vec(), content)
    }

    fn period(start_ms: u64) -> SeenValue {
        seen(SeenContent::Once(Some(
            UNIX_EPOCH + Duration::from_millis(start_ms),
        )))
    }

    #[test]
    fn job_is_late_if_the_next_period_passes_without_a_record() {
        let mut job = ValueRecord::new(&period(DAY), &[]);
        assert!(
            !job.is_late(9 * DAY),
            "the page does not know the period yet"
        );
        let event = job.update(&period(2 * DAY), 2 * DAY + 5).expect("an event");
        assert_eq!(
            (event.kind, event.from_ms),
            (EventKind::JobRecorded, Some(2 * DAY))
        );
        assert!(!job.is_late(3 * DAY + 60_000));
        assert!(job.is_late(3 * DAY + MAX_GRACE_MS + 1));
        assert_eq!(job.update(&seen(SeenContent::Unknown), 3 * DAY), None);
        job.update(&period(3 * DAY), 3 * DAY + 40);
        assert!(!job.is_late(3 * DAY + MAX_GRACE_MS + 1));
    }

    #[test]
    fn period_of_a_job_is_known_from_the_history() {
        let job = ValueRecord::new(&period(5 * DAY), &[3 * DAY, 4 * DAY, 5 * DAY]);
        assert!(job.is_late(6 * DAY + DAY / 2));
        assert_eq!(job.facts(6 * DAY).every_ms, Some(DAY));
    }

    #[test]
    fn change_of_a_quota_is_an_event() {
        let mut quota = ValueRecord::new(&seen(SeenContent::Quota(7)), &[]);
        assert_eq!(quota.update(&seen(SeenContent::Quota(7)), 1), None);
        let event = quota
            .update(&seen(SeenContent::Quota(6)), 1)
            .expect("an event");
        assert_eq!(
            event.detail.as_deref(),
            Some("'nightly': 6 units left, before 7")
        );
    }
}
