//! A master in memory whose requests and replies are delayed.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quorate::node::memory::MemoryNode;
use quorate::node::{Node, NodeName, Reply, Request, Subscriber};
use quorate::runtime::BoxFuture;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;

/// A node that executes every request after the delay `request_delay`, and delivers the reply after the further delay `reply_delay`.
/// It keeps the order of requests, like one connection to a distant master.
///
/// The node also executes a request whose claim the client has withdrawn after sending the request. The client must
/// handle this case.
pub(crate) struct SlowNode {
    pub(crate) master: MemoryNode,
    sender: UnboundedSender<(Request, Reply)>,
    open_requests: watch::Sender<usize>,
    subscriber: Arc<OnceLock<Subscriber>>,
}

impl SlowNode {
    /// Creates the node. The caller must be in a tokio runtime.
    pub(crate) fn new(name: &str, request_delay: Duration, reply_delay: Duration) -> Arc<Self> {
        let master = MemoryNode::new(name);
        let (sender, mut requests) = unbounded_channel::<(Request, Reply)>();
        let open_requests = watch::Sender::new(0);
        let (executor, open_count) = (master.clone(), open_requests.clone());
        let subscriber: Arc<OnceLock<Subscriber>> = Arc::default();
        let current_subscriber = subscriber.clone();
        let (executable, mut delayed) = unbounded_channel::<(Request, Reply)>();
        tokio::spawn(async move {
            while let Some((request, reply)) = requests.recv().await {
                tokio::time::sleep(request_delay).await;
                let _ = executable.send((request, reply));
            }
        });
        tokio::spawn(async move {
            while let Some((request, reply)) = delayed.recv().await {
                let (answer, wake_ups) = executor.with_master(|master, now| {
                    (master.apply(now, &request), master.take_published())
                });
                tokio::time::sleep(reply_delay).await;
                reply.answer(answer);
                for (process, key) in wake_ups {
                    if let Some(subscriber) = current_subscriber
                        .get()
                        .filter(|subscriber| subscriber.process == process)
                    {
                        subscriber.sink.woken(subscriber.node, &key);
                    }
                }
                open_count.send_modify(|count| *count -= 1);
            }
        });
        Arc::new(Self {
            master,
            sender,
            open_requests,
            subscriber,
        })
    }
}

impl Node for SlowNode {
    fn name(&self) -> &NodeName {
        self.master.name()
    }

    fn send(&self, request: Request, reply: Reply) {
        self.open_requests.send_modify(|count| *count += 1);
        let _ = self.sender.send((request, reply));
    }

    fn subscribe(&self, subscriber: Subscriber) {
        let _ = self.subscriber.set(subscriber);
    }

    fn idle(&self) -> BoxFuture<()> {
        let mut open_requests = self.open_requests.subscribe();
        Box::pin(async move {
            let _ = open_requests.wait_for(|count| *count == 0).await;
        })
    }
}
