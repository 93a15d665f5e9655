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
/// - Requests to one handle take effect in the order in which they were sent.
/// - Every request is answered once, within the node's own timeout. If the master does not answer in time, the answer
///   is a [`Fault`](super::Fault).
/// - [`send`](Self::send) never blocks.
/// - If [`Fault::left_nothing`](super::Fault::left_nothing) is true for a fault, the request changed nothing on the
///   master.
pub trait Node: Send + Sync + 'static {
    /// The master's name in reports and errors.
    fn name(&self) -> &NodeName;

    /// The abilities of this master in addition to voting.
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    /// Receives the settings of the `Redlock` that the node belongs to. Called once, before any other method.
    fn settle(&self, context: &Context) {
        let _ = context;
    }

    /// Queues `request`. The answer is passed to `reply`, either before this method returns or later.
    fn send(&self, request: Request, reply: Reply);

    /// Starts to pass the wake-ups of the subscriber's process to the subscriber. Called at most once, before the first
    /// request. If an implementation does not support wake-ups, waiters poll by timer.
    fn subscribe(&self, subscriber: Subscriber) {
        drop(subscriber);
    }

    /// The remaining time in which the votes of this master do not count, because it may have forgotten locks. Votes
    /// that it gave earlier do not count either. `None` (the default) if its votes count.
    fn doubted_for(&self) -> Option<Duration> {
        None
    }

    /// Resolves when every request that was sent before this call is answered.
    fn idle(&self) -> crate::runtime::BoxFuture<()>;

    /// Executes an operation of an operator who replaces masters, and returns the state of the master afterwards. The
    /// default implementation is for masters without generation markers: it returns a fault.
    fn change(&self, order: ChangeOrder) -> crate::runtime::BoxFuture<ChangeSeen> {
        let _ = order;
        let seen = ChangeSeen {
            fault: Some(Fault::Unsupported(
                "this kind of master keeps no generation marker".into(),
            )),
            ..ChangeSeen::default()
        };
        Box::pin(async move { seen })
    }

    /// Inspects the master, independently of all outstanding requests. By default the inspection is empty.
    fn inspect(&self, scope: &Scope) -> crate::runtime::BoxFuture<Inspection> {
        let _ = scope;
        let found = Inspection::new(self.name().clone());
        Box::pin(async move { found })
    }
}
