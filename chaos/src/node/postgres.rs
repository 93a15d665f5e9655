//! PostgreSQL as a master.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use quorate::node::store::StoreNode;
use quorate_testbed::{Postgres, PostgresOptions, TestServer};

use super::probe::{Probe, as_timeout, connect};
use super::row::{Gauge, Login, Row, block_on};

/// The server software of the kinds in this file.
pub const POSTGRES: &str = "PostgreSQL";
/// The name of the kind whose files are all in one folder, so that they can be copied.
pub const ORDINARY: &str = "postgres";
/// The name of the kind whose records are on a small disk.
pub const ON_SMALL_DISK: &str = "postgres-small";
/// The name of the tablespace on the small disk.
pub const SMALL_TABLESPACE: &str = "small";
/// The name of the PostgreSQL database that stores the locks.
pub const DATABASE: &str = "locks";

/// The size of the small disk in bytes. The records of a run need less than a megabyte.
const SMALL_DISK: u64 = 8 << 20;

pub(super) const ROWS: &[Row] = &[
    ALL_ON_ONE_DISK,
    Row {
        name: ON_SMALL_DISK,
        aliases: &[],
        description: "PostgreSQL whose locks are in a tablespace of 8 MB",
        missing_reason: || Postgres::missing().or_else(Postgres::missing_small_disk),
        start: |_, login| Ok(Arc::new(start_on_small_disk(login)?)),
        ..ALL_ON_ONE_DISK
    },
];

/// A PostgreSQL without a small disk.
const ALL_ON_ONE_DISK: Row = Row {
    name: ORDINARY,
    aliases: &["postgresql"],
    description: "PostgreSQL",
    software: POSTGRES,
    has_clock: true,
    forgets: false,
    missing_reason: Postgres::missing,
    start: |_, login| Ok(Arc::new(start(options(login), login)?)),
    url,
    scheme: "postgres",
    add_to_lock: |builder, url| {
        let store = quorate_postgres::Postgres::open(url)?;
        Ok(builder.node(StoreNode::new(store)))
    },
    probe: |at, patience| Ok(Box::new(PlainConnection(connect(at, patience)?))),
    gauge,
};

/// The options of a server that asks the clients' user for a password. `fsync` is on, because clients refuse a server
/// without it. The files are in memory, so it costs nothing.
fn options(login: Login<'_>) -> PostgresOptions {
    let password_demanded = format!("host all {} 127.0.0.1/32 password", login.user);
    let options = PostgresOptions::new().tcp().set("fsync", "on");
    options.hba(&password_demanded)
}

/// Starts a server, and creates the tables, the clients' user, and tables in which faults leave markers.
fn start(options: PostgresOptions, login: Login<'_>) -> anyhow::Result<Postgres> {
    let server = Postgres::start_with(options)?;
    let preparation = block_on(quorate_postgres::prepare(&server.url(DATABASE)))??;
    let Login { user, password } = login;
    let mut statements = vec![format!("CREATE ROLE {user} LOGIN PASSWORD '{password}'")];
    let grants = preparation.grants.iter();
    statements.extend(grants.map(|grant| grant.replace("TO USER", &format!("TO {user}"))));
    server.sql_in(DATABASE, &statements.join(";"))?;
    server.sql("CREATE TABLE marker (n bigint PRIMARY KEY)")?;
    server.sql("CREATE UNLOGGED TABLE unlogged_marker (n bigint)")?;
    Ok(server)
}

/// Starts a server, and moves the records to the small disk.
fn start_on_small_disk(login: Login<'_>) -> anyhow::Result<Postgres> {
    let server = start(options(login).small_disk(SMALL_DISK), login)?;
    let folder = server.small_disk();
    server.sql(&format!(
        "CREATE TABLESPACE {SMALL_TABLESPACE} LOCATION '{}'",
        folder.display()
    ))?;
    server.sql_in(
        DATABASE,
        "ALTER TABLE quorate.record SET TABLESPACE small;\
         ALTER INDEX quorate.record_pkey SET TABLESPACE small",
    )?;
    Ok(server)
}

fn url(addresses: &[SocketAddr], login: Login<'_>, timeout: Duration) -> Option<String> {
    let Login { user, password } = login;
    let (address, timeout_ms) = (addresses.first()?, timeout.as_millis());
    Some(format!(
        "postgres://{user}:{password}@{address}/{DATABASE}?timeout={timeout_ms}ms"
    ))
}

fn gauge(server: &dyn TestServer, login: Login<'_>) -> Option<Gauge> {
    let server = server.downcast_ref::<Postgres>()?;
    let user = login.user;
    let count = format!("SELECT count(*) FROM pg_stat_activity WHERE usename='{user}'");
    Some(Gauge {
        memory: 0,
        handles: 0,
        connections: server.sql(&count).ok()?.trim().parse().ok()?,
    })
}

/// A connection to a PostgreSQL server, over which nothing has been sent.
struct PlainConnection(TcpStream);

impl Probe for PlainConnection {
    fn ask(&mut self) -> io::Result<String> {
        // A request to start a session with version 4.0 of the protocol, which no server supports. The server sends an
        // error and hangs up: the letter E, the length of the rest, and the rest.
        self.0.write_all(&[0, 0, 0, 8, 0, 4, 0, 0])?;
        let mut header = [0; 5];
        self.0.read_exact(&mut header).map_err(as_timeout)?;
        let [_, length @ ..] = header;
        let rest = u64::from(u32::from_be_bytes(length)).saturating_sub(4);
        let mut text = Vec::new();
        let limited = (&mut self.0).take(rest);
        limited
            .take(1_000)
            .read_to_end(&mut text)
            .map_err(as_timeout)?;
        if (text.len() as u64) < rest {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// The request and the error together have more than 90 bytes.
    fn ask_long(&mut self) -> io::Result<String> {
        self.ask()
    }
}
