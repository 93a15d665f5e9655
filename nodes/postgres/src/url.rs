//! Parses the URL of a PostgreSQL server.
//!
//! # Why like this
//!
//! - **Own parser.** The URLs of PostgreSQL allow an empty host after a user, which the crate `url` refuses, and
//!   several hosts. `tokio-postgres` accepts several hosts, too: a master that is one of several servers would get a
//!   vote from each of them. So several hosts are refused.
//! - **No `sslmode=prefer`.** It encrypts without a check, and falls back to plain text if somebody in the network says
//!   so. It is refused with a sentence. `sslmode=require` checks the certificate as `verify-full` does, because an
//!   encryption that anybody can end protects no password.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use quorate::reread::Reread;

use crate::passfile::{self, Wanted};

/// The default timeout of one request. It is longer than for a Redis server, because a commit waits for the server's
/// disk.
const TIMEOUT: Duration = Duration::from_millis(250);
/// The default number of sessions that one process opens to one server. The process distributes its requests over them.
const LANES: usize = 4;
/// The largest number of sessions that one process may open to one server.
const MOST_LANES: usize = 64;
/// The port of a server whose URL names none.
const PORT: u16 = 5432;
/// The longest path of a Unix socket in bytes; a limit of Linux.
const LONGEST_SOCKET: usize = 107;
/// The longest name of a database in bytes. The server would cut a longer name without an error.
const LONGEST_DATABASE: usize = 63;
/// The form of a URL, for error messages.
const FORM: &str = "postgres://user:password@host/database";
/// The form of a URL with a Unix socket, for error messages.
const SOCKET_FORM: &str = "postgres://user@/database?host=/run/postgresql";

/// The reason why a URL is not valid. It never contains the URL, which may include a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadUrl(String);

fn bad(why: impl Into<String>) -> BadUrl {
    BadUrl(why.into())
}

/// The place where a server accepts connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Tcp {
        host: String,
        port: u16,
    },
    /// A Unix socket. Its name contains the port of the server.
    Unix {
        folder: String,
        port: u16,
        socket: PathBuf,
    },
}

/// The parts of the URL of a PostgreSQL server.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) user: String,
    password: Option<String>,
    passfile: Option<PathBuf>,
    /// The password in `passfile`, which follows changes of the file. `None` without `passfile`, or if the URL was only
    /// parsed.
    password_of_file: Option<Arc<Reread<String>>>,
    pub(crate) place: Place,
    pub(crate) database: String,
    pub(crate) timeout: Duration,
    pub(crate) lanes: usize,
    pub(crate) tls: bool,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    /// The configuration of TLS, which follows changes of the files. `None` without TLS, or if the URL was only parsed.
    #[cfg(feature = "tls-rustls")]
    pub(crate) config: Option<Arc<Reread<Arc<rustls::ClientConfig>>>>,
    /// Whether this process has logged in to the server before.
    pub(crate) met: Arc<AtomicBool>,
}

impl Address {
    /// Parses a URL, and reads the files that it names.
    pub(crate) fn open(url: &str) -> Result<Self, BadUrl> {
        let mut address = Self::read(url)?;
        if let Some(file) = &address.passfile {
            let names = address.clone();
            let load = move || names.read_passfile();
            let reread = Reread::new(vec![file.clone()], None, load).map_err(bad)?;
            address.password_of_file = Some(reread);
        }
        #[cfg(feature = "tls-rustls")]
        if address.tls {
            let advice = "add ?sslrootcert= to the URL";
            address.config = Some(address.certificates().reread_config(advice).map_err(bad)?);
        }
        Ok(address)
    }

    /// The files with certificates that the URL names.
    #[cfg(feature = "tls-rustls")]
    fn certificates(&self) -> quorate::Tls {
        let mut tls = quorate::Tls::default();
        if let Some(file) = &self.ca {
            tls = tls.root_file(file);
        }
        if let (Some(chain), Some(key)) = (&self.cert, &self.key) {
            tls = tls.client_files(chain, key);
        }
        tls
    }

    pub(crate) fn read(url: &str) -> Result<Self, BadUrl> {
        let url = url.trim();
        check_characters(url)?;
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| bad(format!("not a URL: write {FORM}")))?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "postgres" | "postgresql" => false,
            "postgres+tls" | "postgresql+tls" => true,
            _ => {
                return Err(bad(
                    "the scheme must be postgres://, or postgres+tls:// for TLS",
                ));
            }
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (user, Some(text(password, "the password")?)),
            None => (login, None),
        };
        let mut address = Self {
            user: text(user, "the user")?,
            password,
            passfile: None,
            password_of_file: None,
            place: place(host)?,
            database: database(path)?,
            timeout: TIMEOUT,
            lanes: LANES,
            tls,
            ca: None,
            cert: None,
            key: None,
            #[cfg(feature = "tls-rustls")]
            config: None,
            met: Arc::default(),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (text(name, "an option")?, text(value, "an option")?);
            address.option(&name, &value)?;
        }
        address.check()?;
        Ok(address)
    }

    /// Checks the combination of all parts. The options may replace defaults, so they are read before.
    fn check(&self) -> Result<(), BadUrl> {
        if self.user.is_empty() {
            return Err(bad(format!("the user is missing: write {FORM}")));
        }
        if self.password.is_some() && self.passfile.is_some() {
            return Err(bad(
                "the URL has a password and the option passfile: remove one of them",
            ));
        }
        if self.cert.is_some() != self.key.is_some() {
            return Err(bad("the options sslcert and sslkey must be given together"));
        }
        if self.tls && !cfg!(feature = "tls-rustls") {
            return Err(bad(
                "TLS needs the feature `tls-rustls` of quorate-postgres",
            ));
        }
        let names_files = self.ca.is_some() || self.cert.is_some();
        if names_files && !self.tls {
            return Err(bad(
                "the options sslrootcert, sslcert and sslkey work with postgres+tls:// or sslmode=verify-full only",
            ));
        }
        match &self.place {
            Place::Unix { .. } if self.tls => Err(bad(
                "a Unix socket needs no TLS: use postgres:// without sslmode",
            )),
            Place::Tcp { host, .. } if host.is_empty() => Err(bad(format!(
                "the host is missing: write {FORM}, or {SOCKET_FORM} for a Unix socket"
            ))),
            _ => Ok(()),
        }
    }

    /// The password to log in with; `None` if the URL gives none.
    pub(crate) async fn password(&self) -> Option<String> {
        match &self.password_of_file {
            Some(file) => Some(file.current().await),
            None => self.password.clone(),
        }
    }

    fn read_passfile(&self) -> Result<String, String> {
        let file = self.passfile.as_deref().ok_or("no passfile")?;
        let (hosts, port) = match &self.place {
            Place::Tcp { host, port } => (vec![host.as_str()], *port),
            Place::Unix { folder, port, .. } => (vec!["localhost", folder.as_str()], *port),
        };
        let wanted = Wanted {
            hosts: &hosts,
            port,
            database: &self.database,
            user: &self.user,
        };
        passfile::password(file, &wanted)
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
            "host" => self.place = self.folder_in_option(value)?,
            "passfile" => self.passfile = Some(value.into()),
            "sslmode" => self.tls = sslmode(value, self.tls)?,
            "sslrootcert" if value == "system" => self.ca = None,
            "sslrootcert" => self.ca = Some(value.into()),
            "sslcert" => self.cert = Some(value.into()),
            "sslkey" => self.key = Some(value.into()),
            _ => {
                return Err(bad(
                    "unknown option after the `?`: the options are timeout, lanes, host, passfile, sslmode, \
                     sslrootcert, sslcert and sslkey",
                ));
            }
        }
        Ok(())
    }

    /// The Unix socket in the folder that the option `host` names.
    fn folder_in_option(&self, folder: &str) -> Result<Place, BadUrl> {
        match &self.place {
            Place::Tcp { host, port } if host.is_empty() => unix(folder, *port),
            _ => Err(bad(format!(
                "the option host needs a URL without a host: write {SOCKET_FORM}"
            ))),
        }
    }

    /// Advice for a refused login: a change of the URL that may help. `None` if no change is likely to help.
    pub(crate) fn advice(&self) -> Option<&'static str> {
        match (self.tls, &self.cert, &self.place) {
            (false, _, Place::Tcp { .. }) => {
                Some("if the server or this user requires TLS, use postgres+tls://")
            }
            (true, None, _) => Some(
                "if this user requires a client certificate, add ?sslcert= and ?sslkey= to the URL",
            ),
            _ => None,
        }
    }

    /// The name of the server in reports: the URL without user and password.
    pub(crate) fn name(&self) -> String {
        let database = &self.database;
        match &self.place {
            Place::Unix { socket, .. } => format!("postgres {}/{database}", socket.display()),
            Place::Tcp { host, port } if host.contains(':') => {
                format!("postgres [{host}]:{port}/{database}")
            }
            Place::Tcp { host, port } => format!("postgres {host}:{port}/{database}"),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// Whether the connection is encrypted. `is_tls` is true if the scheme of the URL asks for TLS.
fn sslmode(value: &str, is_tls: bool) -> Result<bool, BadUrl> {
    match value {
        "require" | "verify-full" => Ok(true),
        "disable" if is_tls => Err(bad(
            "the scheme postgres+tls:// contradicts sslmode=disable: remove one of them",
        )),
        "disable" => Ok(false),
        "verify-ca" => Err(bad(
            "sslmode=verify-ca is not supported, because the host name is always checked: write sslmode=verify-full",
        )),
        "allow" | "prefer" => Err(bad(
            "this sslmode encrypts only if the network allows it: write sslmode=verify-full or sslmode=disable",
        )),
        _ => Err(bad(
            "the option sslmode must be disable, require or verify-full",
        )),
    }
}

/// Returns an error for characters that would be misunderstood: control characters, a `#`, and an `@` at a place that
/// may belong to the password. The text after the host is shown in reports, so it must be clear where it begins.
fn check_characters(url: &str) -> Result<(), BadUrl> {
    if url.contains(char::is_control) {
        return Err(bad(
            "a tab, line break or other control character is not allowed: in a password, write %09 for a tab, and \
             %0A for a line break",
        ));
    }
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    match rest.split_once(['/', '?', '#']) {
        Some((_, after)) if after.contains('@') => Err(bad(
            "an `@` follows a `/`, `?` or `#`: in a password, write %2F for /, %3F for ?, %23 for # and %40 for @",
        )),
        _ if rest.contains('#') => Err(bad("a `#` is not allowed in the URL: write it as %23")),
        _ => Ok(()),
    }
}

/// The place of the host and the port in a URL. The host may be the folder of a Unix socket, as `%2Frun%2Fpostgresql`.
fn place(authority: &str) -> Result<Place, BadUrl> {
    if authority.contains(',') {
        return Err(bad(format!(
            "the URL lists several hosts, but a master is one server: give each server a URL of its own, such as \
             {FORM},postgres://user:password@host2/database"
        )));
    }
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest
            .split_once(']')
            .ok_or_else(|| bad("the host begins with `[`, but has no `]`"))?;
        let address: std::net::Ipv6Addr = host
            .parse()
            .map_err(|_| bad("the host in brackets is no IPv6 address"))?;
        let port = match rest.strip_prefix(':') {
            Some(port) => Some(port),
            None if rest.is_empty() => None,
            None => return Err(bad("text follows the `]` of the host")),
        };
        (address.to_string(), port)
    } else {
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        };
        if host.contains(':') {
            return Err(bad("write an IPv6 address in brackets, such as [::1]"));
        }
        (text(host, "the host")?, port)
    };
    let port = match port {
        None | Some("") => PORT,
        Some(digits) => {
            let port = digits.parse().ok().filter(|port| *port != 0);
            port.ok_or_else(|| bad("the port must be a number from 1 to 65535"))?
        }
    };
    if host.starts_with('/') {
        return unix(&host, port);
    }
    if host.contains(|c: char| c.is_whitespace() || "/\\?#@<>^|%".contains(c)) {
        return Err(bad("the host contains a character that is not allowed"));
    }
    Ok(Place::Tcp { host, port })
}

/// The Unix socket of a server in this folder.
fn unix(folder: &str, port: u16) -> Result<Place, BadUrl> {
    if !folder.starts_with('/') {
        return Err(bad(format!(
            "the option host must be the folder of a Unix socket, an absolute path: write {SOCKET_FORM}"
        )));
    }
    let folder = folder.trim_end_matches('/').to_owned();
    let socket = format!("{folder}/.s.PGSQL.{port}");
    if socket.len() > LONGEST_SOCKET {
        return Err(bad(format!(
            "the path of the Unix socket has more than {LONGEST_SOCKET} bytes"
        )));
    }
    let socket = socket.into();
    Ok(Place::Unix {
        folder,
        port,
        socket,
    })
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
    let name = text(path, "the database")?;
    match name.len() {
        0 => Err(bad(format!("the database is missing: write {FORM}"))),
        1..=LONGEST_DATABASE if name.contains(['/', '\\', '"', '\'']) => Err(bad(
            "the name of the database must not contain / \\ \" or '",
        )),
        1..=LONGEST_DATABASE => Ok(name),
        _ => Err(bad(format!(
            "the name of the database is longer than {LONGEST_DATABASE} bytes"
        ))),
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
    use proptest::prelude::*;

    use super::*;

    fn read(url: &str) -> Address {
        Address::read(url).unwrap_or_else(|why| panic!("{url}: {why}"))
    }

    fn refused(url: &str) -> String {
        Address::read(url).expect_err(url).to_string()
    }

    #[test]
    fn url_with_every_part_is_parsed() {
        let read = read("postgresql://a%40b:p%2Fw@db.example:5433/locks?timeout=1s&lanes=2");
        assert_eq!(
            (read.user.as_str(), read.password.as_deref()),
            ("a@b", Some("p/w"))
        );
        let (host, port) = ("db.example".into(), 5433);
        assert_eq!(read.place, Place::Tcp { host, port });
        assert_eq!((read.database.as_str(), read.lanes), ("locks", 2));
        assert_eq!(read.timeout, Duration::from_secs(1));
        assert_eq!(read.name(), "postgres db.example:5433/locks");
        assert_eq!(format!("{read:?}"), read.name());
    }

    #[test]
    fn host_is_a_name_an_address_or_the_folder_of_a_socket() {
        assert_eq!(read("postgres://u@[::1]/d").name(), "postgres [::1]:5432/d");
        assert_eq!(
            read("postgres://u@10.0.0.1/d").name(),
            "postgres 10.0.0.1:5432/d"
        );
        let socket = "postgres /run/pg/.s.PGSQL.5433/d";
        assert_eq!(read("postgres://u@:5433/d?host=/run/pg").name(), socket);
        assert_eq!(read("postgres://u@%2Frun%2Fpg:5433/d").name(), socket);
        assert!(refused("postgres://u@h/d?host=/run/pg").contains("without a host"));
        assert!(refused("postgres://u@/d?host=db").contains("absolute path"));
        assert!(refused("postgres://u@/d").contains("host is missing"));
        assert!(refused("postgres://u@::1/d").contains("brackets"));
        assert!(refused("postgres://u@a,b/d").contains("several hosts"));
        assert!(refused("postgres://u@a:1,b:2/d").contains("several hosts"));
    }

    #[test]
    fn sslmode_that_checks_no_certificate_is_refused_or_made_strict() {
        for weak in ["allow", "prefer"] {
            assert!(refused(&format!("postgres://u@h/d?sslmode={weak}")).contains("verify-full"));
        }
        assert!(refused("postgres://u@h/d?sslmode=verify-ca").contains("verify-full"));
        assert!(refused("postgres+tls://u@h/d?sslmode=disable").contains("contradicts"));
        assert!(!read("postgres://u@h/d?sslmode=disable").tls);
        assert!(refused("postgres://u@h/d?sslrootcert=/ca").contains("postgres+tls://"));
        if cfg!(feature = "tls-rustls") {
            for url in ["postgres+tls://u@h/d", "postgresql://u@h/d?sslmode=require"] {
                assert!(read(url).tls, "{url}");
            }
            assert!(refused("postgres+tls://u@/d?host=/run").contains("needs no TLS"));
            assert!(refused("postgres+tls://u@h/d?sslcert=/c").contains("together"));
        } else {
            assert!(refused("postgres+tls://u@h/d").contains("tls-rustls"));
        }
    }

    #[test]
    fn error_names_the_wrong_part_and_never_the_password() {
        for (url, expected) in [
            ("mysql://u:secret@h/d", "scheme"),
            ("postgres://h/d", "user is missing"),
            ("postgres://u:secret@h", "database is missing"),
            ("postgres://u:secret@h:0/d", "port"),
            ("postgres://u:secret@h:x/d", "port"),
            ("postgres://u:sec/ret@h/d", "%2F"),
            ("postgres://u:sec#ret@h/d", "%23"),
            ("postgres://u:secret@h/d?timeout=5", "duration"),
            ("postgres://u:secret@h/d?lanes=65", "lanes"),
            (
                "postgres://u:secret@h/d?target_session_attrs=any",
                "unknown option",
            ),
            ("postgres://u:secret@h/d?passfile=/f", "remove one"),
            ("postgres://u:secret@h/a%22b", "must not contain"),
            ("not a URL", "not a URL"),
        ] {
            let why = refused(url);
            assert!(why.contains(expected), "{url}: {why}");
            assert!(!why.contains("secret") && !why.contains("ret@"), "{why}");
        }
    }

    proptest! {
        #[test]
        fn no_url_causes_a_panic(text in any::<String>(), rest in "[a-z0-9:/@?&=%,\\[\\]#.+-]{0,40}") {
            drop(Address::read(&text));
            drop(Address::read(&format!("postgres://{rest}")));
        }
    }
}
