//! All masters, and what every round needs to know of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use super::fan_out::{Collect, FanOut};
use crate::node::{Claim, Node, NodeName, Phase, Reply, ReplySink, Request, Token};
use crate::protocol::instant::Instant;
use crate::protocol::mark::Configuration;
use crate::protocol::quorum::Quorum;
use crate::protocol::validity::Drift;
use crate::retry::Retry;
use crate::runtime::Runtime;

/// How much longer than a node may take its caller waits for its word: only for a node that breaks its
/// contract. One that keeps it answers within its timeout, and reads what has come before it calls anything
/// late; a process that hardly gets to run would otherwise leave while the answers lie there.
const BACKSTOP: Duration = Duration::from_secs(1);

/// All masters, and what every round needs to know.
pub(crate) struct Coordinator {
    pub(super) nodes: Box<[Arc<dyn Node>]>,
    pub(crate) quorum: Quorum,
    /// Which masters they were named as; none where they keep no mark.
    pub(crate) configuration: Option<Configuration>,
    /// Whether a quorum of the masters wakes those who wait.
    pub(crate) wakes: bool,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) drift: Drift,
    pub(crate) prefix: Box<str>,
    pub(crate) fencing: bool,
    pub(crate) patience: Patience,
    /// The pauses of who asks again within one attempt.
    pub(super) retry: Retry,
    /// The masters have been asked before: who is not there by now is not waited for.
    pub(super) met: AtomicBool,
    /// Learned distance of our wall clock from the masters', for proposals.
    pub(super) offset: AtomicI64,
}

/// Who is asked, and who makes a majority.
pub(crate) struct Members {
    pub(crate) nodes: Vec<Arc<dyn Node>>,
    pub(crate) quorum: Quorum,
    pub(crate) configuration: Option<Configuration>,
}

impl Members {
    /// Of one set that is not changed.
    pub(crate) fn of(nodes: Vec<Arc<dyn Node>>) -> Self {
        Self {
            quorum: Quorum::of(nodes.len()),
            nodes,
            configuration: None,
        }
    }
}

/// How long a node may take to answer.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// Any request.
    pub(crate) answer: Duration,
    /// And how much longer the very first, which waits for its connection.
    pub(crate) connect: Duration,
}

impl Coordinator {
    pub(crate) fn new(
        members: Members,
        runtime: Arc<dyn Runtime>,
        drift: Drift,
        prefix: &str,
        fencing: bool,
        patience: Patience,
        retry: Retry,
    ) -> Self {
        let Members {
            nodes,
            quorum,
            configuration,
        } = members;
        let waking = nodes.iter().enumerate();
        let waking = waking.filter(|(_, node)| node.abilities().wakes);
        let wakes = quorum.is_met_by(waking.map(|(index, _)| index).collect());
        let nodes = nodes.into();
        let prefix = prefix.into();
        Self {
            nodes,
            quorum,
            configuration,
            wakes,
            runtime,
            drift,
            prefix,
            fencing,
            patience,
            retry,
            met: AtomicBool::new(false),
            offset: AtomicI64::new(0),
        }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.iter().map(|node| node.name())
    }

    pub(crate) fn nodes(&self) -> &[Arc<dyn Node>] {
        &self.nodes
    }

    pub(crate) fn now(&self) -> Instant {
        self.runtime.now()
    }

    /// The lock key of a resource.
    pub(crate) fn key(&self, resource: &[u8]) -> Arc<[u8]> {
        [self.prefix.as_bytes(), resource].concat().into()
    }

    /// A claim on a lock key: its resource is what stands behind this coordinator's prefix, or all of it where it has
    /// another one.
    pub(crate) fn claim(&self, key: &Arc<[u8]>, token: Token) -> Claim {
        let ours = key.starts_with(self.prefix.as_bytes());
        let prefix = if ours { self.prefix.len() } else { 0 };
        Claim::on(key.clone(), prefix, token, self.fencing)
    }

    /// When each node must have answered what it is asked now.
    pub(crate) fn answered_by(&self) -> Instant {
        let Patience { answer, connect } = self.patience;
        if self.met.load(Ordering::Relaxed) {
            self.now() + answer
        } else {
            self.now() + answer + connect
        }
    }

    /// When whoever depends on an answer to what is asked now stops waiting: also for a node that
    /// breaks its contract.
    pub(crate) fn given_up_by(&self) -> Instant {
        self.answered_by() + BACKSTOP
    }

    /// Queues one request at every node before anything is awaited.
    pub(crate) fn ask_all<B: Collect>(
        &self,
        sink: &Arc<FanOut<B>>,
        phase: Phase,
        request: impl Fn() -> Request,
    ) {
        self.ask_each(sink, phase, |_| request());
    }

    /// The same, each node its own.
    pub(super) fn ask_each<B: Collect>(
        &self,
        sink: &Arc<FanOut<B>>,
        phase: Phase,
        request: impl Fn(usize) -> Request,
    ) {
        for (index, node) in self.nodes.iter().enumerate() {
            let reply = Reply::new(sink.clone() as Arc<dyn ReplySink>, index, phase);
            node.send(request(index), reply.counted(node.name()));
        }
    }
}
