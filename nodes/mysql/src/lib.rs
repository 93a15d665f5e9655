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
//! Each record of a lock is a row. A client changes the row with one `UPDATE`, which takes effect only if the row still
//! has the version that the client read. So no row stays locked between two round trips.
//!
//! The server's event scheduler is not needed. On MySQL, clients call a stored procedure to wait for wake-ups. MariaDB
//! needs no stored procedure.
//!
//! The servers must be independent of each other. Do not use a replica that may be promoted: it can lack the most
//! recent grants.

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
