//! Agreeing on the fencing token of a won round: a second round where the counters differ.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::acquire::AcquireRound;
use super::coordinator::Coordinator;
use super::fan_out::{Collect, FanOut, From};
use crate::metrics;
use crate::node::{Answer, Claim, Fault, Phase, Request};
use crate::outcome::Failure;
use crate::protocol::fencing::{Agreement, ClockOffset};
use crate::protocol::quorum::{Quorum, Reason, Tally, Verdict};

/// How often the fencing number may be raised within one acquire before it is given up. One
/// raise already needs a master that granted late with a counter of its own.
const CONFIRM_ROUNDS: usize = 3;

impl Coordinator {
    /// Settles the fencing token of a won round, by a second round where the counters differ.
    pub(super) async fn agree(
        &self,
        round: &AcquireRound,
        claim: &Arc<Claim>,
        offset: ClockOffset,
        wall: u64,
    ) -> Result<Option<u64>, Failure> {
        if !claim.fenced() {
            return Ok(None);
        }
        let agreement = round.answers().round.agreement();
        let mut token = match agreement {
            Agreement::Agreed(token) => {
                self.learn(offset, wall, token);
                return Ok(Some(token));
            }
            Agreement::WriteBack(largest) => largest,
        };
        self.learn(offset, wall, token);
        metrics::confirmation();
        for _ in 0..CONFIRM_ROUNDS {
            // Answers of their own for each number: confirmations of another are forgotten.
            let confirm = FanOut::new(self.runtime.clone(), ConfirmAnswers::open(self.quorum));
            self.ask_all(&confirm, Phase::Confirm, || Request::Confirm {
                claim: claim.clone(),
                token,
            });
            let (verdict, reason, above) = confirm.until(ConfirmAnswers::decided).await;
            if verdict == Verdict::Won {
                tracing::debug!(token, "fencing token confirmed by a second round");
                return Ok(Some(token));
            }
            match above {
                Some(above) => token = above.max(token),
                None if reason == Some(Reason::Outage) => return Err(Failure::Outage),
                None => return Err(Failure::Contention),
            }
        }
        Err(Failure::Contention)
    }

    fn learn(&self, offset: ClockOffset, wall: u64, granted: u64) {
        let learned = offset.learn(wall, granted);
        if learned != offset {
            self.offset.store(learned.as_micros(), Ordering::Relaxed);
        }
    }
}

/// The votes on one fencing number.
struct ConfirmAnswers {
    tally: Tally,
    /// The largest counter seen above the number.
    above: Option<u64>,
}

impl ConfirmAnswers {
    fn open(quorum: Quorum) -> Self {
        Self {
            tally: Tally::new(quorum),
            above: None,
        }
    }

    fn decided(&mut self) -> Option<(Verdict, Option<Reason>, Option<u64>)> {
        let verdict = self.tally.verdict();
        (verdict != Verdict::Pending).then(|| (verdict, self.tally.reason(), self.above))
    }
}

impl Collect for ConfirmAnswers {
    fn count(&mut self, _: From, answer: Result<Answer, Fault>) -> bool {
        match answer {
            Ok(Answer::Confirmed) => self.tally.yes(),
            Ok(Answer::CounterAbove(counter)) => {
                self.above = self.above.max(Some(counter));
                self.tally.no();
            }
            Ok(_) => self.tally.no(),
            Err(_) => self.tally.fault(),
        }
        self.tally.verdict() != Verdict::Pending
    }
}
