//! The parts of a run: masters, a proxy for every pair of client and master, and the client processes.

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use quorate_testbed::{
    ClockShim, LookupAnswer, Names, Namespace, OffsetFile, Persistence, Reply, Server,
    ServerOptions, check_isolation,
};

use crate::fleet::Fleet;
use crate::master::Master;
use crate::node::{Gauge, Login, NodeKind};
use crate::observer::{self, Observer};
use crate::proxied_path::ProxiedPath;

/// The user name of the clients, if they log in.
pub const USER: &str = "locker";
/// The password of [`USER`], unless a fault has changed it.
pub const PASSWORD: &str = "thrown-away";
/// The rights of [`USER`], unless a fault has taken some away.
pub const ALL_RIGHTS: &[&str] = &["~*", "&*", "+@all"];

/// The user name and password with which clients log in to a database.
const CLIENT_LOGIN: Login<'_> = Login {
    user: USER,
    password: PASSWORD,
};

/// The longest time that a master may take to start, even on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// A feature of the run that a fault requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// No special feature.
    Nothing,
    /// Clients connect to masters through proxies.
    Proxies,
    /// Each master is behind its own network link, which can be taken down.
    Links,
    /// The masters' clocks can be changed.
    Clocks,
    /// Clients use host names for masters.
    Names,
    /// Clients log in as [`USER`].
    User,
    /// A Redis master delays the loading of each key, so that a restart takes time.
    SlowLoading,
}

/// The description of the masters and tools to be set up.
#[derive(Debug)]
pub struct Layout {
    /// The number of proxies in front of each master: one per client, or a single one that all clients share.
    pub path_count: usize,
    /// The kind of each master, and its persistence. The persistence is used only for Redis.
    pub masters: Vec<(NodeKind, Persistence)>,
    /// The timeout of the clients' requests to masters other than Redis.
    pub timeout: Duration,
    /// The server program of the Redis masters. `None` selects the program that `quorate_testbed::available` finds.
    pub server: Option<PathBuf>,
    /// The requirements of all faults of the run.
    pub needs: Vec<Needs>,
    /// The seed of the random delays in the proxies.
    pub seed: u64,
}

impl Layout {
    fn needs_feature(&self, needed: Needs) -> bool {
        self.needs.contains(&needed)
    }
}

/// The tools that some faults use. A tool is set up if a fault requires it and this machine supports it.
#[derive(Debug, Default)]
pub struct Tools {
    clocks: Option<Result<ClockShim, String>>,
    names: Option<Result<Names, String>>,
}

impl Tools {
    /// Sets up the tools that meet these requirements.
    pub fn build(needs: &[Needs]) -> Self {
        let is_needed = |needed: Needs| needs.contains(&needed);
        let error_text = |error: io::Error| error.to_string();
        Self {
            clocks: is_needed(Needs::Clocks).then(|| ClockShim::build().map_err(error_text)),
            names: is_needed(Needs::Names).then(|| Names::build().map_err(error_text)),
        }
    }

    /// The reason why the feature `needed` is not available; `None` if it is available.
    pub fn missing_reason(&self, needed: Needs) -> Option<String> {
        match needed {
            Needs::Nothing | Needs::Proxies | Needs::User | Needs::SlowLoading => None,
            Needs::Links => check_isolation().err(),
            Needs::Clocks => missing_tool(self.clocks.as_ref(), "clock shim"),
            Needs::Names => missing_tool(self.names.as_ref(), "names shim"),
        }
    }
}

fn missing_tool<T>(tool: Option<&Result<T, String>>, name: &str) -> Option<String> {
    match tool {
        Some(Ok(_)) => None,
        Some(Err(reason)) => Some(format!("no {name}: {reason}")),
        None => Some(format!("no {name}")),
    }
}

/// The masters, the network and the clients of a run.
#[derive(Debug)]
pub struct World {
    /// The client processes. They are dropped before the servers.
    pub clients: Fleet,
    /// The masters, by index.
    pub masters: Vec<Master>,
    /// The network paths `roads[client][master]`. If masters are changed in the run, all clients share one row.
    /// Otherwise, there is one row per client.
    pub paths: Vec<Vec<ProxiedPath>>,
    /// The files that set the clock offsets of the masters; empty if no fault changes clocks.
    pub offsets: Vec<OffsetFile>,
    /// The host names of the masters, or `None` if clients use addresses.
    pub names: Option<Names>,
    /// Whether clients connect to the masters directly. If false, clients connect through proxies.
    is_direct: bool,
    /// The user name and password for Redis masters, in the form that a URL uses.
    login: String,
    /// One [`Observer`] per master, which reads the locks on it; `None` for a Redis master.
    observers: Vec<Option<Observer>>,
    timeout: Duration,
}

impl World {
    /// Starts the masters, with the options that the faults need. Then starts the proxies.
    ///
    /// # Errors
    ///
    /// If a server or a proxy does not start. No process is left running in that case.
    pub fn build(layout: &Layout, tools: Tools, clients: Fleet) -> anyhow::Result<Self> {
        let shim = tools.clocks.and_then(Result::ok);
        let (masters, offsets) = start_masters(layout, shim.as_ref())?;
        let mut paths = Vec::new();
        for client in 0..layout.path_count {
            let mut paths_of_client = Vec::new();
            for (index, master) in masters.iter().enumerate() {
                let seed = layout.seed ^ ((client * 64 + index) as u64);
                paths_of_client.push(
                    ProxiedPath::start(&master.addrs(), seed).context("cannot start a proxy")?,
                );
            }
            paths.push(paths_of_client);
        }
        // A proxy accepts connections even if its master is unreachable, which would hide a link fault. Use proxies
        // only if a fault needs them.
        let proxied = layout.needs_feature(Needs::Proxies) || layout.needs_feature(Needs::Names);
        let observers = masters.iter().map(observer_for);
        let observers = observers.collect::<anyhow::Result<_>>()?;
        let world = Self {
            masters,
            paths,
            observers,
            timeout: layout.timeout,
            offsets,
            names: tools.names.and_then(Result::ok),
            clients,
            is_direct: layout.needs_feature(Needs::Links) && !proxied,
            login: if layout.needs_feature(Needs::User) {
                format!("{USER}:{PASSWORD}@")
            } else {
                String::new()
            },
        };
        if let Some(names) = &world.names {
            for master in 0..world.masters.len() {
                names.set(
                    &host_name(master),
                    LookupAnswer::Address(world.client_address(master)),
                )?;
            }
        }
        Ok(world)
    }

    /// The address at which clients reach this master.
    pub fn client_address(&self, master: usize) -> IpAddr {
        if self.is_direct {
            self.masters[master].addrs()[0].ip()
        } else {
            Ipv4Addr::LOCALHOST.into()
        }
    }

    /// The URLs of all masters for this client.
    pub fn urls(&self, client: usize) -> Vec<String> {
        let masters: Vec<usize> = (0..self.masters.len()).collect();
        self.urls_of(client, &masters)
    }

    /// The URLs of these masters for this client.
    pub fn urls_of(&self, client: usize, masters: &[usize]) -> Vec<String> {
        let paths_of_client = &self.paths[client % self.paths.len()];
        let url = |master: usize| {
            let addresses = if self.is_direct {
                self.masters[master].addrs()
            } else {
                paths_of_client[master].addrs()
            };
            if let Some(url) =
                self.masters[master].store_url(&addresses, CLIENT_LOGIN, self.timeout)
            {
                return url;
            }
            let port = addresses[0].port();
            let host_name = match self.names {
                Some(_) => host_name(master),
                None => self.client_address(master).to_string(),
            };
            format!("redis://{}{host_name}:{port}", self.login)
        };
        masters.iter().copied().map(url).collect()
    }

    /// The environment variables that client processes are started with.
    pub fn env(&self) -> Vec<(OsString, OsString)> {
        let names = self.names.iter().flat_map(Names::env);
        names.collect()
    }

    /// The Redis server of this master.
    ///
    /// # Errors
    ///
    /// If the master is not a Redis.
    pub fn redis(&self, master: usize) -> anyhow::Result<&Server> {
        self.masters[master].concrete()
    }

    /// Two lists of keys on a master:
    ///
    /// - all keys, except those that exist permanently by design, e.g. fencing counters
    /// - the keys without an expiry, except those that have none by design, e.g. quotas
    ///
    /// # Errors
    ///
    /// If the master does not answer.
    pub fn keys(&self, master: usize) -> anyhow::Result<(Vec<String>, Vec<String>)> {
        if let Some(observer) = &self.observers[master] {
            return Ok((observer.held_keys()?, Vec::new()));
        }
        let mut connection = self.redis(master)?.connect(Duration::from_secs(2))?;
        let (mut all_keys, mut eternal) = (Vec::new(), Vec::new());
        let Reply::Array(keys) = connection.command(&["KEYS", "*"])? else {
            anyhow::bail!("the master did not answer KEYS with a list")
        };
        for key in keys {
            let key = key.text().unwrap_or_default().into_owned();
            if key.starts_with("chaos:") {
                continue;
            }
            if key.starts_with("quorate:value:") || key.starts_with("quorate:masters") {
                // Quotas, the generation marker and the age record have no expiry by design. Their presence is no
                // fault.
                continue;
            }
            let ttl = connection.command(&["PTTL", &key])?.int().unwrap_or(-2);
            if ttl == -1 {
                eternal.push(key.clone());
            }
            // Fencing counters outlive the locks by design, so they are not leftovers.
            if ttl != -2 && !key.starts_with("quorate:fence:") {
                all_keys.push(key);
            }
        }
        Ok((all_keys, eternal))
    }

    /// Whether a master answers within 50 ms.
    pub fn answers(&self, master: usize) -> bool {
        self.masters[master].answers(Duration::from_millis(50))
    }

    /// The resources that a master uses. `None` if the master does not answer.
    pub fn gauge(&self, master: usize) -> Option<Gauge> {
        self.masters[master].gauge(CLIENT_LOGIN)
    }
}

/// Creates the [`Observer`] that reads the locks on a master; `None` for a Redis master.
fn observer_for(master: &Master) -> anyhow::Result<Option<Observer>> {
    let url = master.store_url(&master.addrs(), CLIENT_LOGIN, observer::PATIENCE);
    url.map(|url| Observer::of(&url)).transpose()
}

/// The host name of a master.
pub fn host_name(master: usize) -> String {
    format!("m{}.quorate.test", master + 1)
}

fn start_masters(
    layout: &Layout,
    shim: Option<&ClockShim>,
) -> anyhow::Result<(Vec<Master>, Vec<OffsetFile>)> {
    let (mut offsets, mut options) = (Vec::new(), Vec::new());
    for &(_, persistence) in &layout.masters {
        let mut server_options = server_options(layout, persistence);
        if let Some(shim) = shim {
            let offset = shim.offset_file().context("cannot create the clock file")?;
            server_options = server_options.clock(shim, &offset);
            offsets.push(offset);
        }
        if layout.needs_feature(Needs::Links) {
            let namespace = Namespace::create().context("cannot create a network namespace")?;
            server_options = server_options.namespace(Arc::new(namespace));
        }
        options.push(server_options);
    }
    let results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = options
            .into_iter()
            .zip(&layout.masters)
            .map(|(options, (kind, _))| {
                scope.spawn(move || Master::start(*kind, options, CLIENT_LOGIN))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    });
    let mut masters = Vec::new();
    for master in results {
        masters.push(master.context("cannot start a master")?);
    }
    Ok((masters, offsets))
}

fn server_options(layout: &Layout, persistence: Persistence) -> ServerOptions {
    let mut options = ServerOptions::new()
        .persistence(persistence)
        .patience(START_PATIENCE);
    if let Some(program) = &layout.server {
        options = options.program(program);
    }
    if layout.needs_feature(Needs::User) {
        options = options.acl(format!("{USER} on >{PASSWORD} {}", ALL_RIGHTS.join(" ")));
    }
    if layout.needs_feature(Needs::SlowLoading) && persistence == Persistence::Rdb {
        // Slow down the loading, so that clients get the error `-LOADING`. In a soak, the server loads thousands of
        // keys, so the delay per key is short.
        options = options
            .arg("--key-load-delay")
            .arg("250")
            .arg("--loading-process-events-interval-bytes")
            .arg("1024");
    }
    options
}

/// Returns the server's run id, which changes with every restart.
///
/// # Errors
///
/// If the server does not report its run id.
pub fn run_id(server: &Server) -> anyhow::Result<String> {
    let info = server.command(&["INFO", "server"])?;
    let text = info.text().unwrap_or_default().into_owned();
    text.lines()
        .find_map(|line| line.strip_prefix("run_id:"))
        .map(str::to_owned)
        .context("no run_id in INFO")
}

/// The version that the server program reports.
pub fn server_version(configured: Option<&Path>) -> String {
    let Some(program) = configured
        .map(Path::to_owned)
        .or_else(quorate_testbed::available)
    else {
        return "no server program".into();
    };
    let output = std::process::Command::new(program)
        .arg("--version")
        .output();
    let output = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let output = output.unwrap_or_default();
    let mut fields = output.split_whitespace();
    let name = fields.next().unwrap_or("server");
    let version = fields
        .find_map(|field| field.strip_prefix("v="))
        .unwrap_or("?");
    format!("{name} {version}")
}
