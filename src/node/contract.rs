//! The contract that every kind of master fulfills.

use std::time::Duration;

use super::change::{ChangeOrder, ChangeSeen};
use super::context::{Abilities, Context};
use super::fault::Fault;
use super::inspection::Inspection;
use super::name::NodeName;
use super::reply::Reply;
use super::request::Request;
use super::scope::Scope;
use super::wake::Subscriber;

/// One independent master.
///
/// The contract, checked by one test suite for every implementation:
///
/// - Requests of one handle take effect in the order in which they were sent.
/// - Every request is answered once, within the node's own timeout. If the master stays silent the answer is a
///   [`Fault`](super::Fault).
/// - [`send`](Self::send) never blocks and never waits.
/// - A fault for which [`Fault::left_nothing`](super::Fault::left_nothing) is true has left nothing on the master.
pub trait Node: Send + Sync + 'static {
    /// The master's name for reports.
    fn name(&self) -> &NodeName;

    /// The abilities of this master in addition to voting.
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    /// Passes the settings of the `Redlock` that the node belongs to. Called once, before any other method.
    fn settle(&self, context: &Context) {
        let _ = context;
    }

    /// Queues `request`. The answer is passed to `reply`, either before this method returns or later.
    fn send(&self, request: Request, reply: Reply);

    /// From now on passes the wake-ups for the subscriber's process to the subscriber. Called at most once, before the
    /// first request. If an implementation does not support wake-ups, waiters rely on their timers.
    fn subscribe(&self, subscriber: Subscriber) {
        drop(subscriber);
    }

    /// How much longer the votes of this master do not count, because it may have forgotten locks. The votes that it
    /// has given already do not count either. `None` (the default) if its votes count.
    fn doubted_for(&self) -> Option<Duration> {
        None
    }

    /// Resolves when every request that was sent before this call is answered.
    fn idle(&self) -> crate::runtime::BoxFuture<()>;

    /// Executes an operation of an operator who replaces masters, and returns the state of the master afterwards. The
    /// default implementation, for masters without generation markers, refuses.
    fn change(&self, order: ChangeOrder) -> crate::runtime::BoxFuture<ChangeSeen> {
        let _ = order;
        let seen = ChangeSeen {
            fault: Some(Fault::Unsupported("it keeps no generation marker".into())),
            ..ChangeSeen::default()
        };
        Box::pin(async move { seen })
    }

    /// Inspects the master, independently of all outstanding requests. The default implementation reports nothing.
    fn inspect(&self, scope: &Scope) -> crate::runtime::BoxFuture<Inspection> {
        let _ = scope;
        let found = Inspection::new(self.name().clone());
        Box::pin(async move { found })
    }
}
