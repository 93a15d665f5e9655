//! The requests to one master, and the answers of the master.
//!
//! [`Node::send`] queues a request, and passes its answer to a [`Reply`]. A queued request is sent even if the caller
//! stops waiting for the answer. Requests for the same lock keep their order, so the release of a lock is sent after
//! its acquire.
//!
//! Each answer is the vote of one master. No single answer decides whether a lock is held.

mod actor;
pub(crate) mod age_call;
mod answer;
pub(crate) mod change;
mod claim;
mod context;
mod contract;
mod ended;
mod fault;
pub(crate) use actor::markers::GenerationMarkers;
pub(crate) mod inspection;
#[cfg(any(test, feature = "testing", feature = "node"))]
pub mod memory;
mod name;
pub(crate) mod note;
mod numbers;
mod other_protocol;
pub(crate) mod redis;
mod reply;
mod request;
pub(crate) mod right;
mod scope;
pub(crate) mod shape;
#[cfg(any(test, feature = "node"))]
pub mod store;
#[cfg(any(test, feature = "testing"))]
mod stream;
mod text;
mod token;
mod value;
pub(crate) mod waiter_id;
mod wake;

#[doc(hidden)]
pub use crate::panics::{Panic, caught, caught_in, text as panic_text};
pub use answer::{Answer, Extended, Hold, KeyState, QueueInfo, Waiter};
pub use change::{ChangeOrder, ChangeSeen};
pub use claim::{Claim, Fairness, Ticket};
pub(crate) use context::CONNECT_STEPS;
pub use context::{Abilities, Context};
pub use contract::Node;
pub use ended::Ended;
pub use fault::Fault;
pub use inspection::RoundTrip;
pub use name::NodeName;
pub use note::Note;
#[doc(hidden)]
pub use other_protocol::{Protocol, other_protocol};
pub use reply::{Phase, Reply, ReplySink};
pub use request::{ExtendItem, NoteItem, Page, Request};
pub use scope::Scope;
pub use shape::{Class, Group, Mode, Part, Permit};
pub(crate) use shape::{LocalTurn, Numbering, Shape};
#[cfg(any(test, feature = "testing"))]
pub use stream::{Dial, Stream};
pub use token::Token;
pub(crate) use token::is_of_quorate;
pub use value::{NewValue, ServerRun, StoredValue};
pub use wake::{Subscriber, WakeSink};
