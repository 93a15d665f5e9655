//! PostgreSQL servers as masters of a [`quorate`] lock, alone or together with masters of other kinds.
//!
//! ```no_run
//! use quorate::Redlock;
//! use quorate::node::store::StoreNode;
//! use quorate_postgres::{Postgres, prepare};
//!
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! let url = "postgres://locks:secret@db.example/locks";
//! // Once, as a user who may create a schema: `quorate prepare-server` does the same.
//! prepare(url).await?;
//! let redlock = Redlock::builder()
//!     .node(StoreNode::new(Postgres::open(url)?))
//!     .master("redis://10.0.0.2:6379")
//!     .master("redis://10.0.0.3:6379")
//!     .build()?;
//! # let _ = redlock;
//! # Ok(())
//! # }
//! ```
//!
//! Each record of a lock is a row. A client changes the row with one statement, which takes effect only if the row
//! still has the version that the client read. So no row stays locked between two round trips. The server needs no
//! stored procedure and no extension.
//!
//! The servers must be independent of each other. Do not use a standby that may be promoted, unless it replicates
//! synchronously: it can lack the most recent grants.
//!
//! Connect to the server itself, or to a connection pooler such as pgbouncer in session mode.

mod abandoned;
mod connection;
mod dial;
mod fault;
mod greet;
mod inspect;
mod listener;
mod passfile;
mod pipeline;
mod pooler;
mod prepare;
mod run;
mod script;
mod session;
mod sql;
mod steps;
mod store;
mod stream;
mod tables;
#[cfg(feature = "tls-rustls")]
mod tls;
mod url;

pub use listener::PostgresListener;
pub use prepare::{NotPrepared, Report, prepare};
pub use script::script;
pub use session::PostgresSession;
pub use store::Postgres;
pub use url::BadUrl;
