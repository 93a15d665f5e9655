//! Collecting the answers of one fan-out in one place, with one wake-up for all of them.
//!
//! No task and no channel per message: nodes hand their answers to the board under a short lock,
//! and the waiting future is woken once, when the board says that something has been decided.

use std::sync::{Arc, PoisonError};
use std::task::Poll;

use crate::node::{Answer, Fault, Phase, ReplySink};
use crate::protocol::instant::Instant;
use crate::runtime::Runtime;
use crate::sync::{AtomicWaker, Mutex, MutexGuard};

/// What the answers are written on.
pub(crate) trait Board: Send + 'static {
    /// Counts one answer; `true` when the waiting future should look again.
    fn count(&mut self, from: From, answer: Result<Answer, Fault>) -> bool;

    /// Notes an answer that came after its timeout had been counted.
    fn late(&mut self, _from: From, _answer: &Result<Answer, Fault>) {}
}

/// Which message an answer belongs to, and when it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct From {
    pub(crate) node: usize,
    pub(crate) now: Instant,
}

/// A board, its lock and the one future that waits for it.
pub(crate) struct Gather<B> {
    runtime: Arc<dyn Runtime>,
    board: Mutex<B>,
    waker: AtomicWaker,
}

impl<B: Board> Gather<B> {
    pub(crate) fn new(runtime: Arc<dyn Runtime>, board: B) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            board: Mutex::new(board),
            waker: AtomicWaker::new(),
        })
    }

    /// The board. The lock is never held across an await.
    pub(crate) fn board(&self) -> MutexGuard<'_, B> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `decided` finds something on the board. One waiter at a time.
    pub(crate) async fn until<T>(&self, mut decided: impl FnMut(&mut B) -> Option<T>) -> T {
        std::future::poll_fn(|cx| {
            if let Some(found) = decided(&mut self.board()) {
                return Poll::Ready(found);
            }
            self.waker.register(cx.waker());
            // An answer between the look and the registration would otherwise be slept through.
            decided(&mut self.board()).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl<B: Board> ReplySink for Gather<B> {
    fn answered(&self, node: usize, _: Phase, answer: Result<Answer, Fault>) {
        let from = From {
            node,
            now: self.runtime.now(),
        };
        let wake = self.board().count(from, answer);
        if wake {
            self.waker.wake();
        }
    }

    fn late(&self, node: usize, _: Phase, answer: &Result<Answer, Fault>) {
        let from = From {
            node,
            now: self.runtime.now(),
        };
        self.board().late(from, answer);
    }
}

#[cfg(all(test, quorate_loom))]
mod models {
    use loom::future::block_on;
    use loom::thread;

    use super::*;
    use crate::runtime::Tokio;

    /// Decided once all answers are there.
    struct All {
        answers: usize,
        wanted: usize,
    }

    impl Board for All {
        fn count(&mut self, _: From, _: Result<Answer, Fault>) -> bool {
            self.answers += 1;
            self.answers == self.wanted
        }
    }

    fn answers(gather: &Arc<Gather<All>>, node: usize) -> thread::JoinHandle<()> {
        let gather = gather.clone();
        thread::spawn(move || gather.answered(node, Phase::Look, Ok(Answer::Confirmed)))
    }

    #[test]
    fn no_order_of_threads_lets_an_answer_be_slept_through() {
        crate::sync::model(|| {
            let wanted = 2;
            let board = All { answers: 0, wanted };
            let gather = Gather::new(Arc::new(Tokio::default()), board);
            let nodes = [answers(&gather, 0), answers(&gather, 1)];
            block_on(gather.until(|board| (board.answers == board.wanted).then_some(())));
            for node in nodes {
                node.join().expect("no panic");
            }
        });
    }
}
