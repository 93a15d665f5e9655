//! The certificates for TLS, which follow changes of their files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quorate::redact;
use quorate::reread::Reread;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

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
                let why = "the operating system has no root certificates: add ?cacert= to the URL";
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
