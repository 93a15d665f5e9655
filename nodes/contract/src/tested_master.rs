//! A master under test, with direct access to its keys.

use std::sync::Arc;

use quorate::node::memory::MemoryNode;
use quorate::node::store::{RecordAccess, Store, StoreNode, Table};
use quorate::node::{Answer, ChangeOrder, ChangeSeen, Ended, KeyState, Node, Request};
use quorate::{Redlock, RestartGuard};

use crate::fixtures::LONG;
use crate::key_access::KeyAccess;
use crate::record_keys::RecordKeys;
use crate::requests::{self, Reply};
use crate::time::{ms, secs};

/// A master under test: the node that sends requests to it, and direct access to its keys.
pub struct TestedMaster {
    node: Arc<dyn Node>,
    keys: Box<dyn KeyAccess>,
    kind: MasterKind,
    trusts_earlier_runs: bool,
}

/// The sort of a master. It determines the expectations of the cases that depend on more than replies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MasterKind {
    Memory,
    Store,
    Server,
}

impl TestedMaster {
    /// A master with a driver of its own. `keys` accesses the keys of the same master.
    ///
    /// The cases expect that the master executes the locks of a request in their order, sends no needless wake-ups, and
    /// keeps its keys when it restarts.
    pub fn new(node: Arc<dyn Node>, keys: impl KeyAccess + 'static) -> Self {
        let keys = Box::new(keys);
        let kind = MasterKind::Server;
        let trusts_earlier_runs = true;
        Self {
            node,
            keys,
            kind,
            trusts_earlier_runs,
        }
    }

    /// The memory master of the library, with which all other masters are compared.
    pub fn memory() -> Self {
        let master = MemoryNode::new("memory");
        Self::memory_behind(Arc::new(master.clone()), master)
    }

    /// The memory master `master`. Requests are sent through `node`, for example over a connection.
    pub fn memory_behind(node: Arc<dyn Node>, master: MemoryNode) -> Self {
        Self {
            node,
            keys: Box::new(RecordKeys(master)),
            kind: MasterKind::Memory,
            trusts_earlier_runs: false,
        }
    }

    /// A store in memory, with or without a clock of its own.
    pub fn table(has_clock: bool) -> Self {
        let table = Table::new("table", has_clock);
        Self::store(table.clone(), table)
    }

    /// The store `store`, which must be empty. `other` is a second handle of the same store, for direct access.
    ///
    /// Must be called inside a Tokio runtime.
    pub fn store<S: Store>(store: S, other: S) -> Self {
        let node = StoreNode::new(store);
        // Switch the restart guard off. Otherwise clients would ignore the votes of the new store for `max_ttl`. The
        // other limits are long enough for a busy machine.
        let settings = Redlock::builder()
            .ttl(secs(30))
            .max_ttl(LONG)
            .node_timeout(ms(500))
            .connect_timeout(secs(10))
            .restart_guard(RestartGuard::Off);
        node.settle(&quorate::testing::context(&settings));
        Self {
            node: Arc::new(node),
            keys: Box::new(RecordKeys(RecordAccess::new(other))),
            kind: MasterKind::Store,
            trusts_earlier_runs: true,
        }
    }

    /// Declares that the run id of this master stays the same when it restarts
    /// ([`Greeting::run_outlives_restarts`](quorate::node::store::Greeting::run_outlives_restarts)).
    #[must_use]
    pub fn run_outlives_restarts(self) -> Self {
        Self {
            trusts_earlier_runs: false,
            ..self
        }
    }

    /// The node that sends requests to this master.
    pub fn node(&self) -> &dyn Node {
        &*self.node
    }

    /// Direct access to the keys of this master.
    pub fn keys(&self) -> &dyn KeyAccess {
        &*self.keys
    }

    /// Whether this master is a store. A store may execute the locks of a request in any order, and may send more
    /// wake-ups than necessary.
    pub(crate) fn is_store(&self) -> bool {
        self.kind == MasterKind::Store
    }

    /// Whether a client trusts a value that this master stored under another run id.
    pub(crate) fn trusts_earlier_runs(&self) -> bool {
        self.trusts_earlier_runs
    }

    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    ///
    /// The fault for which there is no answer.
    pub async fn send(&self, request: Request) -> Reply {
        requests::send(self.node(), request).await
    }

    /// Sends a status request that must succeed. Returns the state of the lock.
    pub async fn status(&self, lock: &[u8]) -> KeyState {
        match self.send(requests::status(lock)).await {
            Ok(Answer::State(state)) => state,
            other => panic!("the status request must succeed, but the reply is {other:?}"),
        }
    }

    /// Sends an order of an operator that replaces masters, and waits until it is executed. Returns the state of the
    /// master.
    pub async fn order(&self, order: ChangeOrder) -> ChangeSeen {
        self.node().change(order).await
    }

    /// Force-releases the lock that this master has, as a client with only this master does.
    ///
    /// # Errors
    ///
    /// The fault of the master, if it does not execute one of the two requests.
    pub async fn force_release(&self, lock: &[u8]) -> Reply {
        let Answer::State(state) = self.send(requests::force_release(lock, &[], false)).await?
        else {
            panic!("the first step must return the state of the lock")
        };
        let ended = Ended::all([state].iter());
        self.send(requests::force_release(lock, &ended, true)).await
    }

    /// Sends an acquire that must be granted. Returns the fencing counter.
    pub async fn granted(&self, request: Request) -> u64 {
        match self.send(request).await {
            Ok(Answer::Granted { counter: Some(v) }) => v,
            other => {
                panic!("the acquire must be granted with a counter, but the reply is {other:?}")
            }
        }
    }
}
