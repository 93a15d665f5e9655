//! A Redis or Valkey master. A link decides what to send and how to handle replies. An actor connects the link to a
//! socket and a timer.
//!
//! The library has its own Redis client. It writes requests directly into the output buffer, and parses replies in
//! place in the input buffer. With the feature `redis`, it takes addresses from the `redis` crate.

mod actor;
mod address;
mod ages;
mod buffers;
mod call;
mod change;
mod connecting;
mod conversation;
mod decode;
mod deletion;
mod denied;
mod dial;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod driver;
mod encode;
mod handshake;
mod inspect;
mod layout;
mod link;
mod loaded;
mod lookup;
mod many;
mod needs;
mod online;
mod raised;
mod refusal;
mod resp;
mod runs;
pub(crate) mod script;
mod sent;
#[cfg(any(test, feature = "testing"))]
pub mod server_half;
mod settle;
mod shared;
mod socket;
mod source;
mod votes;

pub(crate) use address::{Address, MasterSource};
pub(crate) use shared::NodeOptions;

use std::sync::Arc;
use std::time::Duration;

use self::shared::Shared;
use super::actor::mailbox::Queued;
use super::actor::panicked::inspection_fault;
use super::actor::pending_releases::PendingReleases;
use super::change::{ChangeOrder, ChangeSeen};
use super::{Fault, Node, NodeName, Reply, Request, Subscriber};
use crate::fork::Process;
use crate::hosting;
use crate::node::Scope;
use crate::node::inspection::Inspection;
use crate::panics;
use crate::runtime::{self, BoxFuture};

/// The handle of one master. When the handle is dropped, the actor sends the remaining requests and then ends.
pub(crate) struct RedisNode {
    shared: Arc<Shared>,
    process: Process,
}

impl RedisNode {
    pub(crate) fn new(address: Address, options: Arc<NodeOptions>) -> Self {
        let shared = Arc::new(Shared::new(address, options));
        Self {
            shared,
            process: Process::current(),
        }
    }
}

impl Node for RedisNode {
    fn name(&self) -> &NodeName {
        self.shared.address.name()
    }

    fn send(&self, request: Request, reply: Reply) {
        if self.process.is_not_current() {
            return reply.answer(Err(Fault::forked()));
        }
        let mailbox = &self.shared.mailbox;
        match mailbox.push(Queued::new(request, reply)) {
            Ok(false) => {}
            // No actor reads the mailbox: none was started yet, or its tokio runtime was shut down. Start an actor.
            Ok(true) => {
                let run = actor::run(self.shared.clone(), PendingReleases::new());
                if !hosting::spawn(Box::pin(run)) {
                    mailbox.fail(&Fault::Down("no tokio runtime is running".into()));
                }
            }
            Err(queued) => queued.answer(Err(Fault::Overloaded)),
        }
    }

    fn subscribe(&self, subscriber: Subscriber) {
        // The library calls `subscribe` at most once, so ignore a second subscriber.
        let _ = self.shared.subscriber.set(subscriber);
    }

    fn doubted_for(&self) -> Option<Duration> {
        // Another thread of the parent may have held a mutex of `shared` during a fork.
        if self.process.is_not_current() {
            return None;
        }
        self.shared.doubted_for()
    }

    fn idle(&self) -> BoxFuture<()> {
        let (shared, process) = (self.shared.clone(), self.process);
        Box::pin(async move {
            if !process.is_not_current() {
                shared.mailbox.idle().await;
            }
        })
    }

    fn change(&self, order: ChangeOrder) -> BoxFuture<ChangeSeen> {
        if self.process.is_not_current() {
            let fault = Some(Fault::forked());
            let seen = ChangeSeen {
                fault,
                ..ChangeSeen::default()
            };
            return Box::pin(std::future::ready(seen));
        }
        let shared = Arc::new(self.shared.for_another_connection());
        let change = async move { change::change(&shared, order).await };
        Box::pin(runtime::in_runtime(change))
    }

    fn inspect(&self, scope: &Scope) -> BoxFuture<Inspection> {
        let name = self.shared.address.name().clone();
        if self.process.is_not_current() {
            let failed = Inspection::failed(name, Fault::forked());
            return Box::pin(std::future::ready(failed));
        }
        let (shared, scope) = (self.shared.for_another_connection(), scope.clone());
        let inspect = async move {
            let found = panics::caught_in(inspect::inspect(&Arc::new(shared), &scope)).await;
            found.unwrap_or_else(|panic| Inspection::failed(name, inspection_fault(&panic)))
        };
        Box::pin(runtime::in_runtime(inspect))
    }
}

impl Drop for RedisNode {
    fn drop(&mut self) {
        if !self.process.is_not_current() {
            self.shared.mailbox.close();
        }
    }
}
