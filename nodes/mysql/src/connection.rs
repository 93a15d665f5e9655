//! One connection to a MySQL or MariaDB server. It sends one packet, and reads the whole result before the next packet.
//!
//! `mysql_async` has two properties that a lock cannot accept:
//!
//! - If the future of a query is dropped, the next query on the connection receives the result of the dropped query.
//!   So [`Connection`] is not used again if the result of the last packet was not read completely.
//! - Dropping a connection starts a task without a time limit. The task reads the remaining results and sends a quit
//!   command. So [`Connection`] drops its connection on a thread without a Tokio runtime, where no task can start.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Sender};
use std::task::{Context, Poll};
use std::time::Duration;

#[cfg(feature = "tls-rustls")]
use mysql_async::ClientIdentity;
#[cfg(feature = "tls-rustls")]
use mysql_async::SslOpts;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder, Row};
use quorate::fork::PerProcess;
use quorate::node::{Fault, Panic, Protocol, caught, caught_in, other_protocol, panic_text};

use crate::fault::{PLUGIN_REMEDY, classify, classify_login_error};
use crate::url::Address;

/// The largest packet that this client sends or accepts: 64 MiB, in bytes.
const LARGEST_PACKET: usize = 64 << 20;

/// If a server that this process has not met has not completed the login after this time, the client also finds out
/// whether it is a server of another kind: 200 ms, well below the default connect timeout. Redis, ZooKeeper and web
/// servers wait for the client to begin, and a client of MySQL waits for the server.
const SILENCE_LIMIT: Duration = Duration::from_millis(200);

/// A connection to one MySQL or MariaDB server.
pub(crate) struct Connection {
    conn: Option<Conn>,
    /// True until the client has read the whole result of the last packet. The client must not send another packet
    /// before that.
    has_unread_result: bool,
}

/// The result of one of the SQL statements in a packet.
#[derive(Debug, Default)]
pub(crate) struct StatementResult {
    /// The number of rows that the statement changed.
    pub(crate) changed: u64,
    /// The value that the statement gave to `LAST_INSERT_ID`; `None` if it set none.
    pub(crate) last_insert_id: Option<u64>,
    /// The rows that the statement returned.
    pub(crate) rows: Vec<Row>,
}

impl Connection {
    /// Opens a connection to this address. If `use_database` is true, the connection uses the database of the address;
    /// otherwise it uses none.
    pub(crate) async fn open(address: &Address, use_database: bool) -> Result<Self, Fault> {
        let options = connection_options(address, use_database);
        let conn = Conn::new(with_tls(options, address).await);
        let opening = caught_in(Opening(Some(conn)));
        let conn = match or_other_protocol(opening, address).await? {
            Ok(conn) => conn,
            // `mysql_async` panics if the server demands an authentication plugin for which a part of it is not
            // compiled in.
            Err(panic) if panic_text(&panic).contains(PLUGIN_PANIC) => {
                return Err(missing_plugin(&panic));
            }
            // The session task reports any other panic.
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let conn = conn.map_err(|error| classify_login_error(&error, address))?;
        address.has_logged_in.store(true, Ordering::Relaxed);
        let conn = Some(conn);
        Ok(Self {
            conn,
            has_unread_result: false,
        })
    }

    /// Runs all statements of one packet, and returns one result for each statement. If a statement fails, returns its
    /// error; the statements after it did not run.
    pub(crate) async fn execute(&mut self, packet: &str) -> Result<Vec<StatementResult>, Fault> {
        let conn = self.conn.as_mut().filter(|_| !self.has_unread_result);
        let conn = conn.ok_or_else(|| {
            Fault::Disconnected(
                "this session cannot be used, because an earlier request was abandoned".into(),
            )
        })?;
        self.has_unread_result = true;
        let outcome = read_results(conn, packet).await;
        let results = outcome.map_err(|error| classify(&error, true))?;
        self.has_unread_result = false;
        Ok(results)
    }
}

/// Waits for the end of `opening`. Fails earlier if the server is silent, and speaks another protocol than MySQL.
async fn or_other_protocol<T>(
    opening: impl Future<Output = T>,
    address: &Address,
) -> Result<T, Fault> {
    let mut opening = pin!(opening);
    if address.socket.is_some() || address.has_logged_in.load(Ordering::Relaxed) {
        return Ok(opening.await);
    }
    if let Ok(opened) = tokio::time::timeout(SILENCE_LIMIT, &mut opening).await {
        return Ok(opened);
    }
    let server_address = (address.host.as_str(), address.port);
    tokio::select! {
        biased;
        opened = &mut opening => Ok(opened),
        Some(text) = other_protocol(server_address, Protocol::MySql) => Err(Fault::Unsupported(text.into())),
    }
}

/// A part of the text of a panic of `mysql_async` about an authentication plugin.
const PLUGIN_PANIC: &str = "authentication plugin";

fn missing_plugin(panic: &Panic) -> Fault {
    let text = panic_text(panic);
    let plugin = text.split('`').nth(1).unwrap_or("of the user");
    Fault::Unsupported(
        format!("this client does not have the authentication plugin {plugin}: {PLUGIN_REMEDY}")
            .into(),
    )
}

async fn read_results(conn: &mut Conn, packet: &str) -> mysql_async::Result<Vec<StatementResult>> {
    let mut query_result = conn.query_iter(packet).await?;
    let mut results = Vec::new();
    loop {
        // Read these two numbers before the rows. Reading the rows replaces the numbers with those of the next
        // statement.
        let (changed, last_insert_id) =
            (query_result.affected_rows(), query_result.last_insert_id());
        let rows = query_result.collect().await?;
        results.push(StatementResult {
            changed,
            last_insert_id,
            rows,
        });
        if query_result.is_empty() {
            // `is_empty` is also true if the next statement failed. Then `drop_result` returns the error.
            query_result.drop_result().await?;
            return Ok(results);
        }
    }
}

fn connection_options(address: &Address, use_database: bool) -> OptsBuilder {
    OptsBuilder::default()
        .ip_or_hostname(address.host.clone())
        .tcp_port(address.port)
        .user(Some(address.user.clone()))
        .pass(address.password.clone())
        .db_name(use_database.then(|| address.database.clone()))
        .socket(address.socket.clone())
        .prefer_socket(false)
        .tcp_nodelay(true)
        .stmt_cache_size(0)
        // Set `max_allowed_packet` and `wait_timeout`. Otherwise `mysql_async` queries the server for both values while
        // it connects.
        .max_allowed_packet(Some(LARGEST_PACKET))
        .wait_timeout(Some(28_800))
}

/// Adds the settings for TLS. The files may have been replaced since the last connection.
#[cfg(feature = "tls-rustls")]
async fn with_tls(options: OptsBuilder, address: &Address) -> OptsBuilder {
    if !address.tls {
        return options;
    }
    let Some(files) = &address.files else {
        return options.ssl_opts(SslOpts::default());
    };
    let pem = files.current().await;
    let tls = match pem.ca.clone() {
        None => SslOpts::default(),
        Some(ca) => SslOpts::default()
            .with_root_certs(vec![ca.into()])
            .with_disable_built_in_roots(true),
    };
    let client = pem.cert.clone().zip(pem.key.clone());
    let identity = |(cert, key): (Vec<u8>, Vec<u8>)| ClientIdentity::new(cert.into(), key.into());
    options.ssl_opts(tls.with_client_identity(client.map(identity)))
}

/// Without the feature, no URL asks for TLS.
#[cfg(not(feature = "tls-rustls"))]
async fn with_tls(options: OptsBuilder, _: &Address) -> OptsBuilder {
    options
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            close(Box::new(conn));
        }
    }
}

type ConnectFuture = Pin<Box<dyn Future<Output = mysql_async::Result<Conn>> + Send>>;

/// A connection attempt; `None` after the attempt has ended. If this value is dropped earlier, [`close`] drops the
/// attempt.
struct Opening(Option<ConnectFuture>);

impl Future for Opening {
    type Output = mysql_async::Result<Conn>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(opening) = &mut self.0 else {
            return Poll::Pending;
        };
        let poll = opening.as_mut().poll(cx);
        if poll.is_ready() {
            self.0 = None;
        }
        poll
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(opening) = self.0.take() {
            // Let `close` drop the future. Dropping the future closes the socket.
            close(Box::new(opening));
        }
    }
}

/// Drops a connection on a thread without a Tokio runtime, so that `mysql_async` only closes the socket.
fn close(connection: Box<dyn Send>) {
    static CLOSER: PerProcess<Option<Sender<Box<dyn Send>>>> = PerProcess::new();
    let closer = CLOSER.get_or_init(|| {
        let (sender, queue) = mpsc::channel::<Box<dyn Send>>();
        // A panic while a connection is dropped must not end the thread.
        let drop_all = move || {
            for connection in queue {
                drop(caught(move || drop(connection)));
            }
        };
        let thread = std::thread::Builder::new().name("quorate-mysql-closer".into());
        thread.spawn(drop_all).is_ok().then_some(sender)
    });
    // If the thread could not be started, this function drops `connection` on the caller's thread.
    if let Some(closer) = closer {
        let _ = closer.send(connection);
    }
}
