//! The coordinator: all masters, and the settings that every round of requests needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use super::fan_out::{Collect, FanOut};
use crate::fork::Process;
use crate::node::{Claim, Node, NodeName, Phase, Reply, ReplySink, Request, Token};
use crate::protocol::instant::Instant;
use crate::protocol::marker::Configuration;
use crate::protocol::quorum::Quorum;
use crate::protocol::validity::Drift;
use crate::retry::Retry;
use crate::runtime::Runtime;

/// How long a caller waits beyond the time limit of a request. On a busy machine, an answer that came in within the
/// limit can reach the caller that much later.
const GIVE_UP_MARGIN: Duration = Duration::from_secs(1);

/// All masters, and the settings that every round of requests needs.
pub(crate) struct Coordinator {
    pub(super) nodes: Box<[Arc<dyn Node>]>,
    pub(crate) quorum: Quorum,
    /// The generation and the masters of this client, which each master compares with its generation marker. `None` if
    /// the masters store no such marker.
    pub(crate) configuration: Option<Configuration>,
    /// Whether a majority of the masters can send wake-ups.
    pub(crate) wakes: bool,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) drift: Drift,
    pub(crate) prefix: Box<str>,
    pub(crate) fencing: bool,
    pub(crate) patience: Patience,
    /// The pauses between two rounds of one attempt.
    pub(super) retry: Retry,
    /// True after this client's first round of acquire requests. Until then, requests have the additional time
    /// [`Patience::connect`], because they wait for new connections.
    pub(super) has_been_answered: AtomicBool,
    /// How many microseconds the masters' clocks are ahead of this client's wall clock: one estimate for all masters.
    /// Used to propose fencing tokens.
    pub(super) clock_offset: AtomicI64,
    /// The process in which these masters can be used.
    pub(crate) process: Process,
}

/// The masters, and the rule that decides which of them are a majority.
pub(crate) struct Members {
    pub(crate) nodes: Vec<Arc<dyn Node>>,
    pub(crate) quorum: Quorum,
    pub(crate) configuration: Option<Configuration>,
}

impl Members {
    /// These masters as a single set. No masters are being replaced, and no generation marker is used.
    pub(crate) fn new(nodes: Vec<Arc<dyn Node>>) -> Self {
        Self {
            quorum: Quorum::new(nodes.len()),
            nodes,
            configuration: None,
        }
    }
}

/// The time limits for the answers of a node (the connection to a master).
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// How long a node may take to answer any request.
    pub(crate) answer: Duration,
    /// The additional time for the client's first requests, which wait until the node has connected.
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
        let numbered_nodes = nodes.iter().enumerate();
        let waking_masters = numbered_nodes.filter(|(_, node)| node.abilities().wakes);
        let wakes = quorum.is_met_by(waking_masters.map(|(index, _)| index).collect());
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
            has_been_answered: AtomicBool::new(false),
            clock_offset: AtomicI64::new(0),
            process: Process::current(),
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

    /// The lock key of a resource: the key prefix, followed by the resource name.
    pub(crate) fn key(&self, resource: &[u8]) -> Arc<[u8]> {
        [self.prefix.as_bytes(), resource].concat().into()
    }

    /// A claim on a lock key. The claim's resource is the key without the prefix of this coordinator, or the whole key
    /// if it does not begin with that prefix.
    pub(crate) fn claim(&self, key: &Arc<[u8]>, token: Token) -> Claim {
        let has_prefix = key.starts_with(self.prefix.as_bytes());
        let prefix_len = if has_prefix { self.prefix.len() } else { 0 };
        Claim::on(key.clone(), prefix_len, token, self.fencing)
    }

    /// The time by which each node must have answered a request that is sent now.
    pub(crate) fn answers_due_at(&self) -> Instant {
        let Patience { answer, connect } = self.patience;
        if self.has_been_answered.load(Ordering::Relaxed) {
            self.now() + answer
        } else {
            self.now() + answer + connect
        }
    }

    /// The time at which callers stop waiting for answers to a request that is sent now, even if a node has not
    /// answered by [`answers_due_at`](Self::answers_due_at).
    pub(crate) fn given_up_at(&self) -> Instant {
        self.answers_due_at() + GIVE_UP_MARGIN
    }

    /// Sends the same request to every node. All sends happen before the first await.
    pub(crate) fn ask_all<B: Collect>(
        &self,
        fan_out: &Arc<FanOut<B>>,
        phase: Phase,
        request: impl Fn() -> Request,
    ) {
        self.ask_each(fan_out, phase, |_| request());
    }

    /// Sends a request to every node; `request` returns the request for the node with a given index. All sends happen
    /// before the first await.
    pub(super) fn ask_each<B: Collect>(
        &self,
        fan_out: &Arc<FanOut<B>>,
        phase: Phase,
        request: impl Fn(usize) -> Request,
    ) {
        for (index, node) in self.nodes.iter().enumerate() {
            let reply = Reply::new(fan_out.clone() as Arc<dyn ReplySink>, index, phase);
            node.send(request(index), reply.counted(node.name()));
        }
    }
}
