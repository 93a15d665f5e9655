//! What a coordinator may ask of one master, and what a master may answer.
//!
//! A [`Node`] is asked by messages, not by futures: a request is queued at once and in order, the
//! answer comes to a [`Reply`]. So a caller can be dropped at any point without pulling a request
//! out of the middle of a queue, and a release always stays behind its own acquire. A node never
//! decides that a lock is held; it has one vote.

mod actor;
mod fault;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
pub(crate) mod redis;
pub(crate) mod request;

pub use fault::Fault;
pub use request::{
    Answer, Claim, Ear, ExtendItem, Extended, KeyState, Line, Order, Phase, Place, Reply,
    ReplySink, Request, Token, Waiter, WakeSink,
};

pub use crate::inspection::Scope;

use std::fmt;
use std::sync::Arc;

use crate::inspection::Inspection;

/// The name of a master as it stands in reports and errors: its address without credentials.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// A name, as given.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn shared(&self) -> Arc<str> {
        self.0.clone()
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// One independent master.
///
/// The contract, held by one test suite for every implementation:
///
/// - Requests of one handle take effect in the order in which they were sent.
/// - Every request is answered once, within the node's own timeout; where the master stays
///   silent the answer is a [`Fault`].
/// - [`send`](Self::send) never blocks and never waits.
/// - A fault for which [`Fault::left_nothing`] holds has left nothing on the master.
pub trait Node: Send + Sync + 'static {
    /// The master's name for reports.
    fn name(&self) -> &NodeName;

    /// Queues `request`; `reply` is answered later, or before this returns.
    fn send(&self, request: Request, reply: Reply);

    /// Delivers wake-ups for the ear's process from now on. Called at most once, before the first
    /// request; an implementation without wake-ups leaves the waiters to their timers.
    fn listen(&self, ear: Ear) {
        drop(ear);
    }

    /// Resolves when nothing that was sent so far is under way any more.
    fn idle(&self) -> crate::runtime::BoxFuture<()>;

    /// Looks at the master itself, beside all that is under way. An implementation that has nothing to
    /// tell finds nothing wrong.
    fn inspect(&self, scope: &Scope) -> crate::runtime::BoxFuture<Inspection> {
        let _ = scope;
        let found = Inspection::new(self.name().clone());
        Box::pin(async move { found })
    }
}

/// A connection as the Redis driver uses it.
#[cfg(any(test, feature = "testing"))]
pub trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static {}

#[cfg(any(test, feature = "testing"))]
impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// Opens a connection to a host and port: in place of TCP, for a simulated network.
#[cfg(any(test, feature = "testing"))]
pub type Dial = Arc<
    dyn Fn(&str, u16) -> crate::runtime::BoxFuture<std::io::Result<Box<dyn Stream>>> + Send + Sync,
>;

#[cfg(any(test, feature = "testing"))]
pub use redis::driver::{Driver, Stage};

/// The masters of a builder as [`Driver`]s: for simulations. `seed` draws the jitter of their pauses,
/// `now` is the present time on the clock that steps them.
///
/// # Errors
///
/// As [`RedlockBuilder::build`](crate::RedlockBuilder::build).
#[cfg(any(test, feature = "testing"))]
pub fn drivers(
    settings: &crate::RedlockBuilder,
    seed: u64,
    now: crate::Instant,
) -> Result<Vec<Driver>, crate::BuildError> {
    settings.drivers(seed, now)
}

/// A Redis or Valkey master by its URL, with the defaults of a builder: for contract tests.
///
/// # Errors
///
/// As [`RedlockBuilder::build`](crate::RedlockBuilder::build).
#[cfg(any(test, feature = "testing"))]
pub fn connect(
    url: &str,
    settings: &crate::RedlockBuilder,
) -> Result<Arc<dyn Node>, crate::BuildError> {
    settings.clone().master(url).single_node()
}
