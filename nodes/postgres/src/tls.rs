//! TLS to a server, with rustls and ring. The certificate chain and the host name are always checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quorate::node::Fault;
use quorate::redact;
use quorate::reread::Reread;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use crate::dial::Bytes;
use crate::fault::{of_io, of_tls};
use crate::url::Address;

/// The packet with which a client asks for TLS (`SSLRequest`): its length, and the number 80877103.
const REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
/// How long the root certificates of the operating system are used until a new connection reads them again.
const SYSTEM_ROOTS: Duration = Duration::from_secs(60);

/// The files with certificates that a URL names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Files {
    /// The trusted certificate authorities; `None` to trust those of the system.
    pub(crate) ca: Option<PathBuf>,
    /// The client's certificate and its private key.
    pub(crate) client: Option<(PathBuf, PathBuf)>,
}

impl Files {
    /// The configuration of TLS, which follows changes of the files.
    pub(crate) fn config(&self) -> Result<Arc<Reread<Arc<ClientConfig>>>, String> {
        let every = self.ca.is_none().then_some(SYSTEM_ROOTS);
        let client = self.client.iter().flat_map(|(cert, key)| [cert, key]);
        let all = self.ca.iter().chain(client).cloned().collect();
        let files = self.clone();
        Reread::new(all, every, move || files.load().map(Arc::new))
    }

    fn load(&self) -> Result<ClientConfig, String> {
        let mut store = RootCertStore::empty();
        if let Some(ca) = &self.ca {
            for certificate in certificates(ca)? {
                let added = store.add(certificate);
                added.map_err(|error| wrong(ca, &error.to_string()))?;
            }
        } else {
            let native = rustls_native_certs::load_native_certs();
            store.add_parsable_certificates(native.certs);
            if store.is_empty() {
                let why =
                    "the operating system has no root certificates: add ?sslrootcert= to the URL";
                return Err(why.to_owned());
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(store);
        let Some((cert, key)) = &self.client else {
            return Ok(config.with_no_client_auth());
        };
        let private = PrivateKeyDer::from_pem_slice(&read(key)?);
        let private =
            private.map_err(|_| wrong(key, "no private key in PEM form without a passphrase"))?;
        config
            .with_client_auth_cert(certificates(cert)?, private)
            .map_err(|error| wrong(cert, &error.to_string()))
    }
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| wrong(file, &format!("cannot be read: {error}")))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(file)?).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(wrong(file, "no certificate in PEM form")),
    }
}

fn wrong(file: &Path, why: &str) -> String {
    format!("{}: {why}", redact::value(&file.to_string_lossy()))
}

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
