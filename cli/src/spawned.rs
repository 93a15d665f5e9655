//! Starts servers of every kind on free ports, for `demo` and `bench`. Dropping a [`Spawned`] stops its server.

use std::thread;

use quorate_testbed::{MariaDb, MariaDbOptions, Server, ServerOptions, ZooKeeper};

use crate::exit::Failure;
use crate::masters::Scheme;

/// A server that this process has started.
pub(crate) enum Spawned {
    Redis(Box<Server>),
    MariaDb(Box<MariaDb>),
    ZooKeeper(ZooKeeper),
}

impl Spawned {
    /// Why this machine cannot start a server of this kind, as text for the user. `None` if the machine can start such
    /// a server.
    pub(crate) fn missing(kind: Scheme) -> Option<String> {
        match kind {
            Scheme::Redis if quorate_testbed::available().is_none() => Some(
                "no redis-server or valkey-server on the PATH: install one, or set QUORATE_SERVER to its path"
                    .to_owned(),
            ),
            Scheme::MySql if cfg!(not(feature = "mysql")) => Some(unknown("mysql")),
            Scheme::ZooKeeper if cfg!(not(feature = "zookeeper")) => Some(unknown("zookeeper")),
            Scheme::Redis => None,
            Scheme::MySql => MariaDb::available().err().map(|why| why.to_string()),
            Scheme::ZooKeeper => ZooKeeper::available().err(),
        }
    }

    /// Starts one server for each entry of `kinds`, all at the same time. If one server fails to start, stops the
    /// others.
    pub(crate) fn start_all(kinds: &[Scheme]) -> Result<Vec<Self>, Failure> {
        thread::scope(|scope| {
            let starts: Vec<_> = kinds
                .iter()
                .map(|&kind| scope.spawn(move || Self::start(kind)))
                .collect();
            // Join all threads, so that no thread starts a server after this function has returned a failure.
            let started: Vec<_> = starts
                .into_iter()
                .map(|start| {
                    start
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect();
            started.into_iter().collect()
        })
    }

    fn start(kind: Scheme) -> Result<Self, Failure> {
        if let Some(why) = Self::missing(kind) {
            return Err(Failure::internal(why));
        }
        let started = match kind {
            Scheme::Redis => {
                Server::start(ServerOptions::new()).map(|server| Self::Redis(Box::new(server)))
            }
            Scheme::MySql => {
                MariaDb::start(MariaDbOptions::new()).map(|server| Self::MariaDb(Box::new(server)))
            }
            Scheme::ZooKeeper => ZooKeeper::start().map(Self::ZooKeeper),
        };
        let cannot = |error| Failure::internal(format!("cannot start {}: {error}", program(kind)));
        started.map_err(cannot)
    }

    /// The name of the server's program.
    pub(crate) fn name(&self) -> String {
        program(match self {
            Self::Redis(_) => Scheme::Redis,
            Self::MariaDb(_) => Scheme::MySql,
            Self::ZooKeeper(_) => Scheme::ZooKeeper,
        })
    }

    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Redis(server) => server.port(),
            Self::MariaDb(server) => server.port(),
            Self::ZooKeeper(server) => server.addr(0).port(),
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::MariaDb(server) => server.url("quorate"),
            Self::ZooKeeper(server) => server.url("/quorate"),
        }
    }

    /// Kills the started server with SIGKILL.
    pub(crate) fn kill(&self) -> Result<(), Failure> {
        let killed = match self {
            Self::Redis(server) => server.kill(),
            Self::MariaDb(server) => server.kill(),
            Self::ZooKeeper(server) => server.kill(0),
        };
        killed.map_err(Failure::internal)
    }

    /// Starts the killed server again. A Redis server then has no data. A MariaDB or ZooKeeper server has the data that
    /// it had before.
    pub(crate) fn come_back(&self) -> Result<(), Failure> {
        let back = match self {
            Self::Redis(server) => server.restart_empty(),
            Self::MariaDb(server) => server.restart(),
            Self::ZooKeeper(server) => server.restart(0),
        };
        back.map_err(Failure::internal)
    }
}

fn program(kind: Scheme) -> String {
    match kind {
        Scheme::Redis => quorate_testbed::available()
            .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .unwrap_or_else(|| "redis-server".to_owned()),
        Scheme::MySql => "mariadbd".to_owned(),
        Scheme::ZooKeeper => "zookeeper".to_owned(),
    }
}

fn unknown(feature: &str) -> String {
    format!("this build does not support {feature} masters: rebuild it with --features {feature}")
}
