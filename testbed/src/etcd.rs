//! Temporary etcd clusters on loopback, with one or more members.
//!
//! Methods block: [`Etcd::kill`], for example, returns only when the process is dead. A single member takes a second to
//! start, because it waits for its own election.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::error::Error;
use crate::options::Tls;
use crate::ports::PortLease;
use crate::server_dir::ServerDir;
use crate::server_process::ServerProcess;
use crate::spawn::{find, spawn, tied_to_process};
use crate::test_server::TestServer;

/// How long a member may take from its start until it has a leader.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait until the effect of a signal is visible.
const SIGNAL_PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait for one answer of a member.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// The number of attempts to start a cluster. Each attempt uses new ports, because another process may have taken one
/// of the ports of the previous attempt.
const TRIES: usize = 4;

/// Options of an [`Etcd`] cluster.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    members: usize,
    arguments: Vec<String>,
    tls: Option<Tls>,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl EtcdOptions {
    /// Options of a single member.
    pub fn new() -> Self {
        Self {
            members: 1,
            arguments: Vec::new(),
            tls: None,
        }
    }

    /// Sets the number of members. Default: 1.
    #[must_use]
    pub fn members(self, members: usize) -> Self {
        Self { members, ..self }
    }

    /// Adds an argument to the command line of every member, for example `--quota-backend-bytes=16777216`.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Serves clients over TLS only.
    #[must_use]
    pub fn tls(self, tls: Tls) -> Self {
        Self {
            tls: Some(tls),
            ..self
        }
    }
}

/// One etcd cluster. Dropping this value kills all members and removes their directories.
///
/// Members are numbered from 0. Each member runs in its own process group. If `setpriv` is available, the members also
/// die when this process is killed. All methods take `&self`.
///
/// ```no_run
/// use quorate_testbed::Etcd;
///
/// let cluster = Etcd::cluster(3)?;
/// if let Some(leader) = cluster.leader() {
///     cluster.kill(leader)?;
/// }
/// println!("{}", cluster.url("locks"));
/// # Ok::<(), quorate_testbed::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping the cluster kills its members"]
pub struct Etcd {
    members: Vec<Member>,
    etcdctl: PathBuf,
    is_tls: bool,
}

impl Etcd {
    /// Checks whether etcd can be started on this machine.
    ///
    /// # Errors
    ///
    /// [`Error::NoEtcd`] if a program is missing.
    pub fn available() -> Result<(), Error> {
        program("etcd").and(program("etcdctl")).map(|_| ())
    }

    /// Starts a cluster with one member.
    ///
    /// # Errors
    ///
    /// [`Error::NoEtcd`] if a program is missing; [`Error::Exited`] or [`Error::NotReady`] with the end of the log if a
    /// member does not start. No process is left running in that case.
    pub fn start() -> Result<Self, Error> {
        Self::start_with(&EtcdOptions::new())
    }

    /// Starts a cluster with this number of members, all at the same time.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn cluster(members: usize) -> Result<Self, Error> {
        Self::start_with(&EtcdOptions::new().members(members))
    }

    /// Starts a cluster with these options.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn start_with(options: &EtcdOptions) -> Result<Self, Error> {
        let mut tries = 1;
        loop {
            match Self::try_start(options) {
                Err(Error::Exited { log, .. }) if tries < TRIES && log.contains("in use") => {
                    tries += 1;
                }
                outcome => return outcome,
            }
        }
    }

    fn try_start(options: &EtcdOptions) -> Result<Self, Error> {
        let (etcd, etcdctl) = (program("etcd")?, program("etcdctl")?);
        let mut members = (0..options.members.max(1))
            .map(|number| Member::new(number, &etcd, options))
            .collect::<Result<Vec<_>, _>>()?;
        let peers: Vec<String> = members.iter().map(Member::peer).collect();
        let peers = peers.join(",");
        for member in &mut members {
            member.peers.clone_from(&peers);
            member.launch()?;
        }
        let cluster = Self {
            members,
            etcdctl,
            is_tls: options.tls.is_some(),
        };
        cluster.wait_ready()?;
        Ok(cluster)
    }

    /// The number of members.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// The address at which a member serves clients.
    pub fn addr(&self, member: usize) -> SocketAddr {
        self.members[member].addr()
    }

    /// The URL with the addresses of all members and the prefix of the keys, for example
    /// `etcd://127.0.0.1:2379+127.0.0.1:2380/locks`.
    pub fn url(&self, prefix: &str) -> String {
        let hosts: Vec<String> = self
            .members
            .iter()
            .map(|member| member.addr().to_string())
            .collect();
        let scheme = if self.is_tls { "etcd+tls" } else { "etcd" };
        let prefix = prefix.trim_start_matches('/');
        format!("{scheme}://{}/{prefix}", hosts.join("+"))
    }

    /// A command that runs `etcdctl` for this cluster. Arguments for TLS or a user are not included.
    pub fn client(&self) -> Command {
        let scheme = if self.is_tls { "https" } else { "http" };
        let hosts = self.members.iter();
        let hosts: Vec<String> = hosts
            .map(|member| format!("{scheme}://{}", member.addr()))
            .collect();
        let mut command = Command::new(&self.etcdctl);
        // The default limits of `etcdctl` are 2 and 5 s, which a busy machine can exceed.
        command
            .env("ETCDCTL_API", "3")
            .args(["--dial-timeout=20s", "--command-timeout=20s"])
            .arg(format!("--endpoints={}", hosts.join(",")));
        command
    }

    /// Runs `etcdctl` with these arguments, and returns its output.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with the output of the program if it fails.
    pub fn ctl(&self, arguments: &[&str]) -> Result<String, Error> {
        let output = self.client().args(arguments).output();
        succeeded(&output.map_err(Error::io("run etcdctl"))?)
    }

    /// Runs `etcdctl` with these arguments and this input, and returns its output. For example, `put KEY` reads the value
    /// from the input.
    ///
    /// # Errors
    ///
    /// As for [`ctl`](Self::ctl).
    pub fn ctl_with_input(&self, arguments: &[&str], input: &[u8]) -> Result<String, Error> {
        let failed = || Error::io("run etcdctl");
        let mut command = self.client();
        command.args(arguments).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = spawn(command).map_err(failed())?;
        if let Some(mut stdin) = process.stdin.take() {
            // If the program has ended without reading its input, its output has the reason.
            let _ = stdin.write_all(input);
        }
        succeeded(&process.wait_with_output().map_err(failed())?)
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

    /// Kills a member if it runs, and starts it again on the same ports with its data. Waits until the member has a
    /// leader. That requires a majority of running members.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn restart(&self, member: usize) -> Result<(), Error> {
        self.kill(member)?;
        self.members[member].launch()?;
        self.members[member].wait_ready()
    }

    /// Starts all members that are dead, on the same ports with their data, and waits until all members have a leader.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn start_dead_members(&self) -> Result<(), Error> {
        let is_dead = |member: &&Member| member.process.pid().is_none();
        let mut dead = self.members.iter().filter(is_dead);
        dead.try_for_each(Member::launch)?;
        self.wait_ready()
    }

    /// Kills all members, removes their data, and starts them again as a new cluster. Its id is that of the old cluster,
    /// because the names and the addresses of the members are the same.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn restart_empty(&self) -> Result<(), Error> {
        TestServer::kill(self)?;
        self.members.iter().try_for_each(Member::remove_data)?;
        self.start_dead_members()
    }

    /// Writes a snapshot of the cluster into this file.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if `etcdctl` fails.
    pub fn save_snapshot(&self, file: &Path) -> Result<(), Error> {
        let mut command = Command::new(&self.etcdctl);
        let endpoint = format!("--endpoints=http://{}", self.addr(0));
        command.env("ETCDCTL_API", "3").arg(endpoint);
        let output = command.args(["snapshot", "save"]).arg(file).output();
        succeeded(&output.map_err(Error::io("run etcdctl"))?).map(|_| ())
    }

    /// Kills all members, replaces their data with this snapshot, and starts them again. The members keep their names,
    /// so the cluster keeps its id.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if `etcdctl` fails; otherwise as for [`start`](Self::start).
    pub fn restore_snapshot(&self, file: &Path) -> Result<(), Error> {
        TestServer::kill(self)?;
        for member in &self.members {
            member.restore(&self.etcdctl, file)?;
        }
        self.start_dead_members()
    }

    /// Waits until all running members have a leader.
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

    /// The index of the member that is the leader of the cluster. `None` while there is no leader.
    pub fn leader(&self) -> Option<usize> {
        let is_leader = |member: &usize| {
            self.figure(*member, "etcd_server_is_leader") == Some(1.0)
                && self.figure(*member, "etcd_server_has_leader") == Some(1.0)
        };
        (0..self.members.len()).find(is_leader)
    }

    /// One value of a member's metrics, for example `etcd_server_has_leader`. `None` if the member does not report it.
    pub fn figure(&self, member: usize, name: &str) -> Option<f64> {
        self.members[member].figure(name).ok()?
    }
}

impl TestServer for Etcd {
    fn missing() -> Option<String> {
        Self::available().err().map(|error| error.to_string())
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
            // Start all members at the same time, because the first one has no leader before a majority runs.
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

/// One server process of the cluster.
#[derive(Debug)]
struct Member {
    /// The server process. This field precedes `dir`, because Rust drops fields in order: the process must be dead
    /// before its directory is removed.
    process: ServerProcess,
    program: PathBuf,
    name: String,
    /// The names and the addresses of all members, for each other.
    peers: String,
    arguments: Vec<String>,
    tls: Option<Tls>,
    client_port: PortLease,
    peer_port: PortLease,
    /// The port of the metrics, which needs no TLS and no user.
    metrics_port: PortLease,
    dir: ServerDir,
}

impl Member {
    fn new(number: usize, program: &Path, options: &EtcdOptions) -> Result<Self, Error> {
        let lease_port = || PortLease::take().map_err(Error::io("find a free port"));
        let dir = ServerDir::create(None).map_err(Error::io("create a temporary directory"))?;
        Ok(Self {
            process: ServerProcess::new(dir.path().join("server.log"), SIGNAL_PATIENCE),
            program: program.to_owned(),
            name: format!("m{number}"),
            peers: String::new(),
            arguments: options.arguments.clone(),
            tls: options.tls.clone(),
            client_port: lease_port()?,
            peer_port: lease_port()?,
            metrics_port: lease_port()?,
            dir,
        })
    }

    fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.client_port.port()).into()
    }

    fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer_port.port())
    }

    fn peer(&self) -> String {
        format!("{}={}", self.name, self.peer_url())
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn launch(&self) -> Result<(), Error> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let client_url = format!("{scheme}://{}", self.addr());
        let metrics_url = format!("http://127.0.0.1:{}", self.metrics_port.port());
        let mut command = tied_to_process(&self.program, None);
        command
            .arg(format!("--name={}", self.name))
            .arg("--data-dir")
            .arg(self.data_dir())
            .arg(format!("--listen-client-urls={client_url}"))
            .arg(format!("--advertise-client-urls={client_url}"))
            .arg(format!("--listen-peer-urls={}", self.peer_url()))
            .arg(format!("--initial-advertise-peer-urls={}", self.peer_url()))
            .arg(format!("--initial-cluster={}", self.peers))
            .arg(format!("--listen-metrics-urls={metrics_url}"))
            // Do not wait until a write is on the disk. A killed process loses no write by this: the written data is in
            // the cache of the operating system.
            .arg("--unsafe-no-fsync")
            .args(&self.arguments)
            .current_dir(self.dir.path());
        if let Some(tls) = &self.tls {
            command
                .arg("--cert-file")
                .arg(&tls.cert)
                .arg("--key-file")
                .arg(&tls.key);
            if tls.client_certs {
                command
                    .arg("--client-cert-auth")
                    .arg("--trusted-ca-file")
                    .arg(&tls.ca);
            }
        }
        self.process.start(command)
    }

    fn wait_ready(&self) -> Result<(), Error> {
        let probe = || match self.figure("etcd_server_has_leader") {
            Ok(Some(1.0)) => TcpStream::connect_timeout(&self.addr(), ANSWER_PATIENCE)
                .err()
                .map(|error| error.to_string()),
            Ok(figure) => Some(format!("etcd_server_has_leader is {figure:?}")),
            Err(error) => Some(error.to_string()),
        };
        let pause = Duration::from_millis(20);
        self.process.wait_ready(START_PATIENCE, pause, probe)
    }

    /// One value of the metrics; `None` if the member does not report it.
    fn figure(&self, name: &str) -> io::Result<Option<f64>> {
        let addr = (Ipv4Addr::LOCALHOST, self.metrics_port.port()).into();
        let mut stream = TcpStream::connect_timeout(&addr, ANSWER_PATIENCE)?;
        stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: member\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        let mut lines = page.lines().filter_map(|line| line.split_once(' '));
        let value = lines.find(|(metric, _)| *metric == name);
        Ok(value.and_then(|(_, value)| value.trim().parse().ok()))
    }

    fn kill(&self) -> Result<(), Error> {
        let refuses = || TcpStream::connect_timeout(&self.addr(), ANSWER_PATIENCE).is_err();
        self.process.end(Signal::KILL, refuses)
    }

    fn remove_data(&self) -> Result<(), Error> {
        let removed = fs::remove_dir_all(self.data_dir());
        removed.map_err(Error::io("remove the data of a member"))
    }

    /// Replaces the data of this dead member with a snapshot.
    fn restore(&self, etcdctl: &Path, file: &Path) -> Result<(), Error> {
        self.remove_data()?;
        let output = Command::new(etcdctl)
            .env("ETCDCTL_API", "3")
            .args(["snapshot", "restore"])
            .arg(file)
            .arg("--data-dir")
            .arg(self.data_dir())
            .arg(format!("--name={}", self.name))
            .arg(format!("--initial-cluster={}", self.peers))
            .arg(format!("--initial-advertise-peer-urls={}", self.peer_url()))
            .output();
        succeeded(&output.map_err(Error::io("run etcdctl"))?).map(|_| ())
    }
}

/// The output of a program that has succeeded.
fn succeeded(output: &Output) -> Result<String, Error> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(Error::Refused(text(&output.stdout) + &text(&output.stderr)))
}

/// Finds a program of etcd: in the folder `QUORATE_ETCD` if that variable is set, otherwise on `PATH`.
fn program(name: &'static str) -> Result<PathBuf, Error> {
    let folder = std::env::var_os("QUORATE_ETCD").filter(|folder| !folder.is_empty());
    let found = match folder {
        Some(folder) => find(Path::new(&folder).join(name).as_os_str()),
        None => find(name.as_ref()),
    };
    found.ok_or(Error::NoEtcd(name))
}
