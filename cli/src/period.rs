//! Whether a command that runs once a period is to run, and that it has.

use std::ffi::OsStr;
use std::time::Duration;

use quorate::{Due, LockGuard, Once, Turn};

use crate::errors::no_record;
use crate::exit::Failure;
use crate::output::{self, human};
use crate::process::{self, Signals};

/// How often a command runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Period {
    pub(crate) per: Duration,
    /// Again after a failure or a crash; else not even then.
    pub(crate) at_least: bool,
}

/// What is to be written down when the command has ended well.
#[must_use]
pub(crate) struct Unrecorded<'a>(Option<Turn<'a>>);

impl<'a> Unrecorded<'a> {
    /// Of a command that runs whenever it is asked to.
    pub(crate) fn nothing() -> Self {
        Self(None)
    }

    /// Looks whether this period is still to be done by this program, under the lock that is held; none where it was
    /// done. A signal that asks for the end before that is written down ends it, for the command would be started
    /// into it.
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
                // The period would be used up by a command that never was one.
                process::look_for(program)?;
                // The runtime looks for signals while a task yields.
                unless_signalled(tokio::task::yield_now(), signals).await?;
                turn.record().await.map_err(no_record)?;
                Ok(Some(Self(None)))
            }
        }
    }

    /// The command has ended with this code.
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

/// Does the `work`, unless a signal asks for the end.
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
    async fn a_signal_that_has_come_is_seen_before_the_next_step() {
        let mut signals = Signals::hear().expect("heard");
        let quiet = unless_signalled(tokio::task::yield_now(), &mut signals).await;
        assert!(quiet.is_ok(), "{quiet:?}");
        // Nothing else in this process takes it for an end.
        raise(Signal::SIGALRM).expect("raised");
        let seen = unless_signalled(tokio::task::yield_now(), &mut signals).await;
        let failure = seen.expect_err("seen");
        assert_eq!(failure.signal, Some(Signal::SIGALRM), "{failure:?}");
    }
}
