//! Reads or force-releases a lock on every master.

use std::time::Duration;

use super::coordinator::Coordinator;
use super::fan_out::{Collect, FanOut, From};
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
        let started = self.now();
        let answers = StateAnswers {
            answers: vec![None; self.nodes.len()],
            started,
        };
        let fan_out = FanOut::new(self.runtime.clone(), answers);
        self.ask_all(&fan_out, Phase::Look, || request.clone());
        // `answered_by` is the masters' time limit. Wait at most one node timeout longer.
        let most = self.answered_by() + self.patience.answer;
        let mut limit = Limit::new(&*self.runtime, most);
        if let Some(answers) = limit.wait(fan_out.until(StateAnswers::complete)).await {
            return answers;
        }
        let now = self.now();
        fan_out.answers().cut_off(now)
    }
}

/// The fault of a master that has not answered for the time `waited`, rounded down to whole milliseconds.
pub(super) fn timeout(waited: Duration) -> Fault {
    Fault::Timeout(Duration::from_millis(waited.as_millis() as u64))
}

struct StateAnswers {
    answers: Vec<Option<(Result<KeyState, Fault>, Duration)>>,
    started: Instant,
}

impl StateAnswers {
    fn complete(&mut self) -> Option<Vec<(Result<KeyState, Fault>, Duration)>> {
        self.answers.iter().cloned().collect()
    }

    /// The answers received so far, with a timeout for every silent node.
    fn cut_off(&self, now: Instant) -> Vec<(Result<KeyState, Fault>, Duration)> {
        let waited = now.saturating_since(self.started);
        let silent = || (Err(timeout(waited)), waited);
        let answers = self.answers.iter().cloned();
        answers
            .map(|answer| answer.unwrap_or_else(silent))
            .collect()
    }
}

impl Collect for StateAnswers {
    fn count(&mut self, from: From, answer: Result<Answer, Fault>) -> bool {
        let state = match answer {
            Ok(Answer::State(state)) => Ok(state),
            Ok(_) => Err(Fault::Server("unexpected type of answer".into())),
            Err(fault) => Err(fault),
        };
        if let Some(slot) = self.answers.get_mut(from.node) {
            *slot = Some((state, from.now.saturating_since(self.started)));
        }
        self.answers.iter().all(Option::is_some)
    }
}
