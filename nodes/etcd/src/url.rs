//! Parses the URL of an etcd cluster.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use quorate::redact;
use quorate::reread::Reread;

use crate::layout::Layout;

/// The default timeout of one request. It is longer than for a Redis server, because a commit waits for the disks of a
/// majority of the cluster.
const TIMEOUT: Duration = Duration::from_millis(500);
/// The port of a member whose URL names none.
const PORT: u16 = 2379;
/// The prefix of all records if the URL has no path.
const PREFIX: &str = "quorate";
/// The longest prefix in bytes.
const LONGEST_PREFIX: usize = 256;
/// The largest number of hosts in one URL.
const MOST_HOSTS: usize = 16;
/// The form of a URL, for error messages.
const FORM: &str = "etcd://user:password@host1:2379+host2/prefix";

/// The reason why a URL is not valid. It never contains the URL, which may include a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadUrl(String);

fn bad(why: impl Into<String>) -> BadUrl {
    BadUrl(why.into())
}

/// The host and the port of one member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// The name or the IP address, without brackets.
    pub(crate) name: String,
    pub(crate) port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, port } = self;
        if name.contains(':') {
            write!(f, "[{name}]:{port}")
        } else {
            write!(f, "{name}:{port}")
        }
    }
}

/// The parts of the URL of an etcd cluster.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) hosts: Vec<Host>,
    /// The user who logs in; empty if the URL names none.
    pub(crate) user: String,
    password: Option<String>,
    passfile: Option<PathBuf>,
    /// The password in `passfile`, which follows changes of the file. `None` without `passfile`, or if the URL was only
    /// parsed.
    password_of_file: Option<Arc<Reread<String>>>,
    /// The path of the URL, without slashes at both ends.
    path: String,
    pub(crate) timeout: Duration,
    pub(crate) tls: bool,
    cacert: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    /// The configuration of TLS, which follows changes of the files. `None` without TLS, or if the URL was only parsed.
    #[cfg(feature = "tls-rustls")]
    pub(crate) config: Option<Arc<Reread<Arc<rustls::ClientConfig>>>>,
    /// Whether this process has begun a session with the cluster before.
    pub(crate) met: Arc<AtomicBool>,
}

impl Address {
    /// Parses a URL, and reads the files that it names.
    pub(crate) fn open(url: &str) -> Result<Self, BadUrl> {
        let mut address = Self::read(url)?;
        if let Some(file) = address.passfile.clone() {
            let load = {
                let file = file.clone();
                move || password_in(&file)
            };
            address.password_of_file = Some(Reread::new(vec![file], None, load).map_err(bad)?);
        }
        #[cfg(feature = "tls-rustls")]
        if address.tls {
            let advice = "add ?cacert= to the URL";
            address.config = Some(address.certificates().reread_config(advice).map_err(bad)?);
        }
        Ok(address)
    }

    /// The files with certificates that the URL names.
    #[cfg(feature = "tls-rustls")]
    fn certificates(&self) -> quorate::Tls {
        let mut tls = quorate::Tls::default();
        if let Some(file) = &self.cacert {
            tls = tls.root_file(file);
        }
        if let (Some(chain), Some(key)) = (&self.cert, &self.key) {
            tls = tls.client_files(chain, key);
        }
        tls
    }

    /// Parses a URL.
    pub(crate) fn read(url: &str) -> Result<Self, BadUrl> {
        let url = url.trim();
        check_characters(url)?;
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| bad(format!("not a URL: write {FORM}")))?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "etcd" => false,
            "etcd+tls" => true,
            _ => return Err(bad("the scheme must be etcd://, or etcd+tls:// for TLS")),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let (user, password) = match login.map(|login| login.split_once(':').ok_or(login)) {
            Some(Ok((user, password))) => (user, Some(text(password, "the password")?)),
            Some(Err(user)) => (user, None),
            None => ("", None),
        };
        if login.is_some() && user.is_empty() {
            return Err(bad(format!(
                "the user before the @ is missing: write {FORM}"
            )));
        }
        let mut address = Self {
            hosts: parse_hosts(hosts)?,
            user: text(user, "the user")?,
            password,
            passfile: None,
            password_of_file: None,
            path: parse_path(path)?,
            timeout: TIMEOUT,
            tls,
            cacert: None,
            cert: None,
            key: None,
            #[cfg(feature = "tls-rustls")]
            config: None,
            met: Arc::default(),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (text(name, "an option")?, text(value, "an option")?);
            address.set_option(&name, &value)?;
        }
        address.check()?;
        Ok(address)
    }

    fn set_option(&mut self, name: &str, value: &str) -> Result<(), BadUrl> {
        match name {
            "timeout" => {
                let parsed = humantime::parse_duration(value).ok();
                let valid = parsed.filter(|time| (1..=3_600_000).contains(&time.as_millis()));
                self.timeout = valid.ok_or_else(|| {
                    bad("the option timeout must be a duration with a unit, for example 500ms or 1s, at most 1h")
                })?;
            }
            "passfile" => self.passfile = Some(value.into()),
            "cacert" => self.cacert = Some(value.into()),
            "cert" => self.cert = Some(value.into()),
            "key" => self.key = Some(value.into()),
            _ => {
                return Err(bad(
                    "unknown option after the `?`: the options are timeout, passfile, cacert, cert and key",
                ));
            }
        }
        Ok(())
    }

    /// Checks the combination of all parts.
    fn check(&self) -> Result<(), BadUrl> {
        if self.password.is_some() && self.passfile.is_some() {
            return Err(bad(
                "the URL has a password and the option passfile: remove one of them",
            ));
        }
        if self.user.is_empty() && self.passfile.is_some() {
            return Err(bad(
                "the option passfile needs a user: write etcd://user@host",
            ));
        }
        if !self.user.is_empty() && self.password.is_none() && self.passfile.is_none() {
            return Err(bad(
                "the user has no password: write user:password, or name a file with the option passfile",
            ));
        }
        if self.cert.is_some() != self.key.is_some() {
            return Err(bad("the options cert and key must be given together"));
        }
        if self.tls && !cfg!(feature = "tls-rustls") {
            return Err(bad("TLS needs the feature `tls-rustls` of quorate-etcd"));
        }
        if !self.tls && (self.cacert.is_some() || self.cert.is_some()) {
            return Err(bad(
                "the options cacert, cert and key work with etcd+tls:// only",
            ));
        }
        Ok(())
    }

    /// The password to log in with; `None` if the URL gives none.
    pub(crate) async fn password(&self) -> Option<String> {
        match &self.password_of_file {
            Some(file) => Some(file.current().await),
            None => self.password.clone(),
        }
    }

    /// The keys of this URL.
    pub(crate) fn layout(&self) -> Layout {
        Layout::new(&self.path)
    }

    /// The hosts of all members, separated by `separator`.
    pub(crate) fn host_list(&self, separator: &str) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(Host::to_string).collect();
        hosts.join(separator)
    }

    /// The name of the cluster in reports: the URL without user and password.
    pub(crate) fn name(&self) -> String {
        format!("etcd {}/{}", self.host_list("+"), self.path)
    }

    /// The scheme of the members' own URLs.
    pub(crate) fn http_scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// Reads the file with the password, without the line break at its end.
///
/// Fails if users other than the owner of the file have the right to read it.
fn password_in(file: &std::path::Path) -> Result<String, String> {
    use std::os::unix::fs::PermissionsExt as _;
    let named = || {
        let path = file.to_string_lossy();
        format!("the file {} (passfile)", redact::value(&path))
    };
    let unreadable = |why: std::io::Error| format!("{} cannot be read: {why}", named());
    let metadata = std::fs::metadata(file).map_err(unreadable)?;
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(format!(
            "other users have rights on {}: run chmod 600 on it",
            named()
        ));
    }
    let content = std::fs::read_to_string(file).map_err(unreadable)?;
    match content.trim_end_matches(['\r', '\n']) {
        "" => Err(format!("{} is empty", named())),
        password => Ok(password.to_owned()),
    }
}

/// Returns an error for characters that would be misunderstood: control characters, a `#`, and an `@` at a place that
/// may belong to the password. The text after the hosts is shown in reports, so it must be clear where it begins.
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

fn parse_hosts(text: &str) -> Result<Vec<Host>, BadUrl> {
    if text.contains(',') {
        return Err(bad(format!(
            "the hosts are separated by commas instead of `+`: write {FORM}"
        )));
    }
    let hosts: Vec<Host> = text.split('+').map(parse_host).collect::<Result<_, _>>()?;
    if hosts.len() > MOST_HOSTS {
        return Err(bad(format!("the URL lists more than {MOST_HOSTS} hosts")));
    }
    Ok(hosts)
}

/// Parses a host with or without a port: `host`, `host:2379`, `[::1]:2379`.
///
/// The errors do not quote `text`: if the `@` is missing, `text` may be a part of the password.
fn parse_host(text: &str) -> Result<Host, BadUrl> {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, rest) = rest
                .split_once(']')
                .ok_or_else(|| bad("a host begins with `[`, but has no `]`"))?;
            let address: std::net::Ipv6Addr = name
                .parse()
                .map_err(|_| bad("the host in brackets is no IPv6 address"))?;
            let port = rest.strip_prefix(':');
            if port.is_none() && !rest.is_empty() {
                return Err(bad("text follows the `]` of a host"));
            }
            (address.to_string(), port)
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err(bad("write an IPv6 address in brackets, such as [::1]"));
            }
            Some((name, port)) => (name.to_owned(), Some(port)),
            None => (text.to_owned(), None),
        },
    };
    if name.is_empty() {
        return Err(bad(format!("a host is missing: write {FORM}")));
    }
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || ".:-_".contains(c);
    if !name.chars().all(is_allowed) {
        return Err(bad(
            "a host contains a character that no host name has: write a name with other letters in its ASCII form (xn--)",
        ));
    }
    let port = match port {
        None | Some("") => PORT,
        Some(digits) => {
            let port = digits.parse().ok().filter(|port| *port != 0);
            port.ok_or_else(|| bad("the port must be a number from 1 to 65535"))?
        }
    };
    Ok(Host { name, port })
}

/// Checks the path of a URL, and returns it decoded and without slashes at both ends. An empty path becomes `quorate`.
fn parse_path(encoded: &str) -> Result<String, BadUrl> {
    let path = text(encoded, "the path")?;
    let path = path.trim_matches('/');
    if path.is_empty() {
        return Ok(PREFIX.to_owned());
    }
    if path.len() > LONGEST_PREFIX || path.contains(|c: char| c.is_control() || c == '\'') {
        return Err(bad(format!(
            "the path must have at most {LONGEST_PREFIX} bytes, and neither control characters nor quotation marks"
        )));
    }
    Ok(path.to_owned())
}

/// Decodes percent-encoding.
fn text(encoded: &str, part: &str) -> Result<String, BadUrl> {
    let decoded = percent_decode_str(encoded).decode_utf8();
    let decoded = decoded.map_err(|_| bad(format!("{part} is not valid UTF-8")))?;
    Ok(decoded.into_owned())
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
        let address = read("etcd://ann:s%40+x@h1:2379+[::1]:2380+h3/a/b/?timeout=1s");
        assert_eq!(address.host_list(" "), "h1:2379 [::1]:2380 h3:2379");
        assert_eq!(address.user, "ann");
        assert_eq!(address.password.as_deref(), Some("s@+x"));
        assert_eq!(address.timeout, Duration::from_secs(1));
        assert_eq!(address.name(), "etcd h1:2379+[::1]:2380+h3:2379/a/b");
        assert_eq!(format!("{address:?}"), address.name());
        let short = read(" etcd://h ");
        assert_eq!(short.name(), "etcd h:2379/quorate");
        assert_eq!((short.user.as_str(), short.timeout), ("", TIMEOUT));
        assert_eq!(read("etcd://ann@h?passfile=/p").user, "ann");
    }

    #[test]
    fn tls_needs_its_scheme_and_its_feature() {
        if cfg!(feature = "tls-rustls") {
            assert!(read("etcd+tls://h/p?cacert=/ca&cert=/c&key=/k").tls);
            assert!(refused("etcd+tls://h/p?cert=/c").contains("together"));
        } else {
            assert!(refused("etcd+tls://h/p").contains("tls-rustls"));
        }
        assert!(refused("etcd://h/p?cacert=/ca").contains("etcd+tls://"));
    }

    #[test]
    fn error_names_the_wrong_part_and_never_the_password() {
        for (url, expected) in [
            ("etcds://u:secret@h/d", "scheme"),
            ("etcd://:secret@h/d", "user"),
            ("etcd://u@h/d", "password"),
            ("etcd://u:secret@/d", "host is missing"),
            ("etcd://u:secret", "port"),
            ("etcd://u:secret@h:0/d", "port"),
            ("etcd://u:secret@h1,h2/d", "commas"),
            ("etcd://u:secret@m\u{fc}nchen/d", "ASCII"),
            ("etcd://u:sec/ret@h/d", "%2F"),
            ("etcd://u:sec#ret@h/d", "%23"),
            ("etcd://u:secret@h/d?timeout=5", "duration"),
            ("etcd://u:secret@h/d?colour=red", "unknown option"),
            ("etcd://u:secret@h/d?passfile=/f", "remove one"),
            ("etcd://u:secret@h/a'b", "path"),
            ("not a URL", "not a URL"),
        ] {
            let why = refused(url);
            assert!(why.contains(expected), "{url}: {why}");
            assert!(!why.contains("secret") && !why.contains("ret@"), "{why}");
        }
    }

    #[test]
    fn password_file_that_other_users_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let file = std::env::temp_dir().join(format!("quorate-etcd-pass-{}", std::process::id()));
        std::fs::write(&file, "secret\n").expect("written");
        let with_mode = |mode| {
            let rights = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&file, rights).expect("changed");
            password_in(&file)
        };
        assert_eq!(with_mode(0o600).as_deref(), Ok("secret"));
        let why = with_mode(0o640).expect_err("refused");
        assert!(
            why.contains("chmod 600") && !why.contains("secret"),
            "{why}"
        );
        std::fs::remove_file(&file).expect("removed");
    }

    proptest! {
        #[test]
        fn no_url_causes_a_panic(text in any::<String>(), rest in "[a-z0-9:/@?&=%,\\[\\]#.+-]{0,40}") {
            drop(Address::read(&text));
            drop(Address::read(&format!("etcd://{rest}")));
        }
    }
}
