//! A master on top of a store. A store keeps records and changes them by compare-and-set.
//!
//! The client decides each request itself, with the state machine of the [master in memory](super::memory). So the same
//! rules apply to all stores.
//!
//! If a session is lost, an unanswered change may still take effect. To prevent this, the next request for the record
//! writes the record with a new version.

mod age;
mod cache;
mod codec;
mod contract;
#[cfg(feature = "seeded-bugs")]
mod flaw;
mod inspect;
mod job;
mod listening;
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
#[cfg(feature = "seeded-bugs")]
pub use flaw::{StoreFlaw, set_flaw};
pub use node::StoreNode;
pub use pace::{Pace, Pacer};
#[cfg(any(test, feature = "testing"))]
pub use record_access::RecordAccess;
#[cfg(any(test, feature = "testing"))]
pub use table::Table;
