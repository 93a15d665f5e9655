//! The finding of a round of requests: the reason why a waiter did not get the lock. There is a finding only if the
//! masters' answers prove the reason.
//!
//! [`Finding::of`] judges one round. If a wait has several rounds, [`Finding::replaces`] selects the finding that the
//! error reports.

use super::quorum::Tally;

/// The proven reason why a round was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The refusals alone made a majority impossible. Another client holds the lock, or is ahead in the lock's queue.
    Held,
    /// An owner that already holds the lock asked for another hold. A majority granted it, but no majority agreed on
    /// the fencing token of the owner's existing holds.
    NotJoinable,
    /// The faults alone made a majority impossible.
    Outage,
    /// Refusals and faults together prevented a majority; neither refusals nor faults alone did.
    Split,
    /// A majority granted the lock, but so slowly that no validity was left.
    Late,
}

impl Finding {
    /// The reason why a round with these votes was lost; `None` if no reason follows from the votes with certainty.
    pub(crate) fn from_tally(votes: Tally) -> Option<Self> {
        if !votes.is_possible_without_faults() {
            Some(Self::Outage)
        } else if !votes.is_possible_without_refusals() {
            Some(Self::Held)
        } else if votes.reason().is_some() {
            Some(Self::Split)
        } else {
            None
        }
    }

    /// Whether this finding replaces `earlier`, the last finding of the same wait (`None` if there is none).
    ///
    /// - `Split` does not replace a different finding. A split can come from leftover keys that no client holds, so the
    ///   other finding says more.
    /// - `Late` does not replace `NotJoinable`: the client was late only because it searched for the token of the
    ///   existing holds.
    /// - In all other cases, the newer finding replaces the older one.
    pub(crate) fn replaces(self, earlier: Option<Self>) -> bool {
        match self {
            Self::Split => matches!(earlier, None | Some(Self::Split)),
            Self::Late => earlier != Some(Self::NotJoinable),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Finding::{Held, Late, NotJoinable, Outage, Split};
    use super::*;
    use crate::protocol::quorum::Quorum;

    #[test]
    fn finding_names_the_reason_why_a_majority_is_impossible() {
        // Each row: number of masters, of grants, of refusals, of faults, and the finding. The other masters are
        // silent.
        for (nodes, yes, no, faults, expected) in [
            (3, 0, 2, 0, Some(Held)),
            (3, 0, 2, 1, Some(Held)),
            (3, 1, 2, 0, Some(Held)),
            (3, 0, 0, 2, Some(Outage)),
            (3, 1, 0, 2, Some(Outage)),
            (3, 0, 1, 2, Some(Outage)),
            (3, 1, 1, 1, Some(Split)),
            (3, 0, 1, 1, None), // the silent third master decides
            (3, 1, 0, 1, None),
            (3, 0, 0, 0, None),
            (5, 0, 3, 0, Some(Held)),
            (5, 2, 2, 1, Some(Split)),
            (5, 1, 2, 2, Some(Split)),
            (5, 0, 2, 3, Some(Outage)),
            (5, 2, 0, 3, Some(Outage)),
            (5, 0, 2, 1, None),
            (1, 0, 1, 0, Some(Held)),
            (1, 0, 0, 1, Some(Outage)),
            // The refusals alone prevent a majority, and so do the faults alone. `Outage` takes precedence.
            (4, 0, 2, 2, Some(Outage)),
            (4, 2, 2, 0, Some(Held)),
        ] {
            let mut votes = Tally::new(Quorum::new(nodes));
            let (refused, failed) = (yes + no, yes + no + faults);
            (0..yes).for_each(|node| votes.add_yes(node));
            (yes..refused).for_each(|node| votes.add_no(node));
            (refused..failed).for_each(|node| votes.add_fault(node));
            let case = (nodes, yes, no, faults);
            assert_eq!(Finding::from_tally(votes), expected, "{case:?}");
        }
    }

    #[test]
    fn earlier_finding_is_replaced_unless_the_later_finding_is_less_specific() {
        for (rounds, last_expected) in [
            (&[None, None][..], None),
            (&[Some(Held), None], Some(Held)),
            (&[Some(Outage), None], Some(Outage)),
            (&[Some(Held), Some(Outage), None], Some(Outage)),
            (&[Some(Outage), Some(Held)], Some(Held)),
            (&[Some(Split), None], Some(Split)),
            (&[Some(Split), Some(Outage)], Some(Outage)),
            (&[Some(Outage), Some(Split), None], Some(Outage)),
            (&[Some(Held), Some(Split)], Some(Held)),
            (&[Some(Held), Some(Late)], Some(Late)),
            (&[Some(Late), Some(Held)], Some(Held)),
            (&[Some(NotJoinable), Some(Late)], Some(NotJoinable)),
            (&[Some(NotJoinable), Some(Held)], Some(Held)),
        ] {
            let mut last = None;
            for finding in rounds.iter().flatten() {
                if finding.replaces(last) {
                    last = Some(*finding);
                }
            }
            assert_eq!(last, last_expected, "{rounds:?}");
        }
    }
}
