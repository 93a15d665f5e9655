//! Temporary ZooKeeper servers on loopback: a single server or an ensemble.
//!
//! Methods block: [`ZooKeeper::kill`], for example, returns only when the process is dead. A server takes a second or
//! two to start.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::error::Error;
use crate::ports::PortLease;
use crate::server_dir::ServerDir;
use crate::server_process::ServerProcess;
use crate::spawn::{find, tied_to_process};
use crate::test_server::TestServer;

/// How long a member may take from its start until it answers. Java starts slowly on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait until the effect of a signal is visible.
const SIGNAL_PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait for one answer of a member.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// The number of attempts to start an ensemble. Each attempt uses new ports, because another process may have taken one
/// of the ports of the previous attempt.
const START_TRIES: usize = 4;
/// The folder in which Debian installs Java libraries.
const JAR_FOLDER: &str = "/usr/share/java";
/// The Java libraries that ZooKeeper needs.
const NEEDED_JARS: [&str; 18] = [
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "slf4j-nop",
    "netty-buffer",
    "netty-codec",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
    "netty-transport-native-epoll",
    "netty-transport-native-unix-common",
    "netty-all",
    "snappy-java",
    "metrics-core",
    "commons-io",
    "commons-cli",
    "log4j-1.2",
];

/// Options of a [`ZooKeeper`].
#[derive(Clone, Debug)]
pub struct ZooKeeperOptions {
    members: usize,
    sessions: (Duration, Duration),
    settings: Vec<String>,
}

impl Default for ZooKeeperOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl ZooKeeperOptions {
    /// Options of a single server, with a tick time of 100 ms and session timeouts of 100 ms to 60 s.
    pub fn new() -> Self {
        Self {
            members: 1,
            sessions: (Duration::from_millis(100), Duration::from_secs(60)),
            settings: Vec::new(),
        }
    }

    /// Sets the number of members. Default: 1.
    #[must_use]
    pub fn members(self, members: usize) -> Self {
        Self { members, ..self }
    }

    /// Sets the smallest and the largest session timeout that the members grant.
    #[must_use]
    pub fn sessions(self, shortest: Duration, longest: Duration) -> Self {
        Self {
            sessions: (shortest, longest),
            ..self
        }
    }

    /// Adds a line to the configuration file `zoo.cfg` of every member.
    #[must_use]
    pub fn setting(mut self, line: impl Into<String>) -> Self {
        self.settings.push(line.into());
        self
    }
}

/// One ZooKeeper server or an ensemble. Dropping this value kills all members and removes their directories.
///
/// Members are numbered from 0. Each member runs in its own process group. If `setpriv` is available, the members also
/// die when this process is killed. All methods take `&self`.
///
/// ```no_run
/// use quorate_testbed::ZooKeeper;
///
/// let ensemble = ZooKeeper::ensemble(3)?;
/// if let Some(leader) = ensemble.leader() {
///     ensemble.kill(leader)?;
/// }
/// println!("{}", ensemble.url("/locks"));
/// # Ok::<(), quorate_testbed::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping the ensemble kills its servers"]
pub struct ZooKeeper {
    members: Vec<Member>,
}

impl ZooKeeper {
    /// Checks whether ZooKeeper can be started on this machine.
    ///
    /// # Errors
    ///
    /// If a program or a library is missing: a text that names it and says how to install it.
    pub fn available() -> Result<(), String> {
        java().and_then(|_| class_path()).map(|_| ())
    }

    /// Starts a single server.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a program is missing; [`Error::Exited`] or [`Error::NotReady`] with the end of the log if the
    /// server does not start. No process is left running in that case.
    pub fn start() -> Result<Self, Error> {
        Self::start_with(&ZooKeeperOptions::new())
    }

    /// Starts an ensemble with this number of members, all at the same time.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn ensemble(members: usize) -> Result<Self, Error> {
        Self::start_with(&ZooKeeperOptions::new().members(members))
    }

    /// Starts a server or an ensemble with these options.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn start_with(options: &ZooKeeperOptions) -> Result<Self, Error> {
        let missing_error =
            |why: String| Error::io("find ZooKeeper")(io::Error::new(io::ErrorKind::NotFound, why));
        let java = java().map_err(missing_error)?;
        let class_path = class_path().map_err(missing_error)?;
        let mut tries = 1;
        loop {
            match Self::try_start(options, &java, &class_path) {
                Err(Error::Exited { log, .. }) if tries < START_TRIES && log.contains("in use") => {
                    tries += 1;
                }
                outcome => return outcome,
            }
        }
    }

    fn try_start(options: &ZooKeeperOptions, java: &Path, class_path: &str) -> Result<Self, Error> {
        let members = (0..options.members.max(1))
            .map(|_| Member::new(java, class_path))
            .collect::<Result<Vec<_>, _>>()?;
        let quorum_ports: Vec<String> = members.iter().map(Member::quorum_ports).collect();
        for (number, member) in members.iter().enumerate() {
            member.configure(options, number, &quorum_ports)?;
        }
        for member in &members {
            member.launch()?;
        }
        let ensemble = Self { members };
        ensemble.wait_ready()?;
        Ok(ensemble)
    }

    /// The number of members.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// The address of one member.
    pub fn addr(&self, member: usize) -> SocketAddr {
        self.members[member].addr()
    }

    /// The URL with the addresses of all members and the path `chroot`, for example
    /// `zk://127.0.0.1:2181+127.0.0.1:2182/chroot`.
    pub fn url(&self, chroot: &str) -> String {
        let hosts: Vec<String> = self
            .members
            .iter()
            .map(|member| member.addr().to_string())
            .collect();
        format!(
            "zk://{}/{}",
            hosts.join("+"),
            chroot.trim_start_matches('/')
        )
    }

    /// Kills a member with SIGKILL, as a crash would, and waits until it is dead and its port refuses connections. Does
    /// nothing if the member is dead.
    ///
    /// # Errors
    ///
    /// [`Error::Unverified`] if the process does not end.
    pub fn kill(&self, member: usize) -> Result<(), Error> {
        self.members[member].kill()
    }

    /// Freezes a member with SIGSTOP, and waits until the system shows it as stopped.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if the member is dead.
    pub fn stop(&self, member: usize) -> Result<(), Error> {
        self.members[member].process.stop()
    }

    /// Resumes a stopped member.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if the member is dead.
    pub fn cont(&self, member: usize) -> Result<(), Error> {
        self.members[member].process.cont()
    }

    /// Kills a member if it runs, and starts it again on the same ports with its data. Waits until the member serves
    /// clients. In an ensemble, that requires a majority of running members.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn restart(&self, member: usize) -> Result<(), Error> {
        self.kill(member)?;
        self.members[member].launch()?;
        self.members[member].wait_ready()
    }

    /// Waits until all running members serve clients.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn wait_ready(&self) -> Result<(), Error> {
        let mut alive = self
            .members
            .iter()
            .filter(|member| member.process.pid().is_some());
        alive.try_for_each(Member::wait_ready)
    }

    /// The index of the member that is the leader of the ensemble, or 0 for a single server. `None` while there is no
    /// leader.
    pub fn leader(&self) -> Option<usize> {
        (0..self.members.len()).find(|&member| {
            self.ask(member, "srvr").is_ok_and(|answer| {
                answer.contains("Mode: leader") || answer.contains("Mode: standalone")
            })
        })
    }

    /// Sends a member one of ZooKeeper's four-letter commands, such as `srvr` or `mntr`.
    ///
    /// # Errors
    ///
    /// `ConnectionRefused` from a dead member, `WouldBlock` or `TimedOut` from a stopped one.
    pub fn ask(&self, member: usize, command: &str) -> io::Result<String> {
        self.members[member].ask(command)
    }

    /// One value of a member's answer to `mntr`, for example the number of connections. `None` if the member does not
    /// report it.
    pub fn figure(&self, member: usize, name: &str) -> Option<u64> {
        let report = self.ask(member, "mntr").ok()?;
        let mut values = report.lines().filter_map(|line| line.split_once('\t'));
        let (_, value) = values.find(|(key, _)| *key == name)?;
        value.trim().parse::<f64>().ok().map(|value| value as u64)
    }

    /// Writes the script `zkCli.sh` into this folder. The script runs ZooKeeper's command-line client from the
    /// installed Java libraries.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write_client(&self, folder: &Path) -> io::Result<()> {
        let Member {
            java, class_path, ..
        } = &self.members[0];
        let script = format!(
            "#!/bin/sh\nexec '{}' -cp '{class_path}' org.apache.zookeeper.ZooKeeperMain \"$@\"\n",
            java.display()
        );
        let file = folder.join("zkCli.sh");
        fs::write(&file, script)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))
    }
}

impl TestServer for ZooKeeper {
    fn missing() -> Option<String> {
        Self::available().err()
    }

    fn addrs(&self) -> Vec<SocketAddr> {
        (0..self.members())
            .map(|member| self.addr(member))
            .collect()
    }

    fn url(&self, location: &str) -> String {
        Self::url(self, location)
    }

    fn kill(&self) -> Result<(), Error> {
        (0..self.members()).try_for_each(|member| Self::kill(self, member))
    }

    fn restart(&self) -> Result<(), Error> {
        thread::scope(|scope| {
            // Start all members at the same time, because the first one is not ready before a majority runs.
            let restart = |member| scope.spawn(move || Self::restart(self, member));
            let threads: Vec<_> = (0..self.members()).map(restart).collect();
            let results = threads.into_iter().map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            let results: Vec<_> = results.collect();
            results.into_iter().collect()
        })
    }

    fn stop(&self) -> Result<(), Error> {
        (0..self.members()).try_for_each(|member| Self::stop(self, member))
    }

    fn cont(&self) -> Result<(), Error> {
        (0..self.members()).try_for_each(|member| Self::cont(self, member))
    }
}

/// One server process of the ensemble.
#[derive(Debug)]
struct Member {
    /// The server process. This field precedes `dir`, because Rust drops fields in order: the process must be dead
    /// before its directory is removed.
    process: ServerProcess,
    java: PathBuf,
    class_path: String,
    client_port: PortLease,
    quorum_port: PortLease,
    election_port: PortLease,
    dir: ServerDir,
}

impl Member {
    fn new(java: &Path, class_path: &str) -> Result<Self, Error> {
        let lease_port = || PortLease::take().map_err(Error::io("find a free port"));
        let dir = ServerDir::create(None).map_err(Error::io("create a temporary directory"))?;
        Ok(Self {
            process: ServerProcess::new(dir.path().join("server.log"), SIGNAL_PATIENCE),
            java: java.to_owned(),
            class_path: class_path.to_owned(),
            client_port: lease_port()?,
            quorum_port: lease_port()?,
            election_port: lease_port()?,
            dir,
        })
    }

    fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.client_port.port()).into()
    }

    fn quorum_ports(&self) -> String {
        format!("{}:{}", self.quorum_port.port(), self.election_port.port())
    }

    /// Creates the directory and the configuration of a member.
    fn configure(
        &self,
        options: &ZooKeeperOptions,
        number: usize,
        quorum_ports: &[String],
    ) -> Result<(), Error> {
        let (shortest, longest) = options.sessions;
        let mut config = format!(
            "tickTime=100\ninitLimit=100\nsyncLimit=20\ndataDir={}\nclientPort={}\n\
             clientPortAddress=127.0.0.1\nadmin.enableServer=false\nextendedTypesEnabled=true\n\
             4lw.commands.whitelist=*\nminSessionTimeout={}\nmaxSessionTimeout={}\n\
             maxClientCnxns=0\n",
            self.data_dir().display(),
            self.client_port.port(),
            shortest.as_millis(),
            longest.as_millis(),
        );
        if quorum_ports.len() > 1 {
            for (other, ports) in quorum_ports.iter().enumerate() {
                let _ = writeln!(config, "server.{}=127.0.0.1:{ports}", other + 1);
            }
        }
        for line in &options.settings {
            let _ = writeln!(config, "{line}");
        }
        let write_files = || -> io::Result<()> {
            fs::create_dir_all(self.data_dir())?;
            fs::write(self.data_dir().join("myid"), (number + 1).to_string())?;
            fs::write(self.config_file(), config)
        };
        write_files().map_err(Error::io(
            "create the directory and the configuration of the server",
        ))
    }

    fn launch(&self) -> Result<(), Error> {
        let mut command = tied_to_process(&self.java, None);
        command
            .args([
                "-Xmx128m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                // Do not wait until a write is on the disk. A killed process loses no write by this: the written data
                // is in the cache of the operating system.
                "-Dzookeeper.forceSync=no",
                "-cp",
            ])
            .arg(&self.class_path)
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(self.config_file())
            .current_dir(self.dir.path());
        self.process.start(command)
    }

    fn wait_ready(&self) -> Result<(), Error> {
        let probe = || match self.not_ready_reason() {
            Ok(answer) => answer,
            Err(error) => Some(error.to_string()),
        };
        let pause = Duration::from_millis(20);
        self.process.wait_ready(START_PATIENCE, pause, probe)
    }

    /// Checks whether this member serves clients. Returns `None` if it does, otherwise the answer to `srvr`.
    ///
    /// The answer to `conf` must contain this member's data directory. Otherwise another server has taken the port.
    fn not_ready_reason(&self) -> io::Result<Option<String>> {
        let answer = self.ask("srvr")?;
        let is_own = self
            .ask("conf")?
            .contains(&self.data_dir().display().to_string());
        Ok(Some(answer).filter(|answer| !is_own || !answer.contains("Mode: ")))
    }

    fn ask(&self, command: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.addr(), ANSWER_PATIENCE)?;
        stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
        stream.write_all(command.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn kill(&self) -> Result<(), Error> {
        let refuses = || TcpStream::connect_timeout(&self.addr(), ANSWER_PATIENCE).is_err();
        self.process.end(Signal::KILL, refuses)
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn config_file(&self) -> PathBuf {
        self.dir.path().join("zoo.cfg")
    }
}

fn java() -> Result<PathBuf, String> {
    let java_home = std::env::var_os("JAVA_HOME").filter(|java_home| !java_home.is_empty());
    let configured =
        java_home.and_then(|java_home| find(Path::new(&java_home).join("bin/java").as_os_str()));
    configured
        .or_else(|| find("java".as_ref()))
        .ok_or_else(|| "java is missing: install a JRE, such as default-jre-headless".into())
}

/// The Java class path with ZooKeeper's libraries: from the folder `QUORATE_ZOOKEEPER` if that variable is set,
/// otherwise from Debian's packages. The error names the missing library or folder.
fn class_path() -> Result<String, String> {
    if let Some(folder) = std::env::var_os("QUORATE_ZOOKEEPER").filter(|name| !name.is_empty()) {
        let folder = PathBuf::from(folder);
        let is_folder = folder.is_dir();
        return if is_folder {
            Ok(format!("{}/*", folder.display()))
        } else {
            Err(format!(
                "QUORATE_ZOOKEEPER is not a folder: {}",
                folder.display()
            ))
        };
    }
    let jar_path = |name: &str| format!("{JAR_FOLDER}/{name}.jar");
    if !Path::new(&jar_path("zookeeper")).is_file() {
        return Err(format!(
            "{} is missing: install the package zookeeper, or set QUORATE_ZOOKEEPER \
             to the folder of its jars",
            jar_path("zookeeper")
        ));
    }
    let jars: Vec<String> = NEEDED_JARS.iter().map(|name| jar_path(name)).collect();
    Ok(jars.join(":"))
}
