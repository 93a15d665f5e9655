//! Errors of throw-away servers.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

/// A server did not do what was asked, with the end of its log where that explains the reason.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No server program was named and none was found.
    #[error(
        "no server program: install redis-server or valkey-server, or name one in QUORATE_SERVER"
    )]
    NoProgram,

    /// A program that a MariaDB needs is missing.
    #[error("no {0}: install mariadb-server-core and mariadb-client-core")]
    NoMariaDb(&'static str),

    /// The server refused what it was asked.
    #[error("{0}")]
    Refused(String),

    /// The server ended before it answered its first PING.
    #[error("the server ended at start ({status}); its log ends with:\n{log}")]
    Exited {
        /// How it ended.
        status: ExitStatus,
        /// The last lines it wrote.
        log: String,
    },

    /// The server runs, but did not answer PING in time. It is left running.
    #[error("the server was not ready after {waited:?} ({last}); its log ends with:\n{log}")]
    NotReady {
        /// How long readiness was awaited.
        waited: Duration,
        /// The result of the last probe.
        last: String,
        /// The last lines the server wrote.
        log: String,
    },

    /// The request needs a live process and there is none.
    #[error("the server is not running")]
    NotRunning,

    /// A signal was sent, but the process was not seen in the state the signal should have led to.
    #[error("the server was not seen {wanted} within {waited:?}")]
    Unverified {
        /// The state that was awaited: "dead", "stopped", "running".
        wanted: &'static str,
        /// The expected state: "dead", "stopped", "running".
        waited: Duration,
    },

    /// The operating system refused a step.
    #[error("could not {step}: {source}")]
    Io {
        /// The step, as an infinitive: "create a temporary directory".
        step: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

impl Error {
    /// Names the step in which an I/O error occurred; made for `map_err`.
    pub(crate) fn io<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Io {
            step,
            source: source.into(),
        }
    }
}
