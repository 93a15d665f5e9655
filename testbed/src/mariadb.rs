//! One temporary MariaDB server: a real process on loopback with its data in a temporary directory.
//!
//! The server never waits for the disk ([`UNSYNCED_ARGUMENTS`]). To save time, each server gets a copy of a template
//! directory, which is created once per user and server version. Creating a data directory takes half a second, copying
//! one takes a tenth of a second.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::clock::{ClockShim, OffsetFile};
use crate::console::Console;
use crate::error::Error;
use crate::ports::PortLease;
use crate::server_dir::ServerDir;
use crate::server_process::ServerProcess;
use crate::spawn::{find, tied_to_process};
use crate::test_server::TestServer;

/// The number of further ports that are tried if the first port is taken.
const PORTS_TO_TRY: usize = 8;
/// How long to wait until the effect of a signal is visible, and how long a started server may take until its first
/// answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Options with which the server writes its files, but does not wait until they are on the disk. A killed process loses
/// no write by this: the written data is in the cache of the operating system. Only a crash of the machine loses it.
///
/// A server without one of these options ignores it (`loose`).
const UNSYNCED_ARGUMENTS: [&str; 2] = [
    "--loose-innodb-flush-method=nosync",
    "--loose-debug-no-sync",
];

/// Options of one [`MariaDb`].
#[derive(Clone, Debug)]
#[must_use = "options do nothing until they are handed to MariaDb::start"]
pub struct MariaDbOptions {
    flush: u8,
    folder: Option<PathBuf>,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    /// Directories that the server uses and that must not be removed before it ends.
    used_dirs: Vec<Arc<TempDir>>,
}

impl Default for MariaDbOptions {
    fn default() -> Self {
        Self {
            flush: 1,
            folder: None,
            args: Vec::new(),
            env: Vec::new(),
            used_dirs: Vec::new(),
        }
    }
}

impl MariaDbOptions {
    /// Options of a server that writes each commit to its log before the reply, writes no binary log, and accepts every
    /// client as `root` without a password.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `innodb_flush_log_at_trx_commit`. With 0, a crash loses commits of the last second; with 1 and 2, commits
    /// survive SIGKILL. Default: 1.
    pub fn flush(self, flush: u8) -> Self {
        Self { flush, ..self }
    }

    /// Sets the folder in which the server's directory is created. Default: `/dev/shm` if it has enough room, otherwise
    /// the folder for temporary files; `QUORATE_SERVER_DATA` names another folder. With [`flush(0)`](Self::flush), the
    /// default is always the folder for temporary files, because MariaDB maps a log in `/dev/shm` into its memory: the
    /// log then contains each commit at once, and a crash loses nothing.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// The folder in which the server's directory is created; `None` if [`ServerDir::create`] chooses it.
    fn data_folder(&self) -> Option<PathBuf> {
        let temporary_folder = || (self.flush == 0).then(std::env::temp_dir);
        self.folder.clone().or_else(temporary_folder)
    }

    /// Sets `max_connections`. Default: 400.
    pub fn max_connections(self, count: u32) -> Self {
        self.arg(format!("--max-connections={count}"))
    }

    /// Sets `read_only`, with which only administrators may change data. Default: off.
    pub fn read_only(self) -> Self {
        self.arg("--read-only")
    }

    /// Makes the server write a binary log in the format `format`: `ROW`, `MIXED` or `STATEMENT`. Default: no binary
    /// log.
    pub fn binlog_format(self, format: &str) -> Self {
        self.arg("--log-bin=binlog")
            .arg(format!("--binlog-format={format}"))
    }

    /// Makes the server resolve the addresses of clients to host names. Default: off.
    pub fn resolve_names(self) -> Self {
        self.arg("--skip-skip-name-resolve")
    }

    /// Makes the server add the offset in the file `offset` to its wall clock. Restarts keep this option. Default: no
    /// offset.
    pub fn clock(mut self, shim: &ClockShim, offset: &OffsetFile) -> Self {
        self.used_dirs.push(shim.temp_dir());
        self.used_dirs.extend(offset.temp_dir());
        self.env.extend(shim.env(offset));
        self
    }

    /// Adds a command-line argument for the server. The argument takes precedence over the other options.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }
}

/// The paths of the programs that a [`MariaDb`] needs.
#[derive(Debug)]
struct Programs {
    server: PathBuf,
    install: PathBuf,
    client: PathBuf,
}

impl Programs {
    fn find() -> Result<&'static Self, Error> {
        static FOUND_PROGRAMS: OnceLock<Result<Programs, &'static str>> = OnceLock::new();
        let found_programs = FOUND_PROGRAMS.get_or_init(|| {
            let program = |name: &'static str| find(OsStr::new(name)).ok_or(name);
            // Try `/usr/sbin` as well, because it is often not on the `PATH` of ordinary users.
            let server = program("mariadbd")
                .or_else(|name| find(OsStr::new("/usr/sbin/mariadbd")).ok_or(name))?;
            Ok(Self {
                server,
                install: program("mariadb-install-db")?,
                client: program("mariadb")?,
            })
        });
        found_programs
            .as_ref()
            .map_err(|name| Error::NoMariaDb(name))
    }
}

/// A MariaDB process. Dropping this value kills the process and removes its directory.
///
/// ```no_run
/// use quorate_testbed::{MariaDb, MariaDbOptions};
///
/// let server = MariaDb::start(MariaDbOptions::new())?;
/// server.sql("CREATE DATABASE locks")?;
/// assert_eq!(server.sql("SELECT 1 + 1")?, "2\n");
/// println!("{}", server.url("locks"));
/// # Ok::<(), quorate_testbed::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping the server kills it"]
pub struct MariaDb {
    options: MariaDbOptions,
    programs: &'static Programs,
    /// The server process. Fields are dropped in the order of their declarations, so the server ends before its
    /// directories are removed.
    process: ServerProcess,
    lease: PortLease,
    dir: ServerDir,
}

impl MariaDb {
    /// Checks whether a server can be started on this machine.
    ///
    /// # Errors
    ///
    /// [`Error::NoMariaDb`] with the program that is missing.
    pub fn available() -> Result<(), Error> {
        Programs::find().map(|_| ())
    }

    /// Starts a server on a free port and waits until it answers.
    ///
    /// # Errors
    ///
    /// [`Error::NoMariaDb`] if a program is missing; [`Error::Exited`] or [`Error::NotReady`] with the end of the
    /// server's log if the server does not start. No process is left running in that case.
    pub fn start(options: MariaDbOptions) -> Result<Self, Error> {
        let programs = Programs::find()?;
        let template_dir = template(programs)?;
        let mut try_count = 1;
        loop {
            let dir = ServerDir::create(options.data_folder().as_deref())
                .map_err(Error::io("create a temporary directory"))?;
            let server = Self {
                options: options.clone(),
                programs,
                process: ServerProcess::new(dir.path().join("server.log"), PATIENCE),
                lease: PortLease::take().map_err(Error::io("find a free port"))?,
                dir,
            };
            copy(&template_dir, &server.data_dir())?;
            match server.launch() {
                Err(Error::Exited { log, .. })
                    if try_count < PORTS_TO_TRY && log.contains("Do you already have another") =>
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

    /// The address of the server, on loopback.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// The URL of a database for the user `root`: `mysql://root@127.0.0.1:port/database`.
    pub fn url(&self, database: &str) -> String {
        self.url_of("root", database)
    }

    /// The URL of a database, with the credentials `user`: a name, or `name:password`.
    pub fn url_of(&self, user: &str, database: &str) -> String {
        format!("mysql://{user}@{}/{database}", self.addr())
    }

    /// The temporary directory of the server, which is removed when the server is dropped.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The process id, or `None` if the server is not running.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
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

    /// Asks the server to shut down with SIGTERM, and waits until it has ended, which takes about a second.
    ///
    /// # Errors
    ///
    /// [`Error::Unverified`] if the process does not end, for example because SIGSTOP has frozen it.
    pub fn terminate(&self) -> Result<(), Error> {
        self.end(Signal::TERM)
    }

    /// Freezes the server with SIGSTOP, and waits until the operating system reports it as stopped.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if the server is dead.
    pub fn stop(&self) -> Result<(), Error> {
        self.process.stop()
    }

    /// Resumes a server that [`stop`](Self::stop) has frozen. It then executes the requests that clients sent while it
    /// was frozen.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if the server is dead.
    pub fn cont(&self) -> Result<(), Error> {
        self.process.cont()
    }

    /// Kills the server if it runs, and starts it again on the same port with its data.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start). [`Error::Exited`] may mean that another process took the port while the server
    /// was down.
    pub fn restart(&self) -> Result<(), Error> {
        self.kill()?;
        self.launch()
    }

    /// Runs SQL statements as the administrator, with MariaDB's command-line client over the server's Unix socket.
    /// Returns one line per row, with tabs between the columns.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with the server's message.
    pub fn sql(&self, statements: &str) -> Result<String, Error> {
        let output = self
            .client()
            .arg("-e")
            .arg(statements)
            .stdin(Stdio::null())
            .output()
            .map_err(Error::io("run the client program"))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Error::Refused(message))
        }
    }

    /// Opens an administrator's session that stays open until the [`Console`] is dropped. So a test can use the session
    /// to keep rows and tables locked.
    ///
    /// # Errors
    ///
    /// If the client program does not start. A refused login is no error here: the first [`Console::say`] returns it.
    pub fn console(&self) -> Result<Console, Error> {
        let mut command = self.client();
        command.arg("--unbuffered");
        Console::open(command)
    }

    /// The command that starts MariaDB's command-line client as the administrator, over the server's Unix socket. It
    /// reads statements from stdin.
    pub fn client(&self) -> Command {
        let mut command = Command::new(&self.programs.client);
        command
            .args(["--no-defaults", "--user=root", "--connect-timeout=5"])
            .args(["--batch", "--skip-column-names", "--binary-mode"])
            .arg("--socket")
            .arg(self.socket());
        command
    }

    /// The last lines of the server's log. All restarts of the server write to the same log.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    fn launch(&self) -> Result<(), Error> {
        let mut command = tied_to_process(&self.programs.server, None);
        command
            .args(self.arguments())
            .args(&self.options.args)
            .envs(self.options.env.iter().map(|(name, value)| (name, value)))
            .current_dir(self.dir.path());
        self.process.start(command)?;
        self.wait_ready()
    }

    /// The server's command-line arguments. Some turn off features or reduce buffers, so that the server starts fast
    /// and uses little memory.
    fn arguments(&self) -> Vec<OsString> {
        let path_option = |name: &str, value: &Path| {
            let mut arg = OsString::from(format!("--{name}="));
            arg.push(value);
            arg
        };
        let port_option = format!("--port={}", self.port());
        let flush_option = format!("--innodb-flush-log-at-trx-commit={}", self.options.flush);
        let mut args: Vec<OsString> = vec!["--no-defaults".into()];
        if rustix::process::geteuid().is_root() {
            args.push("--user=root".into());
        }
        args.extend([
            path_option("datadir", &self.data_dir()),
            path_option("socket", &self.socket()),
            path_option("pid-file", &self.dir.path().join("pid")),
            path_option("tmpdir", self.dir.path()),
        ]);
        let fixed_arguments = [
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--innodb-buffer-pool-size=16M",
            "--innodb-log-file-size=8M",
            "--key-buffer-size=1M",
            "--aria-pagecache-buffer-size=1M",
            "--performance-schema=OFF",
            "--max-connections=400",
            "--skip-log-bin",
            &port_option,
            &flush_option,
        ];
        args.extend(fixed_arguments.map(OsString::from));
        args.extend(UNSYNCED_ARGUMENTS.map(OsString::from));
        args
    }

    fn wait_ready(&self) -> Result<(), Error> {
        // Check for the socket before each try with the client program: it could not connect without the socket.
        let probe = || {
            if !self.socket().exists() {
                return Some("no socket yet".to_owned());
            }
            match self.sql("SELECT 1") {
                Ok(_) => self.connect_to_port().err().map(|error| error.to_string()),
                Err(error) => Some(error.to_string()),
            }
        };
        self.process
            .wait_ready(PATIENCE, Duration::from_millis(5), probe)
    }

    fn connect_to_port(&self) -> io::Result<TcpStream> {
        TcpStream::connect_timeout(&self.addr(), Duration::from_secs(1))
    }

    fn end(&self, signal: Signal) -> Result<(), Error> {
        self.process
            .end(signal, || self.connect_to_port().is_err())?;
        // Remove the socket file that a killed server leaves. Otherwise `wait_ready` would find the old file.
        let _ = fs::remove_file(self.socket());
        Ok(())
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The path of the server's Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s.sock")
    }
}

impl TestServer for MariaDb {
    fn missing() -> Option<String> {
        Self::available().err().map(|why| why.to_string())
    }

    fn addrs(&self) -> Vec<SocketAddr> {
        vec![self.addr()]
    }

    fn url(&self, place: &str) -> String {
        Self::url(self, place)
    }

    fn kill(&self) -> Result<(), Error> {
        Self::kill(self)
    }

    fn restart(&self) -> Result<(), Error> {
        Self::restart(self)
    }

    fn stop(&self) -> Result<(), Error> {
        Self::stop(self)
    }

    fn cont(&self) -> Result<(), Error> {
        Self::cont(self)
    }
}

/// Returns the path of this user's template: a data directory that is copied for each new server.
///
/// If there is no template yet, creates one in a temporary directory and renames it to its final path. If another
/// process has created the template first, uses the template of that process.
fn template(programs: &Programs) -> Result<PathBuf, Error> {
    static TEMPLATE_LOCK: Mutex<()> = Mutex::new(());
    let _guard = TEMPLATE_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let read_error = Error::io("read the modification time of the server program");
    let built_at = fs::metadata(&programs.server)
        .and_then(|meta| meta.modified())
        .map_err(read_error)?;
    let built_at = built_at
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let user = rustix::process::geteuid().as_raw();
    let name = format!("quorate-mariadb-template-{user}-{}", built_at.as_secs());
    let template_path = std::env::temp_dir().join(name);
    if is_own_directory(&template_path) {
        return Ok(template_path);
    }
    let staging_dir = ServerDir::create(Some(&std::env::temp_dir()))
        .map_err(Error::io("create a temporary directory"))?;
    let data_dir = staging_dir.path().join("data");
    install(programs, &data_dir)?;
    match fs::rename(&data_dir, &template_path) {
        Err(_) if is_own_directory(&template_path) => Ok(template_path),
        outcome => outcome
            .map(|()| template_path)
            .map_err(Error::io("rename the template of the data directory")),
    }
}

/// Whether `path` is a directory of this user. A directory of another user is not trusted: in the folder for temporary
/// files, every user can create a directory with this name.
fn is_own_directory(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path)
        .is_ok_and(|meta| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw())
}

fn install(programs: &Programs, data_dir: &Path) -> Result<(), Error> {
    let mut command = Command::new(&programs.install);
    command
        .arg("--no-defaults")
        .arg("--auth-root-authentication-method=normal")
        .args(["--skip-test-db", "--innodb-log-file-size=8M"])
        .args(UNSYNCED_ARGUMENTS)
        .arg({
            let mut arg = OsString::from("--datadir=");
            arg.push(data_dir);
            arg
        });
    if rustix::process::geteuid().is_root() {
        command.arg("--user=root");
    }
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(Error::io("create the template of the data directory"))?;
    if output.status.success() {
        return Ok(());
    }
    let status = output.status;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Error::Exited { status, log })
}

/// Copies a directory with the system's `cp`, which keeps sparse files sparse.
fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let copy_error = Error::io("copy the template of the data directory");
    let status = Command::new("cp")
        .arg("-R")
        .args([from, to])
        .stdin(Stdio::null())
        .status()
        .map_err(copy_error)?;
    let copy_error = Error::io("copy the template of the data directory");
    status
        .success()
        .then_some(())
        .ok_or_else(|| copy_error(io::Error::other(format!("cp ended with {status}"))))
}
