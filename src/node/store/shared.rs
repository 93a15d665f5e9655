//! What handle, lanes and listener of one store share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::contract::{Store, Traits};
use super::listening::Listening;
use crate::node::actor::mailbox::Mailbox;
use crate::node::actor::trust::Acquaintance;
use crate::node::{Context, Subscriber};
use crate::runtime::Tokio;

/// The longest ttl where nobody has said any, as in tests that ask one node.
const MAX_TTL: Duration = Duration::from_secs(30);

pub(super) struct Shared<S> {
    pub(super) store: S,
    pub(super) traits: Traits,
    pub(super) lanes: Box<[Mailbox]>,
    pub(super) acquaintance: Acquaintance,
    pub(super) listening: Listening,
    /// Which lane looks at records that nobody has asked for: the first that comes to it.
    pub(super) pager: OnceLock<usize>,
    /// Who hears the wake-ups; unset where nobody waits in order.
    pub(super) subscriber: OnceLock<Subscriber>,
    context: OnceLock<Context>,
}

impl<S: Store> Shared<S> {
    pub(super) fn new(store: S) -> Self {
        let traits = store.traits();
        Self {
            store,
            lanes: (0..traits.lanes.max(1)).map(|_| Mailbox::new()).collect(),
            traits,
            acquaintance: Acquaintance::default(),
            listening: Listening::default(),
            pager: OnceLock::new(),
            subscriber: OnceLock::new(),
            context: OnceLock::new(),
        }
    }

    pub(super) fn settle(&self, context: &Context) {
        // What was said first stays.
        let _ = self.context.set(context.clone());
    }

    pub(super) fn context(&self) -> &Context {
        let alone = || Context::new(Arc::new(Tokio::default()), MAX_TTL);
        self.context.get_or_init(alone)
    }
}
