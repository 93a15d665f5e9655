//! A master in memory for unit tests: the test sees each request before the master executes it.

use std::sync::Arc;

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
/// Otherwise the master never learns of the request.
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
