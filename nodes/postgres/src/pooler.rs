//! Recognises a connection pooler, such as pgbouncer, between the client and the server.
//!
//! # Why like this
//!
//! A pooler in transaction mode breaks what a lock builds on. Measured with pgbouncer 1.18:
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
//! Not solved: a pooler in session mode would do no harm, but is refused, too.

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

/// The fault of a server behind a pooler.
pub(crate) fn refused() -> Fault {
    let why = "a connection pooler such as pgbouncer answers instead of PostgreSQL, so locks would not be safe: name \
               the host and the port of the PostgreSQL server itself in the URL";
    Fault::Unsupported(why.into())
}
