//! Temporary servers and faults, for tests, demos and chaos runs.
//!
//! - [`Server`] is one real Redis or Valkey process on loopback that can be killed, frozen, and restarted with or
//!   without its data; [`Masters`] are several of them. Dropping them kills the processes, and deletes
//!   their data.
//! - [`MariaDb`] is one real MariaDB process with the same methods.
//! - [`Postgres`] is one real PostgreSQL process, [`PostgresFiles`] a copy of its files, and [`PgBouncer`] a connection
//!   pooler in front of it.
//! - A [`Console`] is an administrator's session on a [`MariaDb`] or a [`Postgres`].
//! - [`ServerDir`] is an empty directory, for tests of data that a lock protects.
//! - [`ZooKeeper`] is one ZooKeeper server or an ensemble of several.
//! - [`Etcd`] is one etcd cluster with one or more members.
//! - [`TestServer`] is the trait of the servers that can be masters: a [`Server`], a [`MariaDb`], a
//!   [`Postgres`], a [`ZooKeeper`] or an [`Etcd`].
//! - [`Proxy`] is between a client and a server, and applies [`Fault`]s to the bytes that it forwards.
//! - [`Hostile`] is a server that follows a [`Script`]: it hangs up, stays silent, sends garbage, or floods its
//!   clients.
//! - [`answers()`] starts a server of another protocol, which waits for the client to begin.
//! - [`ClockShim`] and [`OffsetFile`] make the clock of one server jump.
//! - [`Names`] maps host names to an address, to "no such name", or to no answer.
//! - [`Namespace`] puts one server behind a network link that a test can take down. The program must call [`isolate`]
//!   first.
//! - [`Connection`] sends commands to a server without a client library, and returns a [`Reply`] to each.
//!
//! ```no_run
//! use quorate_testbed::{Fault, Masters, Proxy, Reply, Way};
//!
//! let masters = Masters::start(3)?;
//! masters[0].command(&["SET", "a", "b"])?;
//! masters[0].restart_empty()?;
//! assert_eq!(masters[0].command(&["GET", "a"])?, Reply::Nil);
//!
//! let proxy = Proxy::start(masters[1].addr())?;
//! let partition = Fault::Hold(Way::Both).inject(&proxy);
//! // clients of masters[1].url_at(proxy.addr()) receive nothing now
//! drop(partition);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where servers keep their files
//!
//! Tests do not wait for a disk. Each server has a directory of its own in `/dev/shm`, which is in memory, if there are
//! at least 512 MiB free, and otherwise in the folder for temporary files. `QUORATE_SERVER_DATA` names another folder.
//! MariaDB, PostgreSQL, ZooKeeper and etcd do not sync their files. The written data of a server survives
//! [`Server::kill`] in both places.
//!
//! # Non-goals
//!
//! - The crate does not use root rights, except for [`Namespace`] on some systems.
//! - The crate changes neither the packet filter nor any network outside this machine.
//! - It does not download servers: a server must be installed, or `QUORATE_SERVER` must name it.
//! - It contains no code for locks and does not depend on `quorate`.
//! - It does not support Windows, only Unix. The documentation of an item states whether the item needs Linux.

#[cfg(not(unix))]
compile_error!(
    "quorate-testbed runs on Unix systems only (Linux, macOS, the BSDs): Windows is not supported"
);

mod answers;
pub mod bad_url;
mod clock;
mod console;
mod counters;
mod error;
mod etcd;
mod fault;
mod hostile;
mod lane;
mod login;
mod mariadb;
mod masters;
pub mod measure;
mod names;
mod namespace;
mod options;
mod pgbouncer;
mod pipe;
mod ports;
mod postgres;
mod process;
mod proxy;
mod resp;
mod server;
mod server_dir;
mod server_process;
mod shim;
mod skipped;
mod small_disk;
mod spawn;
pub mod table;
mod test_server;
mod zookeeper;

pub use answers::answers;
pub use clock::{ClockShim, OffsetFile, Skew};
pub use console::Console;
pub use counters::{Counters, Flow};
pub use error::Error;
pub use etcd::{Etcd, EtcdOptions};
pub use fault::{Fault, Injected, Way};
pub use hostile::{AfterHandshake, AnswerBytes, Hostile, Script, Tampering};
pub use login::demand_plugin;
pub use mariadb::{MariaDb, MariaDbOptions};
pub use masters::Masters;
pub use names::{LookupAnswer, Names};
pub use namespace::{Namespace, check_isolation, isolate};
pub use options::{Persistence, ServerOptions, Tls};
pub use pgbouncer::PgBouncer;
pub use postgres::{Postgres, PostgresFiles, PostgresOptions};
pub use process::within;
pub use proxy::Proxy;
pub use resp::{Connection, Reply};
pub use server::Server;
pub use server_dir::ServerDir;
pub use skipped::not_run;
pub use spawn::available;
pub use test_server::TestServer;
pub use zookeeper::{ZooKeeper, ZooKeeperOptions};
