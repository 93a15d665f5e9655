//! MySQL and MariaDB servers as masters of a [`quorate`] lock, alone or beside Redis servers.
//!
//! ```no_run
//! use quorate::Redlock;
//! use quorate::node::store::StoreNode;
//! use quorate_mysql::{MySql, prepare};
//!
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! let url = "mysql://locks:secret@db.example/locks";
//! // Once, as a user who may create tables: `quorate prepare` does the same.
//! prepare(url).await?;
//! let redlock = Redlock::builder()
//!     .node(StoreNode::new(MySql::open(url)?))
//!     .master("redis://10.0.0.2:6379")
//!     .master("redis://10.0.0.3:6379")
//!     .build()?;
//! # let _ = redlock;
//! # Ok(())
//! # }
//! ```
//!
//! A resource is a row; a step of a lock is one `UPDATE` of that row where it still has the version that the
//! client has seen, in one round trip. No row is ever locked while a client thinks, and there is neither a procedure nor
//! an event on the server (on MySQL there is one procedure, for hearing wake-ups).
//!
//! Servers must be independent of each other: a replica that is promoted has forgotten what was granted lately, as a
//! replica of Redis has.

mod connection;
mod fault;
mod inspect;
mod listener;
mod run;
mod schema;
mod session;
mod settings;
mod sql;
mod store;
mod tables;
mod url;

pub use listener::MySqlListener;
pub use schema::{NotPrepared, Report, prepare};
pub use session::MySqlSession;
pub use store::MySql;
pub use url::BadUrl;
