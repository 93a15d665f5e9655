//! Parses the URL of a MySQL or MariaDB server.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use url::{Host, Url};

/// The default timeout of one request. It is this long because a commit waits for the disk.
const TIMEOUT: Duration = Duration::from_millis(250);
/// The default number of sessions that share the requests.
const LANES: usize = 4;
/// The largest number of sessions that one process may open to one server.
const MOST_LANES: usize = 64;

/// The reason why a URL is not valid. It never contains the URL, which may include a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadUrl(String);

fn bad(why: impl Into<String>) -> BadUrl {
    BadUrl(why.into())
}

/// The contents of a URL.
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
    /// The file with the certificate authorities that are trusted for the server's certificate.
    pub(crate) ca: Option<PathBuf>,
}

impl Address {
    pub(crate) fn read(url: &str) -> Result<Self, BadUrl> {
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
            // `mysql` is not a web scheme, so the URL parser returns an IP address as a name.
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
        };
        if address.user.is_empty() {
            return Err(bad(
                "the user is missing: write mysql://user:password@host/database",
            ));
        }
        if address.port == 0 {
            return Err(bad("the port must not be 0"));
        }
        for (name, value) in url.query_pairs() {
            address.option(&name, &value)?;
        }
        Ok(address)
    }

    /// Checks that the certificate file can be read. Otherwise every connection would fail with the same error.
    pub(crate) fn check_files(&self) -> Result<(), BadUrl> {
        let Some(ca) = &self.ca else { return Ok(()) };
        let read = std::fs::File::open(ca);
        read.map(drop).map_err(|why| {
            bad(format!(
                "the option ca names the file {}, which cannot be read: {why}",
                ca.display()
            ))
        })
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
            "ca" if self.tls => self.ca = Some(value.into()),
            "ca" => return Err(bad("the option ca works with mysqls:// only")),
            _ => {
                return Err(bad(
                    "unknown option after the `?`: the options are timeout, lanes and ca",
                ));
            }
        }
        Ok(())
    }

    /// The name of the server in reports: the URL without user and password.
    pub(crate) fn name(&self) -> String {
        let Self { host, port, .. } = self;
        let database = &self.database;
        if host.contains(':') {
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
        1..=64 => Err(bad("the database must be one name, without / \\ . `")),
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
            ("mysql://u:secret@h/a/b", "one name"),
            ("mysql://u:secret@h/a%60b", "one name"),
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
            ("mysql://u:secret@h/d#x", "#"),
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
    fn option_ca_must_name_a_readable_file() {
        let read = Address::read("mysqls://u@h/d?ca=/etc/ca.pem").unwrap();
        assert!(read.tls);
        assert_eq!(read.ca, Some("/etc/ca.pem".into()));
    }
}
