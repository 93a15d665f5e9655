//! etcd as a master: a cluster of one member, or of three.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use quorate_testbed::{Etcd, EtcdOptions, TestServer};

use super::probe::{Probe, as_timeout, connect};
use super::row::{Gauge, Row, block_on};

/// The server software of the kinds in this file.
pub const ETCD: &str = "etcd";
/// The name of the kind with three members.
pub const CLUSTER: &str = "etcd-cluster";
/// The key with the identity of a cluster.
pub const IDENTITY_KEY: &str = "/quorate-server";
/// The path of the URLs, with which the keys of all locks begin.
const PATH: &str = "locks";
/// The arguments of every member. The quota is 16 MB, so that a fault can use it up. Without the compaction, the locks
/// themselves would use it up.
const ARGUMENTS: [&str; 3] = [
    "--quota-backend-bytes=16777216",
    "--auto-compaction-mode=periodic",
    "--auto-compaction-retention=10s",
];

pub(super) const ROWS: &[Row] = &[
    SINGLE,
    Row {
        name: CLUSTER,
        aliases: &[],
        description: "an etcd cluster of three members as one master",
        start: |_, _| start(3),
        ..SINGLE
    },
];

/// A cluster of one member.
const SINGLE: Row = Row {
    name: "etcd",
    aliases: &[],
    description: "an etcd cluster of one member",
    software: ETCD,
    has_clock: false,
    forgets: false,
    missing_reason: Etcd::missing,
    start: |_, _| start(1),
    url: |addresses, _, timeout| Some(url(addresses, timeout)),
    scheme: "etcd",
    add_to_lock: |builder, url| Ok(builder.node(quorate_etcd::node(url)?)),
    probe: |at, patience| Ok(Box::new(PlainConnection(connect(at, patience)?))),
    gauge: |server, _| gauge(server),
};

fn start(members: usize) -> anyhow::Result<Arc<dyn TestServer>> {
    let options = ARGUMENTS
        .into_iter()
        .fold(EtcdOptions::new(), EtcdOptions::argument);
    let cluster = Etcd::start_with(&options.members(members))?;
    prepare(&cluster)?;
    Ok(Arc::new(cluster))
}

/// Gives a cluster without an identity a new one.
///
/// # Errors
///
/// If the cluster has an identity, or does not answer.
pub fn prepare(cluster: &Etcd) -> anyhow::Result<()> {
    let prepared = block_on(quorate_etcd::prepare(&cluster.url(PATH)))??;
    ensure!(prepared.made, "the cluster has an identity already");
    Ok(())
}

fn url(addresses: &[SocketAddr], timeout: Duration) -> String {
    let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    let (addresses, timeout_ms) = (addresses.join("+"), timeout.as_millis());
    format!("etcd://{addresses}/{PATH}?timeout={timeout_ms}ms")
}

fn gauge(server: &dyn TestServer) -> Option<Gauge> {
    let connections = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let ports: Vec<u16> = server.addrs().iter().map(SocketAddr::port).collect();
    Some(Gauge {
        memory: 0,
        handles: 0,
        connections: established(&connections, &ports),
    })
}

/// The number of established connections to these ports in a table of the operating system (`/proc/net/tcp`). A few of
/// them belong to the gateway of each member, which connects to its own member.
fn established(table: &str, ports: &[u16]) -> u64 {
    const ESTABLISHED: &str = "01";
    let is_counted = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        let port = fields
            .next()
            .and_then(|address| u16::from_str_radix(address.rsplit_once(':')?.1, 16).ok());
        port.is_some_and(|port| ports.contains(&port)) && fields.nth(1) == Some(ESTABLISHED)
    };
    table.lines().skip(1).filter(is_counted).count() as u64
}

/// A connection to a member, over which nothing has been sent.
struct PlainConnection(TcpStream);

impl PlainConnection {
    /// Asks for the version, and reads this number of bytes of the answer. A member without a leader answers as well.
    fn read(&mut self, bytes: usize) -> io::Result<String> {
        self.0.write_all(b"GET /version HTTP/1.0\r\n\r\n")?;
        let mut answer = vec![0; bytes];
        self.0.read_exact(&mut answer).map_err(as_timeout)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

impl Probe for PlainConnection {
    /// Reads the status line.
    fn ask(&mut self) -> io::Result<String> {
        self.read("HTTP/1.0 200 OK".len())
    }

    fn ask_long(&mut self) -> io::Result<String> {
        self.read(90)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_established_connections_to_the_ports_of_the_members_are_counted() {
        let table = "  sl  local_address rem_address   st\n\
                     0: 0100007F:094B 00000000:0000 0A\n\
                     1: 0100007F:094B 0100007F:9C40 01\n\
                     2: 0100007F:9C40 0100007F:094B 01\n\
                     3: 0100007F:094C 0100007F:9C41 01\n\
                     4: 0100007F:094B 0100007F:9C42 06\n";
        assert_eq!(established(table, &[2379]), 1);
        assert_eq!(established(table, &[2379, 2380]), 2);
        assert_eq!(established(table, &[1]), 0);
    }
}
