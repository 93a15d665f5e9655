//! A master in memory whose requests and replies are delayed.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quorate::node::memory::MemoryNode;
use quorate::node::{Node, NodeName, Reply, Request, Subscriber};
use quorate::runtime::BoxFuture;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;

/// A node that executes every request after the delay `there`, and delivers the reply after the further delay `back`.
/// It keeps the order of requests, like one connection to a distant master.
///
/// The node also executes a request whose claim the client has withdrawn after sending the request. The client must
/// handle this case.
pub(crate) struct SlowNode {
    pub(crate) master: MemoryNode,
    post: UnboundedSender<(Request, Reply)>,
    under_way: watch::Sender<usize>,
    subscriber: Arc<OnceLock<Subscriber>>,
}

impl SlowNode {
    /// Creates the node. The caller must be in a tokio runtime.
    pub(crate) fn new(name: &str, there: Duration, back: Duration) -> Arc<Self> {
        let master = MemoryNode::new(name);
        let (post, mut letters) = unbounded_channel::<(Request, Reply)>();
        let under_way = watch::Sender::new(0);
        let (executor, counter) = (master.clone(), under_way.clone());
        let subscriber: Arc<OnceLock<Subscriber>> = Arc::default();
        let hears = subscriber.clone();
        let (answers, mut ready) = unbounded_channel::<(Request, Reply)>();
        tokio::spawn(async move {
            while let Some((request, reply)) = letters.recv().await {
                tokio::time::sleep(there).await;
                let _ = answers.send((request, reply));
            }
        });
        tokio::spawn(async move {
            while let Some((request, reply)) = ready.recv().await {
                let (said, published) = executor.with_master(|master, now| {
                    (master.apply(now, &request), master.take_published())
                });
                tokio::time::sleep(back).await;
                reply.answer(said);
                for (process, key) in published {
                    if let Some(subscriber) = hears
                        .get()
                        .filter(|subscriber| subscriber.process == process)
                    {
                        subscriber.sink.woken(subscriber.node, &key);
                    }
                }
                counter.send_modify(|count| *count -= 1);
            }
        });
        Arc::new(Self {
            master,
            post,
            under_way,
            subscriber,
        })
    }
}

impl Node for SlowNode {
    fn name(&self) -> &NodeName {
        self.master.name()
    }

    fn send(&self, request: Request, reply: Reply) {
        self.under_way.send_modify(|count| *count += 1);
        let _ = self.post.send((request, reply));
    }

    fn subscribe(&self, subscriber: Subscriber) {
        let _ = self.subscriber.set(subscriber);
    }

    fn idle(&self) -> BoxFuture<()> {
        let mut under_way = self.under_way.subscribe();
        Box::pin(async move {
            let _ = under_way.wait_for(|count| *count == 0).await;
        })
    }
}
