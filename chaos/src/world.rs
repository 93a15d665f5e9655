//! What a run consists of: masters, a proxy for every client and master, and the client processes.

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use quorate_testbed::{
    ClockShim, Leads, Names, Namespace, OffsetFile, Persistence, Reply, Server, ServerOptions,
    isolable,
};

use crate::fleet::{self, Fleet};
use crate::master::{Login, Master};
use crate::node::NodeKind;
use crate::observer::{self, Observer};
use crate::road::Road;

/// The user as whom clients log in, where they do.
pub const USER: &str = "locker";
/// That user's password, while it has not been changed.
pub const PASSWORD: &str = "thrown-away";
/// What that user may do: everything, while nothing has been taken away.
pub const ALL_RIGHTS: &[&str] = &["~*", "&*", "+@all"];

/// The same for a database.
const CLIENTS: Login<'_> = Login {
    user: USER,
    password: PASSWORD,
};

/// How long a master may take to be ready, on a machine that is busy.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// What has to be there before a fault can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing in particular.
    Nothing,
    /// Clients speak to masters through proxies.
    Proxies,
    /// Masters live behind links of their own.
    Links,
    /// The masters' clocks can be moved.
    Clocks,
    /// Clients know masters by names.
    Names,
    /// Clients log in as [`USER`].
    User,
    /// Masters with a snapshot take their time to load it.
    SlowLoading,
}

/// What is to be built.
#[derive(Debug)]
pub struct Layout {
    /// How many ways there are to each master: one for each client, or one for all.
    pub ways: usize,
    /// What each master is, and what it keeps on disk where it is a Redis.
    pub masters: Vec<(NodeKind, Persistence)>,
    /// How long an answer of a master that is no Redis is waited for.
    pub timeout: Duration,
    /// The server program; `None`: what the machine offers.
    pub server: Option<PathBuf>,
    /// What the faults need.
    pub needs: Vec<Needs>,
    /// What the jitter of proxies is drawn from.
    pub seed: u64,
}

impl Layout {
    fn has(&self, needed: Needs) -> bool {
        self.needs.contains(&needed)
    }
}

/// What some faults are done with, as far as it was asked for and this machine has it.
#[derive(Debug, Default)]
pub struct Tools {
    clocks: Option<Result<ClockShim, String>>,
    names: Option<Result<Names, String>>,
}

impl Tools {
    /// Builds what these need.
    pub fn build(needs: &[Needs]) -> Self {
        let when = |needed: Needs| needs.contains(&needed);
        let text = |error: io::Error| error.to_string();
        Self {
            clocks: when(Needs::Clocks).then(|| ClockShim::build().map_err(text)),
            names: when(Needs::Names).then(|| Names::build().map_err(text)),
        }
    }

    /// Why this cannot be had here, if it cannot.
    pub fn lack(&self, needed: Needs) -> Option<String> {
        match needed {
            Needs::Nothing | Needs::Proxies | Needs::User | Needs::SlowLoading => None,
            Needs::Links => isolable().err(),
            Needs::Clocks => lacking(self.clocks.as_ref(), "clock shim"),
            Needs::Names => lacking(self.names.as_ref(), "names shim"),
        }
    }
}

fn lacking<T>(tool: Option<&Result<T, String>>, name: &str) -> Option<String> {
    match tool {
        Some(Ok(_)) => None,
        Some(Err(why)) => Some(format!("no {name}: {why}")),
        None => Some(format!("no {name}")),
    }
}

/// Masters, network and clients.
#[derive(Debug)]
pub struct World {
    /// The client processes; none at first. They end before what they speak to does.
    pub clients: Fleet,
    /// The masters.
    pub masters: Vec<Master>,
    /// One way for each client and master, or one for all clients: `roads[client][master]`.
    pub roads: Vec<Vec<Road>>,
    /// What moves the masters' clocks; empty where no fault needs it.
    pub offsets: Vec<OffsetFile>,
    /// Where the masters' names lead, where they have names.
    pub names: Option<Names>,
    /// Whether clients speak to the masters themselves, and not to the proxies.
    direct: bool,
    /// What clients log in with at a Redis, as it stands in a URL.
    login: String,
    /// Who looks at each master that is no Redis.
    observers: Vec<Option<Observer>>,
    timeout: Duration,
}

impl World {
    /// Starts the masters as the faults need them, and the proxies.
    ///
    /// # Errors
    ///
    /// When a server or a proxy does not start. Nothing is left running then.
    pub fn build(layout: &Layout, tools: Tools, clients: Fleet) -> anyhow::Result<Self> {
        let shim = tools.clocks.and_then(Result::ok);
        let (masters, offsets) = start_masters(layout, shim.as_ref())?;
        let mut roads = Vec::new();
        for client in 0..layout.ways {
            let mut row = Vec::new();
            for (index, master) in masters.iter().enumerate() {
                let seed = layout.seed ^ ((client * 64 + index) as u64);
                row.push(Road::open(&master.addrs(), seed).context("start a proxy")?);
            }
            roads.push(row);
        }
        // A proxy would answer the connect in place of a master that cannot be reached.
        let proxied = layout.has(Needs::Proxies) || layout.has(Needs::Names);
        let observers = masters.iter().map(observe);
        let observers = observers.collect::<anyhow::Result<_>>()?;
        let world = Self {
            masters,
            roads,
            observers,
            timeout: layout.timeout,
            offsets,
            names: tools.names.and_then(Result::ok),
            clients,
            direct: layout.has(Needs::Links) && !proxied,
            login: if layout.has(Needs::User) {
                format!("{USER}:{PASSWORD}@")
            } else {
                String::new()
            },
        };
        if let Some(names) = &world.names {
            for master in 0..world.masters.len() {
                names.set(&host(master), Leads::To(world.way_to(master)))?;
            }
        }
        Ok(world)
    }

    /// The address by which clients come to this master.
    pub fn way_to(&self, master: usize) -> IpAddr {
        if self.direct {
            self.masters[master].addrs()[0].ip()
        } else {
            Ipv4Addr::LOCALHOST.into()
        }
    }

    /// The masters' addresses as this client is to see them.
    pub fn urls(&self, client: usize) -> Vec<String> {
        let all: Vec<usize> = (0..self.masters.len()).collect();
        self.urls_of(client, &all)
    }

    /// The addresses of these.
    pub fn urls_of(&self, client: usize, masters: &[usize]) -> Vec<String> {
        let roads = &self.roads[client % self.roads.len()];
        let url = |master: usize| {
            let over = if self.direct {
                self.masters[master].addrs()
            } else {
                roads[master].addrs()
            };
            if let Some(url) = self.masters[master].url(&over, CLIENTS, self.timeout) {
                return url;
            }
            let port = over[0].port();
            let host = match self.names {
                Some(_) => host(master),
                None => self.way_to(master).to_string(),
            };
            format!("redis://{}{host}:{port}", self.login)
        };
        masters.iter().copied().map(url).collect()
    }

    /// What client processes must have in their environment.
    pub fn env(&self) -> Vec<(OsString, OsString)> {
        let names = self.names.iter().flat_map(Names::env);
        names.collect()
    }

    /// The Redis that this master is.
    ///
    /// # Errors
    ///
    /// When it is none.
    pub fn redis(&self, master: usize) -> anyhow::Result<&Arc<Server>> {
        self.masters[master].redis()
    }

    /// The keys on a master: those of locks and queues, and those that never expire.
    ///
    /// # Errors
    ///
    /// When the master does not answer.
    pub fn keys(&self, master: usize) -> anyhow::Result<(Vec<String>, Vec<String>)> {
        if let Some(observer) = &self.observers[master] {
            return Ok((observer.locked()?, Vec::new()));
        }
        let mut connection = self.redis(master)?.connect(Duration::from_secs(2))?;
        let (mut left, mut eternal) = (Vec::new(), Vec::new());
        let Reply::Array(keys) = connection.command(&["KEYS", "*"])? else {
            anyhow::bail!("no answer to KEYS")
        };
        for key in keys {
            let key = key.text().unwrap_or_default().into_owned();
            if key.starts_with("chaos:") {
                continue;
            }
            if key.starts_with("quorate:value:") || key == "quorate:masters" {
                // What is left of a quota must stay, and so must the mark.
                continue;
            }
            let ttl = connection.command(&["PTTL", &key])?.int().unwrap_or(-2);
            if ttl == -1 {
                eternal.push(key.clone());
            }
            // The counters are meant to stay, for a day.
            if ttl != -2 && !key.starts_with("quorate:fence:") {
                left.push(key);
            }
        }
        Ok((left, eternal))
    }

    /// Whether a master answers at once.
    pub fn answers(&self, master: usize) -> bool {
        self.masters[master].answers(Duration::from_millis(50))
    }

    /// What a master uses: the bytes that it says, its open file descriptors, and the connections of
    /// clients, without the one on which it is asked.
    pub fn gauge(&self, master: usize) -> Option<(u64, u64, u64)> {
        let Ok(server) = self.redis(master) else {
            return gauge_store(&self.masters[master]);
        };
        let (_, handles) = fleet::usage(server.pid()?)?;
        let number = |section: &str, name: &str| {
            let info = server.command(&["INFO", section]).ok()?;
            let text = info.text()?.into_owned();
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?
                .trim()
                .parse::<u64>()
                .ok()
        };
        Some((
            number("memory", "used_memory")?,
            handles,
            number("clients", "connected_clients")?.saturating_sub(1),
        ))
    }
}

/// What a master says of itself that is no Redis. Its memory is not ours to judge: it fills its caches.
fn gauge_store(master: &Master) -> Option<(u64, u64, u64)> {
    if let Ok(server) = master.database() {
        let (_, handles) = fleet::usage(server.pid()?)?;
        let count =
            format!("SELECT COUNT(*) FROM information_schema.processlist WHERE user = '{USER}'");
        let connections = server.sql(&count).ok()?.trim().parse().ok()?;
        return Some((0, handles, connections));
    }
    let ensemble = master.zookeeper().ok()?;
    let members = 0..ensemble.members();
    let connections =
        members.filter_map(|member| ensemble.figure(member, "zk_num_alive_connections"));
    Some((0, 0, connections.sum()))
}

/// Who looks at a master that is no Redis.
fn observe(master: &Master) -> anyhow::Result<Option<Observer>> {
    let url = master.url(&master.addrs(), CLIENTS, observer::PATIENCE);
    url.map(|url| Observer::of(&url)).transpose()
}

/// How clients call a master, where masters have names.
pub fn host(master: usize) -> String {
    format!("m{}.quorate.test", master + 1)
}

fn start_masters(
    layout: &Layout,
    shim: Option<&ClockShim>,
) -> anyhow::Result<(Vec<Master>, Vec<OffsetFile>)> {
    let (mut offsets, mut options) = (Vec::new(), Vec::new());
    for &(_, disk) in &layout.masters {
        let mut one = server_options(layout, disk);
        if let Some(shim) = shim {
            let offset = shim.offset_file().context("make a clock file")?;
            one = one.clock(shim, &offset);
            offsets.push(offset);
        }
        if layout.has(Needs::Links) {
            let namespace = Namespace::create().context("make a network namespace")?;
            one = one.namespace(Arc::new(namespace));
        }
        options.push(one);
    }
    let started: Vec<_> = thread::scope(|scope| {
        let starts: Vec<_> = options
            .into_iter()
            .zip(&layout.masters)
            .map(|(options, (kind, _))| scope.spawn(move || Master::start(*kind, options, CLIENTS)))
            .collect();
        starts
            .into_iter()
            .map(|start| {
                start
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    });
    let mut masters = Vec::new();
    for master in started {
        masters.push(master.context("start a master")?);
    }
    Ok((masters, offsets))
}

fn server_options(layout: &Layout, disk: Persistence) -> ServerOptions {
    let mut options = ServerOptions::new()
        .persistence(disk)
        .patience(START_PATIENCE);
    if let Some(program) = &layout.server {
        options = options.program(program);
    }
    if layout.has(Needs::User) {
        options = options.acl(format!("{USER} on >{PASSWORD} {}", ALL_RIGHTS.join(" ")));
    }
    if layout.has(Needs::SlowLoading) && disk == Persistence::Rdb {
        // A while for each key, and clients are heard in between: so that loading can be met.
        // Not longer, because a soak has some thousand keys beside those of that fault.
        options = options
            .arg("--key-load-delay")
            .arg("250")
            .arg("--loading-process-events-interval-bytes")
            .arg("1024");
    }
    options
}

/// Which life of the server this is.
///
/// # Errors
///
/// When it does not say.
pub fn run_id(server: &Server) -> anyhow::Result<String> {
    let info = server.command(&["INFO", "server"])?;
    let text = info.text().unwrap_or_default().into_owned();
    text.lines()
        .find_map(|line| line.strip_prefix("run_id:"))
        .map(str::to_owned)
        .context("no run_id in INFO")
}

/// What the server program says that it is.
pub fn server_version(named: Option<&Path>) -> String {
    let Some(program) = named
        .map(Path::to_owned)
        .or_else(quorate_testbed::available)
    else {
        return "no server program".into();
    };
    let said = std::process::Command::new(program)
        .arg("--version")
        .output();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let said = said.unwrap_or_default();
    let mut words = said.split_whitespace();
    let name = words.next().unwrap_or("server");
    let version = words
        .find_map(|word| word.strip_prefix("v="))
        .unwrap_or("?");
    format!("{name} {version}")
}
