//! Requests that release a lock, delete the keys of a failed attempt, or remove a waiter's queue entry.

use std::future::Future;
use std::sync::Arc;

use super::coordinator::Coordinator;
use super::fan_out::{Collect, FanOut, Source};
use crate::node::{Answer, Claim, Fault, NodeName, Phase, Reply, Request};
use crate::protocol::instant::Instant;
use crate::protocol::quorum::{MasterSet, Quorum};
use crate::report::{NodeReport, Replies};

impl Coordinator {
    /// Deletes the keys of `claim` on every master. The caller may wait for the returned answers.
    pub(crate) fn release(&self, claim: &Arc<Claim>) -> Arc<FanOut<ReleaseAnswers>> {
        claim.withdraw();
        let answers = ReleaseAnswers::open(self.quorum, self.quorum.nodes(), self.now());
        let fan_out = FanOut::new(self.runtime.clone(), answers);
        self.ask_all(&fan_out, Phase::Release, || Request::Release {
            claim: claim.clone(),
            leave: true,
        });
        fan_out
    }

    /// Deletes the keys of `claim` on every master, and does not wait for the answers.
    pub(crate) fn release_in_background(&self, claim: &Arc<Claim>) {
        claim.withdraw();
        for node in &self.nodes {
            node.send(
                Request::Release {
                    claim: claim.clone(),
                    leave: true,
                },
                Reply::ignored(),
            );
        }
    }

    /// Removes from every master the queue entry of the waiter of this claim.
    pub(crate) fn leave(&self, claim: &Arc<Claim>) -> SentReleases {
        let answers = ReleaseAnswers::open(self.quorum, self.quorum.nodes(), self.now());
        let fan_out = FanOut::new(self.runtime.clone(), answers);
        self.ask_all(&fan_out, Phase::Release, || Request::Release {
            claim: claim.clone(),
            leave: true,
        });
        SentReleases(fan_out)
    }
}

/// The requests of a release, queued or sent. Dropping this value does not cancel them.
pub(crate) struct SentReleases(pub(super) Arc<FanOut<ReleaseAnswers>>);

impl SentReleases {
    /// Waits until every master has acknowledged the release or failed. Without this wait, leftover keys of a failed
    /// attempt could block the next attempts.
    pub(crate) fn completed(&self) -> impl Future<Output = ()> + Send + use<> {
        let fan_out = self.0.clone();
        async move {
            fan_out
                .wait_until(|answers| answers.is_complete().then_some(()))
                .await;
        }
    }
}

/// The answers to a release.
pub(crate) struct ReleaseAnswers {
    quorum: Quorum,
    asked_masters: usize,
    started_at: Instant,
    replies: Replies,
    deleted: usize,
    gone: usize,
    faults: usize,
    /// The masters that executed the release. The claim holds no key on them any more.
    confirmed_without_key: MasterSet,
}

impl ReleaseAnswers {
    pub(super) fn open(quorum: Quorum, asked_masters: usize, started_at: Instant) -> Self {
        Self {
            quorum,
            asked_masters,
            started_at,
            replies: Replies::new(quorum.nodes()),
            deleted: 0,
            gone: 0,
            faults: 0,
            confirmed_without_key: MasterSet::default(),
        }
    }

    /// How many masters deleted a key of the claim, how many had no such key, and how many failed, in this order.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        (self.deleted, self.gone, self.faults)
    }

    fn answer_count(&self) -> usize {
        self.deleted + self.gone + self.faults
    }

    fn is_complete(&self) -> bool {
        self.answer_count() >= self.asked_masters
    }

    /// Whether a majority has confirmed the release, or every master that was asked has answered or failed.
    pub(crate) fn is_settled(&self) -> bool {
        self.quorum.is_met_by(self.confirmed_without_key) || self.is_complete()
    }

    pub(crate) fn reports<'a>(&self, names: impl Iterator<Item = &'a NodeName>) -> Vec<NodeReport> {
        self.replies.reports(names, Phase::Release)
    }
}

impl Collect for ReleaseAnswers {
    fn record_answer(&mut self, source: Source, answer: Result<Answer, Fault>) -> bool {
        let is_late = self.is_settled();
        self.replies
            .record(source.node, &answer, self.started_at, source.now, is_late);
        if answer.is_ok() {
            self.confirmed_without_key.add(source.node);
        }
        match answer {
            Ok(Answer::Released(true)) => self.deleted += 1,
            Ok(_) => self.gone += 1,
            Err(_) => self.faults += 1,
        }
        (self.is_settled() && !is_late) || self.is_complete()
    }
}
