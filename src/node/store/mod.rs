//! A master on top of a store. A store keeps records and changes them by compare-and-set.
//!
//! The client decides each request itself, with the state machine of the [master in memory](super::memory). So the same
//! rules apply to all stores.
//!
//! If a session is lost, an unanswered change may still take effect. To prevent this, the next request for the record
//! writes the record with a new version.
//!
//! # Why like this
//!
//! The alternative was one stored procedure per request. It was rejected for three reasons (docs/nodes.md, "Stores: the
//! client decides"):
//!
//! - Each kind of store has its own language, so each would have its own copy of the rules.
//! - A procedure locks the row of the lock while it runs, and other clients have to wait.
//! - If a connection breaks in a procedure, the server keeps the row locked until it ends the session.
//!
//! The first version for MySQL used `SELECT .. FOR UPDATE` and `INSERT`. With one client, it was as fast. With 16
//! clients and fresh keys, it had 2,928 deadlocks in 2 s, and no client got a lock. The compare-and-set has no
//! deadlocks (docs/nodes.md, "What it costs").
//!
//! Not solved: under contention, a client repeats its compare-and-set, so a hand-over takes about five round trips. A
//! heartbeat reads the record before it writes. Both miss their goals on MariaDB.

mod age;
mod cache;
mod codec;
mod contract;
#[cfg(test)]
mod faulty;
mod inspect;
mod job;
mod last_run;
mod listening;
mod messages;
mod micros;
mod names;
mod node;
mod pace;
#[cfg(any(test, feature = "testing"))]
mod record_access;
mod session_task;
mod shared;
mod sweep;
#[cfg(any(test, feature = "testing"))]
mod table;
mod time;
mod wait_lock;
mod wake_ups;

pub use contract::{
    Change, Clocked, Commit, Committed, Date, Greeting, Listener, NamedRecord, Record, Session,
    Store, Traits, WaitLock, Wake,
};
pub use last_run::{LastRun, SeenPosition};
pub use messages::{decode_messages, encode_messages};
pub use node::StoreNode;
pub use pace::{Pace, Pacer};
#[cfg(any(test, feature = "testing"))]
pub use record_access::RecordAccess;
#[cfg(any(test, feature = "testing"))]
pub use table::Table;
