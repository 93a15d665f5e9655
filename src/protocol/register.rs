//! How a client counts the masters' answers when it reads or writes the value under a lock (a quota or a
//! once-per-period record).
//!
//! After a restart, a master may have lost its value, or may show an outdated copy. So a read counts only masters with
//! a value that the client trusts.

use super::quorum::{MasterSet, Quorum};

/// How the reader counts one master's answer to a read of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadVote {
    /// The master has a value that this client trusts (`StoredValue::trusted`). The number is the fencing token of the
    /// value's writer.
    Value(u64),
    /// The master has no value: it never had one, or has lost it.
    Nothing,
    /// The master has a value that may be outdated, because it was written before the last restart of the server
    /// process.
    Old,
    /// The master refused the read: the reader does not hold the lock there, or the master has seen a larger fencing
    /// token.
    Refused,
    /// The master gave no usable answer.
    Fault,
}

/// The result of reading the value from all masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadVerdict {
    /// The master with this index has the current value.
    Found(usize),
    /// There is no value: no master shows one. Without the masters that reported that they have none, no majority is
    /// left.
    Missing,
    /// Some masters show a value, but the other masters have none, or only a copy from before a restart. No majority
    /// with a trusted value is possible, so a newer value may be lost.
    Lost,
    /// A majority reports that the reader does not hold the lock any more.
    NotOurs,
    /// Too few masters answered.
    Outage,
}

/// Finds the current value. If a majority of masters shows a value, the value with the largest fencing token is the
/// current one. Returns `None` while more answers are needed.
///
/// Every acknowledged write is on a majority, and any two majorities share a master. So the answers of a majority
/// include the last acknowledged write or a later one.
pub(crate) fn judge_read(quorum: Quorum, votes: &[Option<ReadVote>]) -> Option<ReadVerdict> {
    let values = votes
        .iter()
        .enumerate()
        .filter_map(|(node, vote)| match vote {
            Some(ReadVote::Value(number)) => Some((*number, node)),
            _ => None,
        });
    if quorum.is_met_by(values.clone().map(|(_, node)| node).collect()) {
        return values.max().map(|(_, node)| ReadVerdict::Found(node));
    }
    if votes.iter().any(Option::is_none) {
        return None;
    }
    let masters_with = |vote: ReadVote| masters_with_vote(votes, vote);
    let (nothing, old_copies) = (masters_with(ReadVote::Nothing), masters_with(ReadVote::Old));
    let copies_shown = values.count() + old_copies.len();
    Some(if !quorum.is_possible_without(nothing.or(old_copies)) {
        if copies_shown == 0 {
            ReadVerdict::Missing
        } else {
            ReadVerdict::Lost
        }
    } else if !quorum.is_possible_without(masters_with(ReadVote::Refused)) {
        ReadVerdict::NotOurs
    } else {
        ReadVerdict::Outage
    })
}

/// Whether a majority of the masters shows the value that a read has found on the master `found`.
///
/// If not, its write was not acknowledged, and the next read may miss it. So a client that has found such a value must
/// write it again before it reports the value.
pub(crate) fn is_on_majority(quorum: Quorum, votes: &[Option<ReadVote>], found: usize) -> bool {
    match votes.get(found) {
        Some(Some(value @ ReadVote::Value(_))) => {
            quorum.is_met_by(masters_with_vote(votes, *value))
        }
        _ => false,
    }
}

fn masters_with_vote<T: PartialEq>(votes: &[Option<T>], wanted_vote: T) -> MasterSet {
    let votes = votes.iter().enumerate();
    votes
        .filter(|(_, vote)| vote.as_ref() == Some(&wanted_vote))
        .map(|(node, _)| node)
        .collect()
}

/// Whether the first value may be created, according to the answers of all masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vacancy {
    /// Every master reports that it has no value, so the first value may be created.
    Vacant,
    /// Some master has a value.
    Occupied,
    /// Some master gave no usable answer, so no value may be created.
    Unknown,
}

/// Whether a first value may be created: only if **all** masters report that they have none, because a silent master
/// may still have a value. `None` while answers are missing.
pub(crate) fn vacancy(votes: &[Option<ReadVote>]) -> Option<Vacancy> {
    let votes: Vec<ReadVote> = votes.iter().copied().collect::<Option<_>>()?;
    let shows_value = |vote: &ReadVote| matches!(vote, ReadVote::Value(_) | ReadVote::Old);
    Some(if votes.iter().any(shows_value) {
        Vacancy::Occupied
    } else if votes.iter().all(|vote| *vote == ReadVote::Nothing) {
        Vacancy::Vacant
    } else {
        Vacancy::Unknown
    })
}

/// How the writer counts one master's answer to a write of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteVote {
    /// The write counts if the master has written the value, and has not restarted since it answered the read before
    /// this write. In addition, one of these conditions is met:
    ///
    /// - The master showed a trusted value in that read.
    /// - Every master reported in that read that it has no value.
    Counted,
    /// The master wrote the value, but does not meet the conditions of [`Counted`](Self::Counted).
    Refilled,
    /// The master certainly did not write the value, for example because it refused.
    NotWritten,
    /// The master may have written the value.
    Unknown,
}

/// The result of writing the value to all masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteVerdict {
    /// The write succeeded: the new value is the current one.
    Written,
    /// The write failed: no master has the new value.
    Nowhere,
    /// Some masters have the new value, or may have it.
    Unknown,
}

/// The result of a write; `None` while more answers are needed. The write succeeds if a majority voted
/// [`Counted`](WriteVote::Counted).
pub(crate) fn judge_write(quorum: Quorum, votes: &[Option<WriteVote>]) -> Option<WriteVerdict> {
    if quorum.is_met_by(masters_with_vote(votes, WriteVote::Counted)) {
        return Some(WriteVerdict::Written);
    }
    if votes.iter().any(Option::is_none) {
        return None;
    }
    Some(
        if masters_with_vote(votes, WriteVote::NotWritten).len() == votes.len() {
            WriteVerdict::Nowhere
        } else {
            WriteVerdict::Unknown
        },
    )
}

/// How the old and the next masters get the same value while masters are replaced: copy the value to all of them, or
/// remove it from all. Decided after a read of all old and next masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CarryDecision {
    /// The value of the master with this index must be written to the old and the next masters.
    Value(usize),
    /// The value was removed: a majority of the old masters has no value, and only next masters show one. The client
    /// must remove the value from the next masters as well.
    Removed,
    /// No master shows a value.
    Nowhere,
    /// Some old masters show a value, but no majority of the old masters does. The value is lost, or its creation or
    /// removal did not reach a majority.
    Lost,
    /// Too few masters answered, or the reader does not hold the lock any more.
    Undecided,
}

/// Decides how to copy or remove a value while masters are replaced. Every master must have answered or failed.
///
/// Only the old masters decide, because every acknowledged value is on a majority of them. A master without a value, or
/// with a copy from before a restart, is not part of this majority: it may have lost a newer value.
pub(crate) fn judge_carry(quorum: Quorum, votes: &[ReadVote]) -> CarryDecision {
    let old = quorum.old_only();
    let masters_with = |is: fn(ReadVote) -> bool| masters_where(votes, |_, vote| is(vote));
    let showing = masters_with(|vote| matches!(vote, ReadVote::Value(_)));
    let old_copies = masters_with(|vote| vote == ReadVote::Old);
    let nothing = masters_with(|vote| vote == ReadVote::Nothing);
    if old.is_met_by(showing) {
        let largest = votes
            .iter()
            .enumerate()
            .filter_map(|(node, vote)| match vote {
                ReadVote::Value(number) if quorum.is_old(node) => Some((*number, node)),
                _ => None,
            });
        return largest.max().map_or(CarryDecision::Undecided, |(_, node)| {
            CarryDecision::Value(node)
        });
    }
    let showing_any = showing.or(old_copies);
    let is_shown_by_old = (0..votes.len()).any(|node| showing_any.has(node) && quorum.is_old(node));
    if is_shown_by_old && !old.is_possible_without(nothing.or(old_copies)) {
        CarryDecision::Lost
    } else if !old.is_met_by(nothing) {
        CarryDecision::Undecided
    } else if showing_any == MasterSet::default() {
        CarryDecision::Nowhere
    } else {
        CarryDecision::Removed
    }
}

fn masters_where(votes: &[ReadVote], is_selected: impl Fn(usize, ReadVote) -> bool) -> MasterSet {
    let votes = votes.iter().enumerate();
    let selected = votes.filter(|(node, vote)| is_selected(*node, **vote));
    selected.map(|(node, _)| node).collect()
}

/// Whether a copied value is on a majority of the old masters and on a majority of the next masters.
///
/// - `written`: the masters that stored the value and have not restarted since the read.
/// - `open`: the next masters on which clients that know only the next masters can already acquire locks.
///
/// Only these masters in `written` count:
///
/// - every master that showed a trusted value in the read
/// - every next master that reported in the read that it has no value, if it is neither an old master nor in `open`
pub(crate) fn is_carried(
    quorum: Quorum,
    read: &[ReadVote],
    written: MasterSet,
    open: MasterSet,
) -> bool {
    let has_copy =
        |node: usize, vote: ReadVote| written.has(node) && matches!(vote, ReadVote::Value(_));
    let is_empty_next = |node: usize, vote: ReadVote| {
        let next_only = !quorum.is_old(node) && !open.has(node);
        written.has(node) && next_only && vote == ReadVote::Nothing
    };
    let next_masters = masters_where(read, |node, vote| {
        has_copy(node, vote) || is_empty_next(node, vote)
    });
    quorum.old_only().is_met_by(masters_where(read, has_copy))
        && quorum.next_only().is_met_by(next_masters)
}

/// Whether a removal is complete: a majority of the old and a majority of the next masters have executed it, and so has
/// every master that showed a value.
pub(crate) fn is_removed(quorum: Quorum, read: &[ReadVote], written: MasterSet) -> bool {
    let still_has_value = |node: usize, vote: ReadVote| {
        !written.has(node) && matches!(vote, ReadVote::Value(_) | ReadVote::Old)
    };
    quorum.is_met_by(written) && masters_where(read, still_has_value) == MasterSet::default()
}

#[cfg(test)]
mod tests {
    use super::ReadVote::{Fault, Nothing, Old, Refused, Value};
    use super::WriteVote::{Counted, NotWritten, Refilled, Unknown};
    use super::*;

    fn reading(votes: &[ReadVote]) -> Option<ReadVerdict> {
        let votes: Vec<_> = votes.iter().copied().map(Some).collect();
        judge_read(Quorum::new(votes.len()), &votes)
    }

    #[test]
    fn value_read_returns_the_value_with_the_largest_token_among_a_majority() {
        for (votes, verdict) in [
            (&[Value(7), Value(9), Value(8)][..], ReadVerdict::Found(1)),
            (&[Value(7), Value(7), Fault], ReadVerdict::Found(1)),
            (&[Nothing, Value(7), Value(9)], ReadVerdict::Found(2)),
            (&[Old, Value(9), Value(7)], ReadVerdict::Found(1)),
            (&[Refused, Value(9), Value(7)], ReadVerdict::Found(1)),
            (
                &[Value(3), Old, Nothing, Value(4), Value(2)],
                ReadVerdict::Found(3),
            ),
        ] {
            assert_eq!(reading(votes), Some(verdict), "{votes:?}");
        }
    }

    #[test]
    fn value_is_on_a_majority_only_if_one_token_is() {
        let is_settled = |votes: &[ReadVote], found| {
            let votes: Vec<_> = votes.iter().copied().map(Some).collect();
            is_on_majority(Quorum::new(votes.len()), &votes, found)
        };
        assert!(is_settled(&[Value(7), Value(7), Fault], 0));
        assert!(is_settled(&[Value(7), Value(9), Value(7)], 0));
        assert!(!is_settled(&[Value(7), Value(9), Value(7)], 1));
        assert!(!is_settled(&[Value(7), Value(9), Old], 1));
        assert!(!is_settled(&[Nothing, Nothing, Value(7)], 0));
        let undecided = [Some(Value(7)), None, None];
        assert!(!is_on_majority(Quorum::new(3), &undecided, 0));
    }

    #[test]
    fn failed_value_read_returns_its_cause() {
        for (votes, verdict) in [
            (&[Value(7), Nothing, Nothing][..], ReadVerdict::Lost),
            (&[Value(7), Old, Nothing], ReadVerdict::Lost),
            (&[Old, Old, Old], ReadVerdict::Lost),
            (&[Old, Nothing, Fault], ReadVerdict::Lost),
            (&[Nothing, Nothing, Nothing], ReadVerdict::Missing),
            (&[Nothing, Nothing, Fault], ReadVerdict::Missing),
            (&[Value(7), Nothing, Fault], ReadVerdict::Outage),
            (&[Value(7), Fault, Fault], ReadVerdict::Outage),
            (&[Nothing, Fault, Fault], ReadVerdict::Outage),
            (&[Value(7), Refused, Refused], ReadVerdict::NotOurs),
            (&[Value(7), Refused, Nothing], ReadVerdict::Outage),
            (&[Value(7), Value(7), Nothing, Nothing], ReadVerdict::Lost),
        ] {
            assert_eq!(reading(votes), Some(verdict), "{votes:?}");
        }
    }

    #[test]
    fn read_of_a_value_waits_for_values_from_a_majority_or_for_all_answers() {
        let verdict_of = |votes: &[Option<ReadVote>]| judge_read(Quorum::new(3), votes);
        assert_eq!(verdict_of(&[Some(Value(7)), None, None]), None);
        assert_eq!(verdict_of(&[Some(Nothing), Some(Nothing), None]), None);
        let expected = Some(ReadVerdict::Found(0));
        assert_eq!(
            verdict_of(&[Some(Value(7)), Some(Value(6)), None]),
            expected
        );
    }

    #[test]
    fn value_is_created_only_if_every_master_reports_no_value() {
        let verdict_of = |votes: &[ReadVote]| {
            let votes: Vec<_> = votes.iter().copied().map(Some).collect();
            vacancy(&votes)
        };
        assert_eq!(
            verdict_of(&[Nothing, Nothing, Nothing]),
            Some(Vacancy::Vacant)
        );
        assert_eq!(
            verdict_of(&[Nothing, Nothing, Fault]),
            Some(Vacancy::Unknown)
        );
        assert_eq!(
            verdict_of(&[Nothing, Nothing, Refused]),
            Some(Vacancy::Unknown)
        );
        assert_eq!(
            verdict_of(&[Nothing, Value(1), Fault]),
            Some(Vacancy::Occupied)
        );
        assert_eq!(
            verdict_of(&[Nothing, Old, Nothing]),
            Some(Vacancy::Occupied)
        );
        assert_eq!(vacancy(&[Some(Nothing), Some(Nothing), None]), None);
    }

    #[test]
    fn write_of_a_value_succeeds_only_on_a_majority_that_had_answered_the_read() {
        let verdict_of = |votes: &[WriteVote]| {
            let votes: Vec<_> = votes.iter().copied().map(Some).collect();
            judge_write(Quorum::new(votes.len()), &votes)
        };
        for (votes, verdict) in [
            (&[Counted, Counted, Unknown][..], WriteVerdict::Written),
            (&[Counted, Counted, NotWritten], WriteVerdict::Written),
            (&[Counted, Refilled, Refilled], WriteVerdict::Unknown),
            (&[Counted, Unknown, Unknown], WriteVerdict::Unknown),
            (&[Counted, NotWritten, NotWritten], WriteVerdict::Unknown),
            (&[Refilled, NotWritten, NotWritten], WriteVerdict::Unknown),
            (&[Unknown, NotWritten, NotWritten], WriteVerdict::Unknown),
            (&[NotWritten, NotWritten, NotWritten], WriteVerdict::Nowhere),
        ] {
            assert_eq!(verdict_of(votes), Some(verdict), "{votes:?}");
        }
        let open = [Some(Counted), Some(Refilled), None];
        assert_eq!(judge_write(Quorum::new(3), &open), None);
        let decided = [Some(Counted), None, Some(Counted)];
        assert_eq!(
            judge_write(Quorum::new(3), &decided),
            Some(WriteVerdict::Written)
        );
    }

    /// A joint quorum of two sets. The last `both` of the old masters are also the first `both` of the next masters.
    fn sets(old: usize, both: usize, next: usize) -> Quorum {
        let node_range = |from: usize, count: usize| (from..from + count).collect();
        Quorum::joint(node_range(0, old), node_range(old - both, next))
    }

    #[test]
    fn newest_value_is_copied_if_a_majority_of_the_old_masters_has_a_value() {
        let quorum = sets(3, 1, 3);
        for (votes, verdict) in [
            (
                [Value(7), Value(9), Value(8), Nothing, Nothing],
                CarryDecision::Value(1),
            ),
            (
                [Value(7), Nothing, Value(5), Value(9), Value(9)],
                CarryDecision::Value(0),
            ),
            (
                [Fault, Value(4), Value(5), Fault, Fault],
                CarryDecision::Value(2),
            ),
            // Only one old master shows a value; the second old master has none.
            (
                [Fault, Nothing, Value(5), Value(5), Value(5)],
                CarryDecision::Undecided,
            ),
            (
                [Nothing, Nothing, Value(5), Value(5), Value(5)],
                CarryDecision::Lost,
            ),
            (
                [Old, Nothing, Nothing, Nothing, Nothing],
                CarryDecision::Lost,
            ),
            (
                [Old, Value(3), Old, Value(3), Value(3)],
                CarryDecision::Lost,
            ),
            (
                [Value(3), Refused, Refused, Value(3), Value(3)],
                CarryDecision::Undecided,
            ),
            (
                [Nothing, Nothing, Nothing, Value(5), Fault],
                CarryDecision::Removed,
            ),
            (
                [Nothing, Fault, Nothing, Fault, Old],
                CarryDecision::Removed,
            ),
            (
                [Nothing, Fault, Fault, Value(5), Value(5)],
                CarryDecision::Undecided,
            ),
            (
                [Nothing, Fault, Nothing, Nothing, Fault],
                CarryDecision::Nowhere,
            ),
            (
                [Fault, Fault, Fault, Nothing, Nothing],
                CarryDecision::Undecided,
            ),
        ] {
            assert_eq!(judge_carry(quorum, &votes), verdict, "{votes:?}");
        }
    }

    #[test]
    fn value_acknowledged_by_the_old_masters_is_never_dropped() {
        for quorum in [sets(3, 1, 3), sets(2, 1, 2), sets(3, 2, 2), sets(2, 2, 3)] {
            for votes in all_votes(quorum.nodes()) {
                let old_masters_where = |is_selected: fn(&ReadVote) -> bool| {
                    let numbered_votes = votes.iter().enumerate();
                    let old_votes = numbered_votes
                        .filter(|(node, vote)| quorum.is_old(*node) && is_selected(vote));
                    old_votes.map(|(node, _)| node).collect::<MasterSet>()
                };
                let old = quorum.old_only();
                let masters_with_value = old_masters_where(|vote| matches!(vote, Value(_)));
                let masters_with_copy = old_masters_where(|vote| matches!(vote, Value(_) | Old));
                let masters_without_value = old_masters_where(|vote| *vote == Nothing);
                match judge_carry(quorum, &votes) {
                    CarryDecision::Value(node) => {
                        assert!(
                            old.is_met_by(masters_with_value) && masters_with_value.has(node),
                            "{votes:?}"
                        );
                        let Value(number) = votes[node] else {
                            panic!("the chosen master must show a value: {votes:?}");
                        };
                        let larger = |(node, vote): (usize, &ReadVote)| {
                            masters_with_value.has(node)
                                && matches!(vote, Value(other) if *other > number)
                        };
                        assert!(!votes.iter().enumerate().any(larger), "{votes:?}");
                    }
                    CarryDecision::Removed | CarryDecision::Nowhere => {
                        assert!(old.is_met_by(masters_without_value), "{votes:?}");
                        assert_eq!(masters_with_copy.len(), 0, "{votes:?}");
                    }
                    CarryDecision::Lost => {
                        assert!(
                            !old.is_met_by(masters_with_value) && masters_with_copy.len() > 0,
                            "{votes:?}"
                        );
                    }
                    CarryDecision::Undecided => {
                        assert!(!old.is_met_by(masters_with_value), "{votes:?}");
                    }
                }
            }
        }
    }

    /// All combinations of answers of this number of masters.
    fn all_votes(masters: usize) -> Vec<Vec<ReadVote>> {
        let vote_kinds = [Value(1), Value(2), Nothing, Old, Refused, Fault];
        let mut all_combinations = vec![Vec::new()];
        for _ in 0..masters {
            let with =
                |votes: &Vec<ReadVote>| vote_kinds.map(|vote| [&votes[..], &[vote]].concat());
            all_combinations = all_combinations.iter().flat_map(with).collect();
        }
        all_combinations
    }

    #[test]
    fn copy_of_a_value_does_not_count_on_a_master_that_may_have_lost_data() {
        let quorum = sets(3, 1, 3);
        let none = MasterSet::default();
        let verdict_of = |read_votes: [ReadVote; 5], written: &[usize], open| {
            is_carried(quorum, &read_votes, written.iter().copied().collect(), open)
        };
        let read_votes = [Value(1), Value(2), Nothing, Nothing, Nothing];
        assert!(verdict_of(read_votes, &[0, 1, 3, 4], none));
        assert!(
            !verdict_of(read_votes, &[0, 1, 4], none),
            "the copy must fail if only a minority of the next masters has the value"
        );
        assert!(
            !verdict_of(read_votes, &[0, 2, 3, 4], none),
            "an old master without a value must not count as a copy, because it may have lost a later value"
        );
        assert!(
            !verdict_of(read_votes, &[0, 1, 2, 3], none),
            "a master of both sets must not count as a copy if it did not show the value"
        );
        assert!(
            !verdict_of(read_votes, &[0, 1, 3, 4], MasterSet::single(4)),
            "an open master must not count as a copy, because clients may have written a later value to it"
        );
        let read_votes = [Value(1), Value(2), Value(2), Nothing, Old];
        assert!(verdict_of(read_votes, &[0, 2, 3], none));
        assert!(
            !verdict_of(read_votes, &[0, 2, 4], none),
            "a master with a value from an earlier server run must not count, because it may have lost a later value"
        );
    }

    #[test]
    fn removal_must_reach_a_majority_of_each_set_and_every_master_with_the_value() {
        let read_votes = [Nothing, Nothing, Nothing, Value(3), Fault];
        let verdict_of = |written: &[usize]| {
            is_removed(
                sets(3, 1, 3),
                &read_votes,
                written.iter().copied().collect(),
            )
        };
        assert!(verdict_of(&[0, 1, 2, 3]) && verdict_of(&[1, 2, 3]));
        assert!(
            !verdict_of(&[0, 1, 2, 4]),
            "the removal must fail while a master that showed the value may still have it"
        );
        assert!(
            !verdict_of(&[0, 1, 3]) && !verdict_of(&[2, 3, 4]),
            "the removal must fail if it reaches only a minority of the old or of the next masters"
        );
    }
}
