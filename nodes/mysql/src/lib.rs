//! MySQL and MariaDB servers as masters of a [`quorate`] lock, alone or together with Redis servers.
//!
//! ```no_run
//! use quorate::Redlock;
//! use quorate::node::store::StoreNode;
//! use quorate_mysql::{MySql, prepare};
//!
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! let url = "mysql://locks:secret@db.example/locks";
//! // Once, as a user who may create tables: `quorate prepare-server` does the same.
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
//! Each resource is a row. Each step of a lock is one `UPDATE` in one round trip; it applies only if the row still has
//! the version that the client read. No row stays locked while a client computes. The server runs no procedures and no
//! events, except one procedure on MySQL, which waits for wake-ups.
//!
//! The servers must be independent of each other. A replica that is promoted has lost the most recent grants, as a
//! Redis replica has.

mod connection;
mod fault;
mod inspect;
mod listener;
mod run;
mod schema;
mod script;
mod session;
mod settings;
mod sql;
mod store;
mod tables;
mod url;

pub use listener::MySqlListener;
pub use schema::{NotPrepared, Report, prepare};
pub use script::script;
pub use session::MySqlSession;
pub use store::MySql;
pub use url::BadUrl;
