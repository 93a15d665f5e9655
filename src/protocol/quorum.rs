//! Counting votes: how many masters are enough, and when the result is certain.
//!
//! # Why like this
//!
//! The alternative is one consensus group, such as ZooKeeper or etcd, that stores all locks (docs/safety.md, "Use a
//! consensus system instead").
//!
//! - Masters that do not replicate need no election. So no election can lose a lock, and one lock can have masters of
//!   different kinds.
//! - A consensus group cannot stop a paused holder or a late write either. Only a fencing token that the resource
//!   checks can.
//! - One Redis with replicas and `WAIT` was rejected, because a replica without the lock may win the election.
//! - Half of the masters, and a majority of those that answered, were rejected: the seeded bugs `half-quorum` and
//!   `reachable-quorum` show two holders.
//!
//! The price is three independent servers, clocks of nearly the same speed, and several steps to replace a master. Not
//! solved: a master that forgets locks without a restart (`FLUSHALL`, eviction), and a master that reports grants which
//! it did not make. If you already run ZooKeeper, use it as the only master.

use std::fmt;

/// A set of masters, one bit for each by its index in the builder: at most 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MasterSet(u64);

impl MasterSet {
    /// The first `count` masters.
    pub(crate) const fn first(count: usize) -> Self {
        match count {
            0 => Self(0),
            1..64 => Self((1 << count) - 1),
            _ => Self(u64::MAX),
        }
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(crate) fn single(node: usize) -> Self {
        let node = u32::try_from(node).unwrap_or(u32::MAX);
        Self(1u64.checked_shl(node).unwrap_or(0))
    }

    pub(crate) fn has(self, node: usize) -> bool {
        self.and(Self::single(node)).len() > 0
    }

    pub(crate) fn add(&mut self, node: usize) {
        self.0 |= Self::single(node).0;
    }

    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) const fn len(self) -> usize {
        self.0.count_ones() as usize
    }
}

impl FromIterator<usize> for MasterSet {
    fn from_iter<I: IntoIterator<Item = usize>>(nodes: I) -> Self {
        let mut masters = Self::default();
        nodes.into_iter().for_each(|node| masters.add(node));
        masters
    }
}

/// The rule that decides which masters are a majority. Faults never reduce the required number of masters.
///
/// While masters are replaced, there are two sets, and a quorum is a majority of **each** set (`docs/protocol.md`,
/// "Replacing masters"). The vote of a master in both sets counts for each set. If no replacement is in progress, both
/// sets are the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quorum {
    sets: [MasterSet; 2],
}

/// Shows the numbers of masters, for example "3 of 5".
impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [old, next] = self.sets.map(MasterSet::len);
        write!(f, "{} of {old}", old / 2 + 1)?;
        if self.is_joint() {
            write!(f, " and {} of {next}", next / 2 + 1)?;
        }
        Ok(())
    }
}

impl Quorum {
    /// The quorum of a single set: the first `nodes` masters.
    pub(crate) const fn new(nodes: usize) -> Self {
        Self::joint(MasterSet::first(nodes), MasterSet::first(nodes))
    }

    /// The quorum of two sets: the old masters, and the next masters, which replace them.
    pub(crate) const fn joint(old: MasterSet, next: MasterSet) -> Self {
        Self { sets: [old, next] }
    }

    /// Whether masters are being replaced: the old and the next set differ.
    pub(crate) fn is_joint(self) -> bool {
        self.sets[0] != self.sets[1]
    }

    /// The quorum of the old masters alone.
    pub(crate) const fn old_only(self) -> Self {
        Self::joint(self.sets[0], self.sets[0])
    }

    /// The quorum of the next masters alone, which replace the old masters.
    pub(crate) const fn next_only(self) -> Self {
        Self::joint(self.sets[1], self.sets[1])
    }

    /// Whether this master is in the old set.
    pub(crate) fn is_old(self, node: usize) -> bool {
        self.sets[0].has(node)
    }

    /// Whether this master is in the next set, which replaces the old set.
    pub(crate) fn is_next(self, node: usize) -> bool {
        self.sets[1].has(node)
    }

    /// The number of all masters. While masters are replaced, a master in both the old and the new set counts once.
    pub(crate) const fn nodes(self) -> usize {
        self.sets[0].or(self.sets[1]).len()
    }

    /// The smallest number of masters that can be a quorum: `floor(N / 2) + 1` for one set. For two sets, the smallest
    /// number that can include a majority of each set.
    pub(crate) fn size(self) -> usize {
        let [old, next] = self.sets;
        let shared = if old == next { old } else { old.and(next) };
        let [old_majority, next_majority] = [majority(old), majority(next)];
        old_majority + next_majority - shared.len().min(old_majority).min(next_majority)
    }

    /// Whether these masters include a majority of each set.
    pub(crate) fn is_met_by(self, masters: MasterSet) -> bool {
        self.sets.iter().all(|set| in_majority(*set, masters))
    }

    /// Whether these masters include a majority of the old set, or a majority of the next set.
    pub(crate) fn is_met_in_one_set(self, masters: MasterSet) -> bool {
        self.sets.iter().any(|set| in_majority(*set, masters))
    }

    /// Whether a majority of each set remains without these masters.
    pub(crate) fn is_possible_without(self, excluded: MasterSet) -> bool {
        self.is_met_by(MasterSet(!excluded.0))
    }

    /// Sorts `reports`, a list of pairs: a value, and the index of the master that reported the value. Then takes
    /// masters in this order until they form a quorum, and returns the value of the last master taken. Returns `None`
    /// if all masters in `reports` form no quorum.
    pub(crate) fn first_met<T: Ord + Copy>(self, reports: &mut [(T, usize)]) -> Option<T> {
        reports.sort_unstable();
        let mut counted = MasterSet::default();
        reports.iter().find_map(|(value, node)| {
            counted.add(*node);
            self.is_met_by(counted).then_some(*value)
        })
    }
}

const fn majority(set: MasterSet) -> usize {
    set.len() / 2 + 1
}

const fn in_majority(set: MasterSet, masters: MasterSet) -> bool {
    set.and(masters).len() >= majority(set)
}

/// The result of a vote so far. Once it is not `Pending` it never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The missing votes can still decide either way.
    Pending,
    /// A majority voted yes.
    Won,
    /// A majority has become impossible, whatever the silent masters answer.
    Failed,
}

/// Why a round of votes was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A majority of the masters answered, but too few of them voted yes.
    Contention,
    /// Too many masters failed for a majority to answer.
    Outage,
}

/// Counts grants, refusals and faults separately, because a fault is neither a grant nor a refusal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    quorum: Quorum,
    yes: MasterSet,
    no: MasterSet,
    faults: MasterSet,
}

impl Tally {
    pub(crate) const fn new(quorum: Quorum) -> Self {
        Self {
            quorum,
            yes: MasterSet(0),
            no: MasterSet(0),
            faults: MasterSet(0),
        }
    }

    pub(crate) fn add_yes(&mut self, node: usize) {
        self.yes.add(node);
    }

    pub(crate) fn add_no(&mut self, node: usize) {
        self.no.add(node);
    }

    pub(crate) fn add_fault(&mut self, node: usize) {
        self.faults.add(node);
    }

    /// `Won` needs a majority of both the old and the next set. If a majority of one of these sets is impossible, the
    /// verdict is `Lost`.
    pub(crate) fn verdict(&self) -> Verdict {
        if self.quorum.is_met_by(self.yes) {
            Verdict::Won
        } else if !self.quorum.is_possible_without(self.no.or(self.faults)) {
            Verdict::Failed
        } else {
            Verdict::Pending
        }
    }

    /// Why the vote is lost; `None` until the reason is certain. `Contention`: a majority of each set answered, but too
    /// few masters voted yes. `Outage`: no majority of one set can answer, because too many of its masters failed.
    pub(crate) fn reason(&self) -> Option<Reason> {
        if self.quorum.is_met_by(self.yes.or(self.no)) {
            Some(Reason::Contention)
        } else if !self.is_possible_without_faults() {
            Some(Reason::Outage)
        } else {
            None
        }
    }

    /// Whether a majority of each set remains without the masters that failed.
    pub(crate) fn is_possible_without_faults(&self) -> bool {
        self.quorum.is_possible_without(self.faults)
    }

    /// Whether a majority of each set remains without the masters that refused. Masters that failed count as masters
    /// that can still vote.
    pub(crate) fn is_possible_without_refusals(&self) -> bool {
        self.quorum.is_possible_without(self.no)
    }

    /// Whether a majority of the old set refused, or a majority of the next set.
    pub(crate) fn has_majority_refused(&self) -> bool {
        self.quorum.is_met_in_one_set(self.no)
    }

    /// Whether the vote of every master has been counted.
    pub(crate) fn complete(&self) -> bool {
        self.yes.or(self.no).or(self.faults).len() >= self.quorum.nodes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(nodes: usize, yes: usize, no: usize, faults: usize) -> Tally {
        let mut tally = Tally::new(Quorum::new(nodes));
        let (no, faults) = (yes + no, yes + no + faults);
        (0..yes).for_each(|node| tally.add_yes(node));
        (yes..no).for_each(|node| tally.add_no(node));
        (no..faults).for_each(|node| tally.add_fault(node));
        tally
    }

    #[test]
    fn debug_text_of_a_quorum_shows_the_majority_of_each_set_of_masters() {
        assert_eq!(format!("{:?}", Quorum::new(5)), "3 of 5");
        let joint = Quorum::joint(MasterSet::first(3), MasterSet::first(4));
        assert_eq!(format!("{joint:?}"), "2 of 3 and 3 of 4");
    }

    #[test]
    fn majority_is_counted_over_all_configured_masters() {
        let sizes: Vec<_> = (1..=9).map(|n| Quorum::new(n).size()).collect();
        assert_eq!(sizes, [1, 2, 2, 3, 3, 4, 4, 5, 5]);
    }

    #[test]
    fn verdict_of_a_round_of_votes_is_given_as_soon_as_it_is_certain() {
        assert_eq!(tally(5, 2, 0, 0).verdict(), Verdict::Pending);
        assert_eq!(tally(5, 3, 0, 0).verdict(), Verdict::Won);
        assert_eq!(tally(5, 2, 2, 0).verdict(), Verdict::Pending);
        assert_eq!(tally(5, 0, 2, 1).verdict(), Verdict::Failed);
        // With an even number of masters, a vote of 2 to 2 is lost. It must not stay pending.
        assert_eq!(tally(4, 2, 2, 0).verdict(), Verdict::Failed);
        assert_eq!(tally(4, 0, 2, 0).verdict(), Verdict::Failed);
        assert_eq!(tally(1, 0, 0, 1).verdict(), Verdict::Failed);
    }

    #[test]
    fn lost_round_of_votes_distinguishes_outage_from_contention() {
        assert_eq!(tally(5, 0, 3, 0).reason(), Some(Reason::Contention));
        assert_eq!(tally(5, 0, 0, 3).reason(), Some(Reason::Outage));
        // With two refusals and one fault the round is lost, but the reason depends on the two silent masters.
        assert_eq!(tally(5, 0, 2, 1).reason(), None);
        assert_eq!(tally(5, 0, 2, 3).reason(), Some(Reason::Outage));
        assert_eq!(tally(5, 1, 2, 1).reason(), Some(Reason::Contention));
    }

    #[test]
    fn verdict_of_a_round_never_changes_after_it_is_decided() {
        for nodes in 1..=7usize {
            // Tries every sequence of answers (yes, no, fault) of all masters, encoded as digits in base three.
            for code in 0..3usize.pow(nodes as u32) {
                let mut tally = Tally::new(Quorum::new(nodes));
                let (mut decided_verdict, mut rest) = (Verdict::Pending, code);
                for node in 0..nodes {
                    match rest % 3 {
                        0 => tally.add_yes(node),
                        1 => tally.add_no(node),
                        _ => tally.add_fault(node),
                    }
                    rest /= 3;
                    let verdict = tally.verdict();
                    if decided_verdict != Verdict::Pending {
                        assert_eq!(
                            verdict, decided_verdict,
                            "later votes must not change a verdict: {nodes} nodes, votes {code}"
                        );
                    }
                    decided_verdict = verdict;
                }
                assert_ne!(
                    decided_verdict,
                    Verdict::Pending,
                    "the votes of all nodes must decide: {nodes} nodes, votes {code}"
                );
            }
        }
    }

    /// An old set of `old` masters and a next set of `next` masters, which have `shared` masters in common.
    fn sets(old: usize, next: usize, shared: usize) -> [MasterSet; 2] {
        let from = old - shared;
        [
            MasterSet::first(old),
            (from..from + next).collect::<MasterSet>(),
        ]
    }

    /// Pairs of old and next sets of several sizes, with every possible number of shared masters.
    fn pairs_of_sets() -> impl Iterator<Item = [MasterSet; 2]> {
        let sizes = [(3, 3), (3, 5), (5, 3), (1, 3), (4, 3), (2, 2)];
        sizes.into_iter().flat_map(|(old, next)| {
            (0..=usize::min(old, next)).map(move |shared| sets(old, next, shared))
        })
    }

    /// How many masters of one set gave one of the answers in `counted_votes`. This function does not use the code
    /// under test.
    fn count_votes(set: MasterSet, votes: &[char], counted_votes: &str) -> usize {
        let counts = |(node, vote): &(usize, &char)| {
            set.0 >> node & 1 == 1 && counted_votes.contains(**vote)
        };
        votes.iter().enumerate().filter(counts).count()
    }

    /// All combinations of answers: yes, no, fault, none.
    fn outcomes(nodes: usize) -> impl Iterator<Item = Vec<char>> {
        let vote_digit = |code: usize, node: usize| ['y', 'n', 'f', '.'][code >> (2 * node) & 3];
        (0..1usize << (2 * nodes))
            .map(move |code| (0..nodes).map(|n| vote_digit(code, n)).collect())
    }

    fn tally_of(quorum: Quorum, votes: &[char]) -> Tally {
        let mut tally = Tally::new(quorum);
        for (node, vote) in votes.iter().enumerate() {
            match vote {
                'y' => tally.add_yes(node),
                'n' => tally.add_no(node),
                'f' => tally.add_fault(node),
                _ => {}
            }
        }
        tally
    }

    #[test]
    fn verdict_of_a_joint_quorum_depends_on_a_majority_of_each_set() {
        for sets in pairs_of_sets() {
            let quorum = Quorum::joint(sets[0], sets[1]);
            for votes in outcomes(quorum.nodes()) {
                let tally = tally_of(quorum, &votes);
                let count_in = |set: MasterSet, letters: &str| count_votes(set, &votes, letters);
                let majority_of = |set: MasterSet| set.len() / 2 + 1;
                let in_each_set =
                    |holds: &dyn Fn(MasterSet) -> bool| sets.iter().all(|set| holds(*set));
                let is_won = in_each_set(&|set| count_in(set, "y") >= majority_of(set));
                let is_open = in_each_set(&|set| count_in(set, "y.") >= majority_of(set));
                let verdict = match (is_won, is_open) {
                    (true, _) => Verdict::Won,
                    (_, true) => Verdict::Pending,
                    _ => Verdict::Failed,
                };
                assert_eq!(tally.verdict(), verdict, "{sets:?} {votes:?}");
                let majority_denied = !in_each_set(&|set| count_in(set, "n") < majority_of(set));
                assert_eq!(
                    tally.has_majority_refused(),
                    majority_denied,
                    "{sets:?} {votes:?}"
                );
                let usable = in_each_set(&|set| count_in(set, "yn.") >= majority_of(set));
                assert_eq!(
                    tally.is_possible_without_faults(),
                    usable,
                    "{sets:?} {votes:?}"
                );
                let reason = if in_each_set(&|set| count_in(set, "yn") >= majority_of(set)) {
                    Some(Reason::Contention)
                } else {
                    (!usable).then_some(Reason::Outage)
                };
                assert_eq!(tally.reason(), reason, "{sets:?} {votes:?}");
                assert_eq!(
                    tally.complete(),
                    !votes.contains(&'.'),
                    "{sets:?} {votes:?}"
                );
            }
        }
    }

    /// Whether two clients can both win if each master votes for only one of them.
    fn two_can_win(first: impl Fn(MasterSet) -> bool, second: impl Fn(MasterSet) -> bool) -> bool {
        (0..1u64 << 10).any(|yes| first(MasterSet(yes)) && second(MasterSet(!yes)))
    }

    #[test]
    fn joint_quorum_shares_a_master_with_every_majority_of_either_set() {
        let (mut union, mut alone) = (0, 0);
        for [old, next] in pairs_of_sets() {
            let joint = Quorum::joint(old, next);
            let meets_quorum = |quorum: Quorum| move |votes| quorum.is_met_by(votes);
            let only = |set| meets_quorum(Quorum::joint(set, set));
            for other in [only(old), only(next), meets_quorum(joint)] {
                assert!(!two_can_win(meets_quorum(joint), other), "{old:?} {next:?}");
            }
            union += u32::from(two_can_win(only(old.or(next)), only(old)));
            union += u32::from(two_can_win(only(old.or(next)), only(next)));
            alone += u32::from(two_can_win(only(old), only(next)));
        }
        // Two simpler rules are unsafe, so these shapes must show it: `union` counts all masters, `alone` only one set.
        assert!(union > 5 && alone > 10, "{union} {alone}");
    }

    #[test]
    fn masters_in_both_sets_reduce_the_size_of_a_joint_quorum() {
        for ([old, next], size) in [
            (sets(3, 3, 3), 2),
            (sets(3, 3, 2), 2),
            (sets(3, 3, 1), 3),
            (sets(3, 3, 0), 4),
            (sets(3, 5, 3), 3),
            (sets(5, 3, 3), 3),
            (sets(5, 3, 0), 5),
        ] {
            let quorum = Quorum::joint(old, next);
            assert_eq!(quorum.size(), size, "{old:?} {next:?}");
            let meets_quorum = |votes: &u64| quorum.is_met_by(MasterSet(*votes));
            let fewest = (0..1u64 << 8)
                .filter(meets_quorum)
                .map(u64::count_ones)
                .min();
            assert_eq!(fewest, u32::try_from(size).ok(), "{old:?} {next:?}");
        }
    }

    #[test]
    fn joint_quorum_is_reached_when_both_sets_have_a_majority() {
        let quorum = Quorum::joint(MasterSet::first(3), (3..6).collect());
        let mut reports = [(9, 3), (1, 0), (2, 1), (3, 2), (4, 4)];
        assert_eq!(quorum.first_met(&mut reports), Some(9));
        assert_eq!(quorum.first_met(&mut reports[..4]), None);
        assert_eq!(Quorum::new(3).first_met(&mut [(7, 2), (5, 0)]), Some(7));
    }

    #[test]
    fn master_counted_twice_has_one_vote() {
        let mut tally = Tally::new(Quorum::new(3));
        tally.add_yes(1);
        tally.add_yes(1);
        assert_eq!(tally.verdict(), Verdict::Pending);
        assert_eq!(
            MasterSet::single(64),
            MasterSet::default(),
            "a set must not contain a 65th master"
        );
        assert_eq!(MasterSet::first(64), MasterSet(u64::MAX));
    }
}
