//! TLS to a member, with rustls and ring. The certificate chain and the host name are always checked.

use std::sync::Arc;

use quorate::node::Fault;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use crate::fault::of_tls;
use crate::stream::Bytes;
use crate::url::Address;

/// Encrypts a stream to the member with this host name.
pub(crate) async fn encrypt(
    stream: Box<dyn Bytes>,
    config: Arc<ClientConfig>,
    host: &str,
    address: &Address,
) -> Result<Box<dyn Bytes>, Fault> {
    let name = ServerName::try_from(host.to_owned());
    let name = name
        .map_err(|_| Fault::Unsupported("the host in the URL is no valid name for TLS".into()))?;
    let connecting = TlsConnector::from(config).connect(name, stream).await;
    let stream = connecting.map_err(|error| of_tls(&error, address))?;
    Ok(Box::new(stream))
}
