//! The row of the table of kinds of masters: all that a chaos run must know about one kind.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use quorate::RedlockBuilder;
use quorate_testbed::{ServerOptions, TestServer};

use super::probe::Probe;

/// One kind of server that can be a master.
pub struct Row {
    /// The name of the kind on the command line and in the history.
    pub name: &'static str,
    /// Other names of the kind on the command line.
    pub aliases: &'static [&'static str],
    /// A short explanation of the name for help texts; empty if the name explains itself.
    pub description: &'static str,
    /// The server software. Several kinds can be the same software with different options.
    pub software: &'static str,
    /// Whether the master's clock decides when a lock expires. If false, each lock client decides with its own clock.
    pub has_clock: bool,
    /// Whether the master loses acknowledged writes when it is killed.
    pub forgets: bool,
    /// The reason why this machine cannot start the server; `None` if it can.
    pub missing_reason: fn() -> Option<String>,
    /// Starts the server, and creates all that clients need on it, e.g. tables and a user. Only Redis uses the options.
    pub start: fn(ServerOptions, Login<'_>) -> anyhow::Result<Arc<dyn TestServer>>,
    /// The URL of the master at these addresses, e.g. those of proxies, with the timeout of a request. `None` for Redis
    /// masters, whose URL depends on the faults of the run.
    pub url: fn(&[SocketAddr], Login<'_>, Duration) -> Option<String>,
    /// The scheme of these URLs.
    pub scheme: &'static str,
    /// Adds the master with this URL to a lock. Opens no connection.
    pub add_to_lock: fn(RedlockBuilder, &str) -> anyhow::Result<RedlockBuilder>,
    /// Connects a probe to a server of this kind, and waits for at most this time.
    pub probe: fn(SocketAddr, Duration) -> io::Result<Box<dyn Probe>>,
    /// Measures the server. `None` if it does not answer.
    pub gauge: fn(&dyn TestServer, Login<'_>) -> Option<Gauge>,
}

/// The user name and password with which clients log in to a database.
#[derive(Clone, Copy, Debug)]
pub struct Login<'a> {
    /// The user name.
    pub user: &'a str,
    /// The password of the user.
    pub password: &'a str,
}

/// The resources that a master uses.
#[derive(Clone, Copy, Debug)]
pub struct Gauge {
    /// The memory in bytes. Zero if this kind of server does not report it.
    pub memory: u64,
    /// The number of open file descriptors. Zero for a master of several processes.
    pub handles: u64,
    /// The number of client connections.
    pub connections: u64,
}

/// Runs the future to its end on a new async runtime.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start an async runtime")?;
    Ok(runtime.block_on(future))
}
