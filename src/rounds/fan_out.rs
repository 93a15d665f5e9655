//! Collects the answers to requests that were sent to several masters at the same time (a fan-out).
//!
//! Nodes record their answers under a mutex, and wake the waiting future when it should check the result.

use std::sync::{Arc, PoisonError};
use std::task::Poll;

use crate::node::{Answer, Fault, Phase, ReplySink};
use crate::protocol::instant::Instant;
use crate::runtime::Runtime;
use crate::sync::{AtomicWaker, Mutex, MutexGuard};

/// Counts the answers of one fan-out.
pub(crate) trait Collect: Send + 'static {
    /// Counts one answer. Returns `true` if the waiting future should check whether the result is decided.
    fn record_answer(&mut self, source: Source, answer: Result<Answer, Fault>) -> bool;

    /// Records an answer that arrived after the request was counted as timed out.
    fn record_late_answer(&mut self, _source: Source, _answer: &Result<Answer, Fault>) {}
}

/// The node that answered, and when its answer arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) node: usize,
    pub(crate) now: Instant,
}

/// The answers received so far, behind a mutex, and the one future that waits for them.
pub(crate) struct FanOut<B> {
    runtime: Arc<dyn Runtime>,
    answers: Mutex<B>,
    waker: AtomicWaker,
}

impl<B: Collect> FanOut<B> {
    pub(crate) fn new(runtime: Arc<dyn Runtime>, answers: B) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            answers: Mutex::new(answers),
            waker: AtomicWaker::new(),
        })
    }

    /// The answers received so far. The mutex is never held across an await.
    pub(crate) fn answers(&self) -> MutexGuard<'_, B> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `decided` returns a result. Only one future may wait at a time.
    pub(crate) async fn wait_until<T>(&self, mut decided: impl FnMut(&mut B) -> Option<T>) -> T {
        std::future::poll_fn(|cx| {
            if let Some(decision) = decided(&mut self.answers()) {
                return Poll::Ready(decision);
            }
            self.waker.register(cx.waker());
            // Check again after the registration: an answer that arrived between the first check and the registration
            // would not wake this future.
            decided(&mut self.answers()).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl<B: Collect> ReplySink for FanOut<B> {
    fn answered(&self, node: usize, _: Phase, answer: Result<Answer, Fault>) {
        let source = Source {
            node,
            now: self.runtime.now(),
        };
        let wake = self.answers().record_answer(source, answer);
        if wake {
            self.waker.wake();
        }
    }

    fn late(&self, node: usize, _: Phase, answer: &Result<Answer, Fault>) {
        let source = Source {
            node,
            now: self.runtime.now(),
        };
        self.answers().record_late_answer(source, answer);
    }
}

#[cfg(all(test, quorate_loom))]
mod models {
    use loom::future::block_on;
    use loom::thread;

    use super::*;
    use crate::runtime::Tokio;

    /// A collector that is decided once all answers have arrived.
    struct CountsAnswers {
        answers: usize,
        wanted: usize,
    }

    impl Collect for CountsAnswers {
        fn record_answer(&mut self, _: Source, _: Result<Answer, Fault>) -> bool {
            self.answers += 1;
            self.answers == self.wanted
        }
    }

    fn answering(fan_out: &Arc<FanOut<CountsAnswers>>, node: usize) -> thread::JoinHandle<()> {
        let fan_out = fan_out.clone();
        thread::spawn(move || fan_out.answered(node, Phase::Look, Ok(Answer::Confirmed)))
    }

    #[test]
    fn wait_for_all_answers_ends_in_every_thread_interleaving() {
        crate::sync::model(|| {
            let wanted_count = 2;
            let answers = CountsAnswers {
                answers: 0,
                wanted: wanted_count,
            };
            let fan_out = FanOut::new(Arc::new(Tokio::default()), answers);
            let nodes = [answering(&fan_out, 0), answering(&fan_out, 1)];
            block_on(
                fan_out.wait_until(|answers| (answers.answers == answers.wanted).then_some(())),
            );
            for node in nodes {
                node.join().expect("no panic");
            }
        });
    }
}
