//! One temporary server: a real Redis or Valkey process on loopback. All its files are in one temporary directory.
//!
//! Methods such as [`Server::kill`] return only after their signal has taken effect. They block, usually for a few
//! milliseconds; async callers can use `spawn_blocking`.
//!
//! Clusters, replicas and sentinels are not supported, because the masters of a quorate lock do not know one another.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use crate::error::Error;
use crate::namespace::Namespace;
use crate::options::{ServerOptions, percent_encode};
use crate::ports::PortLease;
use crate::resp::{Connection, Reply};
use crate::server_dir::ServerDir;
use crate::server_process::ServerProcess;
use crate::spawn::{available, tied_to_process};
use crate::test_server::TestServer;

/// If the first port is taken, [`Server::start`] tries up to this number of other ports.
const PORTS_TO_TRY: usize = 8;
/// How long to wait until the effect of a signal is visible.
const SIGNAL_PATIENCE: Duration = Duration::from_secs(10);
/// The time limit of [`Server::command`] for each read and write.
const COMMAND_PATIENCE: Duration = Duration::from_secs(5);

/// A server process. Dropping this value kills the process and removes its directory.
///
/// The server has its own process group, so Ctrl-C at the terminal does not reach it. If the process that started the
/// server is killed, the server dies as well, but its temporary directory remains. This requires the program `setpriv`.
///
/// All methods take `&self`, so one thread may kill the server while another thread sends it a command.
#[derive(Debug)]
#[must_use = "dropping the server kills it"]
pub struct Server {
    options: ServerOptions,
    program: PathBuf,
    /// The server process. Fields are dropped in the order of their declarations, so the server ends before its
    /// directory is removed.
    process: ServerProcess,
    lease: PortLease,
    dir: ServerDir,
}

impl Server {
    /// Starts a server on a free port and waits until it answers.
    ///
    /// # Errors
    ///
    /// [`Error::NoProgram`] if no server program is found; [`Error::Exited`] or [`Error::NotReady`] with the end of the
    /// server's log if the server does not start. No process is left running in that case.
    pub fn start(options: ServerOptions) -> Result<Self, Error> {
        let program = match &options.program {
            Some(path) => path.clone(),
            None => available().ok_or(Error::NoProgram)?,
        };
        let mut try_count = 1;
        loop {
            let dir = ServerDir::create(None).map_err(Error::io("create a temporary directory"))?;
            let server = Self {
                options: options.clone(),
                program: program.clone(),
                process: ServerProcess::new(dir.path().join("server.log"), SIGNAL_PATIENCE),
                lease: PortLease::take().map_err(Error::io("find a free port"))?,
                dir,
            };
            match server.launch() {
                Err(Error::Exited { log, .. })
                    if try_count < PORTS_TO_TRY && log.contains("ddress already in use") =>
                {
                    try_count += 1;
                }
                outcome => return outcome.map(|()| server),
            }
        }
    }

    /// The port of the server, which stays the same across restarts.
    pub fn port(&self) -> u16 {
        self.lease.port()
    }

    /// The address of the server: on loopback, or in its namespace.
    pub fn addr(&self) -> SocketAddr {
        (self.options.host(), self.port()).into()
    }

    /// The network namespace in which the server runs; `None` if it has no namespace of its own.
    pub fn namespace(&self) -> Option<&Namespace> {
        self.options.namespace.as_deref()
    }

    /// The URL for clients, with the credentials of the server's options: `redis://127.0.0.1:port`, or `rediss://` with
    /// TLS.
    pub fn url(&self) -> String {
        self.url_at(self.addr())
    }

    /// The URL for clients that connect through another address, such as a [`Proxy`](crate::Proxy)'s.
    pub fn url_at(&self, address: SocketAddr) -> String {
        let scheme = if self.options.tls.is_some() {
            "rediss"
        } else {
            "redis"
        };
        let userinfo = self
            .options
            .credentials()
            .map_or_else(String::new, |(user, password)| {
                format!("{}:{}@", percent_encode(user), percent_encode(password))
            });
        format!("{scheme}://{userinfo}{address}")
    }

    /// The path of the server's Unix socket. Every server of the testbed has one.
    pub fn unix_socket(&self) -> PathBuf {
        self.dir.path().join("s.sock")
    }

    /// The temporary directory of the server, which is removed when the server is dropped.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The process id, or `None` if the server is not running.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Whether the process exists. A process that SIGSTOP has frozen is alive.
    pub fn is_alive(&self) -> bool {
        self.pid().is_some()
    }

    /// Kills the server with SIGKILL, as a crash would, and waits until it is dead and its port refuses connections.
    /// Does nothing if the server is dead.
    ///
    /// # Errors
    ///
    /// [`Error::Unverified`] if the process does not end.
    pub fn kill(&self) -> Result<(), Error> {
        self.end(Signal::KILL)
    }

    /// Asks the server to shut down with SIGTERM, and waits until it has ended. The server saves the data that its
    /// [`Persistence`](crate::Persistence) keeps. Does nothing if the server is dead.
    ///
    /// # Errors
    ///
    /// [`Error::Unverified`] if the process does not end, for example because SIGSTOP has frozen it.
    pub fn terminate(&self) -> Result<(), Error> {
        self.end(Signal::TERM)
    }

    /// Freezes the server with SIGSTOP, and waits until the system shows the server as stopped. The kernel continues to
    /// accept connections and to acknowledge bytes, but the server does not answer until [`cont`](Self::cont).
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if the server is dead.
    pub fn stop(&self) -> Result<(), Error> {
        self.process.stop()
    }

    /// Resumes a stopped server. It then executes the requests that clients sent while it was stopped.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if the server is dead.
    pub fn cont(&self) -> Result<(), Error> {
        self.process.cont()
    }

    /// Kills the server if it runs, and starts it again on the same port, with the data that its persistence has kept.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start). [`Error::Exited`] may mean that another process took the port while the server
    /// was down.
    pub fn restart(&self) -> Result<(), Error> {
        self.kill()?;
        self.launch()
    }

    /// Kills the server if it runs, deletes its data, and starts it again on the same port. This simulates a crash with
    /// data loss.
    ///
    /// # Errors
    ///
    /// As for [`restart`](Self::restart).
    pub fn restart_empty(&self) -> Result<(), Error> {
        self.kill()?;
        fs::remove_dir_all(self.data_dir()).map_err(Error::io("delete the server's data"))?;
        self.launch()
    }

    /// Waits until the server accepts connections on its port and has loaded its data.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] if the server ends, [`Error::NotReady`] if it is not ready in time, [`Error::NotRunning`] if a
    /// method such as [`kill`](Self::kill) has already ended the server.
    pub fn wait_ready(&self) -> Result<(), Error> {
        let probe = || match self.probe() {
            Ok(refusal) => refusal,
            Err(error) => Some(error.to_string()),
        };
        let pause = Duration::from_millis(5);
        self.process.wait_ready(self.options.patience, pause, probe)
    }

    /// Sends a command over the server's Unix socket. The command uses neither TLS nor a proxy.
    ///
    /// ```no_run
    /// # use quorate_testbed::{Reply, Server, ServerOptions};
    /// let server = Server::start(ServerOptions::new())?;
    /// server.command(&["SET", "a", "b"])?;
    /// assert_eq!(server.command(&["GET", "a"])?, Reply::from("b"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Connection::command`]. For a dead server, the error is `ConnectionRefused` or `NotFound`. For a
    /// server that SIGSTOP has frozen, it is `TimedOut` after 5 s. An error reply of the server is an
    /// `Ok(Reply::Error)`.
    pub fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> io::Result<Reply> {
        self.connect(COMMAND_PATIENCE)?.command(args)
    }

    /// Opens a connection over the Unix socket and logs in. `timeout` bounds each read and write.
    ///
    /// # Errors
    ///
    /// As for [`command`](Self::command); `PermissionDenied` if the login is refused.
    pub fn connect(&self, timeout: Duration) -> io::Result<Connection> {
        let mut connection = Connection::unix(&self.unix_socket(), timeout)?;
        let answer = match self.options.credentials() {
            None => return Ok(connection),
            Some(("", password)) => connection.command(&["AUTH", password])?,
            Some((user, password)) => connection.command(&["AUTH", user, password])?,
        };
        match answer {
            Reply::Error(refusal) => Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal)),
            _ => Ok(connection),
        }
    }

    /// The last lines of the server's log. A restarted server appends to the same log.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    fn launch(&self) -> Result<(), Error> {
        let prepare = || -> io::Result<()> {
            fs::create_dir_all(self.data_dir())?;
            let config = self
                .options
                .config(self.port(), &self.unix_socket(), &self.data_dir());
            fs::write(self.config_file(), config)
        };
        prepare().map_err(Error::io(
            "create the directory and the configuration of the server",
        ))?;
        let mut command = tied_to_process(&self.program, self.namespace());
        command
            .arg(self.config_file())
            .args(&self.options.args)
            .envs(self.options.env.iter().map(|(name, value)| (name, value)))
            .current_dir(self.dir.path());
        self.process.start(command)?;
        self.wait_ready()
    }

    /// Checks whether the server is ready. Returns `None` if it is ready, otherwise the reason why it is not ready.
    ///
    /// Sends PING over the server's Unix socket: on the port, a different server could answer. Then checks that the
    /// port accepts a connection.
    fn probe(&self) -> io::Result<Option<String>> {
        // Log in first. Otherwise a server that loads its data answers NOAUTH and not LOADING.
        let answer = match self.connect(COMMAND_PATIENCE) {
            Ok(mut connection) => connection.command(&["PING"])?,
            // A server that refuses the login is ready: a test may configure wrong credentials on purpose.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Reply::Nil,
            Err(error) => return Err(error),
        };
        match answer {
            Reply::Error(refusal) if !refusal.starts_with("NO") => Ok(Some(refusal)),
            _ => self.connect_to_port().map(|_| None),
        }
    }

    /// Connects to the server's port. Fails after one second, for example if the network link is down.
    fn connect_to_port(&self) -> io::Result<TcpStream> {
        TcpStream::connect_timeout(&self.addr(), Duration::from_secs(1))
    }

    fn end(&self, signal: Signal) -> Result<(), Error> {
        self.process.end(signal, || self.connect_to_port().is_err())
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn config_file(&self) -> PathBuf {
        self.dir.path().join("server.conf")
    }
}

impl TestServer for Server {
    fn missing() -> Option<String> {
        let reason = "no redis-server or valkey-server on the PATH: install one, or set QUORATE_SERVER to its path";
        available().is_none().then(|| reason.to_owned())
    }

    fn addrs(&self) -> Vec<SocketAddr> {
        vec![self.addr()]
    }

    fn url(&self, _: &str) -> String {
        Self::url(self)
    }

    fn kill(&self) -> Result<(), Error> {
        Self::kill(self)
    }

    fn restart(&self) -> Result<(), Error> {
        Self::restart(self)
    }

    fn restart_after_crash(&self) -> Result<(), Error> {
        self.restart_empty()
    }

    fn stop(&self) -> Result<(), Error> {
        Self::stop(self)
    }

    fn cont(&self) -> Result<(), Error> {
        Self::cont(self)
    }
}
