//! Agreeing on one fencing number from the counters that the masters returned.

use super::quorum::{MasterSet, Quorum};

/// What the counters of a won round say (protocol, section 2, step 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agreement {
    /// A majority returned the same number: it is the token.
    Agreed(u64),
    /// No majority agrees: write the largest back and have a majority confirm it.
    WriteBack(u64),
}

/// Looks for a number that a majority granted, of each set of masters; `granted` are the masters and their numbers.
/// The largest alone is not a token: without a confirming majority two holders can be handed the same one.
pub(crate) fn agree(
    quorum: Quorum,
    granted: impl Iterator<Item = (usize, u64)> + Clone,
) -> Agreement {
    let mut numbers = granted.clone().map(|(_, number)| number);
    let largest = numbers.clone().max().unwrap_or(0);
    let same = |v: u64| {
        let same = granted.clone().filter(|(_, number)| *number == v);
        same.map(|(node, _)| node).collect::<MasterSet>()
    };
    // At most one number can have a majority, so the first that has it is the one.
    match numbers.find(|&v| quorum.is_met_by(same(v))) {
        Some(token) => Agreement::Agreed(token),
        None => Agreement::WriteBack(largest),
    }
}

/// How far a client's wall clock stands from the masters', learned from their answers, so that
/// the next proposal is one that all of them take as it is.
///
/// A wrong estimate costs a second round and nothing else: tokens rest on votes, not on clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClockOffset(i64);

/// How far a master lets a proposal stand from its own clock, in microseconds.
pub(crate) const PROPOSAL_SLACK_US: u64 = 1_000_000;

/// Kept between the estimate and the edge that a master clamps to, in microseconds.
const EDGE_US: i64 = 5_000;

/// Differences up to this come from messages under way, not from clocks, in microseconds.
const NOISE_US: u64 = 2_000;

impl ClockOffset {
    pub(crate) fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    pub(crate) fn as_micros(self) -> i64 {
        self.0
    }

    pub(crate) fn proposal(self, wall_us: u64) -> u64 {
        wall_us.saturating_add_signed(self.0)
    }

    /// Learns from one round: what was proposed at `wall_us`, and the largest number granted.
    pub(crate) fn learn(self, wall_us: u64, granted: u64) -> Self {
        let proposed = self.proposal(wall_us);
        let wall = i64::try_from(wall_us).unwrap_or(i64::MAX);
        let slack = i64::try_from(PROPOSAL_SLACK_US).unwrap_or(0);
        let seen = i64::try_from(granted).unwrap_or(i64::MAX);
        if granted < proposed {
            // Clamped from above: the master's clock is a slack behind what it granted.
            Self(seen.saturating_sub(slack).saturating_sub(wall))
        } else if granted - proposed > PROPOSAL_SLACK_US / 2 {
            // Clamped from below: step inside the edge, but do not follow a counter that has run
            // away from every clock.
            let next = seen.saturating_sub(wall).saturating_add(EDGE_US);
            Self(next.min(self.0.saturating_add(2 * slack)))
        } else if granted - proposed > NOISE_US {
            // Another client's clock is ahead: draw level with it. Less than the noise is not
            // followed, or clients would push each other ahead for ever.
            Self(seen.saturating_sub(wall))
        } else {
            self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_moves_by_what_was_granted_and_no_further() {
        const WALL: u64 = 1_000_000_000;
        for (granted, learned) in [
            (WALL, 0),
            // Less than messages under way can make.
            (WALL + 2_000, 0),
            (WALL + 2_001, 2_001),
            (WALL + 500_000, 500_000),
            // Raised by the master to its edge: a step inside.
            (WALL + 500_001, 505_001),
            (WALL + 1_995_000, 2_000_000),
            (WALL + 9_000_000, 2_000_000),
            // Lowered by it: its clock is a second behind that.
            (WALL - 1, -1_000_001),
        ] {
            let offset = ClockOffset::default().learn(WALL, granted);
            assert_eq!(offset.as_micros(), learned, "{granted}");
        }
    }

    #[test]
    fn a_number_is_agreed_only_by_a_majority_of_the_configured_nodes() {
        let of =
            |nodes, granted: &[u64]| agree(Quorum::of(nodes), granted.iter().copied().enumerate());
        assert_eq!(of(5, &[7, 7, 7]), Agreement::Agreed(7));
        assert_eq!(of(5, &[7, 7, 9]), Agreement::WriteBack(9));
        assert_eq!(of(5, &[9, 7, 7, 7]), Agreement::Agreed(7));
        assert_eq!(of(1, &[3]), Agreement::Agreed(3));
        assert_eq!(of(4, &[3, 3, 5]), Agreement::WriteBack(5));
    }

    #[test]
    fn a_number_is_agreed_by_a_majority_of_each_set_and_by_no_majority_of_one_or_of_all() {
        let disjoint = Quorum::joint(MasterSet::first(3), (3..6).collect());
        let grown = Quorum::joint(MasterSet::first(3), MasterSet::first(5));
        for (quorum, granted, agreement) in [
            (disjoint, &[7, 7, 5, 7, 7, 5][..], Agreement::Agreed(7)),
            // In the first set alone, in the second alone, in the union.
            (disjoint, &[7, 7, 7, 7, 5, 9], Agreement::WriteBack(9)),
            (disjoint, &[7, 5, 9, 7, 7, 7], Agreement::WriteBack(9)),
            (disjoint, &[7, 7, 7, 7, 5, 5], Agreement::WriteBack(7)),
            (grown, &[7, 7, 5, 7, 5], Agreement::Agreed(7)),
            (grown, &[7, 7, 9, 5, 5], Agreement::WriteBack(9)),
            (grown, &[7, 5, 5, 7, 7], Agreement::WriteBack(7)),
        ] {
            let granted = granted.iter().copied().enumerate();
            assert_eq!(agree(quorum, granted.clone()), agreement, "{granted:?}");
        }
    }

    #[test]
    fn a_client_far_behind_or_ahead_learns_to_propose_inside_the_slack() {
        for off in [-40_000_000i64, 40_000_000] {
            let master = 1_700_000_000_000_000u64;
            let wall = master.saturating_add_signed(off);
            let mut offset = ClockOffset::default();
            for _ in 0..30 {
                let p = offset.proposal(wall);
                let v = p.clamp(master - PROPOSAL_SLACK_US, master + PROPOSAL_SLACK_US);
                offset = offset.learn(wall, v);
            }
            let p = offset.proposal(wall);
            assert!(
                p.abs_diff(master) <= PROPOSAL_SLACK_US,
                "offset {off}: {p} against {master}"
            );
        }
    }
}
