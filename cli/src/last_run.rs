//! The last run of the command of `quorate once`: its host, start, end and exit code. The masters store it together
//! with the period for which the command was done.

use std::ops::Range;
use std::time::SystemTime;

use quorate::{Note, OnceRecord};
use serde::{Deserialize, Serialize};

use crate::{exit, output};

/// One run of the command. The note of the once record contains it as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LastRun {
    host: String,
    pid: u32,
    /// When the command was started, in RFC 3339.
    began: String,
    /// When the command ended, in RFC 3339; `None` while it runs, and also later if its end could not be recorded.
    ended: Option<String>,
    /// The exit code of the command; `None` if `ended` is `None`.
    exit_code: Option<u8>,
}

impl LastRun {
    /// A run of the command that this process starts now.
    pub(crate) fn started_now() -> Self {
        Self {
            host: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            pid: std::process::id(),
            began: rfc3339_text(SystemTime::now()),
            ended: None,
            exit_code: None,
        }
    }

    /// The same run with its end: the current time and the exit code `code`.
    pub(crate) fn with_end(self, code: u8) -> Self {
        Self {
            ended: Some(rfc3339_text(SystemTime::now())),
            exit_code: Some(code),
            ..self
        }
    }

    /// The run that a note of the record contains; `None` if the note contains none.
    pub(crate) fn from_note(note: &str) -> Option<Self> {
        serde_json::from_str(note).ok()
    }

    /// When, where and in which process the run began.
    pub(crate) fn start_text(&self) -> String {
        let Self {
            began, host, pid, ..
        } = self;
        format!("{began} on {host} (pid {pid})")
    }

    /// This run as JSON, as the masters store it.
    pub(crate) fn note(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A time as it is shown to users: in RFC 3339, UTC, with whole seconds.
pub(crate) fn rfc3339_text(time: SystemTime) -> String {
    // Limit the year to 9999, because humantime panics on later years. Only a damaged record has a later year.
    let latest = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_seconds(time.min(latest)).to_string()
}

/// The output of `quorate once --status --json`.
#[derive(Debug, Serialize)]
pub(crate) struct OnceStatus {
    pub(crate) once: String,
    /// The state of the command: `held` (the lock is held, usually because the command is running), `never` (it has not
    /// run), `done`, `failed` or `unknown`.
    pub(crate) state: &'static str,
    /// Whether the current period is recorded as done. `None` without `--per`. Also `None` while another client holds
    /// the lock, because the record can be read only under the lock.
    pub(crate) done: Option<bool>,
    /// The start of the last period that was recorded as done, in RFC 3339. `None` if there is none, or while another
    /// client holds the lock.
    pub(crate) period: Option<String>,
    /// The note of the lock's holder, as text; `None` if the lock is not held, or if the holder has left no note.
    pub(crate) holder: Option<String>,
    /// The last run of the command; `None` if it is unknown. While another client holds the lock, it is the run of that
    /// client.
    pub(crate) run: Option<LastRun>,
}

impl OnceStatus {
    /// The status while another client holds the lock. `note` is the note that this client has left on the masters. The
    /// record of the last run can be read only under the lock.
    pub(crate) fn from_holder(once: String, note: Option<&Note>) -> Self {
        let run = note.map(|note| LastRun {
            host: note.host.clone(),
            pid: note.pid,
            began: rfc3339_text(note.since),
            ended: None,
            exit_code: None,
        });
        Self {
            once,
            state: "held",
            done: None,
            period: None,
            holder: note.map(|note| output::printable(note.to_string().as_bytes())),
            run,
        }
    }

    /// The status from the once record. `period` is the current period; `None` without `--per`.
    pub(crate) fn from_record(
        once: String,
        record: &OnceRecord<'_>,
        period: Option<&Range<SystemTime>>,
    ) -> Self {
        let run = LastRun::from_note(record.note());
        let last_period = record.last();
        let code = run.as_ref().and_then(|run| run.exit_code);
        let state = match (code, last_period) {
            (Some(exit::OK), _) => "done",
            (Some(_), _) => "failed",
            (None, None) if run.is_none() => "never",
            (None, _) => "unknown",
        };
        Self {
            once,
            state,
            done: period.map(|period| record.is_done(period)),
            period: last_period.map(rfc3339_text),
            holder: None,
            run,
        }
    }

    /// The status as lines for people.
    pub(crate) fn text(&self) -> String {
        let mut lines = vec![match (&self.run, self.state) {
            (_, "held") => match &self.holder {
                Some(holder) => format!("the command is running, or another client holds its lock: {holder}"),
                None => "the command is running, or an unknown client holds its lock".to_owned(),
            },
            (Some(LastRun { exit_code: Some(code), .. }), _) => format!("the last run that ended had exit code {code}"),
            (Some(_), _) => "the end of the last run was not recorded: it may have succeeded, failed, crashed or been killed".to_owned(),
            (None, "never") => "has never run".to_owned(),
            (None, _) => "the record contains no details of the last run".to_owned(),
        }];
        if let Some(LastRun {
            host,
            pid,
            began,
            ended,
            ..
        }) = self.run.as_ref().filter(|_| self.state != "held")
        {
            lines.push(format!("on {host}, pid {pid}"));
            lines.push(format!("began {began}"));
            lines.extend(ended.as_ref().map(|ended| format!("ended {ended}")));
        }
        lines.extend(
            self.period
                .as_ref()
                .map(|period| format!("the last recorded period began {period}")),
        );
        lines.extend(self.done.map(|done| {
            let state_text = if done {
                "is recorded as done"
            } else {
                "is not recorded as done yet"
            };
            format!("the current period {state_text}")
        }));
        lines.join("\n") + "\n"
    }
}
