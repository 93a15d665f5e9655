//! The stored record of work that runs once per period, as text and as a value of the API.

use std::fmt;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use super::error::ValueError;
use super::period::Period;
use super::register::KnownValue;
use super::value::parse_number;
use crate::node::note::MAX_NOTE_LEN;

/// The record of a [`Once`](crate::Once): the last completed period, and a note.
pub struct OnceRecord<'a> {
    pub(crate) value: KnownValue<'a>,
    pub(crate) last: Option<u64>,
    pub(crate) note: String,
}

impl OnceRecord<'_> {
    /// The start of the last completed period; `None` if no period was completed.
    pub fn last(&self) -> Option<SystemTime> {
        let since = Duration::from_millis(self.last?);
        SystemTime::UNIX_EPOCH.checked_add(since)
    }

    /// Whether this period is recorded as done. A later period in the record counts as well. `false` if the period is
    /// empty, begins before 1970 or is longer than ten years: such a period cannot be recorded.
    pub fn is_done(&self, period: &Range<SystemTime>) -> bool {
        Period::of(period).is_ok_and(|period| period.next_start_if_done(self.last).is_some())
    }

    /// The note that was stored with the record ([`Turn::note`](crate::Turn::note)); empty if there is none.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// Replaces the note (at most [`MAX_NOTE_LEN`](crate::MAX_NOTE_LEN) bytes). The last completed period is kept.
    ///
    /// # Errors
    ///
    /// Those of [`Turn::record`](crate::Turn::record).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the note may or may not have been replaced.
    pub async fn set_note(self, note: &str) -> Result<(), ValueError> {
        let text = Stored::text(self.last, note)?;
        self.value.write(&text).await
    }

    /// Makes sure that a majority of the masters stores the record, and writes it again to masters that have lost it;
    /// see [`Once::refill`](crate::Once::refill).
    ///
    /// # Errors
    ///
    /// [`ValueError`] if only a minority stores this record, and it could not be written to more masters. A later call
    /// may then read an older record.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some masters may have the record again.
    pub async fn refill(self) -> Result<(), ValueError> {
        self.value.refill().await
    }
}

impl fmt::Debug for OnceRecord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnceRecord")
            .field("last", &self.last())
            .field("note", &self.note)
            .finish_non_exhaustive()
    }
}

/// The content of a stored record: `once START NOTE`, without the space and the note if there is no note.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stored<'a> {
    /// The start of the last period that is recorded as done, in milliseconds since 1970; `None` if there is none.
    pub(crate) last: Option<u64>,
    pub(crate) note: &'a str,
}

impl<'a> Stored<'a> {
    /// Replaces `START` in the stored text if no period has been done.
    pub(crate) const NEVER: &'static str = "never";

    /// Parses a stored record without the prefix `once` and the space after it. `None` if the text has another format.
    pub(crate) fn read(rest: &'a str) -> Option<Self> {
        let (last, note) = match rest.split_once(' ') {
            Some((_, "")) => return None,
            Some(both) => both,
            None => (rest, ""),
        };
        let last = match last {
            Self::NEVER => None,
            start => Some(parse_number(start)?),
        };
        Some(Self { last, note })
    }

    /// The whole text to store, including the prefix `once`; an error if the note is too long.
    pub(crate) fn text(last: Option<u64>, note: &str) -> Result<Vec<u8>, ValueError> {
        if note.len() > MAX_NOTE_LEN {
            return Err(ValueError::Invalid(
                "the note of the record is longer than 1024 bytes",
            ));
        }
        let last = last.map_or_else(|| Self::NEVER.to_owned(), |start| start.to_string());
        let space = if note.is_empty() { "" } else { " " };
        Ok(format!("once {last}{space}{note}").into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Redlock;

    #[tokio::test(start_paused = true)]
    async fn period_is_done_if_it_or_a_later_one_is_recorded() {
        let redlock = Redlock::in_memory(3);
        let once = redlock.once("job", Duration::from_secs(1));
        once.create().await.expect("every master must answer");
        let guard = redlock.acquire("job").await.expect("the lock is free");
        let new_record = once.record(&guard).await.expect("the record exists");
        let at = |secs| SystemTime::UNIX_EPOCH + Duration::from_secs(secs);
        assert!(!new_record.is_done(&(at(0)..at(1))), "nothing is recorded");
        let record = OnceRecord {
            last: Some(5_000),
            ..new_record
        };
        let twenty_years = 20 * 365 * 24 * 3600;
        for (period, is_done) in [
            (at(4)..at(5), true),
            (at(5)..at(6), true),
            (at(6)..at(7), false),
            (at(5)..at(5), false),
            (at(5)..at(5 + twenty_years), false),
            (
                SystemTime::UNIX_EPOCH - Duration::from_secs(1)..at(1),
                false,
            ),
        ] {
            assert_eq!(record.is_done(&period), is_done, "{period:?}");
        }
    }

    #[test]
    fn note_longer_than_the_limit_is_not_stored() {
        let longest = "x".repeat(MAX_NOTE_LEN);
        let text = Stored::text(Some(5), &longest).expect("the note is not too long");
        assert_eq!(text, format!("once 5 {longest}").into_bytes());
        let error = Stored::text(Some(5), &format!("{longest}x"));
        assert!(matches!(error, Err(ValueError::Invalid(_))), "{error:?}");
        assert_eq!(Stored::text(None, ""), Ok(b"once never".to_vec()));
    }
}
