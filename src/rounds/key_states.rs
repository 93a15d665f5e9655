//! Reads or force-releases a lock on every master.

use std::time::Duration;

use super::coordinator::Coordinator;
use super::fan_out::{Collect, FanOut, Source};
use crate::limit::Limit;
use crate::node::{Answer, Fault, KeyState, Phase, Request};
use crate::protocol::instant::Instant;

impl Coordinator {
    /// Sends a request that reads or force-releases a lock to every master, and waits for all answers. The result has
    /// each master's answer, and the time from the request to the answer.
    pub(crate) async fn key_states(
        &self,
        request: Request,
    ) -> Vec<(Result<KeyState, Fault>, Duration)> {
        let started_at = self.now();
        let answers = StateAnswers {
            answers: vec![None; self.nodes.len()],
            started_at,
        };
        let fan_out = FanOut::new(self.runtime.clone(), answers);
        self.ask_all(&fan_out, Phase::Look, || request.clone());
        // `answers_due_at` is the masters' time limit. Wait at most one node timeout longer.
        let deadline = self.answers_due_at() + self.patience.answer;
        let mut limit = Limit::new(&*self.runtime, deadline);
        if let Some(answers) = limit
            .wait(fan_out.wait_until(StateAnswers::all_answers))
            .await
        {
            return answers;
        }
        let now = self.now();
        fan_out.answers().with_timeouts(now)
    }
}

/// The fault of a master that has not answered for the time `waited`, rounded down to whole milliseconds.
pub(super) fn timeout(waited: Duration) -> Fault {
    Fault::Timeout(Duration::from_millis(waited.as_millis() as u64))
}

struct StateAnswers {
    answers: Vec<Option<(Result<KeyState, Fault>, Duration)>>,
    started_at: Instant,
}

impl StateAnswers {
    fn all_answers(&mut self) -> Option<Vec<(Result<KeyState, Fault>, Duration)>> {
        self.answers.iter().cloned().collect()
    }

    /// The answers received so far, with a timeout for every silent node.
    fn with_timeouts(&self, now: Instant) -> Vec<(Result<KeyState, Fault>, Duration)> {
        let waited = now.saturating_since(self.started_at);
        let timeout_answer = || (Err(timeout(waited)), waited);
        let answers = self.answers.iter().cloned();
        answers
            .map(|answer| answer.unwrap_or_else(timeout_answer))
            .collect()
    }
}

impl Collect for StateAnswers {
    fn record_answer(&mut self, source: Source, answer: Result<Answer, Fault>) -> bool {
        let state = match answer {
            Ok(Answer::State(state)) => Ok(state),
            Ok(_) => Err(Fault::Server("unexpected type of answer".into())),
            Err(fault) => Err(fault),
        };
        if let Some(answer_of_master) = self.answers.get_mut(source.node) {
            *answer_of_master = Some((state, source.now.saturating_since(self.started_at)));
        }
        self.answers.iter().all(Option::is_some)
    }
}
