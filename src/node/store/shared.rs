//! The state that the handle, the sessions and the listener of one store share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::contract::{Store, Traits};
use super::listening::Listening;
use crate::node::actor::mailbox::Mailbox;
use crate::node::actor::trust::RunHistory;
use crate::node::{Context, Subscriber};
use crate::repeats::Repeats;
use crate::runtime::Tokio;

/// The `max_ttl` of a node that belongs to no `Redlock`, for example in tests with a single node.
const MAX_TTL: Duration = Duration::from_secs(30);

pub(super) struct Shared<S> {
    pub(super) store: S,
    pub(super) traits: Traits,
    pub(super) mailboxes: Box<[Mailbox]>,
    pub(super) run_history: RunHistory,
    pub(super) listening: Listening,
    /// Limits how often warnings about the sessions with this store are logged.
    pub(super) repeats: Repeats,
    /// The index of the only session that searches the store for obsolete records of other clients.
    pub(super) pager: OnceLock<usize>,
    /// The receiver of the wake-ups. Unset if no client of this process needs wake-ups.
    pub(super) subscriber: OnceLock<Subscriber>,
    context: OnceLock<Context>,
}

impl<S: Store> Shared<S> {
    pub(super) fn new(store: S) -> Self {
        let traits = store.traits();
        Self {
            store,
            mailboxes: (0..traits.lanes.max(1)).map(|_| Mailbox::new()).collect(),
            traits,
            run_history: RunHistory::default(),
            listening: Listening::default(),
            repeats: Repeats::default(),
            pager: OnceLock::new(),
            subscriber: OnceLock::new(),
            context: OnceLock::new(),
        }
    }

    pub(super) fn settle(&self, context: &Context) {
        // If the node already belongs to a `Redlock`, keep the context of that `Redlock`.
        let _ = self.context.set(context.clone());
    }

    pub(super) fn context(&self) -> &Context {
        let default_context = || Context::new(Arc::new(Tokio::default()), MAX_TTL);
        self.context.get_or_init(default_context)
    }
}
