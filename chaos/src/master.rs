//! One master of a run: a Redis server, a MariaDB server, or a ZooKeeper ensemble.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use quorate_testbed::{
    MariaDb, MariaDbOptions, Server, ServerOptions, ZooKeeper, ZooKeeperOptions,
};

use crate::node::NodeKind;
use crate::probe::Probe;

/// The name of the MariaDB database that stores the locks.
pub const DATABASE: &str = "locks";
/// The ZooKeeper path under which the locks are stored.
const CHROOT: &str = "/chaos";
/// The shortest session timeout that clients request from ZooKeeper. It is short, so that faults can make sessions
/// expire.
const SESSION: Duration = Duration::from_secs(1);

/// One master.
#[derive(Clone, Debug)]
pub struct Master {
    kind: NodeKind,
    servers: Servers,
}

#[derive(Clone, Debug)]
enum Servers {
    Redis(Arc<Server>),
    Database(Arc<MariaDb>),
    ZooKeeper(Arc<ZooKeeper>),
}

/// The user name and password with which clients log in to a database.
#[derive(Clone, Copy, Debug)]
pub struct Login<'a> {
    /// The user name.
    pub user: &'a str,
    /// The password of the user.
    pub password: &'a str,
}

impl Master {
    /// Starts a master, and creates the tables or znodes that clients need. Only Redis uses `options`, and only MariaDB
    /// uses `login`.
    ///
    /// # Errors
    ///
    /// If the server does not start. No process is left running in that case.
    pub fn start(kind: NodeKind, options: ServerOptions, login: Login<'_>) -> anyhow::Result<Self> {
        let servers = match kind {
            NodeKind::Redis => Servers::Redis(Arc::new(Server::start(options)?)),
            NodeKind::Mysql => Servers::Database(start_database(1, login)?),
            NodeKind::MysqlFlush0 => Servers::Database(start_database(0, login)?),
            NodeKind::Zookeeper | NodeKind::Ensemble => {
                Servers::ZooKeeper(start_zookeeper(kind.servers())?)
            }
        };
        Ok(Self { kind, servers })
    }

    /// The kind of server of this master.
    pub fn kind(&self) -> NodeKind {
        self.kind
    }

    /// The Redis server of this master.
    ///
    /// # Errors
    ///
    /// If the master is not a Redis server.
    pub fn redis(&self) -> anyhow::Result<&Arc<Server>> {
        match &self.servers {
            Servers::Redis(server) => Ok(server),
            _ => anyhow::bail!("this master is not a Redis server but {}", self.kind),
        }
    }

    /// The MariaDB server of this master.
    ///
    /// # Errors
    ///
    /// If the master is not a MariaDB server.
    pub fn database(&self) -> anyhow::Result<&Arc<MariaDb>> {
        match &self.servers {
            Servers::Database(server) => Ok(server),
            _ => anyhow::bail!("this master is not a database but {}", self.kind),
        }
    }

    /// The servers of the ZooKeeper ensemble that is this master.
    ///
    /// # Errors
    ///
    /// If the master is not a ZooKeeper ensemble.
    pub fn zookeeper(&self) -> anyhow::Result<&Arc<ZooKeeper>> {
        match &self.servers {
            Servers::ZooKeeper(ensemble) => Ok(ensemble),
            _ => anyhow::bail!("this master is not ZooKeeper but {}", self.kind),
        }
    }

    /// The addresses of the servers of this master.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        match &self.servers {
            Servers::Redis(server) => vec![server.addr()],
            Servers::Database(server) => vec![server.addr()],
            Servers::ZooKeeper(ensemble) => {
                let members = 0..ensemble.members();
                members.map(|member| ensemble.addr(member)).collect()
            }
        }
    }

    /// The URL of a MariaDB or ZooKeeper master at the addresses `over`, e.g. the addresses of proxies. `None` for a
    /// Redis master.
    pub fn url(&self, over: &[SocketAddr], login: Login<'_>, timeout: Duration) -> Option<String> {
        let ms = timeout.as_millis();
        let over: Vec<String> = over.iter().map(SocketAddr::to_string).collect();
        match &self.servers {
            Servers::Redis(_) => None,
            Servers::Database(_) => {
                let Login { user, password } = login;
                let at = over.first().cloned().unwrap_or_default();
                Some(format!(
                    "mysql://{user}:{password}@{at}/{DATABASE}?timeout={ms}ms"
                ))
            }
            Servers::ZooKeeper(_) => {
                let over = over.join("+");
                let session = SESSION.max(timeout * 5 / 2).as_millis();
                Some(format!(
                    "zk://{over}{CHROOT}?timeout={ms}ms&session={session}ms"
                ))
            }
        }
    }

    /// Kills all servers of this master with SIGKILL, as a crash would.
    ///
    /// # Errors
    ///
    /// If a server does not end.
    pub fn kill(&self) -> anyhow::Result<()> {
        match &self.servers {
            Servers::Redis(server) => server.kill()?,
            Servers::Database(server) => server.kill()?,
            Servers::ZooKeeper(ensemble) => {
                (0..ensemble.members()).try_for_each(|member| ensemble.kill(member))?;
            }
        }
        Ok(())
    }

    /// Starts the killed servers of this master again. A Redis server starts without its data, even if it stores data
    /// on disk. Other servers start with the data on their disks.
    ///
    /// # Errors
    ///
    /// If a server does not start.
    pub fn come_back(&self) -> anyhow::Result<()> {
        match &self.servers {
            Servers::Redis(server) => Ok(server.restart_empty()?),
            Servers::Database(server) => Ok(server.restart()?),
            Servers::ZooKeeper(ensemble) => thread::scope(|scope| {
                // Start all servers at the same time, because the first one is not ready before a majority runs.
                let restart = |member| scope.spawn(move || ensemble.restart(member));
                let all: Vec<_> = (0..ensemble.members()).map(restart).collect();
                let ended = all.into_iter().map(|one| {
                    one.join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                });
                let ended: Vec<_> = ended.collect();
                Ok(ended.into_iter().collect::<Result<(), _>>()?)
            }),
        }
    }

    /// Stops all servers of this master with SIGSTOP.
    ///
    /// # Errors
    ///
    /// If a server is dead, or does not stop.
    pub fn stop(&self) -> anyhow::Result<()> {
        match &self.servers {
            Servers::Redis(server) => server.stop()?,
            Servers::Database(server) => server.stop()?,
            Servers::ZooKeeper(ensemble) => {
                (0..ensemble.members()).try_for_each(|member| ensemble.stop(member))?;
            }
        }
        Ok(())
    }

    /// Resumes all servers of this master.
    ///
    /// # Errors
    ///
    /// If a server is dead, or does not resume.
    pub fn cont(&self) -> anyhow::Result<()> {
        match &self.servers {
            Servers::Redis(server) => server.cont()?,
            Servers::Database(server) => server.cont()?,
            Servers::ZooKeeper(ensemble) => {
                (0..ensemble.members()).try_for_each(|member| ensemble.cont(member))?;
            }
        }
        Ok(())
    }

    /// Whether any server of this master answers within `patience`.
    pub fn answers(&self, patience: Duration) -> bool {
        self.addrs().into_iter().any(|at| {
            let probe = Probe::open(self.kind, at, patience);
            probe.and_then(|mut probe| probe.ask()).is_ok()
        })
    }
}

fn start_database(flush: u8, login: Login<'_>) -> anyhow::Result<Arc<MariaDb>> {
    let server = MariaDb::start(MariaDbOptions::new().flush(flush))?;
    let prepared = blocking(quorate_mysql::prepare(&server.url(DATABASE)))??;
    let Login { user, password } = login;
    let user = format!("'{user}'@'%'");
    let grants = prepared.grants.iter();
    let mut statements: Vec<String> = grants
        .map(|grant| grant.replace("TO USER", &format!("TO {user}")))
        .collect();
    statements.insert(0, format!("CREATE USER {user} IDENTIFIED BY '{password}'"));
    statements.push("CREATE DATABASE chaos".into());
    statements.push("CREATE TABLE chaos.marker (n BIGINT PRIMARY KEY) ENGINE=InnoDB".into());
    server.sql(&statements.join(";"))?;
    Ok(Arc::new(server))
}

fn start_zookeeper(members: usize) -> anyhow::Result<Arc<ZooKeeper>> {
    let options = ZooKeeperOptions::new().members(members);
    let ensemble = ZooKeeper::start_with(&options)?;
    blocking(quorate_zookeeper::prepare(&ensemble.url(CHROOT)))??;
    ensure!(ensemble.leader().is_some(), "the ensemble has no leader");
    Ok(Arc::new(ensemble))
}

/// Runs the future to its end on a new async runtime.
fn blocking<T>(what: impl Future<Output = T>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start an async runtime")?;
    Ok(runtime.block_on(what))
}
