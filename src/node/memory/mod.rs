//! Masters in memory that behave like real masters, for tests of your own code.
//!
//! [`MemoryNode`] answers immediately, from a [`Master`] that gives the same replies as the scripts. It has no network
//! and no persistence. Tests can make a [`MemoryNode`] fail and recover.

mod broken;
mod group;
#[cfg(test)]
pub(crate) mod intercepted;
#[cfg(any(test, feature = "node"))]
pub(super) mod items;
mod master;
#[cfg(any(test, feature = "testing"))]
mod masters;
mod note;
#[cfg(any(test, feature = "testing"))]
mod orders;
mod permit;
mod value;

#[cfg(any(test, feature = "node"))]
pub(super) use master::Dates;
pub use master::{Master, Peek};
#[cfg(any(test, feature = "testing"))]
pub use masters::Masters;
#[cfg(any(test, feature = "testing"))]
pub use orders::RaisedCounter;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Answer, Fault, Node, NodeName, Reply, Request, ServerRun, Subscriber};
use crate::clock::paced;
use crate::runtime::BoxFuture;

/// How an in-memory master behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Condition {
    /// The master answers every request.
    #[default]
    Up,
    /// The master refuses connections: every request fails immediately and is not sent.
    Down,
    /// The master executes requests, but its answers never arrive: every request fails with a timeout.
    Mute,
}

/// One master in memory. A clone refers to the same master. The master uses tokio's clock, which a test can pause and
/// advance (`tokio::time::pause`, `advance`).
///
/// ```
/// use quorate::node::memory::{MemoryNode, Condition};
///
/// let node = MemoryNode::new("memory-1");
/// node.set_condition(Condition::Down);   // a dead master
/// node.set_condition(Condition::Up);     // it works again, with all its keys
/// node.forget();               // it has lost all its keys
/// ```
#[derive(Clone, Debug)]
pub struct MemoryNode {
    name: NodeName,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    master: Master,
    condition: Condition,
    subscribers: Vec<Subscriber>,
    /// How many times the master has been restarted.
    restarts: u64,
}

impl MemoryNode {
    /// Creates an empty master.
    pub fn new(name: &str) -> Self {
        Self {
            name: NodeName::new(name),
            state: Arc::default(),
        }
    }

    /// Changes how the master behaves, from the next request on.
    pub fn set_condition(&self, condition: Condition) {
        self.state().condition = condition;
    }

    /// Simulates a restart in which the master loses all its keys, like a server without persistence.
    pub fn forget(&self) {
        self.state().master = Master::default();
        self.restart();
    }

    /// Restarts the master without loss of keys. Answers then mark values that were stored before the restart as
    /// untrusted (the field `trusted` of [`StoredValue`](super::StoredValue)).
    pub fn restart(&self) {
        let mut state = self.state();
        state.restarts += 1;
        let run = ServerRun::new(format!("{}", state.restarts + 1));
        state.master.set_run(run);
    }

    /// Calls `read` with two arguments: the [`Master`] with its keys, and the master's time in microseconds since 1970.
    /// `read` can change the keys. Returns the result of `read`.
    pub fn with_master<T>(&self, read: impl FnOnce(&mut Master, u64) -> T) -> T {
        read(&mut self.state().master, paced::wall_micros())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, request: &Request) -> Result<Answer, Fault> {
        let mut state = self.state();
        match state.condition {
            _ if request.is_withdrawn() => Err(Fault::Withdrawn),
            _ if request.is_void(paced::now(), state.master.run()) => Err(Fault::Withdrawn),
            Condition::Up => state.master.apply(paced::wall_micros(), request),
            Condition::Down => Err(Fault::Down("switched off".into())),
            Condition::Mute => {
                // Execute the request; only its answer is lost.
                let _ = state.master.apply(paced::wall_micros(), request);
                Err(Fault::Timeout(Duration::ZERO))
            }
        }
    }
}

impl Node for MemoryNode {
    fn name(&self) -> &NodeName {
        &self.name
    }

    fn send(&self, request: Request, reply: Reply) {
        let answer = self.answer(&request);
        let (woken, announced): (Vec<(Subscriber, Vec<u8>)>, Vec<_>) = {
            let mut state = self.state();
            let announced = state.master.take_announced();
            // Announce a new leader to all subscribed processes. A process that does not observe the election ignores
            // the announcement.
            let announced = announced
                .into_iter()
                .map(|key| (state.subscribers.clone(), key));
            let announced = announced.collect();
            let published = state.master.take_published();
            let subscribers = |process: Arc<str>| {
                state
                    .subscribers
                    .iter()
                    .find(|subscriber| subscriber.process == process)
                    .cloned()
            };
            let woken = published
                .into_iter()
                .filter_map(|(process, key)| Some((subscribers(process)?, key)))
                .collect();
            (woken, announced)
        };
        reply.answer(answer);
        for (subscriber, key) in woken {
            subscriber.sink.woken(subscriber.node, &key);
        }
        for (subscribers, key) in announced {
            for subscriber in subscribers {
                subscriber.sink.announced(subscriber.node, &key);
            }
        }
    }

    fn subscribe(&self, subscriber: Subscriber) {
        self.state().subscribers.push(subscriber);
    }

    fn idle(&self) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

#[cfg(test)]
mod tests;
