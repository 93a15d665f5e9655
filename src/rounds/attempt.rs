//! One attempt to acquire a lock: sends a request to all masters, counts the votes, and determines the fencing token.
//! If the attempt is lost, releases its keys.
//!
//! # Why like this
//!
//! Only `Cleanup` releases the keys of an attempt, and its `Drop` does so if nothing else has.
//!
//! - A release on each path out of `attempt` would miss a caller that drops the future. Rust then runs no more code of
//!   `attempt`, except `Drop`.
//! - `Drop` cannot wait. So a request is a message in the master's mailbox, not a future that must be polled. The order
//!   of the messages keeps each release behind its acquire.
//! - The claim was once withdrawn as soon as the attempt was lost, which cancels unsent acquires. With two masters, a
//!   waiter then lost its place in the queue
//!   (`waiter_stays_queued_if_one_of_two_masters_refuses_before_the_other_answers`). So `failed_attempt` may release
//!   twice, and withdraws only before the second release.
//!
//! `quorate-bench leftovers` counts the keys that remain after 100,000 locks with dropped futures and faults: none
//! (docs/benchmarks.md, "Goals").
//!
//! Not solved: a master that stops answering keeps the key until its TTL ends. So does every master if the process is
//! killed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::acquire::{AcquireAnswers, AcquireRound};
use super::coordinator::Coordinator;
use super::fan_out::FanOut;
use super::lock_target::LockTarget;
use super::release::{ReleaseAnswers, SentReleases};
use crate::limit::Limit;
use crate::metrics;
use crate::node::{Claim, Fairness, Node, Phase, Reply, Request, Token};
use crate::outcome::Failure;
use crate::protocol::fencing::ClockOffset;
use crate::protocol::finding::Finding;
use crate::protocol::instant::Instant;
use crate::protocol::quorum::Verdict;
use crate::protocol::validity::valid_until;

/// A lock that a majority granted and confirmed, with validity left.
pub(crate) struct WonAttempt {
    pub(crate) claim: Arc<Claim>,
    pub(crate) started_at: Instant,
    pub(crate) valid_until: Instant,
    pub(crate) fencing: Option<u64>,
    pub(crate) round: Arc<AcquireRound>,
}

/// A lost attempt. The releases of its keys have been queued or sent.
pub(crate) struct FailedAttempt {
    /// Why the attempt was lost; `None` if the deadline came before the reason was certain.
    pub(crate) failure: Option<Failure>,
    /// Why the attempt was lost, in more detail than `failure`: for example, whether refusals alone prevented a
    /// majority. `None` if no reason is certain.
    pub(crate) finding: Option<Finding>,
    pub(crate) round: Arc<AcquireRound>,
    pub(crate) releases: SentReleases,
}

impl Coordinator {
    /// Makes one attempt: sends acquire requests to all masters. If the masters return different fencing counters, the
    /// attempt then confirms one token on a majority. The attempt ends at `until` at the latest.
    ///
    /// Cancel safety: if the future is dropped at any point, every key that may have been set is released in the
    /// background. On each master the release is sent after the acquire.
    pub(crate) async fn attempt(
        &self,
        target: &LockTarget,
        ttl: Duration,
        fairness: Fairness,
        until: Instant,
    ) -> Result<WonAttempt, FailedAttempt> {
        let token = self.random_token();
        let claim = Arc::new(target.claim(self, token).with_fairness(fairness));
        let wall_us = self.runtime.wall_micros();
        let offset = ClockOffset::from_micros(self.clock_offset.load(Ordering::Relaxed));
        let proposal = offset.proposal(wall_us);
        // Read the clock before sending the first request: no master can start the ttl earlier.
        let started_at = self.now();
        let answers = AcquireAnswers::open(self.quorum, started_at);
        let round = FanOut::new(self.runtime.clone(), answers);
        let mut cleanup = Cleanup {
            coordinator: self,
            round: round.clone(),
            claim: claim.clone(),
            is_armed: true,
        };
        self.ask_all(&round, Phase::Acquire, || Request::Acquire {
            claim: claim.clone(),
            ttl,
            proposal,
        });

        let validity_end = valid_until(started_at, ttl, self.drift);
        let mut limit = Limit::new(&*self.runtime, until.min(validity_end));
        let decision = round.wait_until(|answers| answers.verdict());
        let verdict = limit.wait(decision).await;
        self.has_been_answered.store(true, Ordering::Relaxed);
        let failure = if verdict == Some(Verdict::Won) {
            let numbering = claim.shape().numbering();
            let fencing = if !claim.fenced() {
                Ok(None)
            } else if let Some(fencing) = self.agreed(&round, numbering, offset, wall_us) {
                Ok(Some(fencing))
            } else {
                // A confirm round is rare. Its future is boxed, so that the future of an attempt stays small.
                let agreement =
                    Box::pin(self.agree(&round, &claim, numbering, offset, wall_us, ttl));
                limit.wait(agreement).await.unwrap_or(Err(Failure::Late))
            };
            match fencing {
                // Check the generation markers after the last round of requests, because the loss of a marker may
                // become known only during that round.
                Ok(_) if self.record_doubts(&round) => Some(Failure::Outage),
                // Read the clock again, because the rounds of requests may have taken longer than the validity.
                Ok(fencing) if self.now() < validity_end => {
                    cleanup.is_armed = false;
                    claim.agreed(fencing);
                    metrics::count_round(None);
                    return Ok(WonAttempt {
                        claim,
                        started_at,
                        valid_until: validity_end,
                        fencing,
                        round,
                    });
                }
                Ok(_) => Some(Failure::Late),
                Err(failure) => Some(failure),
            }
        } else {
            None
        };
        Err(Box::pin(self.failed_attempt(failure, cleanup, limit)).await)
    }

    fn random_token(&self) -> Token {
        let mut bytes = [0; 16];
        self.runtime.random(&mut bytes);
        Token::from_bytes(bytes)
    }

    /// Whether a master that granted the lock is known to have lost its generation marker (docs/protocol.md,
    /// "Generation markers"). If so, the attempt fails, and the replies show this master as quarantined.
    fn record_doubts(&self, round: &AcquireRound) -> bool {
        let now = self.now();
        let doubted_for = |(node, master): (usize, &Arc<dyn Node>)| {
            let doubted_time = master.doubted_for()?;
            Some((node, doubted_time))
        };
        let doubted: Vec<_> = self
            .nodes
            .iter()
            .enumerate()
            .filter_map(doubted_for)
            .collect();
        let mut answers = round.answers();
        let granting = answers.granting_masters();
        let mut has_doubts = false;
        for (node, doubted_time) in doubted.into_iter().filter(|(node, _)| granting.has(*node)) {
            answers.record_doubt(node, now, doubted_time);
            has_doubts = true;
        }
        has_doubts
    }

    /// Releases the keys of a lost attempt, and finds out why it was lost. While the reason is not certain, waits for
    /// more answers, until the deadline at the latest.
    async fn failed_attempt(
        &self,
        failure: Option<Failure>,
        mut cleanup: Cleanup<'_>,
        mut limit: Limit<'_>,
    ) -> FailedAttempt {
        let round = cleanup.round.clone();
        // If the reason is not certain, do not withdraw the claim yet. A withdrawal cancels unsent acquires, but these
        // would also put the client into the queues of their masters.
        let asks_all = failure.is_none() && round.answers().round.has_failed_early();
        let releases = if asks_all {
            // Release the granted keys now, and again at the end: masters that have not answered yet may grant more
            // keys.
            cleanup.send_releases()
        } else {
            cleanup.withdraw_and_release()
        };
        let (failure, finding) = match failure {
            Some(Failure::Late) => (failure, Some(Finding::Late)),
            Some(Failure::Outage) => (failure, Some(Finding::Outage)),
            Some(Failure::Contention) => (failure, Some(Finding::Held)),
            Some(Failure::NotJoinable) => (failure, Some(Finding::NotJoinable)),
            None => {
                let reason_or_all_answers = round.wait_until(|answers| answers.round.reason());
                if limit.wait(reason_or_all_answers).await.is_none() {
                    // Read the clock before locking the answers, so that their mutex is held only briefly.
                    let now = self.now();
                    round
                        .answers()
                        .fail_silent_masters(now, self.patience.answer);
                }
                let answers = round.answers();
                let reason = answers.round.reason();
                (reason.map(Failure::from), answers.round.finding())
            }
        };
        // Cancel unsent acquires, and release again: masters may have granted keys since the first release.
        let releases = if asks_all {
            cleanup.withdraw_and_release()
        } else {
            releases
        };
        if failure.is_some() {
            metrics::count_round(failure);
        }
        FailedAttempt {
            failure,
            finding,
            round,
            releases,
        }
    }
}

/// When dropped, releases the keys of an attempt that was not won. So they are released even if the future of the
/// attempt is dropped.
struct Cleanup<'a> {
    coordinator: &'a Coordinator,
    round: Arc<AcquireRound>,
    claim: Arc<Claim>,
    is_armed: bool,
}

impl Cleanup<'_> {
    /// Withdraws the claim, and releases every key that was granted or may still be granted.
    fn withdraw_and_release(&mut self) -> SentReleases {
        self.is_armed = false;
        // Withdraw before releasing. From here on, the client sends only releases for this claim.
        self.claim.withdraw();
        self.send_releases()
    }

    /// Releases the keys that were granted or may still be granted, without withdrawing the claim.
    fn send_releases(&self) -> SentReleases {
        let coordinator = self.coordinator;
        let masters_to_undo: Vec<usize> = {
            let answers = self.round.answers();
            (0..coordinator.nodes.len())
                .filter(|&node| answers.round.must_undo(node))
                .collect()
        };
        let answers =
            ReleaseAnswers::open(coordinator.quorum, masters_to_undo.len(), coordinator.now());
        let fan_out = FanOut::new(coordinator.runtime.clone(), answers);
        for node in masters_to_undo {
            let reply = Reply::new(fan_out.clone(), node, Phase::Release);
            coordinator.nodes[node].send(
                // `leave: false` keeps the client in the masters' queues: it may make another attempt.
                Request::Release {
                    claim: self.claim.clone(),
                    leave: false,
                },
                reply,
            );
        }
        SentReleases(fan_out)
    }
}

impl Drop for Cleanup<'_> {
    fn drop(&mut self) {
        if self.is_armed {
            let _in_the_background = self.withdraw_and_release();
        }
    }
}
