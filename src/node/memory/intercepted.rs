//! A master in memory for unit tests: the test sees each request before the master executes it.

use std::sync::{Arc, Mutex};

use super::{MemoryNode, Reply, Request};
use crate::node::{Node, NodeName};
use crate::runtime::BoxFuture;

struct InterceptedNode<F> {
    master: MemoryNode,
    intercept: F,
}

impl<F: Fn(&Request, Reply) -> Option<Reply> + Send + Sync + 'static> Node for InterceptedNode<F> {
    fn name(&self) -> &NodeName {
        self.master.name()
    }

    fn send(&self, request: Request, reply: Reply) {
        if let Some(reply) = (self.intercept)(&request, reply) {
            self.master.send(request, reply);
        }
    }

    fn idle(&self) -> BoxFuture<()> {
        self.master.idle()
    }
}

/// Nodes that pass each request to `intercept` first. If it returns the reply, the master executes the request.
/// Otherwise the master never learns of the request. To leave a request unanswered, `intercept` must keep the reply: a
/// reply that is dropped is answered with a fault.
pub(crate) fn intercepted(
    masters: &[MemoryNode],
    intercept: impl Fn(&Request, Reply) -> Option<Reply> + Clone + Send + Sync + 'static,
) -> Vec<Arc<dyn Node>> {
    let node = |master: &MemoryNode| -> Arc<dyn Node> {
        let (master, intercept) = (master.clone(), intercept.clone());
        Arc::new(InterceptedNode { master, intercept })
    };
    masters.iter().map(node).collect()
}

/// How many extensions of locks the masters received, and how the holder's notes were renewed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExtensionCounts {
    pub(crate) extensions: usize,
    /// The extensions that also renewed the note.
    pub(crate) with_note: usize,
    /// The notes that were sent separately.
    pub(crate) separate_notes: usize,
}

/// Nodes that count the extensions and notes that they receive.
pub(crate) fn counting_extensions(
    masters: &[MemoryNode],
) -> (Vec<Arc<dyn Node>>, Arc<Mutex<ExtensionCounts>>) {
    let counts = Arc::<Mutex<ExtensionCounts>>::default();
    let counted = counts.clone();
    let nodes = intercepted(masters, move |request, reply| {
        let mut counts = counted.lock().expect("not poisoned");
        match request {
            Request::Extend { items } => {
                counts.extensions += items.len();
                counts.with_note += items.iter().filter(|item| item.note).count();
            }
            Request::Note { items } => counts.separate_notes += items.len(),
            _ => {}
        }
        Some(reply)
    });
    (nodes, counts)
}
