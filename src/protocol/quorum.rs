//! Counting votes: how many masters are enough, and when the answer is certain.

/// How many of the configured masters make a majority. Always over the configured ones: a quorum
/// of the reachable ones lets two halves of a broken network both win.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quorum {
    nodes: usize,
}

impl Quorum {
    pub(crate) const fn of(nodes: usize) -> Self {
        Self { nodes }
    }

    pub(crate) const fn nodes(self) -> usize {
        self.nodes
    }

    /// `floor(N / 2) + 1`.
    pub(crate) const fn size(self) -> usize {
        self.nodes / 2 + 1
    }

    /// Whether a majority is left when so many do not count.
    pub(crate) const fn possible_without(self, out: usize) -> bool {
        self.nodes.saturating_sub(out) >= self.size()
    }
}

/// What the counted votes say so far. Once it is not `Pending` it never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Votes still out could decide either way.
    Pending,
    /// A majority said yes.
    Won,
    /// A majority has become impossible, whoever is still silent.
    Lost,
}

/// Why a round was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A majority of the masters answered; somebody else stands in the way.
    Contention,
    /// So many masters failed that no majority can answer.
    Outage,
}

/// Yes, no and fault, counted apart: a fault is not a refusal, and it earns nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    quorum: Quorum,
    yes: u16,
    no: u16,
    faults: u16,
}

impl Tally {
    pub(crate) const fn new(quorum: Quorum) -> Self {
        Self {
            quorum,
            yes: 0,
            no: 0,
            faults: 0,
        }
    }

    pub(crate) fn yes(&mut self) {
        self.yes += 1;
    }

    pub(crate) fn no(&mut self) {
        self.no += 1;
    }

    pub(crate) fn fault(&mut self) {
        self.faults += 1;
    }

    fn counts(&self) -> (usize, usize, usize) {
        (self.yes.into(), self.no.into(), self.faults.into())
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let (yes, no, faults) = self.counts();
        if yes >= self.quorum.size() {
            Verdict::Won
        } else if !self.quorum.possible_without(no + faults) {
            Verdict::Lost
        } else {
            Verdict::Pending
        }
    }

    /// Why there is no majority, once that is certain: `q` masters answered (contention), or `q`
    /// can no longer answer (outage).
    pub(crate) fn reason(&self) -> Option<Reason> {
        if self.answered() >= self.quorum.size() {
            Some(Reason::Contention)
        } else if !self.possible_without_faults() {
            Some(Reason::Outage)
        } else {
            None
        }
    }

    /// Whether those that did not fail could still make a majority.
    pub(crate) fn possible_without_faults(&self) -> bool {
        self.quorum.possible_without(self.faults.into())
    }

    /// Whether those that did not refuse could make one.
    pub(crate) fn possible_without_refusals(&self) -> bool {
        self.quorum.possible_without(self.no.into())
    }

    /// A majority said no: certain, and stronger than "no majority said yes".
    pub(crate) fn majority_said_no(&self) -> bool {
        usize::from(self.no) >= self.quorum.size()
    }

    /// How many answered, yes or no.
    pub(crate) fn answered(&self) -> usize {
        usize::from(self.yes) + usize::from(self.no)
    }

    /// Every node has been counted.
    pub(crate) fn complete(&self) -> bool {
        let (yes, no, faults) = self.counts();
        yes + no + faults >= self.quorum.nodes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(nodes: usize, yes: usize, no: usize, faults: usize) -> Tally {
        let mut tally = Tally::new(Quorum::of(nodes));
        (0..yes).for_each(|_| tally.yes());
        (0..no).for_each(|_| tally.no());
        (0..faults).for_each(|_| tally.fault());
        tally
    }

    #[test]
    fn a_majority_is_counted_over_all_configured_nodes() {
        let sizes: Vec<_> = (1..=9).map(|n| Quorum::of(n).size()).collect();
        assert_eq!(sizes, [1, 2, 2, 3, 3, 4, 4, 5, 5]);
    }

    #[test]
    fn the_verdict_falls_as_soon_as_it_is_certain() {
        assert_eq!(tally(5, 2, 0, 0).verdict(), Verdict::Pending);
        assert_eq!(tally(5, 3, 0, 0).verdict(), Verdict::Won);
        assert_eq!(tally(5, 2, 2, 0).verdict(), Verdict::Pending);
        assert_eq!(tally(5, 0, 2, 1).verdict(), Verdict::Lost);
        // An even number: a 2 to 2 split is lost, not pending for ever.
        assert_eq!(tally(4, 2, 2, 0).verdict(), Verdict::Lost);
        assert_eq!(tally(4, 0, 2, 0).verdict(), Verdict::Lost);
        assert_eq!(tally(1, 0, 0, 1).verdict(), Verdict::Lost);
    }

    #[test]
    fn an_outage_is_told_from_contention() {
        assert_eq!(tally(5, 0, 3, 0).reason(), Some(Reason::Contention));
        assert_eq!(tally(5, 0, 0, 3).reason(), Some(Reason::Outage));
        // Two refusals and one fault: lost, but the reason waits for the two silent ones.
        assert_eq!(tally(5, 0, 2, 1).reason(), None);
        assert_eq!(tally(5, 0, 2, 3).reason(), Some(Reason::Outage));
        assert_eq!(tally(5, 1, 2, 1).reason(), Some(Reason::Contention));
    }

    #[test]
    fn a_fallen_verdict_never_changes_in_any_order_of_votes() {
        for nodes in 1..=7usize {
            // Every sequence of yes, no and fault over all nodes, as digits in base three.
            for code in 0..3usize.pow(nodes as u32) {
                let mut tally = Tally::new(Quorum::of(nodes));
                let (mut fallen, mut rest) = (Verdict::Pending, code);
                for _ in 0..nodes {
                    match rest % 3 {
                        0 => tally.yes(),
                        1 => tally.no(),
                        _ => tally.fault(),
                    }
                    rest /= 3;
                    let verdict = tally.verdict();
                    if fallen != Verdict::Pending {
                        assert_eq!(verdict, fallen, "{nodes} nodes, votes {code}");
                    }
                    fallen = verdict;
                }
                assert_ne!(fallen, Verdict::Pending, "{nodes} nodes, votes {code}");
            }
        }
    }
}
