//! Whether a command that runs once a period is to run, and that it has.

use std::ffi::OsStr;
use std::time::Duration;

use quorate::{Due, LockGuard, Once, Turn};

use crate::errors::no_value;
use crate::exit::Failure;
use crate::output::{self, human};
use crate::process;

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
    /// done.
    pub(crate) async fn begin(
        once: &Once,
        name: &str,
        at_least: bool,
        program: &OsStr,
        guard: &'a LockGuard,
    ) -> Result<Option<Self>, Failure> {
        match once.due(guard).await.map_err(no_value)? {
            Due::AlreadyDone { next } => {
                output::mention(format!(
                    "'{name}' has been done in this period; the next begins in {}",
                    human(next)
                ));
                Ok(None)
            }
            Due::Now(turn) if at_least => Ok(Some(Self(Some(turn)))),
            Due::Now(turn) => {
                // The period would be used up by a command that never was one.
                process::look_for(program)?;
                turn.record().await.map_err(no_value)?;
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
                "the command has ended well, and that was not written down; it may run again in this period: {error}"
            ));
        }
    }
}
