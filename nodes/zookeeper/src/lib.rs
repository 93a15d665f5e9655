//! ZooKeeper as a master of quorate's quorum lock: one server, or an ensemble.
//!
//! A lock is one znode that stays, changed by compare-and-set on its version. No lease hangs on a session: whoever
//! waits takes a lease to be over when it has seen the same version for as long as the lease lasts, by its own
//! clock. So leases keep their milliseconds, whatever bounds a server sets to sessions, and a server that stood
//! still for longer than a session gives nothing away.
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
//! - The port is 2181 where none is named. All hosts are members of one ensemble.
//! - The path is where everything is kept; `/quorate` where none is named. [`prepare`] makes it.
//! - With a user, znodes are made so that this user alone can read and change them (scheme `digest`); without, anybody
//!   can.
//! - `timeout` is how long an answer may take, `session` how long the server keeps what belongs to a process that it
//!   no longer hears: nothing but where its wake-ups are put.
//!
//! # What it asks of a server
//!
//! - ZooKeeper 3.5 or newer. Of an ensemble whose disks lie (`forceSync=no`) a lock is as safe as of a Redis without a
//!   disk: a power cut forgets it, and no restart guard helps.
//! - Two connections and sessions for each `Redlock`: one for records, one for wake-ups. A server takes 60 of one host
//!   unless `maxClientCnxns` says otherwise.
//! - Sessions of at least 2.5 times `timeout` (`maxSessionTimeout`).
//! - Write latency: a lock and its release are a write each, which an ensemble answers when a majority has it on disk.
//!   While it has no leader it answers nothing: the ttl must be longer than that takes, or other masters must carry on.
//!
//! # What is kept where
//!
//! | znode | what |
//! |---|---|
//! | `PATH/records/<name in hexadecimal digits>/<random number>` | one record; removed when nothing in it is of use any more, and made anew under another number |
//! | `PATH/wake/<process>` | ephemeral: what the process was told last, and that it was |
//! | `PATH/identity` | a random name of the ensemble, by which two URLs of one ensemble are noticed |
//! | `/quorate-server` | the same, for all paths of the ensemble, where it may be made |

mod address;
mod dial;
mod fault;
mod greet;
mod inspect;
mod layout;
mod listener;
mod prepare;
mod session;
mod step;
mod store;
mod words;

pub use address::BadUrl;
pub use listener::ZooKeeperListener;
pub use prepare::{PrepareError, Prepared, prepare};
pub use session::ZooKeeperSession;
pub use store::{ZooKeeper, node};
