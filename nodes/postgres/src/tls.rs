//! TLS to a server, with rustls and ring. The certificate chain and the host name are always checked.

use std::sync::Arc;

use quorate::node::Fault;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use crate::fault::{of_io, of_tls};
use crate::stream::Bytes;
use crate::url::Address;

/// The packet with which a client asks for TLS (`SSLRequest`): its length, and the number 80877103.
const REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// Asks the server for TLS, and encrypts the stream.
pub(crate) async fn encrypt(
    mut stream: Box<dyn Bytes>,
    config: Arc<ClientConfig>,
    host: &str,
    address: &Address,
) -> Result<Box<dyn Bytes>, Fault> {
    stream
        .write_all(&REQUEST)
        .await
        .map_err(|error| of_io(&error))?;
    // Read exactly one byte. Bytes after it would be from somebody who cannot encrypt, and rustls refuses them.
    let mut answer = [0];
    stream
        .read_exact(&mut answer)
        .await
        .map_err(|error| of_io(&error))?;
    if answer != *b"S" {
        let why = "the server does not offer TLS: turn `ssl` on at the server, or use postgres:// without TLS";
        return Err(Fault::Unsupported(why.into()));
    }
    let name = ServerName::try_from(host.to_owned());
    let name = name
        .map_err(|_| Fault::Unsupported("the host in the URL is no valid name for TLS".into()))?;
    let connecting = TlsConnector::from(config).connect(name, stream).await;
    let stream = connecting.map_err(|error| of_tls(&error, address))?;
    Ok(Box::new(stream))
}
