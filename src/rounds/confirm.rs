//! Agreement on the fencing token of a lock that a majority granted. If the masters returned different fencing
//! counters, a confirm round asks them to raise their counters to one number.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::acquire::{AcquireAnswers, AcquireRound};
use super::coordinator::Coordinator;
use super::fan_out::{Collect, FanOut, Source};
use crate::limit::Limit;
use crate::metrics;
use crate::node::{Answer, Claim, Fault, Numbering, Phase, Reply, Request};
use crate::outcome::Failure;
use crate::protocol::fencing::{Agreement, ClockOffset, agree};
use crate::protocol::quorum::{Quorum, Reason, Tally, Verdict};
use crate::runtime::random_number;

/// The maximum number of confirm rounds in one attempt. Also the maximum number of times that an attempt asks for the
/// fencing token of an owner's other holds.
const CONFIRM_ROUNDS: usize = 3;

impl Coordinator {
    /// The fencing token of a won round if the masters agree on it already, as they usually do; `None` if a second
    /// round is needed.
    pub(super) fn agreed(
        &self,
        round: &AcquireRound,
        numbering: Numbering,
        offset: ClockOffset,
        wall_micros: u64,
    ) -> Option<u64> {
        match round.answers().round.agreement() {
            Agreement::Agreed(token) => {
                self.learn_clock_offset(numbering, offset, wall_micros, token);
                Some(token)
            }
            Agreement::WriteBack(_) => None,
        }
    }

    /// Agrees on the fencing token of a won round, with a second round if the counters differ.
    pub(super) async fn agree(
        &self,
        round: &AcquireRound,
        claim: &Arc<Claim>,
        numbering: Numbering,
        offset: ClockOffset,
        wall_micros: u64,
        ttl: Duration,
    ) -> Result<Option<u64>, Failure> {
        let agreement = match numbering {
            Numbering::Raised | Numbering::Joined => round.answers().round.agreement(),
            Numbering::OfOwner => self.agreement_of_all(round).await,
        };
        let mut token = match agreement {
            Agreement::Agreed(token) => {
                self.learn_clock_offset(numbering, offset, wall_micros, token);
                return Ok(Some(token));
            }
            Agreement::WriteBack(largest) => largest,
        };
        // The counters differ. Ask all masters to confirm the largest number.
        self.learn_clock_offset(numbering, offset, wall_micros, token);
        metrics::count_confirmation();
        for _ in 0..CONFIRM_ROUNDS {
            // Start a new count for each token, because confirmations of an earlier token must not be added.
            let confirm = FanOut::new(self.runtime.clone(), ConfirmAnswers::open(self.quorum));
            self.ask_all(&confirm, Phase::Confirm, || Request::Confirm {
                claim: claim.clone(),
                token,
            });
            let (verdict, reason, above) = confirm.wait_until(ConfirmAnswers::decided).await;
            // Masters on which the owner has other holds refuse every new number. Take the number of these holds.
            if verdict != Verdict::Won && confirm.answers().is_not_alone {
                return self.number_of_owner(round, claim, ttl, token).await;
            }
            if verdict == Verdict::Won {
                tracing::debug!(token, "fencing token confirmed by a second round");
                return Ok(Some(token));
            }
            // A counter is above the number. Try again with this counter.
            match above {
                Some(above) => token = above.max(token),
                None if reason == Some(Reason::Outage) => return Err(Failure::Outage),
                None => return Err(Failure::Contention),
            }
        }
        Err(Failure::Contention)
    }

    /// Waits for more answers, and then returns the agreement on the fencing token. The wait ends when a majority
    /// agrees, when all masters have answered, or at the time limit.
    ///
    /// Used for the holds of an owner, because all holds of one owner must have the same fencing token.
    async fn agreement_of_all(&self, round: &AcquireRound) -> Agreement {
        let mut limit = Limit::new(&*self.runtime, self.answers_due_at());
        limit
            .wait(round.wait_until(AcquireAnswers::agreed_or_complete))
            .await;
        round.answers().round.agreement()
    }

    /// Asks the masters for the fencing token of an owner's existing holds (docs/protocol.md, "Several resources,
    /// readers, owners, semaphores"). `confirmed` is the number that this client asked the masters to confirm as the
    /// token. The attempt fails in two cases:
    ///
    /// - No majority returns the same token.
    /// - The returned token is below `confirmed`. A confirm request in transit could still raise a counter to
    ///   `confirmed`. The owner's next hold could then get this larger number, but all holds of an owner must have the
    ///   same token.
    pub(super) async fn number_of_owner(
        &self,
        round: &AcquireRound,
        claim: &Arc<Claim>,
        ttl: Duration,
        confirmed: u64,
    ) -> Result<Option<u64>, Failure> {
        let mut retry_pauses = self.retry_pauses();
        for asks_sent in 0..CONFIRM_ROUNDS {
            if asks_sent > 0 {
                // Give the owner's other requests time to finish. Keep the pause short: until this attempt ends, its
                // keys can prevent those requests from confirming a token.
                let pause = retry_pauses.next().unwrap_or_default();
                let resume_at = self.now() + pause.min(self.patience.answer);
                self.runtime.sleep_until(resume_at).await;
            }
            // Ask only the masters that granted the lock: keys on other masters would not be released.
            let granted: Vec<usize> = round.answers().round.granted().collect();
            let answers = OwnerAnswers {
                quorum: self.quorum,
                numbers: Vec::new(),
                open: granted.len(),
            };
            let answers_again = FanOut::new(self.runtime.clone(), answers);
            for node in granted {
                let reply = Reply::new(answers_again.clone(), node, Phase::Acquire);
                let request = Request::Acquire {
                    claim: claim.clone(),
                    ttl,
                    proposal: 0,
                };
                self.nodes[node].send(request, reply);
            }
            match answers_again.wait_until(OwnerAnswers::decided).await {
                Agreement::Agreed(token) if token >= confirmed => return Ok(Some(token)),
                Agreement::Agreed(_) => break,
                Agreement::WriteBack(_) => {}
            }
        }
        Err(Failure::NotJoinable)
    }

    /// The pauses of the retry settings, used between two rounds of one acquire.
    fn retry_pauses(&self) -> impl Iterator<Item = Duration> + Send + use<> {
        self.retry.delays(random_number(&*self.runtime))
    }

    /// Updates the estimate of how far the masters' clocks are ahead of this client's clock.
    ///
    /// A reader or an owner may have got the smaller fencing token of existing holds. Such a token shows nothing about
    /// the clocks, so it is ignored.
    fn learn_clock_offset(
        &self,
        numbering: Numbering,
        offset: ClockOffset,
        wall_micros: u64,
        granted: u64,
    ) {
        if numbering != Numbering::Raised && granted < offset.proposal(wall_micros) {
            return;
        }
        let learned = offset.learn(wall_micros, granted);
        if learned != offset {
            self.clock_offset
                .store(learned.as_micros(), Ordering::Relaxed);
        }
    }
}

/// The fencing counters that the masters returned, when the client asked for the token of an owner's other holds.
struct OwnerAnswers {
    quorum: Quorum,
    numbers: Vec<(usize, u64)>,
    open: usize,
}

impl OwnerAnswers {
    fn agreement(&self) -> Agreement {
        agree(self.quorum, self.numbers.iter().copied())
    }

    /// Returns `Some` once a majority has returned the same number, or once all masters have answered or failed.
    fn decided(&mut self) -> Option<Agreement> {
        let agreement = self.agreement();
        let agreed = matches!(agreement, Agreement::Agreed(_));
        (agreed || self.open == 0).then_some(agreement)
    }
}

impl Collect for OwnerAnswers {
    fn record_answer(&mut self, source: Source, answer: Result<Answer, Fault>) -> bool {
        if let Ok(Answer::Granted {
            counter: Some(counter),
        }) = answer
        {
            self.numbers.push((source.node, counter));
        }
        self.open = self.open.saturating_sub(1);
        self.decided().is_some()
    }
}

/// The votes on confirming one number as the fencing token.
struct ConfirmAnswers {
    tally: Tally,
    /// The largest fencing counter of the masters that refused because their counter is above the number.
    above: Option<u64>,
    /// True if some master reported that the claim's owner has other holds there.
    is_not_alone: bool,
}

impl ConfirmAnswers {
    fn open(quorum: Quorum) -> Self {
        Self {
            tally: Tally::new(quorum),
            above: None,
            is_not_alone: false,
        }
    }

    fn decided(&mut self) -> Option<(Verdict, Option<Reason>, Option<u64>)> {
        let verdict = self.tally.verdict();
        (verdict != Verdict::Pending).then(|| (verdict, self.tally.reason(), self.above))
    }
}

impl Collect for ConfirmAnswers {
    fn record_answer(&mut self, source: Source, answer: Result<Answer, Fault>) -> bool {
        match answer {
            Ok(Answer::Confirmed) => self.tally.add_yes(source.node),
            Ok(Answer::CounterAbove(counter)) => {
                self.above = self.above.max(Some(counter));
                self.tally.add_no(source.node);
            }
            Ok(Answer::NotAlone) => {
                self.is_not_alone = true;
                self.tally.add_no(source.node);
            }
            Ok(_) => self.tally.add_no(source.node),
            Err(_) => self.tally.add_fault(source.node),
        }
        self.tally.verdict() != Verdict::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Fault;
    use crate::protocol::instant::Instant;
    use crate::redlock::Redlock;

    #[test]
    fn number_below_the_proposal_shows_the_clocks_only_if_no_other_hold_can_have_it() {
        let wall_micros = 5_000_000;
        for (numbering, granted, is_learned) in [
            (Numbering::Raised, 1_000_000, true),
            (Numbering::Joined, 1_000_000, false),
            (Numbering::OfOwner, 1_000_000, false),
            (Numbering::Joined, 9_000_000, true),
            (Numbering::OfOwner, 9_000_000, true),
        ] {
            let redlock = Redlock::in_memory(3);
            let coordinator = &redlock.core.coordinator;
            let offset = ClockOffset::default();
            coordinator.learn_clock_offset(numbering, offset, wall_micros, granted);
            let learned = coordinator.clock_offset.load(Ordering::Relaxed);
            assert_eq!(learned != 0, is_learned, "{numbering:?} {granted}");
        }
    }

    fn source(node: usize) -> Source {
        let now = Instant::from_nanos(1);
        Source { node, now }
    }

    #[test]
    fn refused_token_confirmation_returns_the_largest_reported_counter() {
        let mut answers = ConfirmAnswers::open(Quorum::new(5));
        let above = |counter| Ok(Answer::CounterAbove(counter));
        assert!(!answers.record_answer(source(0), above(9)));
        assert!(!answers.record_answer(source(1), Ok(Answer::Confirmed)));
        assert!(!answers.record_answer(source(2), above(12)));
        assert_eq!(answers.decided(), None);
        assert!(answers.record_answer(source(3), above(10)));
        let contention = (Verdict::Failed, Some(Reason::Contention), Some(12));
        assert_eq!(answers.decided(), Some(contention));
        assert!(!answers.is_not_alone);
    }

    #[test]
    fn failed_token_confirmation_distinguishes_an_outage_from_a_refusal() {
        let mut answers = ConfirmAnswers::open(Quorum::new(3));
        let down = || Err(Fault::Down("off".into()));
        assert!(!answers.record_answer(source(0), down()));
        assert!(answers.record_answer(source(1), down()));
        let outage = (Verdict::Failed, Some(Reason::Outage), None);
        assert_eq!(answers.decided(), Some(outage));
        let mut contended = ConfirmAnswers::open(Quorum::new(3));
        contended.record_answer(source(0), Ok(Answer::NotAlone));
        assert!(contended.record_answer(source(1), Ok(Answer::NotOurs)));
        assert!(contended.is_not_alone);
        assert_eq!(
            contended.decided().map(|(verdict, ..)| verdict),
            Some(Verdict::Failed)
        );
    }

    #[test]
    fn fencing_number_of_an_owner_is_decided_by_a_majority_or_after_all_answers() {
        let granted = |counter| Ok(Answer::Granted { counter });
        let answers = || OwnerAnswers {
            quorum: Quorum::new(3),
            numbers: Vec::new(),
            open: 3,
        };
        let mut agreed = answers();
        assert!(!agreed.record_answer(source(0), granted(Some(7))));
        assert_eq!(agreed.decided(), None);
        assert!(agreed.record_answer(source(1), granted(Some(7))));
        assert_eq!(agreed.decided(), Some(Agreement::Agreed(7)));
        let mut split = answers();
        assert!(!split.record_answer(source(0), granted(Some(7))));
        assert!(!split.record_answer(source(1), granted(None)));
        assert!(split.record_answer(source(2), granted(Some(9))));
        assert_eq!(split.decided(), Some(Agreement::WriteBack(9)));
    }
}
