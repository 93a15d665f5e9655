//! What every kind of master has to keep.

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
/// The contract, held by one test suite for every implementation:
///
/// - Requests of one handle take effect in the order in which they were sent.
/// - Every request is answered once, within the node's own timeout; where the master stays
///   silent the answer is a [`Fault`](super::Fault).
/// - [`send`](Self::send) never blocks and never waits.
/// - A fault for which [`Fault::left_nothing`](super::Fault::left_nothing) holds has left nothing on the master.
pub trait Node: Send + Sync + 'static {
    /// The master's name for reports.
    fn name(&self) -> &NodeName;

    /// What it can do.
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    /// Tells what the `Redlock` that it belongs to goes by. Called once, before all else.
    fn settle(&self, context: &Context) {
        let _ = context;
    }

    /// Queues `request`; `reply` is answered later, or before this returns.
    fn send(&self, request: Request, reply: Reply);

    /// Delivers wake-ups for the subscriber's process from now on. Called at most once, before the first
    /// request; an implementation without wake-ups leaves the waiters to their timers.
    fn subscribe(&self, subscriber: Subscriber) {
        drop(subscriber);
    }

    /// For how much longer at most the votes of this master do not count, also those that it has given: it was found
    /// meanwhile that it may have forgotten locks. None where its votes count, which is the default.
    fn doubted_for(&self) -> Option<Duration> {
        None
    }

    /// Resolves when nothing that was sent so far is under way any more.
    fn idle(&self) -> crate::runtime::BoxFuture<()>;

    /// Carries out an order of who changes masters, and looks at the master. An implementation that keeps no mark
    /// refuses.
    fn change(&self, order: ChangeOrder) -> crate::runtime::BoxFuture<ChangeSeen> {
        let _ = order;
        let seen = ChangeSeen {
            fault: Some(Fault::Unsupported("it keeps no mark of its masters".into())),
            ..ChangeSeen::default()
        };
        Box::pin(async move { seen })
    }

    /// Looks at the master itself, beside all that is under way. An implementation that has nothing to
    /// tell finds nothing wrong.
    fn inspect(&self, scope: &Scope) -> crate::runtime::BoxFuture<Inspection> {
        let _ = scope;
        let found = Inspection::new(self.name().clone());
        Box::pin(async move { found })
    }
}
