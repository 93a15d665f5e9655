//! Parses the URL of a MySQL or MariaDB server.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
#[cfg(feature = "tls-rustls")]
use std::sync::atomic::Ordering;
use std::time::Duration;

use percent_encoding::percent_decode_str;
#[cfg(feature = "tls-rustls")]
use quorate::reread::Reread;
use url::{Host, Url};

/// The default timeout of one request. It is longer than for a Redis server, because a commit waits for the server's
/// disk.
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(250);
/// The default number of sessions that one process opens to one server. The process distributes its requests over them.
const DEFAULT_LANES: usize = 4;
/// The largest number of sessions that one process may open to one server.
const MAX_LANES: usize = 64;
/// The longest path of a Unix socket in bytes; a limit of Linux.
const LONGEST_SOCKET_PATH: usize = 107;
/// The form of a URL with a Unix socket, for error messages.
const SOCKET_FORM: &str = "mysql://user:password@localhost/database?socket=/run/mysqld/mysqld.sock";

/// The reason why a URL is not valid. It never contains the URL, which may include a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadUrl(String);

fn bad_url(why: impl Into<String>) -> BadUrl {
    BadUrl(why.into())
}

/// The parts of the URL of a MySQL or MariaDB server.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) user: String,
    pub(crate) password: Option<String>,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) database: String,
    pub(crate) timeout: Duration,
    pub(crate) lanes: usize,
    pub(crate) tls: bool,
    /// The file with the certificate authorities that are trusted for the server's certificate; `None` to trust those
    /// of the system.
    pub(crate) ca: Option<PathBuf>,
    /// The file with this client's certificate. `None` if the client has no certificate; `key`, the file with the
    /// private key, is then also `None`.
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    /// The contents of these files, which follow changes of the files. `None` if the URL names no files, or if it was
    /// only parsed.
    #[cfg(feature = "tls-rustls")]
    pub(crate) files: Option<Arc<Reread<Arc<Pem>>>>,
    /// The path of the server's Unix socket; the host and the port are then not used. `None` to connect over TCP.
    pub(crate) socket: Option<String>,
    /// Whether this process has logged in to the server before.
    pub(crate) has_logged_in: Arc<AtomicBool>,
}

impl Address {
    /// Parses a URL, and checks the files that it names.
    pub(crate) fn open(url: &str) -> Result<Self, BadUrl> {
        #[cfg_attr(
            not(feature = "tls-rustls"),
            expect(unused_mut, reason = "only URLs with TLS name files")
        )]
        let mut address = Self::parse(url)?;
        #[cfg(feature = "tls-rustls")]
        if address.ca.is_some() || address.cert.is_some() {
            let parsed = address.clone();
            let options = [&address.ca, &address.cert, &address.key];
            let paths = options.into_iter().flatten().cloned().collect();
            let is_first_load = AtomicBool::new(true);
            let load_pem = move || {
                let pem = parsed.read_files().map_err(|error| error.0)?;
                // At the start, the first connection reports what else is wrong with the files. Later, they replace
                // files that could be used.
                if !is_first_load.swap(false, Ordering::Relaxed) {
                    pem.check()?;
                }
                Ok(Arc::new(pem))
            };
            address.files = Some(Reread::new(paths, None, load_pem).map_err(bad_url)?);
        }
        Ok(address)
    }

    /// Parses a URL without reading the files that it names.
    pub(crate) fn parse(url: &str) -> Result<Self, BadUrl> {
        let url = url.trim();
        check_characters(url)?;
        check_hosts(url)?;
        let url = Url::parse(url).map_err(|why| bad_url(format!("not a URL: {why}")))?;
        let tls = match url.scheme() {
            "mysql" => false,
            "mysqls" => true,
            _ => return Err(bad_url("the scheme must be mysql://, or mysqls:// for TLS")),
        };
        if tls && !cfg!(feature = "tls-rustls") {
            return Err(bad_url(
                "mysqls:// needs the feature `tls-rustls` of quorate-mysql",
            ));
        }
        if url.fragment().is_some() {
            return Err(bad_url("a `#` is not allowed in the URL: write it as %23"));
        }
        let host = match url.host() {
            // The URL parser returns an IPv4 address as a domain name, because it does not know the scheme `mysql`.
            Some(Host::Domain(name)) if !name.is_empty() => decode_part(name, "the host")?,
            Some(Host::Ipv4(ip)) => ip.to_string(),
            Some(Host::Ipv6(ip)) => ip.to_string(),
            _ => return Err(bad_url("the host is missing")),
        };
        let mut address = Self {
            user: decode_part(url.username(), "the user")?,
            password: url
                .password()
                .map(|encoded| decode_part(encoded, "the password"))
                .transpose()?,
            host,
            port: url.port().unwrap_or(3306),
            database: parse_database(url.path())?,
            timeout: DEFAULT_TIMEOUT,
            lanes: DEFAULT_LANES,
            tls,
            ca: None,
            cert: None,
            key: None,
            #[cfg(feature = "tls-rustls")]
            files: None,
            socket: None,
            has_logged_in: Arc::default(),
        };
        if address.user.is_empty() {
            return Err(bad_url(
                "the user is missing: write mysql://user:password@host/database",
            ));
        }
        if address.port == 0 {
            return Err(bad_url("the port must not be 0"));
        }
        // The options may replace defaults, so check the combinations only after them.
        for (name, value) in url.query_pairs() {
            address.set_option(&name, &value)?;
        }
        if address.cert.is_some() != address.key.is_some() {
            return Err(bad_url("the options cert and key must be given together"));
        }
        if address.socket.is_some() && (address.host != "localhost" || url.port().is_some()) {
            return Err(bad_url(format!(
                "the option socket needs the host localhost, without a port: write {SOCKET_FORM}"
            )));
        }
        Ok(address)
    }

    /// Reads the files, and checks that they contain what the client needs. Otherwise every connection would fail with
    /// the same error.
    #[cfg(feature = "tls-rustls")]
    fn read_files(&self) -> Result<Pem, BadUrl> {
        let read_optional = |option, file: &Option<PathBuf>, content, header| match file {
            Some(file) => read_file(option, file, content, header).map(Some),
            None => Ok(None),
        };
        let certificate_header = "-----BEGIN CERTIFICATE-----";
        let pem = Pem {
            ca: read_optional("ca", &self.ca, "certificate", certificate_header)?,
            cert: read_optional("cert", &self.cert, "certificate", certificate_header)?,
            key: read_optional("key", &self.key, "private key", "PRIVATE KEY-----")?,
        };
        Ok(pem)
    }

    /// Advice for a refused login: a change of the URL that may help. `None` if no change is likely to help.
    pub(crate) fn advice(&self) -> Option<&'static str> {
        match (self.tls, &self.cert, &self.socket) {
            (false, _, None) => Some("if the server or this user requires TLS, use mysqls://"),
            (true, None, _) => {
                Some("if this user requires a client certificate, add ?cert= and ?key= to the URL")
            }
            _ => None,
        }
    }

    fn set_option(&mut self, name: &str, value: &str) -> Result<(), BadUrl> {
        match name {
            "timeout" => {
                let timeout = parse_duration(value).filter(|timeout| !timeout.is_zero());
                self.timeout = timeout.ok_or_else(|| {
                    bad_url("the option timeout must be a duration with a unit, for example 250ms or 1s")
                })?;
            }
            "lanes" => {
                let lanes = value.parse().ok().filter(|n| (1..=MAX_LANES).contains(n));
                let error = || {
                    bad_url(format!(
                        "the option lanes must be a number from 1 to {MAX_LANES}"
                    ))
                };
                self.lanes = lanes.ok_or_else(error)?;
            }
            "ca" | "cert" | "key" if !self.tls => {
                return Err(bad_url(format!(
                    "the option {name} works with mysqls:// only"
                )));
            }
            "ca" => self.ca = Some(value.into()),
            "cert" => self.cert = Some(value.into()),
            "key" => self.key = Some(value.into()),
            "socket" if self.tls => {
                return Err(bad_url("the option socket works with mysql:// only"));
            }
            "socket" => {
                let is_path = value.starts_with('/') && !value.contains(char::is_control);
                if !is_path || value.len() > LONGEST_SOCKET_PATH {
                    return Err(bad_url(format!(
                        "the option socket must be an absolute path of at most {LONGEST_SOCKET_PATH} bytes"
                    )));
                }
                self.socket = Some(value.to_owned());
            }
            _ => {
                return Err(bad_url(
                    "unknown option after the `?`: the options are timeout, lanes, socket, ca, cert and key",
                ));
            }
        }
        Ok(())
    }

    /// The name of the server in reports: the URL without user and password.
    pub(crate) fn name(&self) -> String {
        let Self { host, port, .. } = self;
        let database = &self.database;
        if let Some(socket) = &self.socket {
            format!("mysql {socket}/{database}")
        } else if host.contains(':') {
            format!("mysql [{host}]:{port}/{database}")
        } else {
            format!("mysql {host}:{port}/{database}")
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// The contents of the files that a URL names.
#[cfg(feature = "tls-rustls")]
pub(crate) struct Pem {
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) cert: Option<Vec<u8>>,
    pub(crate) key: Option<Vec<u8>>,
}

#[cfg(feature = "tls-rustls")]
impl Pem {
    fn check(&self) -> Result<(), String> {
        let mut tls = quorate::Tls::default();
        if let Some(ca) = &self.ca {
            tls = tls.root_pem(ca.clone());
        }
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            tls = tls.client_pem(cert.clone(), key.clone());
        }
        tls.check()
    }
}

#[cfg(feature = "tls-rustls")]
fn read_file(
    option: &str,
    file: &std::path::Path,
    content: &str,
    header: &str,
) -> Result<Vec<u8>, BadUrl> {
    let path_text = file.to_string_lossy();
    let message_start = format!(
        "the option {option} names the file {}",
        quorate::redact::value(&path_text)
    );
    let read_result = std::fs::read(file);
    let bytes = read_result
        .map_err(|why| bad_url(format!("{message_start}, which cannot be read: {why}")))?;
    let text = String::from_utf8_lossy(&bytes);
    if !text.contains(header) {
        return Err(bad_url(format!(
            "{message_start}, which contains no {content} in PEM form"
        )));
    }
    if option == "key" && text.contains("ENCRYPTED") {
        return Err(bad_url(format!(
            "{message_start}, whose key is encrypted: store it without a passphrase"
        )));
    }
    Ok(bytes)
}

/// Returns an error if the URL has a character that the URL parser removes without an error, or an `@` at a place that
/// may belong to the password: the text after the host is shown in reports, so it must be clear where it begins.
fn check_characters(url: &str) -> Result<(), BadUrl> {
    if url.contains(char::is_control) {
        return Err(bad_url(
            "a tab, line break or other control character is not allowed: in a password, write %09 for a tab and %0A for a line break",
        ));
    }
    let after_scheme = url.split_once("://").map_or("", |(_, after)| after);
    match after_scheme.split_once(['/', '?', '#']) {
        Some((_, path_and_query)) if path_and_query.contains('@') => Err(bad_url(
            "an `@` follows a `/`, `?` or `#`: in a password, write %2F for /, %3F for ?, %23 for # and %40 for @",
        )),
        _ => Ok(()),
    }
}

/// Returns an error if the host is a path, or if the URL lists several hosts. `url` is the unparsed text, because the
/// URL parser reports a misleading error for such hosts.
fn check_hosts(url: &str) -> Result<(), BadUrl> {
    let after_scheme = url.split_once("://").map_or("", |(_, after)| after);
    let authority = after_scheme
        .split(['/', '?', '#'])
        .next()
        .unwrap_or_default();
    let hosts = authority.rsplit('@').next().unwrap_or_default();
    if hosts.contains(',') {
        return Err(bad_url(
            "the URL lists several hosts: give each server a URL of its own, such as \
             mysql://user:password@host1/database,mysql://user:password@host2/database",
        ));
    }
    let is_path = decode_part(hosts, "the host")?.contains('/') || hosts.starts_with("unix(");
    if is_path {
        return Err(bad_url(format!(
            "the host is a path: for a Unix socket, write {SOCKET_FORM}"
        )));
    }
    Ok(())
}

fn decode_part(encoded: &str, part: &str) -> Result<String, BadUrl> {
    let decoded = percent_decode_str(encoded).decode_utf8();
    let decoded = decoded.map_err(|_| bad_url(format!("{part} is not UTF-8")))?;
    if decoded.contains(char::is_control) {
        return Err(bad_url(format!("{part} contains a control character")));
    }
    Ok(decoded.into_owned())
}

fn parse_database(path: &str) -> Result<String, BadUrl> {
    let name = decode_part(path.strip_prefix('/').unwrap_or(path), "the database")?;
    match name.chars().count() {
        0 => Err(bad_url(
            "the database is missing: write mysql://user:password@host/database",
        )),
        1..=64 if !name.contains(['/', '\\', '.', '`']) && !name.ends_with(' ') => Ok(name),
        1..=64 => Err(bad_url(
            "the name of the database must not contain / \\ . ` or end with a space",
        )),
        _ => Err(bad_url(
            "the name of the database is longer than 64 characters",
        )),
    }
}

fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    match &text[digits.len()..] {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
    .filter(|time| *time <= Duration::from_secs(60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_with_every_part_is_parsed() {
        let address =
            Address::parse("mysql://a%40b:p%2Fw@db.example:3307/locks?timeout=1s&lanes=2").unwrap();
        assert_eq!(
            (address.user.as_str(), address.password.as_deref()),
            ("a@b", Some("p/w"))
        );
        assert_eq!(address.name(), "mysql db.example:3307/locks");
        assert_eq!(
            (address.timeout, address.lanes),
            (Duration::from_secs(1), 2)
        );
        let default = Address::parse("mysql://u@[::1]/d").unwrap();
        assert_eq!(default.name(), "mysql [::1]:3306/d");
        assert_eq!(default.host, "::1");
        assert_eq!(
            (default.timeout, default.lanes),
            (DEFAULT_TIMEOUT, DEFAULT_LANES)
        );
        let with_socket =
            Address::parse("mysql://u:p@localhost/d?socket=/run/mysqld/mysqld.sock").unwrap();
        assert_eq!(
            with_socket.socket.as_deref(),
            Some("/run/mysqld/mysqld.sock")
        );
        assert_eq!(with_socket.name(), "mysql /run/mysqld/mysqld.sock/d");
    }

    #[test]
    fn invalid_url_is_refused_without_showing_the_password() {
        let cases = [
            ("", "not a URL"),
            ("redis://u:secret@h/d", "scheme"),
            ("mysql+tls://u:secret@h/d", "mysqls:// for TLS"),
            ("mariadb://u:secret@h/d", "must be mysql://"),
            ("mysql://u:secret@/d", "host"),
            ("mysql://:secret@h/d", "user is missing"),
            ("mysql://h/d", "user is missing"),
            ("mysql://u:secret@h", "database is missing"),
            ("mysql://u:secret@h/", "database is missing"),
            ("mysql://u:secret@h/a/b", "must not contain"),
            ("mysql://u:secret@h/a%60b", "must not contain"),
            ("mysql://u:secret@h/a%00b", "control"),
            ("mysql://u:secret%ff@h/d", "UTF-8"),
            ("mysql://u:secret@h:0/d", "port"),
            ("mysql://u:secret@h:99999/d", "not a URL"),
            ("mysql://u:secret@h/d?timeout=0ms", "timeout"),
            ("mysql://u:secret@h/d?timeout=5", "timeout"),
            (
                "mysql://u:secret@h/d?timeout=18446744073709551615s",
                "timeout",
            ),
            ("mysql://u:secret@h/d?lanes=0", "lanes"),
            ("mysql://u:secret@h/d?lanes=65", "lanes"),
            ("mysql://u:secret@h/d?secret=1", "unknown option"),
            ("mysql://u:secret@h/d?ca=/x", "option ca works"),
            ("mysql://u:secret@h/d?cert=/x", "option cert works"),
            ("mysql://u:secret@h/d?key=/x", "option key works"),
            ("mysql://u:secret@h/d?socket=/x", "host localhost"),
            ("mysql://u:secret@localhost:1/d?socket=/x", "without a port"),
            ("mysql://u:secret@localhost/d?socket=x", "absolute path"),
            (
                "mysql://u:secret@%2Frun%2Fm.sock/d",
                "localhost/database?socket=/",
            ),
            (
                "mysql://u:secret@unix(/run/m.sock)/d",
                "localhost/database?socket=/",
            ),
            ("mysql://u:secret@h1,h2/d", "a URL of its own"),
            ("mysql://u:secret@h1:1,h2:2/d", "a URL of its own"),
            ("mysql://u:secret@h1,h2", "a URL of its own"),
            ("mysql://u:secret@h/d#x", "#"),
            ("mysql://u:se\tcret@h/d", "%09"),
            ("mysql://u:secret/@h/d", "%2F for /"),
            ("mysql://u:p@h/secret@x", "%40 for @"),
            ("mysqls://u:1?ca=secret@h/d", "%3F for ?"),
        ];
        for (url, expected) in cases {
            let error = Address::parse(url).unwrap_err().to_string();
            assert!(error.contains(expected), "{url}: {error}");
            assert!(!error.contains("secret"), "{url}: {error}");
        }
        let long_url = format!("mysql://u@h/{}", "x".repeat(65));
        assert!(Address::parse(&long_url).unwrap_err().0.contains("longer"));
    }

    #[cfg(not(feature = "tls-rustls"))]
    #[test]
    fn mysqls_url_without_the_tls_feature_is_refused() {
        let error = Address::parse("mysqls://u@h/d").unwrap_err().to_string();
        assert!(error.contains("tls-rustls"), "{error}");
    }

    #[cfg(feature = "tls-rustls")]
    #[test]
    fn url_option_ca_must_name_a_readable_file() {
        let address = Address::parse("mysqls://u@h/d?ca=/etc/ca.pem").unwrap();
        assert!(address.tls);
        assert_eq!(address.ca, Some("/etc/ca.pem".into()));
        let missing_file_error = Address::open("mysqls://u@h/d?ca=/no/such/file").unwrap_err();
        assert!(
            missing_file_error.0.contains("/no/such/file"),
            "{missing_file_error}"
        );
    }

    #[cfg(feature = "tls-rustls")]
    #[test]
    fn client_certificate_and_its_key_are_checked_before_the_first_connection() {
        let address = Address::parse("mysqls://u@h/d?cert=/c.pem&key=/k.pem").unwrap();
        assert_eq!(
            (address.cert, address.key),
            (Some("/c.pem".into()), Some("/k.pem".into()))
        );
        for url in ["mysqls://u@h/d?cert=/c.pem", "mysqls://u@h/d?key=/k.pem"] {
            assert!(
                Address::parse(url).unwrap_err().0.contains("together"),
                "{url}"
            );
        }
        let error = Address::parse("mysqls://u@localhost/d?socket=/x").unwrap_err();
        assert!(error.0.contains("mysql:// only"), "{error}");
        let write_file = |name: &str, text: &str| {
            let path = std::env::temp_dir().join(format!("quorate-{}-{name}", std::process::id()));
            std::fs::write(&path, text).unwrap();
            path
        };
        let certificate_pem = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
        let key_pem = certificate_pem.replace("CERTIFICATE", "EC PRIVATE KEY");
        let cert_path = write_file("cert", certificate_pem);
        for (pem, expected) in [
            (key_pem.as_str(), None),
            (&key_pem.replace("EC ", ""), None),
            (certificate_pem, Some("no private key in PEM form")),
            (
                &key_pem.replace("EC", "ENCRYPTED"),
                Some("without a passphrase"),
            ),
        ] {
            let key_path = write_file("key", pem);
            let (cert, key) = (cert_path.display(), key_path.display());
            let opened = Address::open(&format!("mysqls://u@h/d?cert={cert}&key={key}"));
            let error = opened.err().map(|error| error.0);
            assert_eq!(error.is_some(), expected.is_some(), "{error:?}");
            assert!(
                error
                    .unwrap_or_default()
                    .contains(expected.unwrap_or_default())
            );
        }
    }
}
