//! Parses the URL of a ZooKeeper server or ensemble.

use std::fmt;
use std::time::Duration;

/// The default timeout of one request. It is longer than for a Redis server, because a commit waits for the disks of a
/// majority of the ensemble.
const TIMEOUT: Duration = Duration::from_millis(500);
/// The default session timeout. If the server receives nothing from a process for this time, it removes the process's
/// ephemeral znodes.
const SESSION: Duration = Duration::from_secs(10);
/// The path for a URL that names none. All znodes except `/quorate-server` are below the path.
const PATH: &str = "/quorate";

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
    pub(crate) session: Duration,
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
        let rest = match url.trim().split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("zk") => rest,
            Some((scheme, _)) if is_tls(scheme) => {
                return Err(bad("TLS to ZooKeeper is not supported"));
            }
            Some(_) => {
                // An unknown word may be a part of a password that contains `://`.
                return Err(bad(match quorate::redact::scheme(url) {
                    Some(scheme) => format!("the scheme is {scheme:?}, not zk"),
                    None => "the scheme is not zk".to_owned(),
                }));
            }
            None => return Err(bad("the URL does not begin with zk://")),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // Split at the last `@` first: a password may contain a slash, but a path contains no `@`.
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, rest)) => (Some(User::parse(user)?), rest),
            None => (None, rest),
        };
        let (hosts, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        if hosts.contains(',') {
            return Err(bad("the hosts are separated by commas instead of `+`"));
        }
        let mut address = Self {
            hosts: hosts.split('+').map(parse_host).collect::<Result<_, _>>()?,
            path: parse_path(path)?,
            timeout: TIMEOUT,
            session: SESSION,
            user,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            address.set(pair)?;
        }
        if address.session < address.timeout * 5 / 2 {
            return Err(bad(
                "the option session must be at least 2.5 times the option timeout",
            ));
        }
        Ok(address)
    }

    fn set(&mut self, pair: &str) -> Result<(), BadUrl> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let place = match name {
            "timeout" => &mut self.timeout,
            "session" => &mut self.session,
            _ => return Err(bad("unknown option: the options are timeout and session")),
        };
        let read = humantime::parse_duration(value).ok();
        *place = read
            .filter(|length| (1..=3_600_000).contains(&length.as_millis()))
            .ok_or_else(|| {
                bad(format!(
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
            .ok_or_else(|| bad("the text before the @ is not user:password"))?;
        if name.is_empty() || password.is_empty() {
            return Err(bad("the user or the password is empty"));
        }
        let read =
            |text| plain(text).ok_or_else(|| bad("the user or the password is not valid UTF-8"));
        Ok(Self {
            name: read(name)?,
            password: read(password)?,
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
    let empty = || bad("a host in the list is empty");
    // The error does not quote `text`: if a password contains an unencoded `?`, `text` may be a part of the password.
    let strange = || bad("an entry in the list of hosts is not a valid host name or address");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or_else(strange)?;
            let port = after.strip_prefix(':');
            if port.is_none() && !after.is_empty() {
                return Err(strange());
            }
            (host, port)
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err(empty());
    }
    let strange_letter = |c: char| c.is_whitespace() || c.is_control() || c == '%';
    if host.contains(strange_letter) {
        return Err(strange());
    }
    match port.map(str::parse::<u16>) {
        None | Some(Ok(1..)) => Ok(text.to_owned()),
        _ => Err(bad("the port of a host is not a number from 1 to 65535")),
    }
}

/// The host with its port, or with port 2181 if the URL names no port.
pub(crate) fn with_port(host: &str) -> String {
    let behind = host.rsplit_once(']').map_or(host, |(_, behind)| behind);
    if behind.contains(':') {
        host.to_owned()
    } else {
        format!("{host}:2181")
    }
}

/// Checks the path of a URL by ZooKeeper's rules, and returns it decoded. An empty path becomes `/quorate`.
fn parse_path(text: &str) -> Result<String, BadUrl> {
    let text = text.trim_end_matches('/');
    if text.is_empty() {
        return Ok(PATH.to_owned());
    }
    let text = plain(text).ok_or_else(|| bad("the path is not valid UTF-8"))?;
    for part in text.split('/').skip(1) {
        if matches!(part, "" | "." | "..") || part.contains(char::is_control) {
            // The error does not quote `part`: if the host is missing, it may be a part of the password.
            return Err(bad(
                "the path is invalid: between two slashes there must be a name without control characters, and not . or ..",
            ));
        }
    }
    if text == "/zookeeper" || text.starts_with("/zookeeper/") {
        return Err(bad(
            "the path /zookeeper is reserved by ZooKeeper: use another path",
        ));
    }
    Ok(text)
}

/// Decodes percent-encoding: `%41` becomes `A`. `None` if the text is malformed.
fn plain(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
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

fn bad(why: impl Into<String>) -> BadUrl {
    BadUrl(why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_with_every_part_is_parsed() {
        let address =
            Address::parse("zk://ann:s%40/x@h1:2181+[::1]:2182+h3/a/b?timeout=1s&session=4s");
        let address = address.unwrap();
        assert_eq!(address.hosts, ["h1:2181", "[::1]:2182", "h3"]);
        assert_eq!(address.path, "/a/b");
        assert_eq!(address.timeout, Duration::from_secs(1));
        assert_eq!(address.session, Duration::from_secs(4));
        let user = address.user.as_ref().unwrap();
        assert_eq!((&*user.name, &*user.password), ("ann", "s@/x"));
        assert_eq!(address.name(), "zk h1:2181+[::1]:2182+h3/a/b");
        assert!(!format!("{address:?}").contains("s@"));
    }

    #[test]
    fn host_without_a_port_gets_port_2181() {
        for (host, with) in [("h", "h:2181"), ("h:1", "h:1"), ("[::1]", "[::1]:2181")] {
            assert_eq!(with_port(host), with);
        }
        assert_eq!(with_port("[::1]:1"), "[::1]:1");
    }

    #[test]
    fn url_without_path_and_settings_gets_the_defaults() {
        for url in ["zk://h", "zk://h/", "zk://h?", "ZK://h"] {
            let address = Address::parse(url).unwrap();
            assert_eq!(address.name(), "zk h/quorate");
            assert_eq!(address.timeout, Duration::from_millis(500));
            assert_eq!(address.session, Duration::from_secs(10));
            assert!(address.user.is_none());
        }
    }

    #[test]
    fn invalid_url_is_refused_with_the_reason_and_without_the_password() {
        for (url, why) in [
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
            let said = Address::parse(url).expect_err(url).to_string();
            assert!(said.contains(why), "{url}: {said}");
            assert!(!said.contains("secret"), "{said}");
        }
    }
}
