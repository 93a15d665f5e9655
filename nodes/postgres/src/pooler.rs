//! Recognises a connection pooler, such as pgbouncer, between the client and the server.
//!
//! # Why like this
//!
//! A pooler in transaction or statement mode breaks what a lock builds on. Measured with pgbouncer 1.18:
//!
//! - After a crash of the server, the same client connection goes on in the new run of the server, without an error. So
//!   a session would not notice that the server has forgotten records.
//! - `LISTEN` hears nothing.
//! - A setting of a session, such as `synchronous_commit`, is left to the next client, and is missing here.
//!
//! A server announces the id of its backend process at the login, for requests to cancel a statement. A pooler
//! announces an id of its own. So an id that differs from `pg_backend_pid()` shows a pooler. A comparison of TCP ports
//! would also refuse each plain TCP proxy, and would not work through Unix sockets.
//!
//! `tokio-postgres` does not return the announced id. It writes the id into a request to cancel a statement. This
//! module lets it write such a request into memory, and never sends it: a canceled commit that waits for a standby
//! would be reported as done.
//!
//! A pooler in session mode does no harm: each client has a backend for itself, and loses its connection together with
//! the backend. Two connections to the pooler show the mode. In session mode, they have different backends. In the
//! other modes, the second connection gets the backend that the first one has just used, unless other clients are
//! faster.
//!
//! So a busy pooler in transaction mode may be taken for one in session mode. Its sessions are safe nevertheless,
//! because each answer proves that the statement was executed in the session with the settings ([`crate::sql::proof`]).
//!
//! Not solved: a pooler that is not recognised may lose wake-ups. Clients then repeat their requests at their
//! heartbeats.

use quorate::node::Fault;
use tokio::io::AsyncReadExt as _;
use tokio_postgres::{Client, NoTls};

/// The length of a request to cancel a statement: its length, a fixed number, the id of the process, and a secret.
const CANCEL: usize = 16;

/// The id of the backend process that was announced at the login; `None` if it cannot be determined.
pub(crate) async fn announced(client: &Client) -> Option<i32> {
    let (mut written, stream) = tokio::io::duplex(CANCEL);
    let token = client.cancel_token();
    token.cancel_query_raw(stream, NoTls).await.ok()?;
    let mut request = [0; CANCEL];
    written.read_exact(&mut request).await.ok()?;
    let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = request;
    Some(i32::from_be_bytes([a, b, c, d]))
}

/// The fault of a server behind a pooler that shares its sessions between clients.
pub(crate) fn refused() -> Fault {
    let why = "a connection pooler such as pgbouncer shares the sessions of the server between its clients, so locks \
               would not be safe: set pool_mode=session for this database in the pooler, or name the host and the port \
               of the PostgreSQL server itself in the URL";
    Fault::Unsupported(why.into())
}
