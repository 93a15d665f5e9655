//! One temporary PostgreSQL server: a real process with its data and its socket in a temporary directory.
//!
//! The server has no port: clients connect through its Unix socket. It never waits for the disk.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::Signal;

use crate::error::Error;
use crate::home::Home;
use crate::life::Life;
use crate::spawn::{find, mortal};

/// How long to wait until the effect of a signal is visible, and how long a started server may take until its first
/// answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The folder in which Debian installs one folder for each version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// The user and the group `nobody` and `nogroup` of Linux. PostgreSQL refuses to run as root.
const NOBODY: u32 = 65_534;

/// The paths of the programs that a [`Postgres`] needs.
#[derive(Debug)]
struct Programs {
    server: PathBuf,
    install: PathBuf,
    client: PathBuf,
}

impl Programs {
    fn find() -> Result<&'static Self, Error> {
        static FOUND: OnceLock<Result<Programs, &'static str>> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            if is_root() {
                find(OsStr::new("setpriv")).ok_or("setpriv")?;
            }
            let server = find(OsStr::new("postgres"))
                .or_else(newest)
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
        found.as_ref().map_err(|name| Error::NoPostgres(name))
    }
}

/// The server program of the newest version that is installed as Debian does it.
fn newest() -> Option<PathBuf> {
    let versions = fs::read_dir(VERSIONS).ok()?.flatten();
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
    programs: &'static Programs,
    /// The server process. Fields are dropped in the order of their declarations, so the server ends before its
    /// directory is removed.
    life: Life,
    dir: Home,
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

    /// Starts a server that accepts every local client as the administrator `postgres`, without a password. Waits until
    /// the server answers.
    ///
    /// # Errors
    ///
    /// [`Error::NoPostgres`] if a program is missing; [`Error::Exited`] or [`Error::NotReady`] with the end of the
    /// server's log if the server does not start. No process is left running in that case.
    pub fn start() -> Result<Self, Error> {
        let programs = Programs::find()?;
        let dir = Home::create(None).map_err(Error::io("create a temporary directory"))?;
        if is_root() {
            chown(dir.path(), Some(NOBODY), Some(NOBODY))
                .map_err(Error::io("change the owner of a directory"))?;
        }
        let server = Self {
            programs,
            life: Life::new(dir.path().join("server.log"), PATIENCE),
            dir,
        };
        server.install()?;
        server.launch()?;
        Ok(server)
    }

    /// The temporary directory of the server, in which its socket is. It is removed when the server is dropped.
    pub fn dir(&self) -> &Path {
        self.dir.path()
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

    /// Runs SQL statements as the administrator, with the command-line client `psql`. Returns one line per row, with
    /// `|` between the columns.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with the server's message.
    pub fn sql(&self, statements: &str) -> Result<String, Error> {
        let output = self
            .client()
            .args(["--quiet", "--set=ON_ERROR_STOP=1", "--command", statements])
            .stdin(Stdio::null())
            .output()
            .map_err(Error::io("run the client program"))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Error::Refused(said))
        }
    }

    /// The command that starts `psql` as the administrator. It reads statements from stdin.
    pub fn client(&self) -> Command {
        let mut command = Command::new(&self.programs.client);
        command
            .args(["--no-psqlrc", "--no-align", "--tuples-only"])
            .arg("--host")
            .arg(self.dir.path())
            .args(["--username=postgres", "--dbname=postgres"]);
        command
    }

    /// The last lines of the server's log. All restarts of the server write to the same log.
    pub fn log_tail(&self) -> String {
        self.life.log_tail()
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Creates the data directory.
    fn install(&self) -> Result<(), Error> {
        let output = unprivileged(&self.programs.install)
            .args(["--no-sync", "--username=postgres", "--auth=trust"])
            .args(["--locale=C", "--encoding=UTF8", "--pgdata"])
            .arg(self.data_dir())
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .output()
            .map_err(Error::io("create the data directory"))?;
        if output.status.success() {
            return Ok(());
        }
        let status = output.status;
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(Error::Exited { status, log })
    }

    fn launch(&self) -> Result<(), Error> {
        let mut command = unprivileged(&self.programs.server);
        command
            .arg("-D")
            .arg(self.data_dir())
            .arg("-k")
            .arg(self.dir.path())
            .args(["-c", "listen_addresses=", "-c", "fsync=off"])
            .args(["-c", "shared_buffers=16MB", "-c", "lock_timeout=30s"])
            .current_dir(self.dir.path());
        self.life.begin(command)?;
        let probe = || self.sql("SELECT 1").err().map(|error| error.to_string());
        self.life
            .wait_ready(PATIENCE, Duration::from_millis(20), probe)
    }

    /// Ends all processes of the server. SIGKILL would end only the first process at once.
    fn end(&self) -> Result<(), Error> {
        self.life.end(Signal::QUIT, || true)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Returns a command that starts `program`, as the user `nobody` if this process runs as root.
fn unprivileged(program: &Path) -> Command {
    if !is_root() {
        return mortal(program, None);
    }
    let mut command = Command::new("setpriv");
    command
        .args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")])
        .args(["--clear-groups", "--pdeathsig", "KILL"])
        .arg(program);
    command
}
