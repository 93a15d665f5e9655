//! A probe shows whether a fault has an effect. It sends one request to a server of any kind and reads the answer,
//! without a client library.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use quorate_testbed::Connection;

use crate::node::NodeKind;

/// The connection of a probe to a server.
#[derive(Debug)]
pub enum Probe {
    /// A connection to a Redis server. It accepts many requests; connections to a MariaDB or ZooKeeper server accept
    /// only one.
    Redis(Connection),
    /// A connection to a MariaDB server. The server's greeting has already been read.
    Database(TcpStream),
    /// A connection to a ZooKeeper server.
    ZooKeeper(TcpStream),
}

impl Probe {
    /// Connects to the server, and reads its greeting if it sends one.
    ///
    /// # Errors
    ///
    /// If no server answers within `patience`.
    pub fn open(kind: NodeKind, at: SocketAddr, patience: Duration) -> io::Result<Self> {
        let plain = || {
            let stream = TcpStream::connect_timeout(&at, patience)?;
            stream.set_read_timeout(Some(patience))?;
            Ok::<_, io::Error>(stream)
        };
        Ok(match kind {
            NodeKind::Redis => Self::Redis(Connection::tcp(at, patience)?),
            NodeKind::Mysql | NodeKind::MysqlFlush0 => {
                let mut stream = plain()?;
                packet(&mut stream)?;
                Self::Database(stream)
            }
            NodeKind::Zookeeper | NodeKind::Ensemble => Self::ZooKeeper(plain()?),
        })
    }

    /// Sends a request and reads the answer: from Redis the whole reply, from MariaDB one packet, and from ZooKeeper
    /// the first nine bytes.
    ///
    /// # Errors
    ///
    /// If the connection ends before the answer is complete, or if no answer arrives in time (`TimedOut`).
    pub fn ask(&mut self) -> io::Result<String> {
        self.ask_this("PING", b"srvr", 9)
    }

    /// Sends a long request. The request and its answer together have at least 90 bytes, so that a fault that limits
    /// the transfer rate (to 60 to 140 bytes per second) causes a measurable delay.
    ///
    /// # Errors
    ///
    /// As for [`ask`](Self::ask).
    pub fn ask_at_length(&mut self) -> io::Result<String> {
        self.ask_this("ECHO 0123456789012345678901234567890123456789", b"srvr", 90)
    }

    fn ask_this(&mut self, redis: &str, zookeeper: &[u8], bytes: usize) -> io::Result<String> {
        let heard = match self {
            Self::Redis(connection) => {
                let words: Vec<&str> = redis.split(' ').collect();
                return connection.command(&words).map(|reply| format!("{reply:?}"));
            }
            Self::Database(stream) => {
                // These bytes are not a valid handshake, so the server sends an error and hangs up.
                stream.write_all(&[1, 0, 0, 1, 0])?;
                packet(stream)?
            }
            Self::ZooKeeper(stream) => {
                stream.write_all(zookeeper)?;
                let mut heard = vec![0; bytes];
                stream.read_exact(&mut heard).map_err(silence)?;
                heard
            }
        };
        Ok(String::from_utf8_lossy(&heard).into_owned())
    }
}

/// Reads one packet that a MariaDB sends.
fn packet(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).map_err(silence)?;
    let length = u32::from_le_bytes([head[0], head[1], head[2], 0]);
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body).map_err(silence)?;
    Ok(body)
}

/// Changes the error `WouldBlock`, which Linux reports when a read times out, into `TimedOut`.
fn silence(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}
