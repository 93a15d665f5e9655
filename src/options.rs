//! The options of all locks of one `Redlock`, and their checks.

use std::sync::Arc;
use std::time::Duration;

use crate::error::BuildError;
use crate::node::note::{NoteText, Notes};
use crate::protocol::fencing::COUNTER_TTL_US;
use crate::protocol::lease::{longest_node_timeout, shortest_ttl};
use crate::protocol::validity::Drift;
use crate::retry::Retry;
use crate::settings::Wait;

/// The largest `max_ttl`: one day, the lifetime of a fencing counter.
const LONGEST_TTL: Duration = Duration::from_micros(COUNTER_TTL_US);

/// The options of all locks of one `Redlock`.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) ttl: Duration,
    pub(crate) max_ttl: Duration,
    pub(crate) node_timeout: Duration,
    pub(crate) drift: Drift,
    pub(crate) wait: Wait,
    pub(crate) retry: Retry,
    pub(crate) max_hold: Option<Duration>,
    /// Whether waiters are served first come, first served.
    pub(crate) fair: bool,
    pub(crate) heartbeat: Duration,
    /// Builds the note of each lock: a text with host, pid and process name. `None` if fencing is off, because locks
    /// without fencing have no notes.
    pub(crate) notes: Option<Notes>,
    /// The user's own text in the notes of all locks of this `Redlock`.
    pub(crate) note: NoteText,
    /// Identifies this `Redlock` in wake channels and waiter ids: 16 hexadecimal digits.
    pub(crate) process: Arc<str>,
}

pub(crate) fn bad_duration(
    what: &'static str,
    value: Duration,
    why: impl Into<String>,
) -> BuildError {
    BuildError::BadDuration {
        what,
        value,
        why: why.into(),
    }
}

pub(crate) fn duration_text(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

pub(crate) fn check_max_hold(max_hold: Duration) -> Result<(), BuildError> {
    if max_hold.is_zero() {
        return Err(bad_duration(
            "max_hold",
            max_hold,
            "would end every lock immediately: for no limit, do not set max_hold",
        ));
    }
    Ok(())
}

pub(crate) fn check_note(note: &NoteText) -> Result<(), BuildError> {
    match note.excess_length() {
        Some(bytes) => Err(BuildError::NoteTooLong(bytes)),
        None => Ok(()),
    }
}

impl Options {
    /// The full text of a lock's note; `None` if the lock has no note.
    pub(crate) fn note_text(&self, note: &NoteText) -> Option<Arc<str>> {
        self.notes.as_ref()?.note_body(note)
    }

    pub(crate) fn check(&self) -> Result<(), BuildError> {
        if !(0.0..1.0).contains(&self.drift.factor) {
            let why = format!(
                "has a factor of {}: it must be at least 0 and less than 1",
                self.drift.factor
            );
            return Err(bad_duration("drift floor", self.drift.floor, why));
        }
        // With a larger ttl, a lock could outlive its fencing counter. Without the counter, a later holder could get
        // the same fencing token.
        if self.max_ttl > LONGEST_TTL {
            let why = format!(
                "is too long: at most {} is allowed",
                duration_text(LONGEST_TTL)
            );
            return Err(bad_duration("max_ttl", self.max_ttl, why));
        }
        // Check the ttl first, because the default of the node timeout depends on it.
        self.check_ttl(self.ttl)?;
        if self.node_timeout.is_zero() {
            return Err(bad_duration(
                "node_timeout",
                self.node_timeout,
                "leaves the masters no time to answer: 50ms is the default",
            ));
        }
        check_note(&self.note)?;
        self.max_hold.map_or(Ok(()), check_max_hold)
    }

    /// Checks a ttl against `max_ttl`, drift and node timeout.
    pub(crate) fn check_ttl(&self, ttl: Duration) -> Result<(), BuildError> {
        if ttl > self.max_ttl {
            let why = format!(
                "is above max_ttl ({}): lower the ttl, or raise max_ttl on every client",
                duration_text(self.max_ttl)
            );
            return Err(bad_duration("ttl", ttl, why));
        }
        let drift = self.drift.of(ttl);
        if ttl <= drift {
            let why = format!(
                "is not longer than the clock drift of {}, which is subtracted from the ttl: raise the ttl",
                duration_text(drift)
            );
            return Err(bad_duration("ttl", ttl, why));
        }
        if self.node_timeout > longest_node_timeout(ttl) {
            let why = format!(
                "is too short for a node_timeout of {}: raise the ttl to {} or lower node_timeout",
                duration_text(self.node_timeout),
                duration_text(shortest_ttl(self.node_timeout))
            );
            return Err(bad_duration("ttl", ttl, why));
        }
        if ttl <= drift + 2 * self.node_timeout {
            let why = format!(
                "leaves no validity after two requests to the masters ({} each) and a clock drift of {}: raise the ttl",
                duration_text(self.node_timeout),
                duration_text(drift)
            );
            return Err(bad_duration("ttl", ttl, why));
        }
        Ok(())
    }
}
