//! The receiver of a master's answer to one request.

use std::fmt;
use std::sync::Arc;

use super::answer::Answer;
use super::fault::Fault;
use super::name::NodeName;
use crate::metrics;

/// The kind of a request about a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Takes the lock.
    Acquire,
    /// Sets the fencing counter of each master to the fencing token.
    Confirm,
    /// Releases the lock.
    Release,
    /// Extends the TTL of the lock.
    Extend,
    /// Reads the state of the lock.
    Look,
    /// Reads and writes the value under the lock.
    Value,
}

impl Phase {
    /// All phases, for metrics. If the `match` below leaves out a phase, the code does not compile.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        std::iter::successors(Some(Phase::Acquire), |phase| match phase {
            Phase::Acquire => Some(Phase::Confirm),
            Phase::Confirm => Some(Phase::Release),
            Phase::Release => Some(Phase::Extend),
            Phase::Extend => Some(Phase::Look),
            Phase::Look => Some(Phase::Value),
            Phase::Value => None,
        })
    }

    /// The phase as one word, for log fields and machine-readable output. The word is stable across versions of this
    /// library.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Confirm => "confirm",
            Self::Release => "release",
            Self::Extend => "extend",
            Self::Look => "look",
            Self::Value => "value",
        }
    }
}

/// Receives the answers of all masters to a request that was sent to each of them.
pub trait ReplySink: Send + Sync + 'static {
    /// Receives the answer of the master with the index `node` to the request of `phase`. Called once per request, from
    /// any task; must not block.
    fn answered(&self, node: usize, phase: Phase, answer: Result<Answer, Fault>);

    /// Receives the answer to a request for which a timeout was already reported. The answer does not count as a vote.
    /// The default implementation ignores it.
    fn late(&self, _node: usize, _phase: Phase, _answer: &Result<Answer, Fault>) {}
}

/// A handle with which a node answers one request. If the node drops the handle without an answer, the receiver gets
/// [`Fault::Disconnected`]. So no caller waits for a node that no longer exists.
pub struct Reply {
    sink: Option<Arc<dyn ReplySink>>,
    node: u16,
    phase: Phase,
    answered: bool,
    message: Option<metrics::Message>,
}

impl Reply {
    /// Creates the handle with which the master with the index `node` answers a request of the kind `phase`. The handle
    /// passes the answer to `sink`.
    pub fn new(sink: Arc<dyn ReplySink>, node: usize, phase: Phase) -> Self {
        let node = u16::try_from(node).unwrap_or(u16::MAX);
        Self {
            sink: Some(sink),
            node,
            phase,
            answered: false,
            message: None,
        }
    }

    /// Creates a reply that discards the answer.
    pub fn ignored() -> Self {
        Self {
            sink: None,
            node: 0,
            phase: Phase::Release,
            answered: true,
            message: None,
        }
    }

    /// Returns this reply with metrics: the outcome and the latency of its request are recorded for the master called
    /// `name`.
    pub(crate) fn counted(mut self, name: &NodeName) -> Self {
        self.message = Some(metrics::Message::to(|| name.shared()));
        self
    }

    /// Passes the answer to the receiver. If [`time_out`](Self::time_out) was called before, the receiver gets the
    /// answer through [`ReplySink::late`].
    pub fn answer(mut self, answer: Result<Answer, Fault>) {
        let Some(sink) = self.sink.take() else { return };
        if let Some(message) = &self.message {
            if self.answered {
                message.late(self.phase.as_str());
            } else {
                count(message, self.phase, answer.as_ref().err());
            }
        }
        if self.answered {
            sink.late(self.node.into(), self.phase, &answer);
        } else {
            self.answered = true;
            sink.answered(self.node.into(), self.phase, answer);
        }
    }

    /// Answers the request with `fault`, because the master's answer is late. If the master's answer arrives
    /// afterwards, [`answer`](Self::answer) passes it to [`ReplySink::late`].
    pub fn time_out(&mut self, fault: Fault) {
        if let (Some(sink), false) = (&self.sink, self.answered) {
            self.answered = true;
            if let Some(message) = &self.message {
                count(message, self.phase, Some(&fault));
            }
            sink.answered(self.node.into(), self.phase, Err(fault));
        }
    }
}

fn count(message: &metrics::Message, phase: Phase, fault: Option<&Fault>) {
    let phase = phase.as_str();
    match fault {
        None => message.answered(phase),
        Some(fault) => {
            let is_answer = !matches!(fault, Fault::Timeout(_) | Fault::Stalled);
            message.failed(phase, fault.kind(), is_answer);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let (Some(sink), false) = (self.sink.take(), self.answered) {
            let fault = Fault::Disconnected(Arc::from("the node was shut down"));
            if let Some(message) = &self.message {
                count(message, self.phase, Some(&fault));
            }
            sink.answered(self.node.into(), self.phase, Err(fault));
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("node", &self.node)
            .field("phase", &self.phase)
            .field("answered", &self.answered)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    use super::*;

    /// Keeps each answer, and whether it was late.
    #[derive(Default)]
    struct Answers(Mutex<Vec<(bool, Result<Answer, Fault>)>>);

    impl Answers {
        fn keep(&self, is_late: bool, answer: Result<Answer, Fault>) {
            let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            answers.push((is_late, answer));
        }

        fn take(&self) -> Vec<(bool, Result<Answer, Fault>)> {
            let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *answers)
        }
    }

    impl ReplySink for Answers {
        fn answered(&self, _: usize, _: Phase, answer: Result<Answer, Fault>) {
            self.keep(false, answer);
        }

        fn late(&self, _: usize, _: Phase, answer: &Result<Answer, Fault>) {
            self.keep(true, answer.clone());
        }
    }

    /// Passes an answer, no answer at all, and a late answer to `answers`, each for a request of its own.
    fn reply_three_times(answers: &Arc<Answers>) {
        let reply = || Reply::new(answers.clone(), 0, Phase::Look).counted(&NodeName::new("m1"));
        reply().answer(Ok(Answer::Watching));
        drop(reply());
        let mut late = reply();
        late.time_out(Fault::Timeout(Duration::ZERO));
        late.time_out(Fault::Stalled);
        late.answer(Ok(Answer::Watching));
    }

    #[test]
    fn receiver_gets_one_answer_to_each_request_and_a_late_answer_separately() {
        let answers = Arc::new(Answers::default());
        reply_three_times(&answers);
        let disconnected = Fault::Disconnected("the node was shut down".into());
        let expected = [
            (false, Ok(Answer::Watching)),
            (false, Err(disconnected)),
            (false, Err(Fault::Timeout(Duration::ZERO))),
            (true, Ok(Answer::Watching)),
        ];
        assert_eq!(answers.take(), expected);
    }

    #[cfg(feature = "metrics")]
    #[test]
    fn each_request_is_counted_once_and_a_late_answer_separately() {
        let recorder = metrics_util::debugging::DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        ::metrics::with_local_recorder(&recorder, || reply_three_times(&Arc::default()));
        let entries = snapshotter.snapshot().into_vec().into_iter();
        let counts = entries.filter_map(|(key, _, _, value)| {
            let key = key.key();
            let mut labels = key.labels();
            let outcome = labels.find(|label| label.key() == "outcome")?;
            Some((outcome.value().to_owned(), format!("{value:?}")))
        });
        let mut counts: Vec<_> = counts.collect();
        counts.sort();
        let once = |outcome: &str| (outcome.to_owned(), "Counter(1)".to_owned());
        let expected = ["disconnected", "late", "ok", "timeout"].map(once);
        assert_eq!(counts, expected);
    }
}
