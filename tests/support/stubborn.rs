//! A master in memory. A rule decides for each request whether the answer comes immediately, late, as an error, or
//! never.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate::node::memory::MemoryNode;
use quorate::node::{Fault, Node, NodeName, Reply, Request, Subscriber};
use quorate::runtime::BoxFuture;
use quorate::{Redlock, Wait};

use super::{ms, secs};

/// How a master treats one request.
#[derive(Clone, Debug)]
pub(crate) enum Treatment {
    /// The request is executed and answered immediately.
    Answered,
    /// The request is executed and never answered, which violates the contract of a node.
    Unanswered,
    /// After this time, the request is executed, and then answered immediately.
    Late(Duration),
    /// The request is not executed. It fails with this error after this time.
    Fails(Fault, Duration),
}

type Rule = Box<dyn FnMut(&Request) -> Treatment + Send>;

/// A node with a rule that decides how each request is answered. A test can replace the rule.
pub(crate) struct Stubborn {
    pub(crate) master: MemoryNode,
    rule: Mutex<Rule>,
    /// The reply handles of requests that are never answered. They are kept, because dropping a handle would answer its
    /// request with an error.
    unanswered_replies: Mutex<Vec<Reply>>,
}

impl Stubborn {
    pub(crate) fn new(
        name: &str,
        rule: impl FnMut(&Request) -> Treatment + Send + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            master: MemoryNode::new(name),
            rule: Mutex::new(Box::new(rule)),
            unanswered_replies: Mutex::default(),
        })
    }

    /// A node that executes and answers every request immediately.
    pub(crate) fn honest(name: &str) -> Arc<Self> {
        Self::new(name, |_| Treatment::Answered)
    }

    /// Sets the lock key as if another client held the lock, and returns this node.
    pub(crate) fn held_by_another(self: Arc<Self>, key: &str) -> Arc<Self> {
        self.master.with_master(|master, now| {
            let ttl = Some(Duration::from_secs(600));
            master.put_text(now, key.as_bytes(), b"somebody else", ttl);
        });
        self
    }

    /// Deletes the lock key that `held_by_another` has set, as the other client would, but without waking any waiter.
    pub(crate) fn release_foreign(&self, key: &str) {
        self.master.with_master(|master, now| {
            // Setting a TTL of zero deletes the key.
            master.put_text(now, key.as_bytes(), b"", Some(Duration::ZERO));
        });
    }

    /// Replaces the rule by which this node treats requests.
    pub(crate) fn set_rule(&self, rule: impl FnMut(&Request) -> Treatment + Send + 'static) {
        *self.rule.lock().expect("no panic") = Box::new(rule);
    }
}

impl Node for Stubborn {
    fn name(&self) -> &NodeName {
        self.master.name()
    }

    fn send(&self, request: Request, reply: Reply) {
        let treatment = (self.rule.lock().expect("no panic"))(&request);
        match treatment {
            Treatment::Answered => self.master.send(request, reply),
            Treatment::Unanswered => {
                self.master.send(request, Reply::ignored());
                self.unanswered_replies
                    .lock()
                    .expect("no panic")
                    .push(reply);
            }
            Treatment::Late(after) => {
                let master = self.master.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    master.send(request, reply);
                });
            }
            Treatment::Fails(fault, after) if after.is_zero() => reply.answer(Err(fault)),
            Treatment::Fails(fault, after) => {
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    reply.answer(Err(fault));
                });
            }
        }
    }

    fn subscribe(&self, subscriber: Subscriber) {
        self.master.subscribe(subscriber);
    }

    fn idle(&self) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

/// Three masters, each with its own rule.
pub(crate) fn three() -> (Vec<Arc<Stubborn>>, Redlock) {
    let nodes: Vec<_> = (0..3).map(|n| Stubborn::honest(&format!("m{n}"))).collect();
    let dyn_nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
    let redlock = Redlock::builder()
        .nodes(dyn_nodes.collect())
        .ttl(ms(400))
        .node_timeout(ms(50))
        .wait(Wait::For(secs(5)));
    (nodes, redlock.build().expect("good settings"))
}
