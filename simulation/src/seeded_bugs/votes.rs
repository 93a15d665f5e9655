//! Collects the answers of all masters to one request, for the small clients of the seeded bugs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use futures::task::AtomicWaker;
use quorate::node::{Answer, Fault, Node, Phase, Reply, ReplySink, Request};

pub(super) type Answers = Vec<Option<Result<Answer, Fault>>>;

/// The answers of all masters to one request.
pub(super) struct Votes {
    answers: Mutex<Answers>,
    waker: AtomicWaker,
}

impl Votes {
    /// Creates an empty collection of answers for a request to this number of masters.
    pub(super) fn empty(nodes: usize) -> Arc<Self> {
        Arc::new(Self {
            answers: Mutex::new(vec![None; nodes]),
            waker: AtomicWaker::new(),
        })
    }

    /// Sends a request to every master. `request` returns the request for the master with the given index. Returns the
    /// collection that receives the answers.
    pub(super) fn ask(
        nodes: &[Arc<dyn Node>],
        phase: Phase,
        request: impl Fn(usize) -> Request,
    ) -> Arc<Self> {
        let votes = Self::empty(nodes.len());
        for (index, node) in nodes.iter().enumerate() {
            node.send(request(index), Reply::new(votes.clone(), index, phase));
        }
        votes
    }

    pub(super) fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn wait_until<T>(&self, mut decided: impl FnMut(&Answers) -> Option<T>) -> T {
        std::future::poll_fn(|cx| {
            self.waker.register(cx.waker());
            decided(&self.answers()).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl ReplySink for Votes {
    fn answered(&self, node: usize, _: Phase, answer: Result<Answer, Fault>) {
        self.answers()[node] = Some(answer);
        self.waker.wake();
    }
}
