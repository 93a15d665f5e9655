//! Shows the progress of a wait for a lock on stderr. If stderr is a terminal, a spinner is shown. Otherwise a line is
//! printed when the state of the wait changes, and every 30 s.

use std::ffi::OsString;
use std::fmt;
use std::io::{IsTerminal, stderr};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use quorate::Waiting;

use crate::kind::{self, holder_words};
use crate::output::{self, human};

/// If stderr is not a terminal: how long the wait must last before the first line is printed.
const PATIENCE: Duration = Duration::from_secs(3);
/// If stderr is not a terminal: after each line about a wait, the minimum time until a changed state is printed.
const CHANGE: Duration = Duration::from_secs(2);
/// If stderr is not a terminal: the maximum time between two lines about a wait.
const STILL: Duration = Duration::from_secs(30);

/// With `--quiet`: how long a wait must last before `quorate` warns that no majority of the masters answers.
const UNREACHABLE: Duration = Duration::from_secs(5);

/// The spinner on the terminal; `None` while no spinner is shown.
static MOVING: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Runs `write` so that its output appears above the spinner, if there is one.
pub(crate) fn above(write: impl FnOnce()) {
    let moving = MOVING
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    match moving {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Shows one wait for a lock, until the value is dropped.
pub(crate) struct WaitDisplay {
    resource: String,
    /// The variable `QUORATE_TOKEN`: the token of the lock that the outer `quorate` of this process holds; `None` if
    /// there is no outer `quorate`.
    ours: Option<OsString>,
    bar: Option<ProgressBar>,
    /// The last printed line: when it was printed (since the start of the wait), and its [`key`]. `None` if no line was
    /// printed.
    last: Mutex<Option<(Duration, String)>>,
}

/// Writes how long the wait has lasted; nothing in the first second.
fn write_waited(state: &ProgressState, f: &mut dyn fmt::Write) {
    let waited = Duration::from_secs(state.elapsed().as_secs());
    if !waited.is_zero() {
        let _ = write!(f, ", waited {}", human(waited));
    }
}

impl WaitDisplay {
    /// Starts to show a wait. Prints nothing yet.
    pub(crate) fn new(resource: &[u8]) -> Self {
        let bar = (stderr().is_terminal() && !output::is_quiet()).then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}{waited}") {
                bar.set_style(style.with_key("waited", write_waited));
            }
            bar
        });
        MOVING
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone_from(&bar);
        Self {
            resource: output::bytes(resource),
            ours: std::env::var_os("QUORATE_TOKEN").filter(|_| kind::is_nested()),
            bar,
            last: Mutex::new(None),
        }
    }

    /// Shows the state `seen` of the wait. On a terminal, updates the spinner; otherwise prints a line if one is due.
    pub(crate) fn see(&self, seen: &Waiting) {
        if output::is_quiet() {
            self.warn_if_unreachable(seen);
            return;
        }
        let ours = seen.holder.is_some()
            && seen.holder.as_deref() == self.ours.as_ref().map(|ours| ours.as_bytes());
        let text = describe(&self.resource, seen, ours);
        if let Some(bar) = &self.bar {
            bar.set_message(output::redact(&text).into_owned());
            bar.enable_steady_tick(Duration::from_millis(100));
            return;
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let due = match &*last {
            None => seen.waited >= PATIENCE,
            Some((at, _)) if seen.waited.saturating_sub(*at) >= STILL => true,
            Some((at, said)) => seen.waited.saturating_sub(*at) >= CHANGE && *said != key(seen),
        };
        if due {
            output::mention(format!("{text}, waited {}", human(seen.waited)));
            *last = Some((seen.waited, key(seen)));
        }
    }
}

impl WaitDisplay {
    /// Prints one warning if the wait has lasted for [`UNREACHABLE`] and no majority of the masters answers.
    fn warn_if_unreachable(&self, seen: &Waiting) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.majority_answers || last.is_some() || seen.waited < UNREACHABLE {
            return;
        }
        let text = describe(&self.resource, seen, false);
        output::say_in_passing(format!("warning: {text}, waited {}", human(seen.waited)));
        *last = Some((seen.waited, key(seen)));
    }
}

impl Drop for WaitDisplay {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            *MOVING.lock().unwrap_or_else(PoisonError::into_inner) = None;
            bar.finish_and_clear();
        }
    }
}

/// Summarizes the state of a wait: the position in the queue, the holder, and the masters with problems. When this text
/// changes, a new line is printed.
fn key(seen: &Waiting) -> String {
    let trouble = seen.trouble.iter();
    let trouble: Vec<_> = trouble
        .map(|said| (&said.node, said.outcome.as_str()))
        .collect();
    format!("{:?} {:?} {trouble:?}", seen.ahead, seen.holder)
}

fn describe(resource: &str, seen: &Waiting, ours: bool) -> String {
    let mut text = format!("waiting for '{resource}'");
    match seen.ahead {
        Some(0) => text.push_str(", next in the queue"),
        Some(ahead) => text.push_str(&format!(", {ahead} ahead in the queue")),
        None => {}
    }
    if seen.held_here {
        text.push_str(", held by this process");
    } else if ours {
        text.push_str(
            ", held by the outer quorate process, which waits for this inner quorate to end",
        );
    } else if seen.foreign {
        text.push_str(", held by another program");
    } else if let Some(note) = &seen.note {
        text.push_str(&format!(", held by {note}"));
    } else if let Some(holder) = &seen.holder {
        let holder = output::bytes(holder);
        let words = holder_words(&holder);
        if words == holder {
            let brief: String = holder.chars().take(8).collect();
            text.push_str(&format!(", held by {brief}.."));
        } else {
            text.push_str(&format!(", held by {words}"));
        }
    }
    if let (Some(_), Some(left)) = (&seen.holder, seen.ttl_left) {
        text.push_str(&format!(" (ttl left {})", human(left)));
    }
    if let Some(first) = seen.trouble.first() {
        text.push_str(&format!(
            ", no vote from {} of {} masters ({first}",
            seen.trouble.len(),
            seen.masters
        ));
        text.push_str(if seen.trouble.len() > 1 { "; ..)" } else { ")" });
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use quorate::Redlock;

    use super::*;

    #[tokio::test]
    async fn waiting_message_shows_queue_position_and_holder() {
        let redlock = Redlock::in_memory(3);
        let guard = redlock.acquire("x").await.expect("the lock must be free");
        let other = redlock.clone();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let seen = lines.clone();
        let waiting = tokio::spawn(async move {
            let see = move |waiting: &Waiting| {
                let line = describe("x", waiting, false);
                seen.lock().expect("not poisoned").push(line);
            };
            other.lock("x").waiting(see).acquire().await.map(drop)
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        guard.release().await;
        waiting.await.expect("no panic").expect("the lock");
        let lines = lines.lock().expect("not poisoned");
        assert_eq!(
            lines[0],
            "waiting for 'x', 1 ahead in the queue, held by this process"
        );
    }
}
