//! What a coordinator may ask of one master, and what a master may answer.
//!
//! A [`Node`] is asked by messages, not by futures: a request is queued at once and in order, the
//! answer comes to a [`Reply`]. So a caller can be dropped at any point without pulling a request
//! out of the middle of a queue, and a release always stays behind its own acquire. A node never
//! decides that a lock is held; it has one vote.

mod actor;
pub(crate) mod change;
mod context;
mod contract;
mod fault;
pub(crate) use actor::marks::Marks;
pub(crate) mod inspection;
#[cfg(any(test, feature = "testing", feature = "node"))]
pub mod memory;
mod name;
pub(crate) mod note;
pub(crate) mod redis;
pub(crate) mod request;
mod scope;
#[cfg(any(test, feature = "node"))]
pub mod store;
#[cfg(any(test, feature = "testing"))]
mod stream;

mod text;

pub use change::{ChangeOrder, ChangeSeen};
pub use context::{Abilities, Context};
pub use contract::Node;
pub use fault::Fault;
pub use name::NodeName;
pub use note::Note;
pub use request::{
    Answer, Claim, Class, ExtendItem, Extended, Fairness, Group, Hold, KeyState, Mode, NewValue,
    NoteItem, Page, Part, Permit, Phase, QueueInfo, Reply, ReplySink, Request, ServerRun,
    StoredValue, Subscriber, Ticket, Token, Waiter, WakeSink,
};
pub use scope::Scope;
#[cfg(any(test, feature = "testing"))]
pub use stream::{Dial, Stream};
