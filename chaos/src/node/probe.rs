//! A probe shows whether a fault has an effect. It sends one request to a server of any kind and reads the answer,
//! without a client library.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The connection of a probe to a server. A connection to a Redis server accepts many requests; connections to a
/// MariaDB, PostgreSQL, ZooKeeper or etcd server accept only one.
pub trait Probe {
    /// Sends a request and reads the answer: from Redis the whole reply, from MariaDB one packet, from PostgreSQL one
    /// message, from ZooKeeper the first nine bytes, and from etcd the status line.
    ///
    /// # Errors
    ///
    /// If the connection ends before the answer is complete, or if no answer arrives in time (`TimedOut`).
    fn ask(&mut self) -> io::Result<String>;

    /// Sends a long request. The request and its answer together have at least 90 bytes, so that a fault that limits
    /// the transfer rate (to 60 to 140 bytes per second) causes a measurable delay.
    ///
    /// # Errors
    ///
    /// As for [`ask`](Self::ask).
    fn ask_long(&mut self) -> io::Result<String>;
}

/// Connects to the server. `patience` limits the connect and each read.
pub(super) fn connect(address: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    Ok(stream)
}

/// Changes the error `WouldBlock`, which Linux reports when a read times out, into `TimedOut`.
pub(super) fn as_timeout(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}
