//! Root certificates and client certificates for `rediss://` masters.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::error::BuildError;
use crate::redact;
use crate::reread::Reread;

/// Root certificates and the client certificate for `rediss://` masters.
///
/// Default: the root certificates of the operating system, no client certificate. Host names are always checked.
///
/// Certificates can be replaced while the program runs: each new connection looks whether the files have changed. If
/// the changed files cannot be used, the library logs one warning, and new connections use the previous certificates.
/// The root certificates of the operating system are read again at most once per minute.
///
/// ```no_run
/// let tls = quorate::Tls::default()
///     .root_file("ca.pem")
///     .client_files("client.pem", "client.key");
/// let redlock = quorate::Redlock::builder().master("rediss://redis.example:6380").tls(tls);
/// ```
#[derive(Clone, Default)]
pub struct Tls {
    roots: Vec<Pem>,
    client: Option<(Pem, Pem)>,
}

/// A PEM text, or the file with it.
#[derive(Clone)]
enum Pem {
    Text(Vec<u8>),
    File(PathBuf),
}

/// How long the root certificates of the operating system are used until a new connection reads them again. Looking
/// whether their files have changed would cost about as much as reading them.
const SYSTEM_ROOTS: Duration = Duration::from_secs(60);

impl Tls {
    /// Trusts the certificates of this PEM text instead of those of the operating system. If this method is called
    /// several times, the certificates of all calls are trusted.
    #[must_use]
    pub fn root_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots.push(Pem::Text(pem.into()));
        self
    }

    /// Trusts the certificates in this PEM file, as [`root_pem`](Self::root_pem) does. The file is read again when it
    /// has changed.
    #[must_use]
    pub fn root_file(mut self, path: impl AsRef<Path>) -> Self {
        self.roots.push(Pem::file(path.as_ref()));
        self
    }

    /// Authenticates to the masters with this certificate chain and its private key, both as PEM text.
    #[must_use]
    pub fn client_pem(mut self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.client = Some((Pem::Text(chain.into()), Pem::Text(key.into())));
        self
    }

    /// Authenticates with the certificate chain and the private key in these PEM files. The files are read again when
    /// they have changed.
    #[must_use]
    pub fn client_files(mut self, chain: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        self.client = Some((Pem::file(chain.as_ref()), Pem::file(key.as_ref())));
        self
    }

    /// The rustls configuration, which follows changes of the files; `None` if no master uses TLS.
    pub(crate) fn client_config(
        &self,
        is_needed: bool,
    ) -> Result<Option<Arc<Reread<Arc<ClientConfig>>>>, BuildError> {
        if !is_needed {
            return Ok(None);
        }
        let advice = "name a CA file (QUORATE_CA_FILE or root_pem)";
        self.reread_config(advice)
            .map(Some)
            .map_err(BuildError::Tls)
    }

    /// The rustls configuration, which follows changes of the files. For crates that add masters of other kinds.
    ///
    /// # Errors
    ///
    /// A text that says what is wrong. If the operating system has no root certificates, it ends with `advice`.
    #[doc(hidden)]
    pub fn reread_config(
        &self,
        advice: &'static str,
    ) -> Result<Arc<Reread<Arc<ClientConfig>>>, String> {
        let reload_interval = self.roots.is_empty().then_some(SYSTEM_ROOTS);
        let tls = self.clone();
        let load = move || tls.load(advice).map(Arc::new);
        Reread::new(self.files(), reload_interval, load)
    }

    /// Checks certificates and keys, as [`build`](crate::RedlockBuilder::build) does. For crates that add masters of
    /// other kinds.
    ///
    /// # Errors
    ///
    /// A text that says what is wrong.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), String> {
        self.with_roots(RootCertStore::empty()).map(drop)
    }

    fn files(&self) -> Vec<PathBuf> {
        let client = self.client.iter().flat_map(|(chain, key)| [chain, key]);
        let all = self.roots.iter().chain(client);
        let files = all.filter_map(|pem| match pem {
            Pem::Text(_) => None,
            Pem::File(path) => Some(path.clone()),
        });
        files.collect()
    }

    fn load(&self, advice: &str) -> Result<ClientConfig, String> {
        let mut store = RootCertStore::empty();
        if self.roots.is_empty() {
            let native = rustls_native_certs::load_native_certs();
            store.add_parsable_certificates(native.certs);
            if store.is_empty() {
                return Err(format!(
                    "the operating system has no root certificates: {advice}"
                ));
            }
        }
        self.with_roots(store)
    }

    /// The configuration that trusts the certificates in `store` and those of this value.
    fn with_roots(&self, mut store: RootCertStore) -> Result<ClientConfig, String> {
        for pem in &self.roots {
            for certificate in certificates(pem)? {
                store
                    .add(certificate)
                    .map_err(|error| pem.error_text(&error.to_string()))?;
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(store);
        let Some((chain, key)) = &self.client else {
            return Ok(config.with_no_client_auth());
        };
        let parsed_key = PrivateKeyDer::from_pem_slice(&key.read()?);
        let private_key =
            parsed_key.map_err(|_| key.error_text("the client key is not a PEM private key"))?;
        config
            .with_client_auth_cert(certificates(chain)?, private_key)
            .map_err(|error| chain.error_text(&error.to_string()))
    }
}

impl Pem {
    /// The file at this path, also after a later change of the working directory.
    fn file(path: &Path) -> Self {
        Self::File(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
    }

    fn read(&self) -> Result<Cow<'_, [u8]>, String> {
        match self {
            Self::Text(text) => Ok(text.into()),
            Self::File(path) => match std::fs::read(path) {
                Ok(text) => Ok(text.into()),
                Err(error) => Err(self.error_text(&format!("cannot be read: {error}"))),
            },
        }
    }

    /// An error about this PEM text.
    fn error_text(&self, why: &str) -> String {
        match self {
            Self::Text(_) => why.to_owned(),
            Self::File(path) => format!("{}: {why}", redact::value(&path.to_string_lossy())),
        }
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

fn certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>, String> {
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem.read()?).collect();
    match parsed {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(pem.error_text("the PEM text contains no certificate")),
    }
}
