//! The handle of a master on top of a store.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::contract::Store;
use super::inspect::inspect;
use super::shared::Shared;
use super::{names, session_task, wake_ups};
use crate::fork::Process;
use crate::node::actor::joined::split_by_session;
use crate::node::actor::mailbox::Queued;
use crate::node::actor::panicked::inspection_fault;
use crate::node::actor::pending_releases::PendingReleases;
use crate::node::inspection::Inspection;
use crate::node::{Abilities, Context, Fault, Node, NodeName, Reply, Request, Scope, Subscriber};
use crate::panics::caught_in;
use crate::runtime::{self, BoxFuture};

/// A master that keeps its locks in a [`Store`]. It supports the same kinds of locks as a Redis master.
///
/// The store has one record for each resource. The client reads the record, decides based on its content, and changes
/// it by compare-and-set.
///
/// A `StoreNode` that is dropped accepts no more requests. Its tasks still try to deliver pending releases, for at most
/// a second.
pub struct StoreNode<S: Store> {
    shared: Arc<Shared<S>>,
    process: Process,
}

impl<S: Store> StoreNode<S> {
    /// Creates a master on this store. The master connects to the store when it gets its first request.
    pub fn new(store: S) -> Self {
        let shared = Arc::new(Shared::new(store));
        Self {
            shared,
            process: Process::current(),
        }
    }

    fn push(&self, session: usize, request: Request, reply: Reply) {
        let mailbox = &self.shared.mailboxes[session];
        match mailbox.push(Queued::new(request, reply)) {
            Ok(false) => {}
            Ok(true) => {
                let task = session_task::run(self.shared.clone(), session, PendingReleases::new());
                if !self.shared.context().runtime.spawn(Box::pin(task)) {
                    mailbox.fail(&Fault::Down("no tokio runtime is running".into()));
                }
            }
            Err(queued) => queued.answer(Err(Fault::Overloaded)),
        }
    }

    /// The index of the session that serves requests for these records. The index depends only on the first record. It
    /// is 0 if there are no records.
    fn session_of(&self, names: &[names::Name]) -> usize {
        let sessions = self.shared.mailboxes.len();
        let first_name = names.first().filter(|_| sessions > 1);
        first_name.map_or(0, |name| {
            let mut hasher = DefaultHasher::new();
            name.hash(&mut hasher);
            usize::try_from(hasher.finish() % sessions as u64).unwrap_or(0)
        })
    }
}

impl<S: Store> Node for StoreNode<S> {
    fn name(&self) -> &NodeName {
        self.shared.store.name()
    }

    fn abilities(&self) -> Abilities {
        let traits = &self.shared.traits;
        let abilities = Abilities::default().timeout(traits.timeout);
        if traits.wakes {
            abilities
        } else {
            abilities.without_wakes()
        }
    }

    fn settle(&self, context: &Context) {
        self.shared.settle(context);
    }

    fn send(&self, request: Request, reply: Reply) {
        if self.process.is_not_current() {
            return reply.answer(Err(Fault::forked()));
        }
        wake_ups::listen(&self.shared, &request);
        if self.shared.mailboxes.len() == 1 {
            return self.push(0, request, reply);
        }
        let session = |claim: &_| self.session_of(&names::records_of_claim(claim));
        for (session, request, reply) in split_by_session(request, reply, session) {
            let session =
                session.unwrap_or_else(|| self.session_of(&names::records_of_request(&request)));
            self.push(session, request, reply);
        }
    }

    fn subscribe(&self, subscriber: Subscriber) {
        // The contract allows one subscriber: ignore a second one.
        let _ = self.shared.subscriber.set(subscriber);
    }

    fn idle(&self) -> BoxFuture<()> {
        let (shared, process) = (self.shared.clone(), self.process);
        Box::pin(async move {
            if process.is_not_current() {
                return;
            }
            for mailbox in &shared.mailboxes {
                mailbox.idle().await;
            }
        })
    }

    fn inspect(&self, _: &Scope) -> BoxFuture<Inspection> {
        let shared = self.shared.clone();
        if self.process.is_not_current() {
            let failed = Inspection::failed(self.name().clone(), Fault::forked());
            return Box::pin(std::future::ready(failed));
        }
        Box::pin(runtime::in_runtime(async move {
            let name = shared.store.name().clone();
            let inspection = caught_in(inspect(shared)).await;
            inspection.unwrap_or_else(|panic| {
                let mut inspection = Inspection::failed(name, inspection_fault(&panic));
                inspection.records = true;
                inspection
            })
        }))
    }
}

impl<S: Store> Drop for StoreNode<S> {
    fn drop(&mut self) {
        if self.process.is_not_current() {
            return;
        }
        for mailbox in &self.shared.mailboxes {
            mailbox.close();
        }
        self.shared.listening.close();
    }
}

impl<S: Store> fmt::Debug for StoreNode<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreNode")
            .field("name", self.name())
            .finish_non_exhaustive()
    }
}
