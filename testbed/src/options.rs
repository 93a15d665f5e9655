//! Options of a temporary Redis or Valkey server.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use crate::clock::{ClockShim, OffsetFile};
use crate::namespace::Namespace;

/// The server's persistence, which determines the data after [`Server::restart`](crate::Server::restart).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// No persistence: the server is empty after every restart. The default.
    #[default]
    None,
    /// An append-only file that is synced before each reply. A write that was acknowledged survives SIGKILL. It would
    /// also survive a power cut, if the server's directory is on a disk.
    AofAlways,
    /// An append-only file that is synced once a second. A power cut can lose the writes of about the last two seconds.
    /// SIGKILL loses only writes that the server has not written to the file yet.
    AofEverySec,
    /// Snapshots. While its data changes, the server saves a snapshot about once a second. It also saves one at
    /// [`Server::terminate`](crate::Server::terminate). SIGKILL loses the changes since the last snapshot.
    Rdb,
}

/// The certificate files of a TLS server.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The server's certificate, as a PEM file.
    pub cert: PathBuf,
    /// The private key that belongs to `cert`, as a PEM file.
    pub key: PathBuf,
    /// The certificate authority that signed `cert`, as a PEM file.
    pub ca: PathBuf,
    /// Whether the server accepts only clients with a certificate that `ca` has signed.
    pub client_certs: bool,
}

/// Options of one [`Server`](crate::Server), each with a default that suits most tests.
///
/// ```
/// use quorate_testbed::{Persistence, ServerOptions};
///
/// let options = ServerOptions::new()
///     .persistence(Persistence::AofAlways)
///     .password("secret")
///     .arg("--hz").arg("100");
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing until they are handed to Server::start"]
pub struct ServerOptions {
    pub(crate) program: Option<PathBuf>,
    pub(crate) persistence: Persistence,
    pub(crate) password: Option<String>,
    pub(crate) login: Option<(String, String)>,
    pub(crate) acl: Vec<String>,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) tls: Option<Tls>,
    pub(crate) patience: Duration,
    pub(crate) namespace: Option<Arc<Namespace>>,
    /// Temporary directories that the server uses. They must not be removed before the server ends.
    used_dirs: Vec<Arc<TempDir>>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            program: None,
            persistence: Persistence::None,
            password: None,
            login: None,
            acl: Vec::new(),
            args: Vec::new(),
            env: Vec::new(),
            tls: None,
            patience: Duration::from_secs(10),
            namespace: None,
            used_dirs: Vec::new(),
        }
    }
}

impl ServerOptions {
    /// Options of a server that has no persistence, no password and no TLS. The server program is the one that
    /// [`available`](crate::available) finds.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the server program. Default: the one that [`available`](crate::available) finds.
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = Some(path.into());
        self
    }

    /// Sets the server's persistence. Default: [`Persistence::None`].
    pub fn persistence(mut self, persistence: Persistence) -> Self {
        self.persistence = persistence;
        self
    }

    /// Sets the password of the default user (`requirepass`). Default: none.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Adds an ACL user, written as in `users.acl` but without the word "user": `"app on >pw ~lock:* +@all"`. Default:
    /// none.
    pub fn acl(mut self, user: impl Into<String>) -> Self {
        self.acl.push(user.into());
        self
    }

    /// Sets the user name and the password with which [`Server::command`](crate::Server::command) logs in.
    /// [`Server::url`](crate::Server::url) contains them as well. Default: the default user, with
    /// [`password`](Self::password).
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Some((user.into(), password.into()));
        self
    }

    /// Adds a command-line argument for the server. The argument takes precedence over the other options.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds an environment variable for the server, such as `LD_PRELOAD`.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Adds several environment variables for the server.
    pub fn envs<N: Into<OsString>, V: Into<OsString>>(
        mut self,
        vars: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let vars = vars.into_iter().map(|(n, v)| (n.into(), v.into()));
        self.env.extend(vars);
        self
    }

    /// Makes the server add the offset in the file `offset` to its wall clock. Restarts keep this option. Default: no
    /// offset.
    pub fn clock(mut self, shim: &ClockShim, offset: &OffsetFile) -> Self {
        self.used_dirs.push(shim.temp_dir());
        self.used_dirs.extend(offset.temp_dir());
        self.envs(shim.env(offset))
    }

    /// Makes the server accept only TLS on its port. Default: plain TCP. The start fails on a server built without TLS.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets how long the server may take from its start until it answers PING. Default: 10 s. Use a longer time for
    /// large data sets.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Runs the server in this namespace, on the address [`Namespace::addr`]. Default: on loopback.
    pub fn namespace(mut self, namespace: Arc<Namespace>) -> Self {
        self.namespace = Some(namespace);
        self
    }

    /// The address on which the server listens.
    pub(crate) fn host(&self) -> Ipv4Addr {
        let namespace = self.namespace.as_deref();
        namespace.map_or(Ipv4Addr::LOCALHOST, Namespace::addr)
    }

    /// The user and the password for the control connection and for URLs. An empty user means the default user.
    pub(crate) fn credentials(&self) -> Option<(&str, &str)> {
        match (&self.login, &self.password) {
            (Some((user, password)), _) => Some((user, password)),
            (None, Some(password)) => Some(("", password)),
            (None, None) => None,
        }
    }

    /// The content of the server's configuration file. Passwords are in this file, because as arguments they would be
    /// visible in the process list.
    pub(crate) fn config(&self, port: u16, socket: &Path, data: &Path) -> String {
        let mut config = format!("bind {}\nprotected-mode no\ndaemonize no\n", self.host());
        let mut add_line = |name: &str, value: &str| {
            let _ = writeln!(config, "{name} {}", quote_value(value));
        };
        let port = port.to_string();
        let path_text = |path: &Path| path.to_string_lossy().into_owned();
        add_line("unixsocket", &path_text(socket));
        add_line("dir", &path_text(data));
        if let Some(tls) = &self.tls {
            add_line("port", "0");
            add_line("tls-port", &port);
            add_line("tls-cert-file", &path_text(&tls.cert));
            add_line("tls-key-file", &path_text(&tls.key));
            add_line("tls-ca-cert-file", &path_text(&tls.ca));
            add_line(
                "tls-auth-clients",
                if tls.client_certs { "yes" } else { "no" },
            );
        } else {
            add_line("port", &port);
        }
        let (append_only, fsync) = match self.persistence {
            Persistence::None | Persistence::Rdb => ("no", "everysec"),
            Persistence::AofEverySec => ("yes", "everysec"),
            Persistence::AofAlways => ("yes", "always"),
        };
        add_line("appendonly", append_only);
        add_line("appendfsync", fsync);
        if let Some(password) = &self.password {
            add_line("requirepass", password);
        }
        config.push_str(match self.persistence {
            Persistence::Rdb => "save 1 1\n",
            _ => "save \"\"\n",
        });
        for user in &self.acl {
            let _ = writeln!(config, "user {user}");
        }
        config
    }
}

/// Quotes a value for the server's configuration file.
fn quote_value(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Percent-encodes a user name or password for a URL.
pub(crate) fn percent_encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
        encoded
    })
}
