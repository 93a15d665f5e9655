//! One event of the history: a lock was taken, a master went down, ..

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::text::human_duration;

/// The kind of an event. Its name in JSON is stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EventKind {
    /// A holder of a lock was seen for the first time.
    Taken,
    /// A hold ended before its time: the holder released it, or an operator force-released it.
    Released,
    /// A hold ended because its holder had stopped renewing it.
    Expired,
    /// A hold ended while the page did not look, so the cause is unknown.
    Ended,
    /// A holder has not renewed its lock for longer than usual.
    Overdue,
    /// A holder that was overdue renewed its lock.
    RenewedAgain,
    WaitBegan,
    WaitEnded,
    MasterDown,
    MasterGuarded,
    MasterUp,
    MasterRestarted,
    QuorumLost,
    QuorumRestored,
    /// A job that runs once per period recorded a period.
    JobRecorded,
    UnitsChanged,
    WatchBegan,
    WatchPaused,
    HistoryFailed,
    HistoryRestored,
}

impl EventKind {
    /// How important the event is: `bad`, `warn`, `good` or `note`.
    pub(crate) fn level(self) -> &'static str {
        match self {
            Self::Expired | Self::MasterDown | Self::QuorumLost | Self::HistoryFailed => "bad",
            Self::Overdue | Self::MasterGuarded | Self::MasterRestarted => "warn",
            Self::Taken
            | Self::RenewedAgain
            | Self::MasterUp
            | Self::QuorumRestored
            | Self::JobRecorded
            | Self::HistoryRestored => "good",
            Self::Released
            | Self::Ended
            | Self::WaitBegan
            | Self::WaitEnded
            | Self::UnitsChanged
            | Self::WatchBegan
            | Self::WatchPaused => "note",
        }
    }

    /// Whether the event is the end of a hold.
    pub(crate) fn ends_a_hold(self) -> bool {
        matches!(self, Self::Released | Self::Expired | Self::Ended)
    }
}

/// One event of the history, as a line of the history file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Event {
    /// The number of the event. Later events have larger numbers.
    pub(crate) seq: u64,
    /// The time at which the page saw the event, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    pub(crate) kind: EventKind,
    /// The id of the lock ([`lock_id`](crate::lock::lock_id)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lock: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) master: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<Arc<str>>,
    /// Identifies the hold ([`HoldReading::key`](crate::lock::HoldReading::key)). Only the history file has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hold: Option<u64>,
    /// The holder or the waiter as text: host, pid and program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) holder: Option<Arc<str>>,
    /// The fencing token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<u64>,
    /// When the hold or the wait began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) from_ms: Option<u64>,
    /// A detail: the reason of a fault, or the number of units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<Arc<str>>,
}

/// An event as `api/history` and `api/events` show it.
#[derive(Debug, Serialize)]
pub(crate) struct ShownEvent<'a> {
    seq: u64,
    at_ms: u64,
    kind: EventKind,
    level: &'static str,
    lock: Option<&'a str>,
    master: Option<&'a str>,
    host: Option<&'a str>,
    holder: Option<&'a str>,
    token: Option<u64>,
    from_ms: Option<u64>,
    ms: Option<u64>,
    text: String,
}

#[cfg(test)]
impl ShownEvent<'_> {
    pub(crate) fn shown_at(&self) -> u64 {
        self.at_ms
    }
}

impl Event {
    /// An event without details. Its number is set when it is added to the history.
    pub(crate) fn new(kind: EventKind, at_ms: u64) -> Self {
        Self {
            seq: 0,
            at_ms,
            kind,
            lock: None,
            master: None,
            host: None,
            hold: None,
            holder: None,
            token: None,
            from_ms: None,
            detail: None,
        }
    }

    /// How long the hold or the wait had lasted; `None` for other events.
    pub(crate) fn duration_ms(&self) -> Option<u64> {
        self.from_ms.map(|from| self.at_ms.saturating_sub(from))
    }

    pub(crate) fn shown(&self) -> ShownEvent<'_> {
        ShownEvent {
            seq: self.seq,
            at_ms: self.at_ms,
            kind: self.kind,
            level: self.kind.level(),
            lock: self.lock.as_deref(),
            master: self.master.as_deref(),
            host: self.host.as_deref(),
            holder: self.holder.as_deref(),
            token: self.token,
            from_ms: self.from_ms,
            ms: self.duration_ms(),
            text: self.text(),
        }
    }

    fn text(&self) -> String {
        let holder = self.holder.as_deref().unwrap_or("a client without a note");
        let master = self.master.as_deref().unwrap_or("a master");
        let detail = self.detail.as_deref().unwrap_or_default();
        let duration = human_duration(self.duration_ms().unwrap_or(0));
        match self.kind {
            EventKind::Taken => match self.token {
                Some(token) => format!("taken by {holder}, fencing token {token}"),
                None => format!("taken by {holder}"),
            },
            EventKind::Released => {
                format!("released by {holder}, or force-released, after {duration}")
            }
            EventKind::Expired => {
                format!("expired: {holder} had stopped renewing it; it was held for {duration}")
            }
            EventKind::Ended => {
                format!("no longer held by {holder}; the page did not see how it ended")
            }
            EventKind::Overdue => format!("not renewed in time by {holder}"),
            EventKind::RenewedAgain => format!("renewed again by {holder}"),
            EventKind::WaitBegan => format!("{holder} waits"),
            EventKind::WaitEnded => format!("{holder} waits no longer, after {duration}"),
            EventKind::MasterDown => format!("{master} gives no vote: {detail}"),
            EventKind::MasterGuarded => format!("{master}: {detail}"),
            EventKind::MasterUp => format!("{master} votes again"),
            EventKind::MasterRestarted => format!("{master} was restarted or replaced"),
            EventKind::QuorumLost => format!("no quorum: {detail}"),
            EventKind::QuorumRestored => "a majority of the masters votes again".to_owned(),
            EventKind::JobRecorded => format!("the job '{detail}' recorded a period"),
            EventKind::UnitsChanged => format!("quota {detail}"),
            EventKind::WatchBegan => "the page watches the masters".to_owned(),
            EventKind::WatchPaused => "nobody watched: the page did not ask the masters".to_owned(),
            EventKind::HistoryFailed => format!("the history file cannot be written: {detail}"),
            EventKind::HistoryRestored => "the history file can be written again".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_is_the_same_after_it_was_written_and_read() {
        let event = Event {
            seq: 7,
            lock: Some("l:a\u{202e}\n<b>".into()),
            host: Some("app-1".into()),
            from_ms: Some(5),
            token: Some(u64::MAX),
            ..Event::new(EventKind::WaitEnded, 1_000)
        };
        let line = serde_json::to_string(&event).expect("JSON");
        assert!(!line.contains('\n'), "{line}");
        assert_eq!(
            serde_json::from_str::<Event>(&line).expect("an event"),
            event
        );
        let shown = serde_json::to_value(event.shown()).expect("JSON");
        assert_eq!(shown["ms"], 995);
        assert!(shown["master"].is_null());
    }
}
