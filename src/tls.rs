//! Root certificates and client certificates for `rediss://` masters.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::error::BuildError;

/// Root certificates and the client certificate for `rediss://` masters.
///
/// Default: the root certificates of the operating system, no client certificate. Host names are always checked.
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let tls = quorate::Tls::default()
///     .root_pem(std::fs::read("ca.pem")?)
///     .client_pem(std::fs::read("client.pem")?, std::fs::read("client.key")?);
/// let redlock = quorate::Redlock::builder().master("rediss://redis.example:6380").tls(tls);
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Tls {
    roots: Vec<Vec<u8>>,
    client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Tls {
    /// Trusts the certificates of this PEM text instead of those of the operating system. If this method is called
    /// several times, the certificates of all calls are trusted.
    #[must_use]
    pub fn root_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots.push(pem.into());
        self
    }

    /// Authenticates to the masters with this certificate chain and its private key, both as PEM text.
    #[must_use]
    pub fn client_pem(mut self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.client = Some((chain.into(), key.into()));
        self
    }

    /// The rustls configuration; `None` if no master uses TLS.
    pub(crate) fn client_config(
        &self,
        wanted: bool,
    ) -> Result<Option<Arc<ClientConfig>>, BuildError> {
        if !wanted {
            return Ok(None);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(&error))?
            .with_root_certificates(self.root_store()?);
        let config = match &self.client {
            None => config.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = certificates(chain)?;
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|_| wrong(&"the client key is not a PEM private key"))?;
                config
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| wrong(&error))?
            }
        };
        Ok(Some(Arc::new(config)))
    }

    fn root_store(&self) -> Result<RootCertStore, BuildError> {
        let mut store = RootCertStore::empty();
        if self.roots.is_empty() {
            let native = rustls_native_certs::load_native_certs();
            store.add_parsable_certificates(native.certs);
            if store.is_empty() {
                return Err(wrong(
                    &"the operating system has no root certificates: name a CA file (QUORATE_CA_FILE or root_pem)",
                ));
            }
        }
        for pem in &self.roots {
            for certificate in certificates(pem)? {
                store.add(certificate).map_err(|error| wrong(&error))?;
            }
        }
        Ok(store)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("roots", &self.roots.len())
            .field("client", &self.client.is_some())
            .finish()
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, BuildError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(wrong(&"the PEM text contains no certificate")),
    }
}

fn wrong(why: &dyn fmt::Display) -> BuildError {
    BuildError::Tls(why.to_string())
}
