//! What handle, lanes and ears of one store share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::contract::{Store, Traits};
use super::ears::Ears;
use crate::node::actor::mailbox::Mailbox;
use crate::node::actor::trust::Acquaintance;
use crate::node::{Subscriber, Terms};
use crate::runtime::Tokio;

/// The longest ttl where nobody has said any, as in tests that ask one node.
const MAX_TTL: Duration = Duration::from_secs(30);

pub(super) struct Shared<S> {
    pub(super) store: S,
    pub(super) traits: Traits,
    pub(super) lanes: Box<[Mailbox]>,
    pub(super) acquaintance: Acquaintance,
    pub(super) ears: Ears,
    /// Who hears the wake-ups; unset where nobody waits in order.
    pub(super) subscriber: OnceLock<Subscriber>,
    terms: OnceLock<Terms>,
}

impl<S: Store> Shared<S> {
    pub(super) fn new(store: S) -> Self {
        let traits = store.traits();
        Self {
            store,
            lanes: (0..traits.lanes.max(1)).map(|_| Mailbox::new()).collect(),
            traits,
            acquaintance: Acquaintance::default(),
            ears: Ears::default(),
            subscriber: OnceLock::new(),
            terms: OnceLock::new(),
        }
    }

    pub(super) fn settle(&self, terms: &Terms) {
        // What was said first stays.
        let _ = self.terms.set(terms.clone());
    }

    pub(super) fn terms(&self) -> &Terms {
        let alone = || Terms::new(Arc::new(Tokio::default()), MAX_TTL);
        self.terms.get_or_init(alone)
    }
}
