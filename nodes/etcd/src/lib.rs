//! An etcd cluster as a master of quorate's quorum lock: one cluster, with one or more members, is one master.
//!
//! A lock is a key. Clients change it by a transaction on its `mod_revision`. An etcd lease only removes the wake-up
//! keys of dead processes: no lock depends on it.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let url = "etcd://h1:2379+h2+h3/locks";
//! quorate_etcd::prepare(url).await?;
//! let redlock = quorate::Redlock::builder()
//!     .node(quorate_etcd::node(url)?)
//!     .build()?;
//! let guard = redlock.acquire("nightly-report").await?;
//! # guard.release().await;
//! # Ok(())
//! # }
//! ```
//!
//! # URLs
//!
//! `etcd://[user:password@]host[:port][+host[:port]..][/prefix][?timeout=500ms]`
//!
//! - The default port is 2379. All hosts are members of one cluster.
//! - All keys except `/quorate-server` begin with the prefix, by default `quorate`.
//! - `etcd+tls://` (feature `tls-rustls`) encrypts the connection, and verifies the certificate and the host name of
//!   the member. `cacert` is the file of the trusted certificate authorities; by default, those of the system. `cert`
//!   and `key` are the files of the client certificate and its private key, in PEM form.
//! - `passfile` is a file that contains the password of the user. No other user may have the right to read it.
//! - `timeout` is the time limit of one request.
//!
//! # What it needs from a cluster
//!
//! - etcd 3.4 or newer, with its JSON gateway (`--enable-grpc-gateway`, on by default).
//! - `--auto-compaction-retention`, for example `1h`. Without it, the history of the locks fills the database.
//! - Three connections for each `Redlock`: one for records, and two while a task waits for a lock.
//! - Low write latency. Each acquire and each release takes one write. A cluster acknowledges a write when a majority
//!   has it on disk.
//!
//! A cluster does not answer while it elects a leader. If the other masters are less than a quorum, the TTL must be
//! longer than this election.
//!
//! # What is stored where
//!
//! | key | content |
//! |---|---|
//! | `PREFIX/record/<name>` | one record; removed when it is no longer needed |
//! | `PREFIX/wake/<process>` | the latest wake-ups for the process; removed when its etcd lease ends |
//! | `/quorate-server` | a random identity of the cluster, which shows that two URLs belong to one cluster |

mod dial;
mod fault;
mod greet;
mod http;
mod inspect;
mod json;
mod layout;
mod listener;
mod login;
mod member;
mod prepare;
mod script;
mod seen;
mod session;
mod store;
mod stream;
#[cfg(feature = "tls-rustls")]
mod tls;
mod txn;
mod url;
mod versions;

pub use listener::EtcdListener;
pub use prepare::{NotPrepared, Prepared, prepare};
pub use script::script;
pub use session::EtcdSession;
pub use store::{Etcd, node};
pub use url::BadUrl;
