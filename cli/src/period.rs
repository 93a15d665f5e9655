//! Decides whether the command of `once` must run in the current period, and records the period as done.

use std::ffi::OsStr;
use std::time::Duration;

use quorate::{Due, LockGuard, Once, Turn};

use crate::errors::no_record;
use crate::exit::Failure;
use crate::output::{self, human};
use crate::process::{self, Signals};

/// The options of `once` for the period of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Period {
    pub(crate) per: Duration,
    /// Whether the command is run again in the same period after it failed or crashed (`--at-least`).
    pub(crate) at_least: bool,
}

/// The period that must still be recorded as done after the command has succeeded; empty if nothing must be recorded.
#[must_use]
pub(crate) struct Unrecorded<'a>(Option<Turn<'a>>);

impl<'a> Unrecorded<'a> {
    /// For `quorate run` without `once`: no period is recorded.
    pub(crate) fn nothing() -> Self {
        Self(None)
    }

    /// Checks whether the command must run now; without `--at-least`, also records the period as done. The caller must
    /// hold the lock. Returns `None` if the period was already done.
    ///
    /// # Errors
    ///
    /// If the record cannot be read or written, if the program cannot be started, or if a signal arrives before the
    /// period is recorded. The command must not be started after such a signal.
    pub(crate) async fn begin(
        once: &Once,
        name: &str,
        at_least: bool,
        program: &OsStr,
        guard: &'a LockGuard,
        signals: &mut Signals,
    ) -> Result<Option<Self>, Failure> {
        let due = unless_signalled(once.due(guard), signals).await?;
        match due.map_err(no_record)? {
            Due::AlreadyDone { next } => {
                let refilled = unless_signalled(once.refill(guard), signals).await?;
                if let Err(error) = refilled {
                    tracing::debug!(%error, "cannot restore the record on masters that have lost it");
                }
                let done = if at_least {
                    "already done in this period (--at-least)"
                } else {
                    "already started in this period (at most once per period)"
                };
                output::mention(format!(
                    "'{name}': {done}; the next period begins in {}",
                    human(next)
                ));
                Ok(None)
            }
            Due::Now(turn) if at_least => Ok(Some(Self(Some(turn)))),
            Due::Now(turn) => {
                // Check the program before the period is recorded: if the program cannot be started, the period must
                // not count as done.
                process::look_for(program)?;
                // Yield once, because the runtime delivers pending signals only when a task yields.
                unless_signalled(tokio::task::yield_now(), signals).await?;
                turn.record().await.map_err(no_record)?;
                Ok(Some(Self(None)))
            }
        }
    }

    /// If the command ended with exit code 0, records the period as done, unless it is recorded already.
    pub(crate) async fn ended(self, code: u8) {
        if let (Some(turn), 0) = (self.0, code)
            && let Err(error) = turn.record().await
        {
            output::say(format!(
                "the command succeeded, but this could not be recorded; it may run again in this period: {error}"
            ));
        }
    }
}

/// Runs `work`. Fails if a signal that asks this process to end arrives first.
async fn unless_signalled<T>(
    work: impl Future<Output = T>,
    signals: &mut Signals,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        sig = signals.next_that_ends() => {
            let line = "the command did not run; nothing is recorded, and no lock is held";
            Err(Failure::cut_short(sig, line))
        }
        done = work => Ok(done),
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{Signal, raise};

    use super::*;

    #[tokio::test]
    async fn unless_signalled_reports_a_pending_signal() {
        let mut signals = Signals::receive().expect("received");
        let quiet = unless_signalled(tokio::task::yield_now(), &mut signals).await;
        assert!(quiet.is_ok(), "{quiet:?}");
        // Raising SIGALRM is safe here, because no other test in this process handles it.
        raise(Signal::SIGALRM).expect("raised");
        let seen = unless_signalled(tokio::task::yield_now(), &mut signals).await;
        let failure = seen.expect_err("seen");
        assert_eq!(failure.signal, Some(Signal::SIGALRM), "{failure:?}");
    }
}
