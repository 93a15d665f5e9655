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
/// An implementation must keep this contract:
///
/// - Requests to the same `Node` take effect in the order in which they were sent.
/// - Every request is answered exactly once. If the master does not answer within its answer timeout, the `Node`
///   answers with a [`Fault`](super::Fault).
/// - [`send`](Self::send) never blocks.
/// - If [`left_nothing`](super::Fault::left_nothing) is true for a fault, the failed request has changed nothing on the
///   master.
pub trait Node: Send + Sync + 'static {
    /// The master's name in reports and errors.
    fn name(&self) -> &NodeName;

    /// Whether this kind of master wakes waiting clients, and how long the library waits for its answers.
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    /// Receives the settings of the `Redlock` that the node belongs to. The library calls this method once, before any
    /// other method.
    fn settle(&self, context: &Context) {
        let _ = context;
    }

    /// Queues `request`. The implementation must pass the answer to `reply`, either before this method returns or
    /// later.
    fn send(&self, request: Request, reply: Reply);

    /// Registers `subscriber`, which then receives all wake-ups from this master. The library calls this method at most
    /// once, before the first request. If an implementation does not support wake-ups, waiters poll by timer.
    fn subscribe(&self, subscriber: Subscriber) {
        drop(subscriber);
    }

    /// The remaining time during which neither new nor earlier votes of this master count, because the master may have
    /// forgotten locks. `None` (the default) if its votes count.
    fn doubted_for(&self) -> Option<Duration> {
        None
    }

    /// Resolves when every request that was sent before this call is answered.
    fn idle(&self) -> crate::runtime::BoxFuture<()>;

    /// Executes `order`, and then returns the state of the master. The default implementation returns a fault, because
    /// a master without a generation marker executes no orders.
    fn change(&self, order: ChangeOrder) -> crate::runtime::BoxFuture<ChangeSeen> {
        let _ = order;
        let report = ChangeSeen {
            fault: Some(Fault::Unsupported(
                "this kind of master keeps no generation marker".into(),
            )),
            ..ChangeSeen::default()
        };
        Box::pin(async move { report })
    }

    /// Inspects the master. Does not wait for the answers to earlier requests. The default implementation reports only
    /// the name of the master.
    fn inspect(&self, scope: &Scope) -> crate::runtime::BoxFuture<Inspection> {
        let _ = scope;
        let inspection = Inspection::new(self.name().clone());
        Box::pin(async move { inspection })
    }
}
