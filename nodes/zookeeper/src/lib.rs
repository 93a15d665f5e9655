//! ZooKeeper as a master of quorate's quorum lock: one server, or an ensemble.
//!
//! A lock is a permanent znode. Clients change it by compare-and-set on its version.
//!
//! A lease does not depend on a ZooKeeper session. Each waiter measures the lease with its own clock: if the version
//! stays the same for the length of the lease, the lease has expired. Therefore:
//!
//! - A lease may be shorter than the smallest session timeout that the server allows.
//! - The end of a session releases no lock.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let url = "zk://h1:2181+h2+h3/locks";
//! quorate_zookeeper::prepare(url).await?;
//! let redlock = quorate::Redlock::builder()
//!     .node(quorate_zookeeper::node(url)?)
//!     .build()?;
//! let guard = redlock.acquire("nightly-report").await?;
//! # guard.release().await;
//! # Ok(())
//! # }
//! ```
//!
//! # URLs
//!
//! `zk://[user:password@]host[:port][+host[:port]..][/path][?timeout=500ms&session=10s]`
//!
//! - The default port is 2181. All hosts are members of one ensemble.
//! - All znodes except `/quorate-server` are below the path, by default `/quorate`. [`prepare`] creates the path.
//! - The user authenticates with the scheme `digest`. Only this user can access the path that [`prepare`] creates. If
//!   the URL has no user, everybody can access it.
//! - To admit more users, change the ACL of the path and call [`prepare`] again. It copies the ACL to all znodes below
//!   the path.
//! - `timeout` is the time limit of one request.
//! - `session` is the session timeout. The server keeps the wake-up znode of a dead process for this time.
//!
//! # What it needs from a server
//!
//! - ZooKeeper 3.5 or newer. With `forceSync=no`, a power failure can lose locks without notice.
//! - Two connections for each `Redlock`: one for records, one for wake-ups. By default, a server accepts 60 connections
//!   from one host (`maxClientCnxns`).
//! - A `maxSessionTimeout` of at least 2.5 times `timeout`.
//! - Low write latency. Each acquire and each release takes one write. An ensemble acknowledges a write when a majority
//!   has it on disk.
//!
//! An ensemble does not answer while it elects a leader. If the other masters are less than a quorum, the TTL must be
//! longer than this election.
//!
//! # What is stored where
//!
//! | znode | content |
//! |---|---|
//! | `PATH/records/<name in hexadecimal digits>/<random number>` | one record; removed when it is no longer needed |
//! | `PATH/wake/<process>` | ephemeral: the latest wake-ups for the process |
//! | `PATH/identity` | the name of the path. If it changes, the path was prepared again, and stored values count as lost.
//! Without `/quorate-server`, it also shows that two URLs belong to one ensemble |
//! | `/quorate-server` | the name of the ensemble for all paths, which shows that two URLs belong to one ensemble. Absent
//! if no user was allowed to create it |

mod acl;
mod address;
mod dial;
mod fault;
mod greet;
mod inspect;
mod layout;
mod listener;
mod prepare;
mod script;
mod session;
mod step;
mod store;

pub use address::BadUrl;
pub use listener::ZooKeeperListener;
pub use prepare::{PrepareError, Prepared, prepare};
pub use script::script;
pub use session::ZooKeeperSession;
pub use store::{ZooKeeper, node};
