//! Throw-away ZooKeeper: one server, or an ensemble, as ordinary processes on loopback.
//!
//! Every method that changes a process returns only when the change has been seen. All of them block: a Java
//! program takes a second or two to start.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::error::Error;
use crate::ports::PortLease;
use crate::process::{process_state, signal_group, within};
use crate::spawn::{find, mortal, spawn};

/// How long a member may take to answer after its start: Java, on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How long a signal may take to show its effect.
const SIGNAL_PATIENCE: Duration = Duration::from_secs(10);
/// How long a member may take over one answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// How often an ensemble whose ports were taken meanwhile is tried on others.
const TRIES: usize = 4;
/// Where Debian puts Java's libraries.
const JARS: &str = "/usr/share/java";
/// What ZooKeeper needs of them.
const NEEDED: [&str; 18] = [
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

/// How a [`ZooKeeper`] is to be.
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
    /// One server, with ticks of 100 ms and sessions of 100 ms to 60 s.
    pub fn new() -> Self {
        Self {
            members: 1,
            sessions: (Duration::from_millis(100), Duration::from_secs(60)),
            settings: Vec::new(),
        }
    }

    /// The same, of so many members.
    #[must_use]
    pub fn members(self, members: usize) -> Self {
        Self { members, ..self }
    }

    /// The same, with other bounds for sessions.
    #[must_use]
    pub fn sessions(self, shortest: Duration, longest: Duration) -> Self {
        Self {
            sessions: (shortest, longest),
            ..self
        }
    }

    /// The same, with one more line in `zoo.cfg`.
    #[must_use]
    pub fn setting(mut self, line: impl Into<String>) -> Self {
        self.settings.push(line.into());
        self
    }
}

/// One ZooKeeper server or an ensemble, killed and cleaned up when dropped.
///
/// Members have numbers from 0. As with [`Server`](crate::Server), a member runs in a process group of its own,
/// dies with this process where `setpriv` is available, and all methods take `&self`.
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
#[must_use = "dropping it kills its servers"]
pub struct ZooKeeper {
    members: Vec<Member>,
}

impl ZooKeeper {
    /// Whether it can be started here; if not, what is missing.
    ///
    /// # Errors
    ///
    /// What is missing, and how it is had.
    pub fn available() -> Result<(), String> {
        java().and_then(|_| class_path()).map(|_| ())
    }

    /// Starts one server.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when there is nothing to start, [`Error::Exited`] or [`Error::NotReady`] with the end of the
    /// log when it does not come up. Nothing is left running then.
    pub fn start() -> Result<Self, Error> {
        Self::start_with(&ZooKeeperOptions::new())
    }

    /// Starts an ensemble of so many members, all at once.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn ensemble(members: usize) -> Result<Self, Error> {
        Self::start_with(&ZooKeeperOptions::new().members(members))
    }

    /// Starts one as it is described.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn start_with(options: &ZooKeeperOptions) -> Result<Self, Error> {
        let missing =
            |why: String| Error::io("find ZooKeeper")(io::Error::new(io::ErrorKind::NotFound, why));
        let java = java().map_err(missing)?;
        let classes = class_path().map_err(missing)?;
        let mut tries = 1;
        loop {
            match Self::try_start(options, &java, &classes) {
                Err(Error::Exited { log, .. }) if tries < TRIES && log.contains("in use") => {
                    tries += 1;
                }
                outcome => return outcome,
            }
        }
    }

    fn try_start(options: &ZooKeeperOptions, java: &Path, classes: &str) -> Result<Self, Error> {
        let members = (0..options.members.max(1))
            .map(|_| Member::new(java, classes))
            .collect::<Result<Vec<_>, _>>()?;
        let quorum: Vec<String> = members.iter().map(Member::quorum_ports).collect();
        for (number, member) in members.iter().enumerate() {
            member.configure(options, number, &quorum)?;
        }
        for member in &members {
            member.launch()?;
        }
        let all = Self { members };
        all.wait_ready()?;
        Ok(all)
    }

    /// How many members it has.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// The address of one member.
    pub fn addr(&self, member: usize) -> SocketAddr {
        self.members[member].addr()
    }

    /// The URL for clients, with all members: `zk://127.0.0.1:1+127.0.0.1:2/chroot`.
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

    /// Kills a member with SIGKILL, as a crash would, and waits until it is dead and its port refuses connections.
    /// Does nothing to a dead one.
    ///
    /// # Errors
    ///
    /// [`Error::Unverified`] when the process does not go.
    pub fn kill(&self, member: usize) -> Result<(), Error> {
        self.members[member].kill()
    }

    /// Freezes a member with SIGSTOP and waits until it is seen stopped.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] on a dead one.
    pub fn stop(&self, member: usize) -> Result<(), Error> {
        self.members[member].signal(Signal::STOP)?;
        self.members[member].await_state("stopped", |state| matches!(state, 'T' | 't'))
    }

    /// Lets a stopped member run on.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] on a dead one.
    pub fn cont(&self, member: usize) -> Result<(), Error> {
        self.members[member].signal(Signal::CONT)?;
        self.members[member].await_state("running", |state| !matches!(state, 'T' | 't'))
    }

    /// Kills a member if it runs and starts it again from what its disk holds, on the same ports. Waits until it
    /// serves; in an ensemble that needs a majority of members that run.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn restart(&self, member: usize) -> Result<(), Error> {
        self.kill(member)?;
        self.members[member].launch()?;
        self.members[member].wait_ready()
    }

    /// Waits until all members that run serve.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn wait_ready(&self) -> Result<(), Error> {
        let mut alive = self.members.iter().filter(|member| member.pid().is_some());
        alive.try_for_each(Member::wait_ready)
    }

    /// The member that leads the ensemble, or the only one. `None` while there is none.
    pub fn leader(&self) -> Option<usize> {
        (0..self.members.len()).find(|&member| {
            self.ask(member, "srvr").is_ok_and(|answer| {
                answer.contains("Mode: leader") || answer.contains("Mode: standalone")
            })
        })
    }

    /// Asks a member one of ZooKeeper's words of four letters, such as `srvr` or `mntr`.
    ///
    /// # Errors
    ///
    /// `ConnectionRefused` from a dead member, `WouldBlock` or `TimedOut` from a stopped one.
    pub fn ask(&self, member: usize, word: &str) -> io::Result<String> {
        self.members[member].ask(word)
    }

    /// One figure of what a member says to `mntr`.
    pub fn figure(&self, member: usize, name: &str) -> Option<u64> {
        let all = self.ask(member, "mntr").ok()?;
        let mut words = all.lines().filter_map(|line| line.split_once('\t'));
        let (_, value) = words.find(|(key, _)| *key == name)?;
        value.trim().parse::<f64>().ok().map(|value| value as u64)
    }
}

/// One server process of its own.
#[derive(Debug)]
struct Member {
    java: PathBuf,
    classes: String,
    client: PortLease,
    quorum: PortLease,
    election: PortLease,
    child: Mutex<Option<Child>>,
    dir: TempDir,
}

impl Member {
    fn new(java: &Path, classes: &str) -> Result<Self, Error> {
        let port = || PortLease::take().map_err(Error::io("find a free port"));
        let dir = tempfile::Builder::new()
            .prefix("quorate-testbed-")
            .tempdir();
        Ok(Self {
            java: java.to_owned(),
            classes: classes.to_owned(),
            client: port()?,
            quorum: port()?,
            election: port()?,
            child: Mutex::new(None),
            dir: dir.map_err(Error::io("create a temporary directory"))?,
        })
    }

    fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.client.port()).into()
    }

    fn quorum_ports(&self) -> String {
        format!("{}:{}", self.quorum.port(), self.election.port())
    }

    /// Lays out its directory.
    fn configure(
        &self,
        options: &ZooKeeperOptions,
        number: usize,
        quorum: &[String],
    ) -> Result<(), Error> {
        let (shortest, longest) = options.sessions;
        let mut config = format!(
            "tickTime=100\ninitLimit=100\nsyncLimit=20\ndataDir={}\nclientPort={}\n\
             clientPortAddress=127.0.0.1\nadmin.enableServer=false\nextendedTypesEnabled=true\n\
             4lw.commands.whitelist=*\nminSessionTimeout={}\nmaxSessionTimeout={}\n\
             maxClientCnxns=0\n",
            self.data_dir().display(),
            self.client.port(),
            shortest.as_millis(),
            longest.as_millis(),
        );
        if quorum.len() > 1 {
            for (other, ports) in quorum.iter().enumerate() {
                let _ = writeln!(config, "server.{}=127.0.0.1:{ports}", other + 1);
            }
        }
        for line in &options.settings {
            let _ = writeln!(config, "{line}");
        }
        let lay_out = || -> io::Result<()> {
            fs::create_dir_all(self.data_dir())?;
            fs::write(self.data_dir().join("myid"), (number + 1).to_string())?;
            fs::write(self.config_file(), config)
        };
        lay_out().map_err(Error::io("lay out the server's directory"))
    }

    fn launch(&self) -> Result<(), Error> {
        let mut log = File::options();
        let log = log.create(true).append(true).open(self.log_file());
        let log = log.map_err(Error::io("open the server's log"))?;
        let err = log
            .try_clone()
            .map_err(Error::io("share the server's log"))?;
        let mut command = mortal(&self.java, None);
        {
            use std::os::unix::process::CommandExt;
            command.process_group(0);
        }
        command
            .args([
                "-Xmx128m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-cp",
            ])
            .arg(&self.classes)
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(self.config_file())
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(err);
        *self.child() = Some(spawn(command).map_err(Error::io("start the server program"))?);
        Ok(())
    }

    fn wait_ready(&self) -> Result<(), Error> {
        let started = Instant::now();
        loop {
            let ended = self
                .child()
                .as_mut()
                .ok_or(Error::NotRunning)?
                .try_wait()
                .map_err(Error::io("look after the server"))?;
            if let Some(status) = ended {
                let log = self.log_tail();
                return Err(Error::Exited { status, log });
            }
            let last = match self.serves() {
                Ok(None) => return Ok(()),
                Ok(Some(answer)) => answer,
                Err(error) => error.to_string(),
            };
            let waited = started.elapsed();
            if waited >= START_PATIENCE {
                let log = self.log_tail();
                return Err(Error::NotReady { waited, last, log });
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// `None` when it is this very server and serves, else what it said. On its port a stranger may answer.
    fn serves(&self) -> io::Result<Option<String>> {
        let answer = self.ask("srvr")?;
        let ours = self
            .ask("conf")?
            .contains(&self.data_dir().display().to_string());
        Ok(Some(answer).filter(|answer| !ours || !answer.contains("Mode: ")))
    }

    fn ask(&self, word: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.addr(), ANSWER_PATIENCE)?;
        stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
        stream.write_all(word.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn kill(&self) -> Result<(), Error> {
        let mut child = self.child();
        let Some(process) = child.as_mut() else {
            return Ok(());
        };
        let waiting = Error::io("look after the server");
        // The pid is ours as long as the child is not reaped, and only this lock reaps it.
        if process.try_wait().map_err(waiting)?.is_none() {
            signal_group(process, Signal::KILL)?;
        }
        let dead = within(SIGNAL_PATIENCE, || {
            matches!(process.try_wait(), Ok(Some(_)))
                && TcpStream::connect_timeout(&self.addr(), ANSWER_PATIENCE).is_err()
        });
        if !dead {
            return Err(Error::Unverified {
                wanted: "dead",
                waited: SIGNAL_PATIENCE,
            });
        }
        *child = None;
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<(), Error> {
        let mut child = self.child();
        let process = child.as_mut().ok_or(Error::NotRunning)?;
        let waiting = Error::io("look after the server");
        match process.try_wait().map_err(waiting)? {
            Some(_) => Err(Error::NotRunning),
            None => signal_group(process, signal),
        }
    }

    fn await_state(&self, wanted: &'static str, is: impl Fn(char) -> bool) -> Result<(), Error> {
        let pid = self.pid().ok_or(Error::NotRunning)?;
        if within(SIGNAL_PATIENCE, || process_state(pid).is_some_and(&is)) {
            return Ok(());
        }
        Err(Error::Unverified {
            wanted,
            waited: SIGNAL_PATIENCE,
        })
    }

    fn pid(&self) -> Option<u32> {
        let mut child = self.child();
        let running = child.as_mut()?;
        matches!(running.try_wait(), Ok(None)).then(|| running.id())
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log_tail(&self) -> String {
        let log = fs::read(self.log_file()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn config_file(&self) -> PathBuf {
        self.dir.path().join("zoo.cfg")
    }

    fn log_file(&self) -> PathBuf {
        self.dir.path().join("server.log")
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(mut process) = self.child().take()
            && matches!(process.try_wait(), Ok(None))
        {
            let _ = signal_group(&process, Signal::KILL);
            let _ = process.wait();
        }
    }
}

fn java() -> Result<PathBuf, String> {
    let home = std::env::var_os("JAVA_HOME").filter(|home| !home.is_empty());
    let named = home.and_then(|home| find(Path::new(&home).join("bin/java").as_os_str()));
    named
        .or_else(|| find("java".as_ref()))
        .ok_or_else(|| "there is no java: install a JRE, such as default-jre-headless".into())
}

/// The libraries of ZooKeeper: of the folder that `QUORATE_ZOOKEEPER` names, or Debian's.
fn class_path() -> Result<String, String> {
    if let Some(folder) = std::env::var_os("QUORATE_ZOOKEEPER").filter(|name| !name.is_empty()) {
        let folder = PathBuf::from(folder);
        let there = folder.is_dir();
        return if there {
            Ok(format!("{}/*", folder.display()))
        } else {
            Err(format!(
                "QUORATE_ZOOKEEPER names no folder: {}",
                folder.display()
            ))
        };
    }
    let jar = |name: &str| format!("{JARS}/{name}.jar");
    if !Path::new(&jar("zookeeper")).is_file() {
        return Err(format!(
            "there is no {}: install the package zookeeper, or name the folder of its jars in \
             QUORATE_ZOOKEEPER",
            jar("zookeeper")
        ));
    }
    let jars: Vec<String> = NEEDED.iter().map(|name| jar(name)).collect();
    Ok(jars.join(":"))
}
