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
const TIMEOUT: Duration = Duration::from_millis(250);
/// The default number of sessions that one process opens to one server. The process distributes its requests over them.
const LANES: usize = 4;
/// The largest number of sessions that one process may open to one server.
const MOST_LANES: usize = 64;
/// The longest path of a Unix socket in bytes; a limit of Linux.
const LONGEST_SOCKET: usize = 107;
/// The form of a URL with a Unix socket, for error messages.
const SOCKET_FORM: &str = "mysql://user:password@localhost/database?socket=/run/mysqld/mysqld.sock";

/// The reason why a URL is not valid. It never contains the URL, which may include a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadUrl(String);

fn bad(why: impl Into<String>) -> BadUrl {
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
    pub(crate) met: Arc<AtomicBool>,
}

impl Address {
    /// Parses a URL, and checks the files that it names.
    pub(crate) fn open(url: &str) -> Result<Self, BadUrl> {
        #[cfg_attr(
            not(feature = "tls-rustls"),
            expect(unused_mut, reason = "only URLs with TLS name files")
        )]
        let mut address = Self::read(url)?;
        #[cfg(feature = "tls-rustls")]
        if address.ca.is_some() || address.cert.is_some() {
            let names = address.clone();
            let files = [&address.ca, &address.cert, &address.key];
            let files = files.into_iter().flatten().cloned().collect();
            let first = AtomicBool::new(true);
            let load = move || {
                let pem = names.read_files().map_err(|bad| bad.0)?;
                // At the start, the first connection reports what else is wrong with the files. Later, they replace
                // files that could be used.
                if !first.swap(false, Ordering::Relaxed) {
                    pem.check()?;
                }
                Ok(Arc::new(pem))
            };
            address.files = Some(Reread::new(files, None, load).map_err(bad)?);
        }
        Ok(address)
    }

    pub(crate) fn read(url: &str) -> Result<Self, BadUrl> {
        let url = url.trim();
        check_characters(url)?;
        check_hosts(url)?;
        let url = Url::parse(url).map_err(|why| bad(format!("not a URL: {why}")))?;
        let tls = match url.scheme() {
            "mysql" => false,
            "mysqls" => true,
            _ => return Err(bad("the scheme must be mysql://, or mysqls:// for TLS")),
        };
        if tls && !cfg!(feature = "tls-rustls") {
            return Err(bad(
                "mysqls:// needs the feature `tls-rustls` of quorate-mysql",
            ));
        }
        if url.fragment().is_some() {
            return Err(bad("a `#` is not allowed in the URL: write it as %23"));
        }
        let host = match url.host() {
            // The URL parser returns an IPv4 address as a domain name, because it does not know the scheme `mysql`.
            Some(Host::Domain(name)) if !name.is_empty() => text(name, "the host")?,
            Some(Host::Ipv4(ip)) => ip.to_string(),
            Some(Host::Ipv6(ip)) => ip.to_string(),
            _ => return Err(bad("the host is missing")),
        };
        let mut address = Self {
            user: text(url.username(), "the user")?,
            password: url
                .password()
                .map(|word| text(word, "the password"))
                .transpose()?,
            host,
            port: url.port().unwrap_or(3306),
            database: database(url.path())?,
            timeout: TIMEOUT,
            lanes: LANES,
            tls,
            ca: None,
            cert: None,
            key: None,
            #[cfg(feature = "tls-rustls")]
            files: None,
            socket: None,
            met: Arc::default(),
        };
        if address.user.is_empty() {
            return Err(bad(
                "the user is missing: write mysql://user:password@host/database",
            ));
        }
        if address.port == 0 {
            return Err(bad("the port must not be 0"));
        }
        // The options may replace defaults, so check the combinations only after them.
        for (name, value) in url.query_pairs() {
            address.option(&name, &value)?;
        }
        if address.cert.is_some() != address.key.is_some() {
            return Err(bad("the options cert and key must be given together"));
        }
        if address.socket.is_some() && (address.host != "localhost" || url.port().is_some()) {
            return Err(bad(format!(
                "the option socket needs the host localhost, without a port: write {SOCKET_FORM}"
            )));
        }
        Ok(address)
    }

    /// Reads the files, and checks that they contain what the client needs. Otherwise every connection would fail with
    /// the same error.
    #[cfg(feature = "tls-rustls")]
    fn read_files(&self) -> Result<Pem, BadUrl> {
        let read = |option, file: &Option<PathBuf>, what, wanted| match file {
            Some(file) => read_file(option, file, what, wanted).map(Some),
            None => Ok(None),
        };
        let begin = "-----BEGIN CERTIFICATE-----";
        let pem = Pem {
            ca: read("ca", &self.ca, "certificate", begin)?,
            cert: read("cert", &self.cert, "certificate", begin)?,
            key: read("key", &self.key, "private key", "PRIVATE KEY-----")?,
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

    fn option(&mut self, name: &str, value: &str) -> Result<(), BadUrl> {
        match name {
            "timeout" => {
                let timeout = duration(value).filter(|time| !time.is_zero());
                self.timeout = timeout.ok_or_else(|| {
                    bad("the option timeout must be a duration with a unit, for example 250ms or 1s")
                })?;
            }
            "lanes" => {
                let lanes = value.parse().ok().filter(|n| (1..=MOST_LANES).contains(n));
                let why = || {
                    bad(format!(
                        "the option lanes must be a number from 1 to {MOST_LANES}"
                    ))
                };
                self.lanes = lanes.ok_or_else(why)?;
            }
            "ca" | "cert" | "key" if !self.tls => {
                return Err(bad(format!("the option {name} works with mysqls:// only")));
            }
            "ca" => self.ca = Some(value.into()),
            "cert" => self.cert = Some(value.into()),
            "key" => self.key = Some(value.into()),
            "socket" if self.tls => {
                return Err(bad("the option socket works with mysql:// only"));
            }
            "socket" => {
                let is_path = value.starts_with('/') && !value.contains(char::is_control);
                if !is_path || value.len() > LONGEST_SOCKET {
                    return Err(bad(format!(
                        "the option socket must be an absolute path of at most {LONGEST_SOCKET} bytes"
                    )));
                }
                self.socket = Some(value.to_owned());
            }
            _ => {
                return Err(bad(
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
    what: &str,
    wanted: &str,
) -> Result<Vec<u8>, BadUrl> {
    let shown = file.to_string_lossy();
    let named = format!(
        "the option {option} names the file {}",
        quorate::redact::value(&shown)
    );
    let read = std::fs::read(file);
    let read = read.map_err(|why| bad(format!("{named}, which cannot be read: {why}")))?;
    let text = String::from_utf8_lossy(&read);
    if !text.contains(wanted) {
        return Err(bad(format!(
            "{named}, which contains no {what} in PEM form"
        )));
    }
    if option == "key" && text.contains("ENCRYPTED") {
        return Err(bad(format!(
            "{named}, whose key is encrypted: store it without a passphrase"
        )));
    }
    Ok(read)
}

/// Returns an error if the URL has a character that the URL parser removes without an error, or an `@` at a place that
/// may belong to the password: the text after the host is shown in reports, so it must be clear where it begins.
fn check_characters(url: &str) -> Result<(), BadUrl> {
    if url.contains(char::is_control) {
        return Err(bad(
            "a tab, line break or other control character is not allowed: in a password, write %09 for a tab and %0A for a line break",
        ));
    }
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    match rest.split_once(['/', '?', '#']) {
        Some((_, after)) if after.contains('@') => Err(bad(
            "an `@` follows a `/`, `?` or `#`: in a password, write %2F for /, %3F for ?, %23 for # and %40 for @",
        )),
        _ => Ok(()),
    }
}

/// Returns an error if the host is a path, or if the URL lists several hosts. `url` is the unparsed text, because the
/// URL parser reports a misleading error for such hosts.
fn check_hosts(url: &str) -> Result<(), BadUrl> {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let hosts = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let hosts = hosts.rsplit('@').next().unwrap_or_default();
    if hosts.contains(',') {
        return Err(bad(
            "the URL lists several hosts: give each server a URL of its own, such as \
             mysql://user:password@host1/database,mysql://user:password@host2/database",
        ));
    }
    let is_path = text(hosts, "the host")?.contains('/') || hosts.starts_with("unix(");
    if is_path {
        return Err(bad(format!(
            "the host is a path: for a Unix socket, write {SOCKET_FORM}"
        )));
    }
    Ok(())
}

fn text(encoded: &str, what: &str) -> Result<String, BadUrl> {
    let decoded = percent_decode_str(encoded).decode_utf8();
    let decoded = decoded.map_err(|_| bad(format!("{what} is not UTF-8")))?;
    if decoded.contains(char::is_control) {
        return Err(bad(format!("{what} contains a control character")));
    }
    Ok(decoded.into_owned())
}

fn database(path: &str) -> Result<String, BadUrl> {
    let name = text(path.strip_prefix('/').unwrap_or(path), "the database")?;
    match name.chars().count() {
        0 => Err(bad(
            "the database is missing: write mysql://user:password@host/database",
        )),
        1..=64 if !name.contains(['/', '\\', '.', '`']) && !name.ends_with(' ') => Ok(name),
        1..=64 => Err(bad(
            "the name of the database must not contain / \\ . ` or end with a space",
        )),
        _ => Err(bad("the name of the database is longer than 64 characters")),
    }
}

fn duration(text: &str) -> Option<Duration> {
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
        let read = Address::read("mysql://a%40b:p%2Fw@db.example:3307/locks?timeout=1s&lanes=2");
        let read = read.unwrap();
        assert_eq!(
            (read.user.as_str(), read.password.as_deref()),
            ("a@b", Some("p/w"))
        );
        assert_eq!(read.name(), "mysql db.example:3307/locks");
        assert_eq!((read.timeout, read.lanes), (Duration::from_secs(1), 2));
        let plain = Address::read("mysql://u@[::1]/d").unwrap();
        assert_eq!(plain.name(), "mysql [::1]:3306/d");
        assert_eq!(plain.host, "::1");
        assert_eq!((plain.timeout, plain.lanes), (TIMEOUT, LANES));
        let socket = Address::read("mysql://u:p@localhost/d?socket=/run/mysqld/mysqld.sock");
        let socket = socket.unwrap();
        assert_eq!(socket.socket.as_deref(), Some("/run/mysqld/mysqld.sock"));
        assert_eq!(socket.name(), "mysql /run/mysqld/mysqld.sock/d");
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
        for (url, why) in cases {
            let said = Address::read(url).unwrap_err().to_string();
            assert!(said.contains(why), "{url}: {said}");
            assert!(!said.contains("secret"), "{url}: {said}");
        }
        let long = format!("mysql://u@h/{}", "x".repeat(65));
        assert!(Address::read(&long).unwrap_err().0.contains("longer"));
    }

    #[cfg(not(feature = "tls-rustls"))]
    #[test]
    fn mysqls_url_without_the_tls_feature_is_refused() {
        let said = Address::read("mysqls://u@h/d").unwrap_err().to_string();
        assert!(said.contains("tls-rustls"), "{said}");
    }

    #[cfg(feature = "tls-rustls")]
    #[test]
    fn url_option_ca_must_name_a_readable_file() {
        let read = Address::read("mysqls://u@h/d?ca=/etc/ca.pem").unwrap();
        assert!(read.tls);
        assert_eq!(read.ca, Some("/etc/ca.pem".into()));
        let missing = Address::open("mysqls://u@h/d?ca=/no/such/file").unwrap_err();
        assert!(missing.0.contains("/no/such/file"), "{missing}");
    }

    #[cfg(feature = "tls-rustls")]
    #[test]
    fn client_certificate_and_its_key_are_checked_before_the_first_connection() {
        let read = Address::read("mysqls://u@h/d?cert=/c.pem&key=/k.pem").unwrap();
        assert_eq!(
            (read.cert, read.key),
            (Some("/c.pem".into()), Some("/k.pem".into()))
        );
        for url in ["mysqls://u@h/d?cert=/c.pem", "mysqls://u@h/d?key=/k.pem"] {
            assert!(
                Address::read(url).unwrap_err().0.contains("together"),
                "{url}"
            );
        }
        let said = Address::read("mysqls://u@localhost/d?socket=/x").unwrap_err();
        assert!(said.0.contains("mysql:// only"), "{said}");
        let file = |name: &str, text: &str| {
            let path = std::env::temp_dir().join(format!("quorate-{}-{name}", std::process::id()));
            std::fs::write(&path, text).unwrap();
            path
        };
        let certificate = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
        let key = certificate.replace("CERTIFICATE", "EC PRIVATE KEY");
        let cert = file("cert", certificate);
        for (text, says) in [
            (key.as_str(), None),
            (&key.replace("EC ", ""), None),
            (certificate, Some("no private key in PEM form")),
            (
                &key.replace("EC", "ENCRYPTED"),
                Some("without a passphrase"),
            ),
        ] {
            let key = file("key", text);
            let (cert, key) = (cert.display(), key.display());
            let opened = Address::open(&format!("mysqls://u@h/d?cert={cert}&key={key}"));
            let said = opened.err().map(|why| why.0);
            assert_eq!(said.is_some(), says.is_some(), "{said:?}");
            assert!(said.unwrap_or_default().contains(says.unwrap_or_default()));
        }
    }
}
