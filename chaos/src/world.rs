//! What a run consists of: masters, a proxy for every client and master, and the client processes.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use quorate_testbed::{
    ClockShim, Namespace, OffsetFile, Persistence, Proxy, Reply, Server, ServerOptions, isolable,
};

use crate::faults::{Family, Kind};
use crate::fleet::{self, Fleet};
use crate::scenario::Scenario;

/// The password of the masters, while it has not been changed.
pub const PASSWORD: &str = "thrown-away";

/// How long a master may take to be ready, on a machine that is busy.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// Masters, network and clients.
#[derive(Debug)]
pub struct World {
    /// The masters.
    pub masters: Vec<Arc<Server>>,
    /// One proxy for each client and master: `proxies[client][master]`.
    pub proxies: Vec<Vec<Proxy>>,
    /// What moves the masters' clocks; empty where no fault needs it.
    pub offsets: Vec<OffsetFile>,
    /// The client processes.
    pub clients: Fleet,
}

/// Masters and network, before there are clients.
#[derive(Debug)]
pub struct Ground {
    /// The masters.
    pub masters: Vec<Arc<Server>>,
    /// The proxies.
    pub proxies: Vec<Vec<Proxy>>,
    /// What moves the masters' clocks.
    pub offsets: Vec<OffsetFile>,
    /// Whether clients speak to the masters themselves, and not to the proxies.
    pub direct: bool,
}

impl Ground {
    /// Starts the masters as the scenario's faults need them, and the proxies.
    ///
    /// # Errors
    ///
    /// When a server or a proxy does not start. Nothing is left running then.
    pub fn prepare(scenario: &Scenario, shim: Option<&ClockShim>) -> anyhow::Result<Self> {
        let mut offsets = Vec::new();
        if let Some(shim) = shim {
            for _ in 0..scenario.masters {
                offsets.push(shim.offset_file().context("make a clock file")?);
            }
        }
        let has = |family| scenario.faults.iter().any(|kind| kind.family() == family);
        let mut namespaces = Vec::new();
        if has(Family::Link) {
            for _ in 0..scenario.masters {
                let namespace = Namespace::create().context("make a network namespace")?;
                namespaces.push(Arc::new(namespace));
            }
        }
        let options = (0..scenario.masters).map(|index| {
            let mut options = ServerOptions::new()
                .persistence(scenario.persistence(index))
                .patience(START_PATIENCE);
            if let Some(program) = &scenario.server {
                options = options.program(program);
            }
            if scenario.faults.contains(&Kind::Password) {
                options = options.password(PASSWORD);
            }
            if scenario.faults.contains(&Kind::Loading)
                && scenario.persistence(index) == Persistence::Rdb
            {
                // A while for each key, and clients are heard in between: so that loading can be met.
                // Not longer, because a soak has some thousand keys beside those of that fault.
                options = options
                    .arg("--key-load-delay")
                    .arg("250")
                    .arg("--loading-process-events-interval-bytes")
                    .arg("1024");
            }
            if let (Some(shim), Some(offset)) = (shim, offsets.get(index)) {
                options = options.clock(shim, offset);
            }
            if let Some(namespace) = namespaces.get(index) {
                options = options.namespace(namespace.clone());
            }
            options
        });
        let options: Vec<ServerOptions> = options.collect();
        let started: Vec<_> = thread::scope(|scope| {
            let starts: Vec<_> = options
                .into_iter()
                .map(|options| scope.spawn(move || Server::start(options)))
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
        for server in started {
            masters.push(Arc::new(server.context("start a master")?));
        }
        let mut proxies = Vec::new();
        for client in 0..scenario.clients {
            let mut row = Vec::new();
            for (index, master) in masters.iter().enumerate() {
                let seed = scenario.seed ^ ((client * 64 + index) as u64);
                row.push(Proxy::seeded(master.addr(), seed).context("start a proxy")?);
            }
            proxies.push(row);
        }
        Ok(Self {
            masters,
            proxies,
            offsets,
            // A proxy would answer the connect in place of a master that cannot be reached.
            direct: has(Family::Link) && !has(Family::Network),
        })
    }

    /// The masters' addresses as this client is to see them.
    pub fn urls(&self, client: usize) -> Vec<String> {
        if self.direct {
            return self.masters.iter().map(|master| master.url()).collect();
        }
        self.masters
            .iter()
            .zip(&self.proxies[client])
            .map(|(master, proxy)| master.url_at(proxy.addr()))
            .collect()
    }
}

impl World {
    /// The keys on a master: those of locks and queues, and those that never expire.
    ///
    /// # Errors
    ///
    /// When the master does not answer.
    pub fn keys(&self, master: usize) -> anyhow::Result<(Vec<String>, Vec<String>)> {
        let mut connection = self.masters[master].connect(Duration::from_secs(2))?;
        let (mut left, mut eternal) = (Vec::new(), Vec::new());
        let Reply::Array(keys) = connection.command(&["KEYS", "*"])? else {
            anyhow::bail!("no answer to KEYS")
        };
        for key in keys {
            let key = key.text().unwrap_or_default().into_owned();
            if key.starts_with("chaos:") {
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
        let patience = Duration::from_millis(50);
        let probe = self.masters[master].connect(patience);
        probe.is_ok_and(|mut connection| connection.command(&["PING"]).is_ok())
    }

    /// What a master uses: the bytes that it says, its open file descriptors, and the connections of
    /// clients, without the one on which it is asked.
    pub fn gauge(&self, master: usize) -> Option<(u64, u64, u64)> {
        let server = &self.masters[master];
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

/// Why a kind of fault cannot be had here, if it cannot.
pub fn unavailable(kind: Kind, masters: usize, shim: Result<&ClockShim, &str>) -> Option<String> {
    if !kind.fits(masters) {
        return Some("needs at least 3 masters".into());
    }
    if kind.family() == Family::Clock
        && let Err(why) = shim
    {
        return Some(format!("no clock shim: {why}"));
    }
    if kind.family() == Family::Link {
        return isolable().err();
    }
    None
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
