//! What every lock of one `Redlock` goes by, and whether it fits together.

use std::sync::Arc;
use std::time::Duration;

use crate::error::BuildError;
use crate::node::note::{NoteText, Notes};
use crate::protocol::validity::Drift;
use crate::retry::Retry;
use crate::settings::Wait;

/// The life of a fencing counter.
const LONGEST_TTL: Duration = Duration::from_secs(86_400);

/// What every lock of one `Redlock` goes by.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) ttl: Duration,
    pub(crate) max_ttl: Duration,
    pub(crate) node_timeout: Duration,
    pub(crate) drift: Drift,
    pub(crate) wait: Wait,
    pub(crate) retry: Retry,
    pub(crate) max_hold: Option<Duration>,
    /// First come, first served.
    pub(crate) fair: bool,
    pub(crate) heartbeat: Duration,
    /// What all holders of this `Redlock` say of themselves; none in the classic protocol.
    pub(crate) notes: Option<Notes>,
    /// And what they have to add.
    pub(crate) note: NoteText,
    /// This `Redlock` on wake channels and in waiter ids: 16 hexadecimal digits.
    pub(crate) process: Arc<str>,
}

pub(crate) fn bad(what: &'static str, value: Duration, why: impl Into<String>) -> BuildError {
    BuildError::BadDuration {
        what,
        value,
        why: why.into(),
    }
}

pub(crate) fn text(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

pub(crate) fn check_max_hold(max_hold: Duration) -> Result<(), BuildError> {
    if max_hold.is_zero() {
        return Err(bad(
            "max_hold",
            max_hold,
            "would end every lock at once; leave it out for none",
        ));
    }
    Ok(())
}

pub(crate) fn check_note(note: &NoteText) -> Result<(), BuildError> {
    match note.too_long() {
        Some(bytes) => Err(BuildError::NoteTooLong(bytes)),
        None => Ok(()),
    }
}

impl Options {
    /// What the holder of a lock says with this note; none where it says nothing.
    pub(crate) fn says(&self, note: &NoteText) -> Option<Arc<str>> {
        self.notes.as_ref()?.says(note)
    }

    pub(crate) fn check(&self) -> Result<(), BuildError> {
        if !(0.0..1.0).contains(&self.drift.factor) {
            let why = format!(
                "has a factor of {}, it must be from 0 to below 1",
                self.drift.factor
            );
            return Err(bad("drift floor", self.drift.floor, why));
        }
        // Beyond that a lock would outlive its fencing counter, and its number could come again.
        if self.max_ttl > LONGEST_TTL {
            let why = format!("is too long: at most {} is allowed", text(LONGEST_TTL));
            return Err(bad("max_ttl", self.max_ttl, why));
        }
        // Before the node timeout, whose default follows from it.
        self.check_ttl(self.ttl)?;
        if self.node_timeout.is_zero() {
            return Err(bad(
                "node_timeout",
                self.node_timeout,
                "leaves no time to answer; 50ms is the default",
            ));
        }
        check_note(&self.note)?;
        self.max_hold.map_or(Ok(()), check_max_hold)
    }

    /// Whether a lock can live on this ttl.
    pub(crate) fn check_ttl(&self, ttl: Duration) -> Result<(), BuildError> {
        if ttl > self.max_ttl {
            let why = format!(
                "is above max_ttl ({}): lower it, or raise max_ttl on every client",
                text(self.max_ttl)
            );
            return Err(bad("ttl", ttl, why));
        }
        let drift = self.drift.of(ttl);
        if ttl <= drift {
            let why = format!(
                "is used up by the clock drift of {} alone: raise it",
                text(drift)
            );
            return Err(bad("ttl", ttl, why));
        }
        if self.node_timeout > ttl / 4 {
            let why = format!(
                "is too short for a node_timeout of {}: raise it to {} or lower node_timeout",
                text(self.node_timeout),
                text(self.node_timeout.saturating_mul(4))
            );
            return Err(bad("ttl", ttl, why));
        }
        if ttl <= drift + 2 * self.node_timeout {
            let why = format!(
                "leaves nothing after two rounds of {} and a drift of {}: raise it",
                text(self.node_timeout),
                text(drift)
            );
            return Err(bad("ttl", ttl, why));
        }
        Ok(())
    }
}
