//! Opens the byte stream to a server: a TCP connection or a Unix socket, with TLS if the URL asks for it.
//!
//! # Why like this
//!
//! `tokio-postgres` can open the stream itself, but the stream of this module is better suited for a lock:
//!
//! - The pooler check (`crate::pooler`) needs a client that was given its stream. With TLS inside `tokio-postgres`,
//!   that check would need a second implementation of TLS.
//! - The URL parser of `tokio-postgres` refuses `sslmode=verify-full`, `sslrootcert` and `passfile`.
//! - Its `connect_timeout` covers only TCP: a stopped server would hang the login for ever.

use quorate::node::Fault;
use tokio::net::{TcpStream, UnixStream};

use crate::fault::of_io;
use crate::stream::Bytes;
use crate::url::{Address, Place};

/// Opens the stream to the server of this address.
pub(crate) async fn dial(address: &Address) -> Result<Box<dyn Bytes>, Fault> {
    let stream: Box<dyn Bytes> = match &address.place {
        Place::Unix { socket, .. } => {
            let opened = UnixStream::connect(socket).await;
            Box::new(opened.map_err(|error| of_io(&error))?)
        }
        Place::Tcp { host, port } => {
            let opened = TcpStream::connect((host.as_str(), *port)).await;
            let opened = opened.map_err(|error| of_io(&error))?;
            opened.set_nodelay(true).map_err(|error| of_io(&error))?;
            Box::new(opened)
        }
    };
    encrypted(stream, address).await
}

#[cfg(feature = "tls-rustls")]
async fn encrypted(stream: Box<dyn Bytes>, address: &Address) -> Result<Box<dyn Bytes>, Fault> {
    match (&address.config, &address.place) {
        (Some(config), Place::Tcp { host, .. }) => {
            crate::tls::encrypt(stream, config.current().await, host, address).await
        }
        _ => Ok(stream),
    }
}

/// Without the feature, no URL asks for TLS.
#[cfg(not(feature = "tls-rustls"))]
async fn encrypted(stream: Box<dyn Bytes>, _: &Address) -> Result<Box<dyn Bytes>, Fault> {
    Ok(stream)
}
