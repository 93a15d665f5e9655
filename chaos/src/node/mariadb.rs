//! MariaDB as a master.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use quorate::node::store::StoreNode;
use quorate_testbed::{MariaDb, MariaDbOptions, TestServer};

use super::probe::{Probe, as_timeout, connect};
use super::row::{Gauge, Login, Row, block_on};
use crate::usage::usage;

/// The server software of the kinds in this file.
pub const MARIADB: &str = "MariaDB";
/// The name of the MariaDB database that stores the locks.
pub const DATABASE: &str = "locks";

pub(super) const ROWS: &[Row] = &[
    MYSQL,
    Row {
        name: "mysql-flush0",
        aliases: &[],
        description: "MariaDB that loses the last second of writes in a crash",
        forgets: true,
        start: |_, login| start(0, login),
        ..MYSQL
    },
];

/// A MariaDB that syncs each commit to disk before it acknowledges the commit.
const MYSQL: Row = Row {
    name: "mysql",
    aliases: &["mariadb"],
    description: "MariaDB",
    software: MARIADB,
    has_clock: true,
    forgets: false,
    missing_reason: MariaDb::missing,
    start: |_, login| start(1, login),
    url,
    scheme: "mysql",
    add_to_lock: |builder, url| Ok(builder.node(StoreNode::new(quorate_mysql::MySql::open(url)?))),
    probe,
    gauge,
};

/// Starts a server with this value of `innodb_flush_log_at_trx_commit`.
fn start(flush: u8, login: Login<'_>) -> anyhow::Result<Arc<dyn TestServer>> {
    let server = MariaDb::start(MariaDbOptions::new().flush(flush))?;
    let preparation = block_on(quorate_mysql::prepare(&server.url(DATABASE)))??;
    let Login { user, password } = login;
    let user = format!("'{user}'@'%'");
    let grants = preparation.grants.iter();
    let mut statements: Vec<String> = grants
        .map(|grant| grant.replace("TO USER", &format!("TO {user}")))
        .collect();
    statements.insert(0, format!("CREATE USER {user} IDENTIFIED BY '{password}'"));
    statements.push("CREATE DATABASE chaos".into());
    statements.push("CREATE TABLE chaos.marker (n BIGINT PRIMARY KEY) ENGINE=InnoDB".into());
    server.sql(&statements.join(";"))?;
    Ok(Arc::new(server))
}

fn url(addresses: &[SocketAddr], login: Login<'_>, timeout: Duration) -> Option<String> {
    let Login { user, password } = login;
    let (address, timeout_ms) = (addresses.first()?, timeout.as_millis());
    Some(format!(
        "mysql://{user}:{password}@{address}/{DATABASE}?timeout={timeout_ms}ms"
    ))
}

fn gauge(server: &dyn TestServer, login: Login<'_>) -> Option<Gauge> {
    let server = server.downcast_ref::<MariaDb>()?;
    let (_, handles) = usage(server.pid()?)?;
    let user = login.user;
    let count_connections =
        format!("SELECT COUNT(*) FROM information_schema.processlist WHERE user = '{user}'");
    Some(Gauge {
        memory: 0,
        handles,
        connections: server.sql(&count_connections).ok()?.trim().parse().ok()?,
    })
}

/// A connection to a MariaDB server. The server's greeting has already been read.
struct GreetedConnection(TcpStream);

fn probe(address: SocketAddr, patience: Duration) -> io::Result<Box<dyn Probe>> {
    let mut stream = connect(address, patience)?;
    packet(&mut stream)?;
    Ok(Box::new(GreetedConnection(stream)))
}

impl Probe for GreetedConnection {
    fn ask(&mut self) -> io::Result<String> {
        // These bytes are not a valid handshake, so the server sends an error and hangs up.
        self.0.write_all(&[1, 0, 0, 1, 0])?;
        Ok(String::from_utf8_lossy(&packet(&mut self.0)?).into_owned())
    }

    /// The greeting and the error together have more than 90 bytes.
    fn ask_long(&mut self) -> io::Result<String> {
        self.ask()
    }
}

/// Reads one packet that a MariaDB sends.
fn packet(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).map_err(as_timeout)?;
    let length = u32::from_le_bytes([header[0], header[1], header[2], 0]);
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body).map_err(as_timeout)?;
    Ok(body)
}
