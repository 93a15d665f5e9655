//! One round of an acquire: the votes of all masters, the verdict, and which masters must be sent a release.

use super::fencing::{Agreement, agree};
use super::finding::Finding;
use super::quorum::{Quorum, Reason, Tally, Verdict};

/// One master's answer to an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    /// The master granted the lock, and returned its fencing counter if it has one.
    Granted(Option<u64>),
    /// The master refused, so it stores no key for this acquire.
    Refused,
    /// The master failed. `sent` is true if it may still execute the request.
    Fault { sent: bool },
    /// The request was not sent, because its round had been abandoned. This is neither a vote nor a fault of the
    /// master.
    Withdrawn,
}

/// The votes on one acquire. Only the first answer of each master counts.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    votes: Box<[Option<Vote>]>,
    tally: Tally,
    quorum: Quorum,
}

impl Round {
    pub(crate) fn open(quorum: Quorum) -> Self {
        Self {
            votes: vec![None; quorum.nodes()].into(),
            tally: Tally::new(quorum),
            quorum,
        }
    }

    /// Counts the vote of `node` and returns the verdict so far.
    pub(crate) fn record(&mut self, node: usize, vote: Vote) -> Verdict {
        if let Some(slot @ None) = self.votes.get_mut(node) {
            *slot = Some(vote);
            match vote {
                Vote::Granted(_) => self.tally.add_yes(node),
                Vote::Refused => self.tally.add_no(node),
                // A withdrawn request will never be answered, so the verdict must not wait for it: count it as a fault.
                Vote::Fault { .. } | Vote::Withdrawn => self.tally.add_fault(node),
            }
        }
        self.verdict()
    }

    pub(crate) fn verdict(&self) -> Verdict {
        self.tally.verdict()
    }

    /// Why the round was lost; `None` until the reason is certain.
    pub(crate) fn reason(&self) -> Option<Reason> {
        self.tally.reason()
    }

    /// Whether the round is certainly lost, but the missing answers still decide whether the reason is contention or an
    /// outage.
    pub(crate) fn has_failed_early(&self) -> bool {
        self.verdict() == Verdict::Failed && self.reason().is_none()
    }

    /// Why the round was lost; `None` until the reason is certain. Withdrawn requests count as missing answers.
    pub(crate) fn finding(&self) -> Option<Finding> {
        let mut votes = Tally::new(self.quorum);
        for (node, vote) in self.votes.iter().enumerate() {
            match vote {
                Some(Vote::Granted(_)) => votes.add_yes(node),
                Some(Vote::Refused) => votes.add_no(node),
                Some(Vote::Fault { .. }) => votes.add_fault(node),
                Some(Vote::Withdrawn) | None => {}
            }
        }
        Finding::from_tally(votes)
    }

    /// The masters that have not answered.
    pub(crate) fn silent(&self) -> impl Iterator<Item = usize> {
        let votes = self.votes.iter().enumerate();
        votes
            .filter(|(_, vote)| vote.is_none())
            .map(|(node, _)| node)
    }

    /// The masters that granted the lock.
    pub(crate) fn granted(&self) -> impl Iterator<Item = usize> {
        let votes = self.votes.iter().enumerate();
        votes
            .filter(|(_, vote)| matches!(vote, Some(Vote::Granted(_))))
            .map(|(node, _)| node)
    }

    /// Whether the masters of a won round agree on the fencing token.
    pub(crate) fn agreement(&self) -> Agreement {
        let votes = self.votes.iter().enumerate();
        let granted = votes.filter_map(|(node, vote)| match vote {
            Some(Vote::Granted(Some(counter))) => Some((node, *counter)),
            _ => None,
        });
        agree(self.quorum, granted)
    }

    /// Whether `node` must be sent a release, because it may hold a key of this acquire or may still create one. False
    /// if the master certainly refused, or certainly got no request.
    pub(crate) fn must_undo(&self, node: usize) -> bool {
        !matches!(
            self.votes.get(node),
            Some(Some(
                Vote::Refused | Vote::Fault { sent: false } | Vote::Withdrawn
            )) | None
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_master_that_may_have_a_key_is_sent_a_release() {
        let mut round = Round::open(Quorum::new(5));
        round.record(0, Vote::Granted(Some(1)));
        round.record(1, Vote::Refused);
        round.record(2, Vote::Fault { sent: true });
        round.record(3, Vote::Fault { sent: false });
        let masters_to_undo: Vec<_> = (0..5).filter(|&node| round.must_undo(node)).collect();
        assert_eq!(masters_to_undo, [0, 2, 4]);
    }

    /// Calls `visit` with all permutations of `rest`, each appended to `head`.
    fn visit_orders(
        head: &mut Vec<usize>,
        rest: &mut Vec<usize>,
        visit: &mut impl FnMut(&[usize]),
    ) {
        if rest.is_empty() {
            return visit(head);
        }
        for index in 0..rest.len() {
            head.push(rest.remove(index));
            visit_orders(head, rest, visit);
            if let Some(node) = head.pop() {
                rest.insert(index, node);
            }
        }
    }

    #[test]
    fn order_of_votes_does_not_change_verdict_token_or_releases() {
        const KINDS: [Vote; 6] = [
            Vote::Granted(Some(4)),
            Vote::Granted(Some(7)),
            Vote::Refused,
            Vote::Fault { sent: true },
            Vote::Fault { sent: false },
            Vote::Withdrawn,
        ];
        for nodes in 1..=5usize {
            for code in 0..KINDS.len().pow(nodes as u32) {
                let vote_of =
                    |node: usize| KINDS[code / KINDS.len().pow(node as u32) % KINDS.len()];
                let mut first_outcome = None;
                visit_orders(&mut Vec::new(), &mut (0..nodes).collect(), &mut |order| {
                    let mut round = Round::open(Quorum::new(nodes));
                    let mut decided_verdict = Verdict::Pending;
                    for &node in order {
                        let verdict = round.record(node, vote_of(node));
                        assert!(decided_verdict == Verdict::Pending || verdict == decided_verdict);
                        decided_verdict = verdict;
                    }
                    let masters_to_undo: Vec<bool> =
                        (0..nodes).map(|node| round.must_undo(node)).collect();
                    let outcome = (
                        decided_verdict,
                        round.reason(),
                        round.agreement(),
                        masters_to_undo,
                    );
                    assert_ne!(decided_verdict, Verdict::Pending);
                    let first_outcome = first_outcome.get_or_insert_with(|| outcome.clone());
                    assert_eq!(
                        *first_outcome, outcome,
                        "the order of votes must not matter: {nodes} nodes, votes {code}, order {order:?}"
                    );
                });
            }
        }
    }

    #[test]
    fn unsent_request_of_an_abandoned_round_is_not_counted_in_its_finding() {
        let mut round = Round::open(Quorum::new(3));
        round.record(0, Vote::Refused);
        round.record(1, Vote::Fault { sent: true });
        round.record(2, Vote::Withdrawn);
        assert_eq!(round.reason(), Some(Reason::Outage));
        assert_eq!(round.finding(), None);
        assert!(!round.must_undo(2));
    }

    #[test]
    fn round_counts_as_lost_early_only_until_the_reason_for_its_loss_is_known() {
        let refused_by = |quorum, nodes: &[usize]| {
            let mut round = Round::open(quorum);
            let mut failed_early = Vec::new();
            for &node in nodes {
                round.record(node, Vote::Refused);
                failed_early.push(round.has_failed_early());
            }
            failed_early
        };
        // With three masters, the second refusal decides the round and also proves its reason: a majority has answered.
        assert_eq!(refused_by(Quorum::new(3), &[0, 1, 2]), [false; 3]);
        assert_eq!(refused_by(Quorum::new(2), &[0, 1]), [true, false]);
        assert_eq!(refused_by(Quorum::new(4), &[0, 1, 2]), [false, true, false]);
        let sets = [[0, 1, 2], [2, 3, 4]].map(|set| set.into_iter().collect());
        let joint = Quorum::joint(sets[0], sets[1]);
        let failed_early = [false, true, true, false];
        assert_eq!(refused_by(joint, &[0, 1, 3, 4]), failed_early);
        // A refusal and a fault decide the round, but the reason depends on the answer of the third master.
        let mut round = Round::open(Quorum::new(3));
        round.record(0, Vote::Refused);
        assert!(!round.has_failed_early());
        round.record(1, Vote::Fault { sent: false });
        assert!(round.has_failed_early());
        round.record(2, Vote::Refused);
        assert!(
            !round.has_failed_early(),
            "is_lost_early() must be false after a majority has refused"
        );
    }

    #[test]
    fn master_votes_only_once_per_round_of_requests() {
        let mut round = Round::open(Quorum::new(3));
        assert_eq!(round.record(0, Vote::Granted(None)), Verdict::Pending);
        assert_eq!(round.record(0, Vote::Granted(None)), Verdict::Pending);
        assert_eq!(round.record(1, Vote::Granted(None)), Verdict::Won);
    }

    #[test]
    fn unknown_master_has_no_vote() {
        let mut round = Round::open(Quorum::new(1));
        assert_eq!(round.record(7, Vote::Granted(None)), Verdict::Pending);
        assert!(!round.must_undo(7));
    }
}
