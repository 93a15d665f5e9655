//! One pgbouncer process: a connection pooler in front of a PostgreSQL server.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::error::Error;
use crate::ports::PortLease;
use crate::postgres::{Postgres, unprivileged};
use crate::server_dir::ServerDir;
use crate::server_process::ServerProcess;
use crate::spawn::find;

/// How long a started pooler may take until it accepts connections.
const PATIENCE: Duration = Duration::from_secs(30);

/// A pgbouncer process. It accepts the user `postgres` without a password. Dropping this value kills the process.
#[derive(Debug)]
#[must_use = "dropping the pooler ends it"]
pub struct PgBouncer {
    process: ServerProcess,
    lease: PortLease,
    dir: ServerDir,
    /// The folder with the Unix socket of the server, and the port in the name of the socket.
    server: (PathBuf, u16),
}

impl PgBouncer {
    /// Checks whether the program is installed.
    ///
    /// # Errors
    ///
    /// [`Error::NoPgBouncer`] if it is not.
    pub fn available() -> Result<(), Error> {
        program().map(drop)
    }

    /// Starts a pooler in front of `server`, with the `pool_mode` `mode`: `session`, `transaction` or `statement`.
    ///
    /// # Errors
    ///
    /// [`Error::NoPgBouncer`] if the program is missing; [`Error::Exited`] or [`Error::NotReady`] if it does not start.
    pub fn start(server: &Postgres, mode: &str) -> Result<Self, Error> {
        let program = program()?;
        let dir = ServerDir::create(None).map_err(Error::io("create a temporary directory"))?;
        let pooler = Self {
            process: ServerProcess::new(dir.path().join("pooler.log"), PATIENCE),
            lease: PortLease::take().map_err(Error::io("find a free port"))?,
            server: (server.dir().to_owned(), server.port()),
            dir,
        };
        let everybody = |mode| fs::Permissions::from_mode(mode);
        fs::set_permissions(pooler.dir.path(), everybody(0o755))
            .map_err(Error::io("open a directory to the pooler"))?;
        fs::write(pooler.dir.path().join("users"), "\"postgres\" \"\"\n")
            .map_err(Error::io("write the users of the pooler"))?;
        pooler.write_settings(mode)?;
        let mut command = unprivileged(&program);
        command.arg(pooler.settings_file());
        pooler.process.start(command)?;
        let probe = || {
            TcpStream::connect(pooler.addr())
                .err()
                .map(|error| error.to_string())
        };
        pooler
            .process
            .wait_ready(PATIENCE, Duration::from_millis(20), probe)?;
        Ok(pooler)
    }

    /// The address of the pooler on loopback.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.lease.port()).into()
    }

    /// The URL of a database behind the pooler, for the administrator.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.addr())
    }

    /// Changes the `pool_mode` of the running pooler. The pooler uses it soon afterwards.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if the pooler has ended.
    pub fn change_mode(&self, mode: &str) -> Result<(), Error> {
        self.write_settings(mode)?;
        let pid = self
            .process
            .pid()
            .and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let pid = pid.ok_or(Error::NotRunning)?;
        kill_process(pid, Signal::HUP).map_err(Error::io("send a signal to the pooler"))
    }

    fn settings_file(&self) -> PathBuf {
        self.dir.path().join("pgbouncer.ini")
    }

    fn write_settings(&self, mode: &str) -> Result<(), Error> {
        let (folder, server_port) = &self.server;
        let settings = format!(
            "[databases]\n* = host={} port={server_port}\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={}\n\
             unix_socket_dir=\nauth_type=trust\nauth_file={}\npool_mode={mode}\n",
            folder.display(),
            self.lease.port(),
            self.dir.path().join("users").display()
        );
        fs::write(self.settings_file(), settings)
            .map_err(Error::io("write the settings of the pooler"))
    }
}

/// The program, which Debian installs outside of the path of ordinary users.
fn program() -> Result<PathBuf, Error> {
    let found = find(Path::new("pgbouncer").as_os_str())
        .or_else(|| find(Path::new("/usr/sbin/pgbouncer").as_os_str()));
    found.ok_or(Error::NoPgBouncer)
}
