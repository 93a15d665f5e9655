//! ZooKeeper as a master: one server, or an ensemble that counts as one master.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use quorate_testbed::{TestServer, ZooKeeper};

use super::probe::{Probe, as_timeout, connect};
use super::row::{Gauge, Row, block_on};

/// The server software of the kinds in this file.
pub const ZOOKEEPER: &str = "ZooKeeper";
/// The ZooKeeper path under which the locks are stored.
const CHROOT: &str = "/chaos";
/// The shortest session timeout that clients request from ZooKeeper. It is short, so that faults can make sessions
/// expire.
const SESSION: Duration = Duration::from_secs(1);

pub(super) const ROWS: &[Row] = &[
    SINGLE,
    Row {
        name: "ensemble",
        aliases: &[],
        description: "three ZooKeeper servers as one master",
        start: |_, _| start(3),
        ..SINGLE
    },
];

/// A ZooKeeper of one server.
const SINGLE: Row = Row {
    name: "zookeeper",
    aliases: &["zk"],
    description: "",
    software: ZOOKEEPER,
    has_clock: false,
    forgets: false,
    missing_reason: ZooKeeper::missing,
    start: |_, _| start(1),
    url: |over, _, timeout| Some(url(over, timeout)),
    scheme: "zk",
    add_to_lock: |builder, url| Ok(builder.node(quorate_zookeeper::node(url)?)),
    probe: |at, patience| Ok(Box::new(PlainConnection(connect(at, patience)?))),
    gauge: |server, _| gauge(server),
};

fn start(members: usize) -> anyhow::Result<Arc<dyn TestServer>> {
    let ensemble = ZooKeeper::ensemble(members)?;
    block_on(quorate_zookeeper::prepare(&ensemble.url(CHROOT)))??;
    ensure!(ensemble.leader().is_some(), "the ensemble has no leader");
    Ok(Arc::new(ensemble))
}

fn url(addresses: &[SocketAddr], timeout: Duration) -> String {
    let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    let (addresses, timeout_ms) = (addresses.join("+"), timeout.as_millis());
    let session_ms = SESSION.max(timeout * 5 / 2).as_millis();
    format!("zk://{addresses}{CHROOT}?timeout={timeout_ms}ms&session={session_ms}ms")
}

fn gauge(server: &dyn TestServer) -> Option<Gauge> {
    let ensemble = server.downcast_ref::<ZooKeeper>()?;
    let connections = (0..ensemble.members())
        .filter_map(|member| ensemble.figure(member, "zk_num_alive_connections"));
    Some(Gauge {
        memory: 0,
        handles: 0,
        connections: connections.sum(),
    })
}

/// A connection to a ZooKeeper server, over which nothing has been sent.
struct PlainConnection(TcpStream);

impl PlainConnection {
    /// Sends the command `srvr`, and reads this number of bytes of the answer.
    fn read(&mut self, bytes: usize) -> io::Result<String> {
        self.0.write_all(b"srvr")?;
        let mut answer = vec![0; bytes];
        self.0.read_exact(&mut answer).map_err(as_timeout)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

impl Probe for PlainConnection {
    fn ask(&mut self) -> io::Result<String> {
        self.read(9)
    }

    fn ask_long(&mut self) -> io::Result<String> {
        self.read(90)
    }
}
