//! Throw-away servers and faults, for tests, demos and chaos runs.
//!
//! - [`Server`] is one real Redis or Valkey process on loopback that can be killed, frozen, restarted from
//!   its disk or with amnesia; [`Masters`] are several of them. Both vanish when dropped.
//! - [`Connection`] and [`Reply`] ask a server something without a client library.
//!
//! ```no_run
//! use quorate_testbed::{Masters, Reply};
//!
//! let masters = Masters::start(3)?;
//! masters[0].command(&["SET", "a", "b"])?;
//! masters[0].restart_empty()?;
//! assert_eq!(masters[0].command(&["GET", "a"])?, Reply::Nil);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it deliberately does not do
//!
//! It needs no root, so it does not touch the packet filter or network namespaces. It does not download
//! servers: one must be installed or named in `QUORATE_SERVER`. It knows nothing of locks and does not
//! depend on `quorate`. It runs on Unix; what needs Linux says so.

mod error;
mod masters;
mod options;
mod ports;
mod resp;
mod server;
mod spawn;

pub use error::Error;
pub use masters::Masters;
pub use options::{Persistence, ServerOptions, Tls};
pub use resp::{Connection, Reply};
pub use server::Server;
pub use spawn::available;
