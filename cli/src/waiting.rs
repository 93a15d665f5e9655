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

use crate::kind::{self, holder_text};
use crate::output::{self, human};

/// If stderr is not a terminal: how long the wait must last before the first line is printed.
const FIRST_MESSAGE_AFTER: Duration = Duration::from_secs(3);
/// If stderr is not a terminal: after each line about a wait, the minimum time until a changed state is printed.
const CHANGE_INTERVAL: Duration = Duration::from_secs(2);
/// If stderr is not a terminal: the maximum time between two lines about a wait.
const REPEAT_INTERVAL: Duration = Duration::from_secs(30);

/// With `--quiet`: how long a wait must last before `quorate` warns that no majority of the masters answers.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(5);

/// The spinner on the terminal; `None` while no spinner is shown.
static ACTIVE_SPINNER: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Runs `write` so that its output appears above the spinner, if there is one.
pub(crate) fn write_above_spinner(write: impl FnOnce()) {
    let spinner = ACTIVE_SPINNER
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    match spinner {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Shows one wait for a lock, until the value is dropped.
pub(crate) struct WaitDisplay {
    resource: String,
    /// The variable `QUORATE_TOKEN`: the token of the lock that the outer `quorate` of this process holds; `None` if
    /// there is no outer `quorate`.
    outer_token: Option<OsString>,
    bar: Option<ProgressBar>,
    /// The last printed line: when it was printed (since the start of the wait), and its [`state_key`]. `None` if no
    /// line was printed.
    last_message: Mutex<Option<(Duration, String)>>,
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
        ACTIVE_SPINNER
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone_from(&bar);
        Self {
            resource: output::printable(resource),
            outer_token: std::env::var_os("QUORATE_TOKEN").filter(|_| kind::is_nested()),
            bar,
            last_message: Mutex::new(None),
        }
    }

    /// Shows the state `waiting` of the wait. On a terminal, updates the spinner; otherwise prints a line if one is
    /// due.
    pub(crate) fn update(&self, waiting: &Waiting) {
        if output::is_quiet() {
            self.warn_if_unreachable(waiting);
            return;
        }
        let is_outer = waiting.holder.is_some()
            && waiting.holder.as_deref()
                == self
                    .outer_token
                    .as_ref()
                    .map(|is_outer| is_outer.as_bytes());
        let text = describe(&self.resource, waiting, is_outer);
        if let Some(bar) = &self.bar {
            bar.set_message(output::redact(&text).into_owned());
            bar.enable_steady_tick(Duration::from_millis(100));
            return;
        }
        let mut last_message = self
            .last_message
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_due = match &*last_message {
            None => waiting.waited >= FIRST_MESSAGE_AFTER,
            Some((printed_at, _))
                if waiting.waited.saturating_sub(*printed_at) >= REPEAT_INTERVAL =>
            {
                true
            }
            Some((printed_at, printed_state)) => {
                waiting.waited.saturating_sub(*printed_at) >= CHANGE_INTERVAL
                    && *printed_state != state_key(waiting)
            }
        };
        if is_due {
            output::print_notice(format!("{text}, waited {}", human(waiting.waited)));
            *last_message = Some((waiting.waited, state_key(waiting)));
        }
    }
}

impl WaitDisplay {
    /// Prints one warning if the wait has lasted for [`UNREACHABLE_AFTER`] and no majority of the masters answers.
    fn warn_if_unreachable(&self, waiting: &Waiting) {
        let mut last_message = self
            .last_message
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if waiting.majority_answers || last_message.is_some() || waiting.waited < UNREACHABLE_AFTER
        {
            return;
        }
        let text = describe(&self.resource, waiting, false);
        output::print_message_if_writable(format!(
            "warning: {text}, waited {}",
            human(waiting.waited)
        ));
        *last_message = Some((waiting.waited, state_key(waiting)));
    }
}

impl Drop for WaitDisplay {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            *ACTIVE_SPINNER
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = None;
            bar.finish_and_clear();
        }
    }
}

/// Summarizes the state of a wait: the position in the queue, the holder, and the masters with problems. When this text
/// changes, a new line is printed.
fn state_key(waiting: &Waiting) -> String {
    let trouble = waiting.trouble.iter();
    let trouble: Vec<_> = trouble
        .map(|report| (&report.node, report.outcome.as_str()))
        .collect();
    format!("{:?} {:?} {trouble:?}", waiting.ahead, waiting.holder)
}

fn describe(resource: &str, waiting: &Waiting, is_outer: bool) -> String {
    let mut text = format!("waiting for '{resource}'");
    match waiting.ahead {
        Some(0) => text.push_str(", next in the queue"),
        Some(ahead) => text.push_str(&format!(", {ahead} ahead in the queue")),
        None => {}
    }
    if waiting.held_here {
        text.push_str(", held by this process");
    } else if is_outer {
        text.push_str(
            ", held by the outer quorate process, which waits for this inner quorate to end",
        );
    } else if waiting.foreign {
        text.push_str(", held by another program");
    } else if let Some(note) = &waiting.note {
        text.push_str(&format!(", held by {note}"));
    } else if let Some(holder) = &waiting.holder {
        let holder = output::printable(holder);
        let holder_name = holder_text(&holder);
        if holder_name == holder {
            let start: String = holder.chars().take(8).collect();
            text.push_str(&format!(", held by {start}.."));
        } else {
            text.push_str(&format!(", held by {holder_name}"));
        }
    }
    if let (Some(_), Some(left)) = (&waiting.holder, waiting.ttl_left) {
        text.push_str(&format!(" (ttl left {})", human(left)));
    }
    if let Some(first) = waiting.trouble.first() {
        text.push_str(&format!(
            ", no vote from {} of {} masters ({first}",
            waiting.trouble.len(),
            waiting.masters
        ));
        text.push_str(if waiting.trouble.len() > 1 {
            "; ..)"
        } else {
            ")"
        });
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
        let second_client = redlock.clone();
        let messages = Arc::new(Mutex::new(Vec::new()));
        let pushed_lines = messages.clone();
        let waiting = tokio::spawn(async move {
            let update = move |waiting: &Waiting| {
                let message = describe("x", waiting, false);
                pushed_lines.lock().expect("not poisoned").push(message);
            };
            second_client
                .lock("x")
                .waiting(update)
                .acquire()
                .await
                .map(drop)
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        guard.release().await;
        waiting.await.expect("no panic").expect("the lock");
        let messages = messages.lock().expect("not poisoned");
        assert_eq!(
            messages[0],
            "waiting for 'x', 1 ahead in the queue, held by this process"
        );
    }
}
