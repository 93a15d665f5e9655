//! What a waiter is told at the end of its wait: what the masters' answers prove, and nothing else.
//!
//! Every round is looked at by itself ([`Finding::of`]); of all rounds of a wait the last one that
//! proves something counts ([`Finding::replaces`]). A round that was cut off by the end of the wait
//! proves only what its answers prove without the ones that are missing.

use super::quorum::Tally;

/// What one lost round proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// So many masters refused that the others could not have made a majority, had all of them
    /// granted: another holds it, or stands before us.
    Held,
    /// A majority granted to an owner, and no majority shows one number that it could share with its other holds.
    NotJoinable,
    /// So many masters failed that the others could not have made a majority: whoever holds it.
    Outage,
    /// Neither the refusals nor the faults alone prevented it, both together did.
    Split,
    /// A majority granted, too slowly.
    Late,
}

impl Finding {
    /// What the votes of a round that was not won prove; `None` while they prove nothing.
    pub(crate) fn of(votes: Tally) -> Option<Self> {
        if !votes.possible_without_faults() {
            Some(Self::Outage)
        } else if !votes.possible_without_refusals() {
            Some(Self::Held)
        } else if votes.reason().is_some() {
            Some(Self::Split)
        } else {
            None
        }
    }

    /// Whether it takes the place of what an earlier round of the same wait proved: the later
    /// round counts, unless it is a mixture and the earlier one was not, or its time was over while it
    /// looked for the number that an earlier one had not found. The refusals in a mixture may be remains
    /// that nobody holds.
    pub(crate) fn replaces(self, before: Option<Self>) -> bool {
        match self {
            Self::Split => matches!(before, None | Some(Self::Split)),
            Self::Late => before != Some(Self::NotJoinable),
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
    fn refusals_and_faults_prove_what_they_prevent_by_themselves() {
        // Masters, granted, refused, failed; the rest is silent.
        for (nodes, yes, no, faults, proves) in [
            (3, 0, 2, 0, Some(Held)),
            (3, 0, 2, 1, Some(Held)),
            (3, 1, 2, 0, Some(Held)),
            (3, 0, 0, 2, Some(Outage)),
            (3, 1, 0, 2, Some(Outage)),
            (3, 0, 1, 2, Some(Outage)),
            (3, 1, 1, 1, Some(Split)),
            (3, 0, 1, 1, None), // the third decides
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
            // An even number: both prevent it, and nobody can have it now.
            (4, 0, 2, 2, Some(Outage)),
            (4, 2, 2, 0, Some(Held)),
        ] {
            let mut votes = Tally::new(Quorum::of(nodes));
            let (refused, failed) = (yes + no, yes + no + faults);
            (0..yes).for_each(|node| votes.yes(node));
            (yes..refused).for_each(|node| votes.no(node));
            (refused..failed).for_each(|node| votes.fault(node));
            let case = (nodes, yes, no, faults);
            assert_eq!(Finding::of(votes), proves, "{case:?}");
        }
    }

    #[test]
    fn the_last_round_that_proves_something_is_told() {
        for (rounds, told) in [
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
            assert_eq!(last, told, "{rounds:?}");
        }
    }
}
