//! Decides whether the command of `once` must run in the current period, and records the period as done.

use std::ffi::OsStr;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use quorate::{Due, LockGuard, Once, Redlock, Turn, ValueError, Wait};

use crate::errors::record_failure;
use crate::exit::{self, Failure};
use crate::last_run::{LastRun, rfc3339_text};
use crate::output::{self, human};
use crate::process::{self, Signals};

/// How long [`UnrecordedEnd::record`] waits for the lock.
const END_NOTE_TIMEOUT: Duration = Duration::from_secs(2);

/// The period in which `quorate once` runs its command, and the option `--at-least`.
#[derive(Clone, Debug)]
pub(crate) struct Period {
    /// The period for which the command runs. It is the period in which `quorate once` was started, even if the wait
    /// for the lock ends in a later one.
    pub(crate) range: Range<SystemTime>,
    /// `--at-least`: if the command fails or crashes, a later `quorate once` runs it again in the same period. If
    /// false, the command runs at most once per period.
    pub(crate) at_least: bool,
    /// `--done-exit-code`: the exit code if the period was already recorded as done.
    pub(crate) done_exit_code: u8,
}

impl Period {
    /// The message about a command that failed with the exit code `code`: whether, and when, it runs again.
    pub(crate) fn after_failure(&self, name: &[u8], code: u8) -> String {
        let next = if self.at_least {
            "the next call in this period runs it again (--at-least)".to_owned()
        } else {
            let period_end = rfc3339_text(self.range.end);
            format!(
                "it does not run again before {period_end}; to run it by hand: quorate run {} -- COMMAND",
                output::shell_word(name)
            )
        };
        let name = output::printable(name);
        format!("'{name}' failed with exit code {code}; {next}")
    }
}

/// The data to store on the masters after the command has ended.
#[must_use]
pub(crate) enum Unrecorded<'a> {
    /// Nothing must be recorded: the command runs without a period (`quorate run`).
    Nothing,
    /// With `--at-least`: record how the command ended. If it succeeded, also record the period as done.
    Period(Turn<'a>, LastRun),
    /// Without `--at-least`: record only how the command ended. The period was recorded as done before the command
    /// started.
    End(LastRun),
}

/// The end of a command.
///
/// One acquired lock allows only one write of the record. Without `--at-least`, the period was recorded before the run,
/// so recording the end needs another acquire.
#[must_use]
pub(crate) struct UnrecordedEnd {
    /// The run whose end must still be recorded; `None` if there is nothing to record.
    run: Option<LastRun>,
    /// The exit code of the command.
    code: u8,
}

impl<'a> Unrecorded<'a> {
    /// Checks whether the command must run now. Returns `None` if the period is already done. Without `--at-least`,
    /// also records the period as done.
    ///
    /// The caller must hold the lock.
    ///
    /// # Errors
    ///
    /// If the record cannot be read or written, if the program cannot be started, or if a signal asks this process to
    /// end.
    pub(crate) async fn begin(
        once: &Once,
        name: &str,
        at_least: bool,
        program: &OsStr,
        guard: &'a LockGuard,
        signals: &mut Signals,
    ) -> Result<Option<Self>, Failure> {
        let due = unless_signalled(once.due(guard), signals).await?;
        match due.map_err(record_failure)? {
            Due::AlreadyDone { next } => {
                let refilled = unless_signalled(once.refill(guard), signals).await?;
                if let Err(error) = refilled {
                    tracing::debug!(%error, "cannot restore the record on masters that have lost it");
                }
                let state_text = if at_least {
                    "already recorded as done in this period (--at-least)"
                } else {
                    "already started in this period (at most once per period)"
                };
                let next = if next.is_zero() {
                    "has begun meanwhile".to_owned()
                } else {
                    format!("begins in {}", human(next))
                };
                output::print_notice(format!("'{name}': {state_text}; the next period {next}"));
                Ok(None)
            }
            Due::Now(turn) if at_least => Ok(Some(Self::Period(turn, LastRun::started_now()))),
            Due::Now(turn) => {
                // If the program cannot be started, fail before the period is recorded as done.
                process::check_program(program)?;
                // Yield once, so that the runtime delivers pending signals.
                unless_signalled(tokio::task::yield_now(), signals).await?;
                let run = LastRun::started_now();
                let recorded = turn.note(run.note()).record().await;
                recorded.map_err(record_failure)?;
                Ok(Some(Self::End(run)))
            }
        }
    }

    /// With `--at-least`, records how the command ended. If the exit code is 0, also records the period as done.
    ///
    /// Without `--at-least`, records nothing. The caller must release the lock, and then call
    /// [`UnrecordedEnd::record`].
    pub(crate) async fn record_result(self, code: u8) -> UnrecordedEnd {
        let run = match self {
            Self::Nothing => None,
            Self::End(run) => Some(run),
            Self::Period(turn, run) => {
                let turn = turn.note(run.with_end(code).note());
                if code != 0 {
                    let result = turn.leave_due().await;
                    warn_if_unrecorded(code, result.map_err(|error| error.details()));
                } else if let Err(error) = turn.record().await {
                    output::print_message(format!(
                        "the command succeeded, but this success could not be recorded, so the command may run again in this period: {}",
                        error.details()
                    ));
                }
                None
            }
        };
        UnrecordedEnd { run, code }
    }
}

impl UnrecordedEnd {
    /// If the command failed, prints when it runs again, also with `--quiet`: a job that prints nothing would otherwise
    /// fail unnoticed. Then acquires the lock again, and records how the command ended.
    ///
    /// Records nothing if the lock is not free within [`END_NOTE_TIMEOUT`], or if a later run is already recorded.
    pub(crate) async fn record(self, redlock: &Redlock, name: &[u8], period: &Period) {
        let Self { run, code } = self;
        if code != exit::OK {
            output::print_message(period.after_failure(name, code));
        }
        let Some(run) = run else {
            return;
        };
        let once = redlock.once_in(name, period.range.clone());
        let work = async {
            let wait = Wait::For(END_NOTE_TIMEOUT);
            let guard = redlock.lock(name).wait(wait).acquire().await;
            let guard = guard.map_err(ValueError::NotAcquired)?;
            let record = once.record(&guard).await?;
            if record.note() == run.note() {
                record.set_note(&run.with_end(code).note()).await?;
            }
            guard.release().await;
            Ok(())
        };
        let result = match tokio::time::timeout(2 * END_NOTE_TIMEOUT, work).await {
            Ok(result) => result.map_err(|error: ValueError| error.details()),
            Err(_) => Err("the masters did not answer in time".to_owned()),
        };
        warn_if_unrecorded(code, result);
    }
}

/// If `written` is an error, prints a warning that the command's exit code could not be recorded.
fn warn_if_unrecorded(code: u8, result: Result<(), String>) {
    if let Err(error) = result {
        output::print_notice(format!(
            "warning: the command ended with exit code {code}, but quorate could not record this exit code: \
             {error}"
        ));
    }
}

/// Runs `work`. Fails if a signal that asks this process to end arrives first.
async fn unless_signalled<T>(
    work: impl Future<Output = T>,
    signals: &mut Signals,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        sig = signals.next_ending_signal() => {
            let message = "the command did not run; nothing is recorded, and no lock is held";
            Err(Failure::interrupted(sig, message))
        }
        result = work => Ok(result),
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{Signal, raise};

    use super::*;

    #[tokio::test]
    async fn waiting_for_a_future_fails_if_a_signal_is_pending() {
        let mut signals = Signals::receive().expect("a stream of signals");
        let result = unless_signalled(tokio::task::yield_now(), &mut signals).await;
        assert!(result.is_ok(), "{result:?}");
        // Use SIGALRM, because no other test in this process uses it.
        raise(Signal::SIGALRM).expect("the test must be able to send SIGALRM to itself");
        let interrupted = unless_signalled(tokio::task::yield_now(), &mut signals).await;
        let failure = interrupted.expect_err("a failure");
        assert_eq!(failure.signal, Some(Signal::SIGALRM), "{failure:?}");
    }
}
