//! One question to a server of any kind and its answer, without a client library: to feel what a fault does.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use quorate_testbed::Connection;

use crate::node::NodeKind;

/// A connection on which something can be asked once.
#[derive(Debug)]
pub enum Probe {
    /// To a Redis, which may be asked again and again.
    Redis(Connection),
    /// To a MariaDB that has introduced itself.
    Database(TcpStream),
    /// To a ZooKeeper.
    ZooKeeper(TcpStream),
}

impl Probe {
    /// Connects, and hears the introduction where there is one.
    ///
    /// # Errors
    ///
    /// When nobody is there, or nothing is heard for that long.
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

    /// Asks, and hears the beginning of an answer: nine bytes at least, but for a Redis.
    ///
    /// # Errors
    ///
    /// When the connection ends before that, or nothing is heard for so long (`TimedOut`).
    pub fn ask(&mut self) -> io::Result<String> {
        self.ask_this("PING", b"srvr", 9)
    }

    /// Asks so that question and answer have ninety bytes or more.
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
                // No answer to an introduction: it says so, and hangs up.
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

/// One packet as a MariaDB sends it.
fn packet(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).map_err(silence)?;
    let length = u32::from_le_bytes([head[0], head[1], head[2], 0]);
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body).map_err(silence)?;
    Ok(body)
}

/// Linux calls it that it would block.
fn silence(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}
