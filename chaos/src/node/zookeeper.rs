//! ZooKeeper as a master: one server, or an ensemble that counts as one master.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use quorate_testbed::{TestServer, ZooKeeper};

use super::probe::{Probe, connect, silence};
use super::row::{Gauge, Row, blocking};

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
        what: "three ZooKeeper servers as one master",
        start: |_, _| start(3),
        ..SINGLE
    },
];

/// A ZooKeeper of one server.
const SINGLE: Row = Row {
    name: "zookeeper",
    aliases: &["zk"],
    what: "",
    software: ZOOKEEPER,
    has_clock: false,
    forgets: false,
    missing: ZooKeeper::missing,
    start: |_, _| start(1),
    url: |over, _, timeout| Some(url(over, timeout)),
    scheme: "zk",
    add: |builder, url| Ok(builder.node(quorate_zookeeper::node(url)?)),
    probe: |at, patience| Ok(Box::new(Plain(connect(at, patience)?))),
    gauge: |server, _| gauge(server),
};

fn start(members: usize) -> anyhow::Result<Arc<dyn TestServer>> {
    let ensemble = ZooKeeper::ensemble(members)?;
    blocking(quorate_zookeeper::prepare(&ensemble.url(CHROOT)))??;
    ensure!(ensemble.leader().is_some(), "the ensemble has no leader");
    Ok(Arc::new(ensemble))
}

fn url(over: &[SocketAddr], timeout: Duration) -> String {
    let over: Vec<String> = over.iter().map(SocketAddr::to_string).collect();
    let (over, ms) = (over.join("+"), timeout.as_millis());
    let session = SESSION.max(timeout * 5 / 2).as_millis();
    format!("zk://{over}{CHROOT}?timeout={ms}ms&session={session}ms")
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
struct Plain(TcpStream);

impl Plain {
    /// Sends the command `srvr`, and reads this number of bytes of the answer.
    fn read(&mut self, bytes: usize) -> io::Result<String> {
        self.0.write_all(b"srvr")?;
        let mut answer = vec![0; bytes];
        self.0.read_exact(&mut answer).map_err(silence)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

impl Probe for Plain {
    fn ask(&mut self) -> io::Result<String> {
        self.read(9)
    }

    fn ask_at_length(&mut self) -> io::Result<String> {
        self.read(90)
    }
}
