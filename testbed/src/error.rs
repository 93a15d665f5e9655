//! Errors of the temporary servers.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

/// The reason why an operation on a server failed. If a start failed, the error includes the end of the server's log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No server program was given in the options, and none was found on this machine.
    #[error(
        "no Redis or Valkey server found: install redis-server or valkey-server, or set QUORATE_SERVER to the program"
    )]
    NoProgram,

    /// A program that [`MariaDb`](crate::MariaDb) needs is not installed.
    #[error("the program {0} is missing: install mariadb-server-core and mariadb-client-core")]
    NoMariaDb(&'static str),

    /// A program that [`Postgres`](crate::Postgres) needs is not installed.
    #[error("the program {0} is missing: install postgresql")]
    NoPostgres(&'static str),

    /// The program that [`PgBouncer`](crate::PgBouncer) needs is not installed.
    #[error("the program pgbouncer is missing: install pgbouncer")]
    NoPgBouncer,

    /// A program that [`Etcd`](crate::Etcd) needs is not installed.
    #[error("the program {0} is missing: install etcd-server and etcd-client")]
    NoEtcd(&'static str),

    /// The server refused a statement or command; the text is the server's message.
    #[error("{0}")]
    Refused(String),

    /// The server ended before it was ready. [`MariaDb`](crate::MariaDb) also returns this error if the program that
    /// creates the server's data directory failed.
    #[error("the server ended before it was ready ({status}); its log ends with:\n{log}")]
    Exited {
        /// The exit status of the server.
        status: ExitStatus,
        /// The last lines that the server wrote to its log.
        log: String,
    },

    /// The server runs, but did not become ready within the time limit of its start.
    #[error(
        "the server was not ready after {waited:?} (last check: {last}); its log ends with:\n{log}"
    )]
    NotReady {
        /// How long the testbed waited for the server to become ready.
        waited: Duration,
        /// The result of the last readiness check of the server.
        last: String,
        /// The last lines that the server wrote to its log.
        log: String,
    },

    /// The operation needs a running server, and the server is not running.
    #[error("the server is not running")]
    NotRunning,

    /// A signal was sent to the server, but the effect was not visible in time.
    #[error("{waited:?} after the signal, the server was not {wanted}")]
    Unverified {
        /// The expected state: "dead", "stopped" (paused by SIGSTOP) or "running".
        wanted: &'static str,
        /// How long the operation has waited for that state.
        waited: Duration,
    },

    /// The operating system reported an error.
    #[error("could not {step}: {source}")]
    Io {
        /// The failed step as a verb phrase, for example "create a temporary directory".
        step: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

impl Error {
    /// Returns a function for `map_err` that adds the name of the failed step to an I/O error.
    pub(crate) fn io<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Io {
            step,
            source: source.into(),
        }
    }
}
