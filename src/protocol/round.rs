//! One fan-out: the votes of all nodes, the verdict, and what must be undone.

use super::fencing::{Agreement, agree};
use super::quorum::{Quorum, Reason, Tally, Verdict};

/// What one node said to an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    /// Granted, with the fencing counter where one is kept.
    Granted(Option<u64>),
    /// Certainly refused: nothing of this attempt is on that node.
    Refused,
    /// A fault. `sent` tells whether the node may still act on the request.
    Fault { sent: bool },
}

/// The votes of one acquire. Each node counts once; later answers of the same node change nothing
/// but what must be undone.
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

    /// Counts `node`'s vote and says where the round stands.
    pub(crate) fn record(&mut self, node: usize, vote: Vote) -> Verdict {
        if let Some(slot @ None) = self.votes.get_mut(node) {
            *slot = Some(vote);
            match vote {
                Vote::Granted(_) => self.tally.yes(),
                Vote::Refused => self.tally.no(),
                Vote::Fault { .. } => self.tally.fault(),
            }
        }
        self.verdict()
    }

    pub(crate) fn verdict(&self) -> Verdict {
        self.tally.verdict()
    }

    /// Why the round was lost, once certain.
    pub(crate) fn reason(&self) -> Option<Reason> {
        self.tally.reason()
    }

    /// The nodes that granted.
    pub(crate) fn granted(&self) -> impl Iterator<Item = usize> {
        let votes = self.votes.iter().enumerate();
        votes
            .filter(|(_, vote)| matches!(vote, Some(Vote::Granted(_))))
            .map(|(node, _)| node)
    }

    /// How many nodes answered, yes or no.
    pub(crate) fn answered(&self) -> usize {
        self.tally.answered()
    }

    /// The fencing number of a won round.
    pub(crate) fn agreement(&self) -> Agreement {
        let granted = self.votes.iter().filter_map(|vote| match vote {
            Some(Vote::Granted(counter)) => *counter,
            _ => None,
        });
        agree(self.quorum, granted)
    }

    /// Whether `node` may hold, or may yet be given, a key of this attempt: every node that
    /// neither refused for certain nor was left unasked for certain. The silent ones count too.
    pub(crate) fn must_undo(&self, node: usize) -> bool {
        !matches!(
            self.votes.get(node),
            Some(Some(Vote::Refused | Vote::Fault { sent: false })) | None
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undo_names_every_node_that_did_not_certainly_refuse() {
        let mut round = Round::open(Quorum::of(5));
        round.record(0, Vote::Granted(Some(1)));
        round.record(1, Vote::Refused);
        round.record(2, Vote::Fault { sent: true });
        round.record(3, Vote::Fault { sent: false });
        let undo: Vec<_> = (0..5).filter(|&node| round.must_undo(node)).collect();
        assert_eq!(undo, [0, 2, 4]);
    }

    #[test]
    fn a_node_votes_once() {
        let mut round = Round::open(Quorum::of(3));
        assert_eq!(round.record(0, Vote::Granted(None)), Verdict::Pending);
        assert_eq!(round.record(0, Vote::Granted(None)), Verdict::Pending);
        assert_eq!(round.record(1, Vote::Granted(None)), Verdict::Won);
    }

    #[test]
    fn a_node_that_does_not_exist_has_no_vote() {
        let mut round = Round::open(Quorum::of(1));
        assert_eq!(round.record(7, Vote::Granted(None)), Verdict::Pending);
        assert!(!round.must_undo(7));
    }
}
