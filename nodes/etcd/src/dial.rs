//! Opens an HTTP connection to one member: a TCP connection, with TLS if the URL asks for it.

use std::time::Duration;

use quorate::node::Fault;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use crate::fault::of_io;
use crate::http::Http;
use crate::stream::Bytes;
use crate::url::{Address, Host};

/// If a connection was silent for this time, the operating system checks whether the member still exists.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
/// The time between two such checks.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);

/// Opens a connection to this member.
pub(crate) async fn dial(host: &Host, address: &Address) -> Result<Http, Fault> {
    let stream = TcpStream::connect((host.name.as_str(), host.port)).await;
    let stream = stream.map_err(|error| of_io(&error))?;
    stream.set_nodelay(true).map_err(|error| of_io(&error))?;
    // A listener sends nothing for a long time, so only this check notices that its member is gone.
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL);
    let set = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
    set.map_err(|error| of_io(&error))?;
    let stream = encrypted(Box::new(stream), host, address).await?;
    Http::open(stream, host.to_string()).await
}

#[cfg(feature = "tls-rustls")]
async fn encrypted(
    stream: Box<dyn Bytes>,
    host: &Host,
    address: &Address,
) -> Result<Box<dyn Bytes>, Fault> {
    match &address.config {
        Some(config) => {
            crate::tls::encrypt(stream, config.current().await, &host.name, address).await
        }
        None => Ok(stream),
    }
}

/// Without the feature, no URL asks for TLS.
#[cfg(not(feature = "tls-rustls"))]
async fn encrypted(stream: Box<dyn Bytes>, _: &Host, _: &Address) -> Result<Box<dyn Bytes>, Fault> {
    Ok(stream)
}
