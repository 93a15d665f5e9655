//! Parses the URL of a ZooKeeper server or ensemble.

use std::fmt;
use std::time::Duration;

/// The default timeout of one request. It is longer than for a Redis server, because a commit waits for the disks of a
/// majority of the ensemble.
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(500);
/// The default session timeout. If the server receives nothing from a process for this time, it removes the process's
/// ephemeral znodes.
const DEFAULT_SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// The path for a URL that names none. All znodes except `/quorate-server` are below the path.
const DEFAULT_PATH: &str = "/quorate";

/// The reason why a URL is not valid. It never contains a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a ZooKeeper URL: {0}; write zk://host:2181+host/path")]
pub struct BadUrl(String);

/// The parts of the URL of a ZooKeeper server or ensemble.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) hosts: Vec<String>,
    pub(crate) path: String,
    pub(crate) timeout: Duration,
    pub(crate) session_timeout: Duration,
    pub(crate) user: Option<User>,
}

/// A user and its password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) password: String,
}

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Self, BadUrl> {
        let after_scheme = match url.trim().split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("zk") => rest,
            Some((scheme, _)) if is_tls(scheme) => {
                return Err(bad_url("TLS to ZooKeeper is not supported"));
            }
            Some(_) => {
                // An unknown word may be a part of a password that contains `://`.
                return Err(bad_url(match quorate::redact::scheme(url) {
                    Some(scheme) => format!("the scheme is {scheme:?}, not zk"),
                    None => "the scheme is not zk".to_owned(),
                }));
            }
            None => return Err(bad_url("the URL does not begin with zk://")),
        };
        let (without_query, query) = after_scheme.split_once('?').unwrap_or((after_scheme, ""));
        // Split at the last `@` first: a password may contain a slash, but a path contains no `@`.
        let (user, hosts_and_path) = match without_query.rsplit_once('@') {
            Some((user, after)) => (Some(User::parse(user)?), after),
            None => (None, without_query),
        };
        let (hosts, path) = match hosts_and_path.find('/') {
            Some(slash) => hosts_and_path.split_at(slash),
            None => (hosts_and_path, ""),
        };
        if hosts.contains(',') {
            return Err(bad_url("the hosts are separated by commas instead of `+`"));
        }
        let mut address = Self {
            hosts: hosts.split('+').map(parse_host).collect::<Result<_, _>>()?,
            path: parse_path(path)?,
            timeout: DEFAULT_TIMEOUT,
            session_timeout: DEFAULT_SESSION_TIMEOUT,
            user,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            address.set_option(pair)?;
        }
        if address.session_timeout < address.timeout * 5 / 2 {
            return Err(bad_url(
                "the option session must be at least 2.5 times the option timeout",
            ));
        }
        Ok(address)
    }

    fn set_option(&mut self, pair: &str) -> Result<(), BadUrl> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let target = match name {
            "timeout" => &mut self.timeout,
            "session" => &mut self.session_timeout,
            _ => {
                return Err(bad_url(
                    "unknown option: the options are timeout and session",
                ));
            }
        };
        let parsed = humantime::parse_duration(value).ok();
        *target = parsed
            .filter(|duration| (1..=3_600_000).contains(&duration.as_millis()))
            .ok_or_else(|| {
                bad_url(format!(
                    "the option {name} must be a duration such as 500ms, at most 1h"
                ))
            })?;
        Ok(())
    }

    /// The URL without user, password and options.
    pub(crate) fn url(&self) -> String {
        format!("zk://{}{}", self.hosts.join("+"), self.path)
    }

    /// The name of the ensemble in reports, without credentials.
    pub(crate) fn name(&self) -> String {
        format!("zk {}{}", self.hosts.join("+"), self.path)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url())
    }
}

impl User {
    fn parse(text: &str) -> Result<Self, BadUrl> {
        let (name, password) = text
            .split_once(':')
            .ok_or_else(|| bad_url("the text before the @ is not user:password"))?;
        if name.is_empty() || password.is_empty() {
            return Err(bad_url("the user or the password is empty"));
        }
        let decode = |text| {
            decode_percent(text)
                .ok_or_else(|| bad_url("the user or the password is not valid UTF-8"))
        };
        Ok(Self {
            name: decode(name)?,
            password: decode(password)?,
        })
    }
}

/// Whether a URL with this scheme asks for TLS: `zks`, `zk+tls`, `zookeeper+ssl`.
fn is_tls(scheme: &str) -> bool {
    let (name, suffix) = scheme.split_once('+').unwrap_or((scheme, ""));
    name == "zks" || matches!(suffix, "tls" | "ssl")
}

/// Parses a host with or without a port: `host`, `host:2181`, `[::1]:2181`.
fn parse_host(text: &str) -> Result<String, BadUrl> {
    let empty_host = || bad_url("a host in the list is empty");
    // The error does not quote `text`: if a password contains an unencoded `?`, `text` may be a part of the password.
    let invalid_host =
        || bad_url("an entry in the list of hosts is not a valid host name or address");
    let (host, port) = match text.strip_prefix('[') {
        Some(after_opening) => {
            let (host, after_bracket) = after_opening.split_once(']').ok_or_else(invalid_host)?;
            let port = after_bracket.strip_prefix(':');
            if port.is_none() && !after_bracket.is_empty() {
                return Err(invalid_host());
            }
            (host, port)
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err(empty_host());
    }
    let is_forbidden = |c: char| c.is_whitespace() || c.is_control() || c == '%';
    if host.contains(is_forbidden) {
        return Err(invalid_host());
    }
    match port.map(str::parse::<u16>) {
        None | Some(Ok(1..)) => Ok(text.to_owned()),
        _ => Err(bad_url(
            "the port of a host is not a number from 1 to 65535",
        )),
    }
}

/// The host with its port, or with port 2181 if the URL names no port.
pub(crate) fn with_port(host: &str) -> String {
    let after_bracket = host.rsplit_once(']').map_or(host, |(_, after)| after);
    if after_bracket.contains(':') {
        host.to_owned()
    } else {
        format!("{host}:2181")
    }
}

/// Checks the path of a URL by ZooKeeper's rules, and returns it decoded. An empty path becomes `/quorate`.
fn parse_path(text: &str) -> Result<String, BadUrl> {
    let encoded = text.trim_end_matches('/');
    if encoded.is_empty() {
        return Ok(DEFAULT_PATH.to_owned());
    }
    let path = decode_percent(encoded).ok_or_else(|| bad_url("the path is not valid UTF-8"))?;
    for part in path.split('/').skip(1) {
        if matches!(part, "" | "." | "..") || part.contains(char::is_control) {
            // The error does not quote `part`: if the host is missing, it may be a part of the password.
            return Err(bad_url(
                "the path is invalid: between two slashes there must be a name without control characters, and not . or ..",
            ));
        }
    }
    if path == "/zookeeper" || path.starts_with("/zookeeper/") {
        return Err(bad_url(
            "the path /zookeeper is reserved by ZooKeeper: use another path",
        ));
    }
    Ok(path)
}

/// Decodes percent-encoding: `%41` becomes `A`. `None` if the text is malformed.
fn decode_percent(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, following @ ..] = rest {
        rest = following;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok()
}

fn bad_url(why: impl Into<String>) -> BadUrl {
    BadUrl(why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_with_every_part_is_parsed() {
        let parsed =
            Address::parse("zk://ann:s%40/x@h1:2181+[::1]:2182+h3/a/b?timeout=1s&session=4s");
        let address = parsed.unwrap();
        assert_eq!(address.hosts, ["h1:2181", "[::1]:2182", "h3"]);
        assert_eq!(address.path, "/a/b");
        assert_eq!(address.timeout, Duration::from_secs(1));
        assert_eq!(address.session_timeout, Duration::from_secs(4));
        let user = address.user.as_ref().unwrap();
        assert_eq!((&*user.name, &*user.password), ("ann", "s@/x"));
        assert_eq!(address.name(), "zk h1:2181+[::1]:2182+h3/a/b");
        assert!(!format!("{address:?}").contains("s@"));
    }

    #[test]
    fn host_without_a_port_gets_port_2181() {
        for (host, expected) in [("h", "h:2181"), ("h:1", "h:1"), ("[::1]", "[::1]:2181")] {
            assert_eq!(with_port(host), expected);
        }
        assert_eq!(with_port("[::1]:1"), "[::1]:1");
    }

    #[test]
    fn url_without_path_and_settings_gets_the_defaults() {
        for url in ["zk://h", "zk://h/", "zk://h?", "ZK://h"] {
            let address = Address::parse(url).unwrap();
            assert_eq!(address.name(), "zk h/quorate");
            assert_eq!(address.timeout, Duration::from_millis(500));
            assert_eq!(address.session_timeout, Duration::from_secs(10));
            assert!(address.user.is_none());
        }
    }

    #[test]
    fn invalid_url_is_refused_with_the_reason_and_without_the_password() {
        for (url, expected) in [
            ("redis://h", "scheme is \"redis\""),
            ("zk:/ann:secret://x@h", "scheme is not zk"),
            ("zk://ann:1/secret//x", "path is invalid"),
            ("h:2181", "does not begin"),
            ("zks://h", "TLS"),
            ("zk+tls://h", "TLS"),
            ("zookeeper://h", "scheme is \"zookeeper\", not zk"),
            ("zk://", "a host in the list is empty"),
            ("zk:///path", "a host in the list is empty"),
            ("zk://h1++h2", "a host in the list is empty"),
            ("zk://h1+h2+/path", "a host in the list is empty"),
            ("zk://:2181", "a host in the list is empty"),
            (
                "zk://h1:2181,h2:2181/p",
                "commas instead of `+`; write zk://host:2181+host/path",
            ),
            ("zk://ann:secret@h1,h2", "commas instead of `+`"),
            ("zk://h1 h2", "is not a valid host"),
            ("zk://[::1", "is not a valid host"),
            ("zk://h:0", "the port of a host"),
            ("zk://h:99999", "the port of a host"),
            ("zk://h:", "the port of a host"),
            ("zk://h//a", "path is invalid"),
            ("zk://h/a/../b", "is invalid"),
            ("zk://h/zookeeper", "reserved"),
            ("zk://h/zookeeper/quota", "reserved"),
            ("zk://h/%ff", "not valid UTF-8"),
            ("zk://h/%0a", "is invalid"),
            ("zk://h?timeout=", "must be a duration"),
            ("zk://h?timeout=0s", "must be a duration"),
            ("zk://h?session=2h", "must be a duration"),
            ("zk://h?timeout=5s", "2.5 times"),
            ("zk://h?colour=red", "unknown option"),
            ("zk://secret@h", "is not user:password"),
            ("zk://:secret@h", "is empty"),
            // The password contains a character that should have been percent-encoded, so the URL is split at the wrong
            // place.
            ("zk://ann:secret?x@h/a", "the port of a host"),
            ("zk://ann:pass?secret@h/a", "the port of a host"),
            ("zk://ann:secret", "the port of a host"),
            ("zk://h?secret@h/a", "unknown option"),
            ("zk://h?timeout=secret@h/a", "must be a duration"),
        ] {
            let error = Address::parse(url).expect_err(url).to_string();
            assert!(error.contains(expected), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
