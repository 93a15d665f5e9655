//! One temporary PostgreSQL server: a real process with its data and its socket in a temporary directory.
//!
//! Without [`PostgresOptions::tcp`], the server has no port: clients connect through its Unix socket. Unless an option
//! says otherwise, the server never waits for the disk.

use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;
use rustix::process::{Pid, Signal, kill_process};

use crate::console::Console;
use crate::error::Error;
use crate::ports::PortLease;
use crate::process::{process_state, within};
use crate::server_dir::ServerDir;
use crate::server_process::ServerProcess;
use crate::small_disk::SmallDisk;
use crate::spawn::{find, tied_to_process};
use crate::test_server::TestServer;

/// How long to wait until the effect of a signal is visible, and how long a started server may take until its first
/// answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The folder in which Debian installs one folder for each version.
const VERSIONS_DIR: &str = "/usr/lib/postgresql";
/// The user and the group `nobody` and `nogroup` of Linux. PostgreSQL refuses to run as root.
const NOBODY_UID: u32 = 65_534;

/// The folder of the data in the directory of a server.
const DATA: &str = "data";
/// The folder of the second file system in the directory of a server.
const SMALL_DISK: &str = "small";

/// The number of further ports that are tried if the first port is taken.
const PORTS_TO_TRY: usize = 8;

/// Options of one [`Postgres`].
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until they are handed to Postgres::start_with"]
pub struct PostgresOptions {
    tcp: bool,
    small_disk: Option<u64>,
    settings: Vec<String>,
    hba: Vec<String>,
}

impl PostgresOptions {
    /// Options of a server that has no port, never waits for the disk, and accepts every local client without a password.
    /// Only the administrator needs a password, for connections through a port.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the server listen on a free port of loopback, which stays the same across restarts. Default: no port.
    pub fn tcp(self) -> Self {
        Self { tcp: true, ..self }
    }

    /// Gives the server a second file system of this size in bytes, in memory, at [`Postgres::small_disk`]. Only the
    /// processes of the server can use it. It keeps its files until the server is dropped. Default: none.
    pub fn small_disk(self, bytes: u64) -> Self {
        Self {
            small_disk: Some(bytes),
            ..self
        }
    }

    /// Sets a parameter of the server, for example `fsync` to `on`. It takes precedence over the defaults of the
    /// testbed. Clients and SQL statements may change it for their sessions.
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push(format!("{name}={value}"));
        self
    }

    /// Puts a line in front of `pg_hba.conf`, for example `host all locks 127.0.0.1/32 scram-sha-256`. By default, the
    /// file accepts every local client as every user.
    pub fn hba(mut self, line: &str) -> Self {
        self.hba.push(line.to_owned());
        self
    }
}

/// The paths of the programs that a [`Postgres`] needs.
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
            if is_root() {
                find(OsStr::new("setpriv")).ok_or("setpriv")?;
            }
            let server = find(OsStr::new("postgres"))
                .or_else(newest_server)
                .ok_or("postgres")?;
            // The other programs of the same version are in the same folder.
            let server = fs::canonicalize(&server).unwrap_or(server);
            let program = |name: &'static str| {
                let sibling = server.with_file_name(name);
                find(sibling.as_os_str())
                    .or_else(|| find(OsStr::new(name)))
                    .ok_or(name)
            };
            let (install, client) = (program("initdb")?, program("psql")?);
            Ok(Self {
                server,
                install,
                client,
            })
        });
        found_programs
            .as_ref()
            .map_err(|name| Error::NoPostgres(name))
    }
}

/// The server program of the newest version that is installed as Debian does it.
fn newest_server() -> Option<PathBuf> {
    let versions = fs::read_dir(VERSIONS_DIR).ok()?.flatten();
    let programs = versions.filter_map(|version| {
        let number: u32 = version.file_name().to_str()?.parse().ok()?;
        let program = find(version.path().join("bin/postgres").as_os_str())?;
        Some((number, program))
    });
    programs.max().map(|(_, program)| program)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A copy of the files of a server, made by [`Postgres::copy_files`]. It is removed when this value is dropped.
#[derive(Debug)]
pub struct PostgresFiles(ServerDir);

impl PostgresFiles {
    fn data_dir(&self) -> PathBuf {
        self.0.path().join(DATA)
    }
}

/// A PostgreSQL process. Dropping this value ends the process and removes its directory.
///
/// ```no_run
/// use quorate_testbed::Postgres;
///
/// let server = Postgres::start()?;
/// assert_eq!(server.sql("SELECT 1 + 1")?, "2\n");
/// # Ok::<(), quorate_testbed::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping the server ends it"]
pub struct Postgres {
    options: PostgresOptions,
    programs: &'static Programs,
    /// The server process. Fields are dropped in the order of their declarations, so the server ends before its
    /// directory is removed.
    process: ServerProcess,
    small_disk: Option<SmallDisk>,
    lease: Option<PortLease>,
    dir: ServerDir,
    /// The random password of the administrator. Only connections through the port need it.
    password: String,
}

impl Postgres {
    /// Checks whether a server can be started on this machine.
    ///
    /// # Errors
    ///
    /// [`Error::NoPostgres`] with the program that is missing.
    pub fn available() -> Result<(), Error> {
        Programs::find().map(|_| ())
    }

    /// Starts a server with the default options, as [`start_with`](Self::start_with) does.
    ///
    /// # Errors
    ///
    /// As for [`start_with`](Self::start_with).
    pub fn start() -> Result<Self, Error> {
        Self::start_with(PostgresOptions::new())
    }

    /// Starts a server whose administrator is `postgres`. [`url`](Self::url) contains the random password that connections
    /// through a port need. Waits until the server answers.
    ///
    /// # Errors
    ///
    /// [`Error::NoPostgres`] if a program is missing; [`Error::Exited`] or [`Error::NotReady`] with the end of the
    /// server's log if the server does not start. No process is left running in that case.
    pub fn start_with(options: PostgresOptions) -> Result<Self, Error> {
        let programs = Programs::find()?;
        let password = format!("{:032x}", rand::make_rng::<StdRng>().random::<u128>());
        let mut server = Self::in_new_dir(options, programs, password)?;
        server.install()?;
        server.launch_on_free_port()?;
        Ok(server)
    }

    /// A server without data, which has not been started.
    fn in_new_dir(
        options: PostgresOptions,
        programs: &'static Programs,
        password: String,
    ) -> Result<Self, Error> {
        let dir = owned_dir()?;
        let small_disk = options.small_disk.map(|bytes| {
            let owner = is_root().then_some(NOBODY_UID);
            SmallDisk::mount(&dir.path().join(SMALL_DISK), bytes, owner)
        });
        Ok(Self {
            options,
            programs,
            process: ServerProcess::new(dir.path().join("server.log"), PATIENCE),
            small_disk: small_disk.transpose()?,
            lease: None,
            dir,
            password,
        })
    }

    /// Starts a second server on a copy of this server's data directory, as from a backup of the files. The options are
    /// those of this server. If this server runs, the copy is one of a running server.
    ///
    /// # Errors
    ///
    /// As for [`start_with`](Self::start_with).
    pub fn start_copy(&self) -> Result<Self, Error> {
        let mut server = self.with_same_options()?;
        copy_files(&self.data_dir(), &server.data_dir())?;
        let _ = fs::remove_file(server.data_dir().join("postmaster.pid"));
        server.launch_on_free_port()?;
        Ok(server)
    }

    /// A server with the options and the password of this one, without data. It has not been started.
    fn with_same_options(&self) -> Result<Self, Error> {
        Self::in_new_dir(self.options.clone(), self.programs, self.password.clone())
    }

    /// Copies the files of the server, as a snapshot of its disk does. If the server runs, it is frozen meanwhile, so
    /// the copy shows the files of one moment. The files on [`small_disk`](Self::small_disk) are not copied.
    ///
    /// # Errors
    ///
    /// The error of the operating system. [`Error::Exited`] if the program `cp` fails.
    pub fn copy_files(&self) -> Result<PostgresFiles, Error> {
        let files = PostgresFiles(owned_dir()?);
        let is_running = self.process.pid().is_some();
        if is_running {
            self.stop()?;
        }
        let copied = copy_files(&self.data_dir(), &files.data_dir());
        if is_running {
            self.cont()?;
        }
        let _ = fs::remove_file(files.data_dir().join("postmaster.pid"));
        copied.map(|()| files)
    }

    /// Replaces the files of this server, which must have ended, by those of an earlier copy.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    pub fn restore_files(&self, files: PostgresFiles) -> Result<(), Error> {
        self.take_files(&files.data_dir())
    }

    /// Makes this server, which must have ended, continue with the files of the server `other`. Shuts `other` down
    /// cleanly. The next start of this server is one of `other` at the address of this server.
    ///
    /// # Errors
    ///
    /// [`Error::Unverified`] if the other server does not end, and the errors of the operating system.
    pub fn take_over(&self, other: Self) -> Result<(), Error> {
        other.shut_down()?;
        self.take_files(&other.data_dir())
    }

    fn take_files(&self, from: &Path) -> Result<(), Error> {
        fs::remove_dir_all(self.data_dir()).map_err(Error::io("remove the data directory"))?;
        copy_files(from, &self.data_dir())
    }

    /// Starts a hot standby, which replicates this server asynchronously. `SELECT pg_promote()` makes it a primary.
    ///
    /// # Errors
    ///
    /// As for [`start_with`](Self::start_with). [`Error::Exited`] also if the program `pg_basebackup` is missing or
    /// fails.
    pub fn start_standby(&self) -> Result<Self, Error> {
        let mut standby = self.with_same_options()?;
        let program = self.programs.server.with_file_name("pg_basebackup");
        let output = unprivileged(&program)
            .args([
                "--write-recovery-conf",
                "--checkpoint=fast",
                "--no-sync",
                "--username=postgres",
            ])
            .arg(format!("--port={}", self.port()))
            .arg("--host")
            .arg(self.dir.path())
            .arg("--pgdata")
            .arg(standby.data_dir())
            .current_dir(standby.dir.path())
            .stdin(Stdio::null())
            .output()
            .map_err(Error::io("copy the server"))?;
        if !output.status.success() {
            let status = output.status;
            let log = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Error::Exited { status, log });
        }
        standby.launch_on_free_port()?;
        Ok(standby)
    }

    /// The temporary directory of the server, in which its socket is. It is removed when the server is dropped.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The folder of the second file system, if the server has one ([`PostgresOptions::small_disk`]).
    pub fn small_disk(&self) -> PathBuf {
        self.dir.path().join(SMALL_DISK)
    }

    /// Why this machine cannot give a server a second file system. `None` if it can.
    pub fn missing_small_disk() -> Option<String> {
        if !is_root() {
            return Some("only root may mount a file system of a few megabytes".to_owned());
        }
        SmallDisk::missing()
    }

    /// The address of the server on loopback; `None` without [`PostgresOptions::tcp`].
    pub fn addr(&self) -> Option<SocketAddr> {
        let lease = self.lease.as_ref()?;
        Some((Ipv4Addr::LOCALHOST, lease.port()).into())
    }

    /// The URL of a database for the administrator: `postgres://postgres:password@127.0.0.1:port/database`. Without a
    /// port, the URL names the Unix socket.
    pub fn url(&self, database: &str) -> String {
        match self.addr() {
            Some(_) => self.url_of(&format!("postgres:{}", self.password), database),
            None => self.url_of("postgres", database),
        }
    }

    /// The URL of a database, with the credentials `user`: a name, or `name:password`.
    pub fn url_of(&self, user: &str, database: &str) -> String {
        match self.addr() {
            Some(addr) => format!("postgres://{user}@{addr}/{database}"),
            None => format!(
                "postgres://{user}@/{database}?host={}",
                self.dir.path().display()
            ),
        }
    }

    /// Ends the server at once, as a crash would: all of its processes end, and the next start recovers from the log.
    /// Then starts the server again with its data.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start). [`Error::Unverified`] if the process does not end.
    pub fn restart(&self) -> Result<(), Error> {
        self.end()?;
        self.launch()
    }

    /// Shuts the server down cleanly, without waiting for its clients (`pg_ctl stop -m fast`).
    ///
    /// # Errors
    ///
    /// [`Error::Unverified`] if the process does not end.
    pub fn shut_down(&self) -> Result<(), Error> {
        self.process.end(Signal::INT, || true)
    }

    /// Kills the main process of the server with SIGKILL. The other processes notice this and end.
    ///
    /// # Errors
    ///
    /// [`Error::Unverified`] if the process does not end.
    pub fn kill(&self) -> Result<(), Error> {
        let children = self.children();
        let is_stopped = self.is_stopped();
        // A frozen process does not notice that the main process has ended. A process that has received SIGSTOP may
        // freeze a moment later.
        for child in children
            .iter()
            .filter(|child| is_stopped || is_frozen(**child))
        {
            let _ = kill_process(*child, Signal::KILL);
        }
        self.process.end(Signal::KILL, || {
            let is_gone = |child: &Pid| matches!(state(*child), None | Some('Z'));
            children.iter().all(is_gone)
        })
    }

    /// Starts a server that has ended, with its data. If it listens on a port, it is the same port.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn start_again(&self) -> Result<(), Error> {
        self.launch()
    }

    /// Kills one backend process with SIGKILL, as the kernel does if the machine has no more memory. The server then
    /// ends all other backends and recovers from its log, in the same main process.
    ///
    /// # Errors
    ///
    /// The error of the operating system, for example if the process has ended.
    pub fn kill_backend(&self, pid: u32) -> Result<(), Error> {
        let pid = Pid::from_raw(pid.cast_signed()).ok_or(Error::NotRunning)?;
        kill_process(pid, Signal::KILL).map_err(Error::io("kill a backend"))
    }

    /// Freezes all processes of the server with SIGSTOP.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if the server is dead.
    pub fn stop(&self) -> Result<(), Error> {
        self.process.stop()?;
        // Each process of the server is in a session and a process group of its own.
        self.signal_children(Signal::STOP);
        Ok(())
    }

    /// Resumes a server that [`stop`](Self::stop) has frozen.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if the server is dead.
    pub fn cont(&self) -> Result<(), Error> {
        self.signal_children(Signal::CONT);
        self.process.cont()
    }

    fn signal_children(&self, signal: Signal) {
        for pid in self.children() {
            let _ = kill_process(pid, signal);
        }
    }

    /// The child processes of the server's main process: its backends and its helpers. Reads the parent of every process,
    /// because the kernel's list of children can lack one while another child ends.
    fn children(&self) -> Vec<Pid> {
        let Some(parent) = self.process.pid() else {
            return Vec::new();
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let is_child = |pid: &u32| parent_of(*pid) == Some(parent);
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(is_child)
            .filter_map(|pid| Pid::from_raw(pid.cast_signed()))
            .collect()
    }

    /// Runs SQL statements as the administrator, with the command-line client `psql`. Returns one line per row, with
    /// `|` between the columns.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with the server's message.
    pub fn sql(&self, statements: &str) -> Result<String, Error> {
        self.sql_in("postgres", statements)
    }

    /// Runs SQL statements in this database, as [`sql`](Self::sql) does.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with the server's message.
    pub fn sql_in(&self, database: &str, statements: &str) -> Result<String, Error> {
        let output = self
            .client()
            .arg(format!("--dbname={database}"))
            .args(["--quiet", "--set=ON_ERROR_STOP=1", "--command", statements])
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

    /// Opens an administrator's session in this database, which stays open until the [`Console`] is dropped. So a test can
    /// use the session to keep rows and tables locked.
    ///
    /// # Errors
    ///
    /// If the client program does not start. A refused login is no error here: the first [`Console::say`] returns it.
    pub fn console_in(&self, database: &str) -> Result<Console, Error> {
        let mut command = self.client();
        command
            .arg(format!("--dbname={database}"))
            .args(["--quiet", "--set=ON_ERROR_STOP=1"]);
        Console::open(command)
    }

    /// Sets a parameter of the running server, and waits until new statements of all sessions use it. An empty value
    /// restores the default.
    ///
    /// # Panics
    ///
    /// If the server refuses the parameter, or does not use it in time.
    pub fn set_and_reload(&self, name: &str, value: &str) {
        let set_statement = format!("ALTER SYSTEM SET {name}='{value}'");
        let used = format!("SELECT current_setting('{name}')='{value}'");
        self.sql(&set_statement).expect("the parameter exists");
        self.sql("SELECT pg_reload_conf()").expect("reloaded");
        let is_used = || self.sql(&used).is_ok_and(|used| used == "t\n");
        assert!(within(PATIENCE, is_used), "{name}");
        // A session reads the parameters before its next statement, but the server wakes its other processes later.
        std::thread::sleep(Duration::from_millis(300));
    }

    /// The command that starts `psql` as the administrator. It reads statements from stdin.
    pub fn client(&self) -> Command {
        let mut command = Command::new(&self.programs.client);
        command
            .args(["--no-psqlrc", "--no-align", "--tuples-only"])
            .arg("--host")
            .arg(self.dir.path())
            .arg(format!("--port={}", self.port()))
            .args(["--username=postgres", "--dbname=postgres"]);
        command
    }

    /// The port of the server. The name of its Unix socket contains this number even if the server does not listen on
    /// the port.
    pub(crate) fn port(&self) -> u16 {
        self.lease.as_ref().map_or(5432, PortLease::port)
    }

    /// The last lines of the server's log. All restarts of the server write to the same log.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join(DATA)
    }

    /// Creates the data directory.
    fn install(&self) -> Result<(), Error> {
        let file = self.dir.path().join("password");
        fs::write(&file, &self.password).map_err(Error::io("write the password"))?;
        if is_root() {
            chown(&file, Some(NOBODY_UID), Some(NOBODY_UID))
                .map_err(Error::io("change the owner of a file"))?;
        }
        let output = unprivileged(&self.programs.install)
            .arg("--pwfile")
            .arg(&file)
            .args(["--no-sync", "--username=postgres", "--auth=trust"])
            .args(["--locale=C", "--encoding=UTF8", "--pgdata"])
            .arg(self.data_dir())
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .output()
            .map_err(Error::io("create the data directory"))?;
        if !output.status.success() {
            let status = output.status;
            let log = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Error::Exited { status, log });
        }
        self.write_hba()
    }

    fn write_hba(&self) -> Result<(), Error> {
        let file = self.data_dir().join("pg_hba.conf");
        let hba_text = fs::read_to_string(&file).map_err(Error::io("read pg_hba.conf"))?;
        // An administrator may run programs as the user of the server, and each local user can reach the port.
        // The method `scram-sha-256` would make each login of an unoptimized client slow.
        let protected = "host all postgres all password".to_owned();
        let lines = [self.options.hba.join("\n"), protected, hba_text].join("\n");
        fs::write(&file, lines).map_err(Error::io("write pg_hba.conf"))
    }

    fn launch_on_free_port(&mut self) -> Result<(), Error> {
        for tries in 1.. {
            if self.options.tcp {
                let lease = PortLease::take().map_err(Error::io("find a free port"))?;
                self.lease = Some(lease);
            }
            match self.launch() {
                Err(Error::Exited { log, .. })
                    if self.options.tcp
                        && tries < PORTS_TO_TRY
                        && log.contains("could not bind") => {}
                outcome => return outcome,
            }
        }
        Ok(())
    }

    fn launch(&self) -> Result<(), Error> {
        let mut command = match &self.small_disk {
            Some(disk) => disk.inside(unprivileged(&self.programs.server)),
            None => unprivileged(&self.programs.server),
        };
        command
            .arg("-D")
            .arg(self.data_dir())
            .arg("-k")
            .arg(self.dir.path())
            .args(["-p", &self.port().to_string()])
            .args(["-c", "fsync=off", "-c", "full_page_writes=off"])
            .args(["-c", "shared_buffers=16MB", "-c", "lock_timeout=30s"])
            .args(["-c", "max_connections=200"])
            // Before a server ends cleanly, it waits for new connections that send nothing, by default for a minute.
            .args(["-c", "authentication_timeout=10s"])
            .args([
                "-c",
                if self.options.tcp {
                    "listen_addresses=127.0.0.1"
                } else {
                    "listen_addresses="
                },
            ])
            .args(
                self.options
                    .settings
                    .iter()
                    .flat_map(|setting| ["-c", setting]),
            )
            .current_dir(self.dir.path());
        self.process.start(command)?;
        let probe = || self.sql("SELECT 1").err().map(|error| error.to_string());
        self.process
            .wait_ready(PATIENCE, Duration::from_millis(20), probe)
    }

    /// Ends all processes of the server. SIGKILL would end only the first process at once, but a frozen server receives no
    /// other signal.
    fn end(&self) -> Result<(), Error> {
        if self.is_stopped() {
            return self.kill();
        }
        self.process.end(Signal::QUIT, || true)
    }

    /// Whether the main process of the server is frozen.
    fn is_stopped(&self) -> bool {
        let main = self.process.pid();
        let main = main.and_then(|pid| Pid::from_raw(pid.cast_signed()));
        main.is_some_and(is_frozen)
    }
}

/// A server that is used as a master has a port ([`PostgresOptions::tcp`]).
impl TestServer for Postgres {
    fn missing() -> Option<String> {
        Self::available().err().map(|why| why.to_string())
    }

    fn addrs(&self) -> Vec<SocketAddr> {
        self.addr().into_iter().collect()
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

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// The state of a process, for example `T` if SIGSTOP has frozen it. `None` if the process has ended.
fn state(pid: Pid) -> Option<char> {
    process_state(pid.as_raw_nonzero().get().cast_unsigned())
}

fn is_frozen(pid: Pid) -> bool {
    state(pid) == Some('T')
}

/// The id of the process that started this process. `None` if the process has ended.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program in parentheses may contain spaces. The state and the parent follow it.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(1)?.parse().ok()
}

/// Creates a directory that belongs to the user of the server.
fn owned_dir() -> Result<ServerDir, Error> {
    let dir = ServerDir::create(None).map_err(Error::io("create a temporary directory"))?;
    if is_root() {
        chown(dir.path(), Some(NOBODY_UID), Some(NOBODY_UID))
            .map_err(Error::io("change the owner of a directory"))?;
    }
    Ok(dir)
}

/// Copies a directory with its owners and rights.
fn copy_files(from: &Path, to: &Path) -> Result<(), Error> {
    let status = Command::new("cp")
        .arg("-a")
        .args([from, to])
        .stdin(Stdio::null())
        .status()
        .map_err(Error::io("copy the data directory"))?;
    if status.success() {
        return Ok(());
    }
    let log = "cp has failed".to_owned();
    Err(Error::Exited { status, log })
}

/// Returns a command that starts `program`, as the user `nobody` if this process runs as root.
pub(crate) fn unprivileged(program: &Path) -> Command {
    if !is_root() {
        return tied_to_process(program, None);
    }
    let mut command = Command::new("setpriv");
    command
        .args([
            format!("--reuid={NOBODY_UID}"),
            format!("--regid={NOBODY_UID}"),
        ])
        .args(["--clear-groups", "--pdeathsig", "KILL"])
        .arg(program);
    command
}
