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
pub(crate) enum Reading {
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
pub(crate) fn read(quorum: Quorum, votes: &[Option<ReadVote>]) -> Option<Reading> {
    let values = votes
        .iter()
        .enumerate()
        .filter_map(|(node, vote)| match vote {
            Some(ReadVote::Value(number)) => Some((*number, node)),
            _ => None,
        });
    if quorum.is_met_by(values.clone().map(|(_, node)| node).collect()) {
        return values.max().map(|(_, node)| Reading::Found(node));
    }
    if votes.iter().any(Option::is_none) {
        return None;
    }
    let who = |of: ReadVote| who_said(votes, of);
    let (nothing, old) = (who(ReadVote::Nothing), who(ReadVote::Old));
    let shown = values.count() + old.len();
    Some(if !quorum.possible_without(nothing.or(old)) {
        if shown == 0 {
            Reading::Missing
        } else {
            Reading::Lost
        }
    } else if !quorum.possible_without(who(ReadVote::Refused)) {
        Reading::NotOurs
    } else {
        Reading::Outage
    })
}

fn who_said<T: PartialEq>(votes: &[Option<T>], what: T) -> MasterSet {
    let votes = votes.iter().enumerate();
    votes
        .filter(|(_, vote)| vote.as_ref() == Some(&what))
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
    Untold,
}

/// Whether a first value may be created: only if **all** masters report that they have none, because a silent master
/// may still have a value. `None` while answers are missing.
pub(crate) fn vacancy(votes: &[Option<ReadVote>]) -> Option<Vacancy> {
    let votes: Vec<ReadVote> = votes.iter().copied().collect::<Option<_>>()?;
    let shows = |vote: &ReadVote| matches!(vote, ReadVote::Value(_) | ReadVote::Old);
    Some(if votes.iter().any(shows) {
        Vacancy::Occupied
    } else if votes.iter().all(|vote| *vote == ReadVote::Nothing) {
        Vacancy::Vacant
    } else {
        Vacancy::Untold
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
pub(crate) enum Writing {
    /// The write succeeded: the new value is the current one.
    Written,
    /// The write failed: no master has the new value.
    Nowhere,
    /// Some masters have the new value, or may have it.
    Unknown,
}

/// The result of a write; `None` while more answers are needed. The write succeeds if a majority voted
/// [`Counted`](WriteVote::Counted).
pub(crate) fn written(quorum: Quorum, votes: &[Option<WriteVote>]) -> Option<Writing> {
    if quorum.is_met_by(who_said(votes, WriteVote::Counted)) {
        return Some(Writing::Written);
    }
    if votes.iter().any(Option::is_none) {
        return None;
    }
    Some(
        if who_said(votes, WriteVote::NotWritten).len() == votes.len() {
            Writing::Nowhere
        } else {
            Writing::Unknown
        },
    )
}

/// How the old and the next masters get the same value while masters are replaced: copy the value to all of them, or
/// remove it from all. Decided after a read of all old and next masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrying {
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
pub(crate) fn carry(quorum: Quorum, votes: &[ReadVote]) -> Carrying {
    let old = quorum.old_only();
    let such = |is: fn(ReadVote) -> bool| those(votes, |_, vote| is(vote));
    let shown = such(|vote| matches!(vote, ReadVote::Value(_)));
    let copies = such(|vote| vote == ReadVote::Old);
    let nothing = such(|vote| vote == ReadVote::Nothing);
    if old.is_met_by(shown) {
        let largest = votes
            .iter()
            .enumerate()
            .filter_map(|(node, vote)| match vote {
                ReadVote::Value(number) if quorum.is_old(node) => Some((*number, node)),
                _ => None,
            });
        return largest
            .max()
            .map_or(Carrying::Undecided, |(_, node)| Carrying::Value(node));
    }
    let shows = shown.or(copies);
    let old_shows = (0..votes.len()).any(|node| shows.has(node) && quorum.is_old(node));
    if old_shows && !old.possible_without(nothing.or(copies)) {
        Carrying::Lost
    } else if old_shows || !old.is_met_by(nothing) {
        Carrying::Undecided
    } else if shows == MasterSet::default() {
        Carrying::Nowhere
    } else {
        Carrying::Removed
    }
}

fn those(votes: &[ReadVote], such: impl Fn(usize, ReadVote) -> bool) -> MasterSet {
    let votes = votes.iter().enumerate();
    let such = votes.filter(|(node, vote)| such(*node, **vote));
    such.map(|(node, _)| node).collect()
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
pub(crate) fn carried(
    quorum: Quorum,
    read: &[ReadVote],
    written: MasterSet,
    open: MasterSet,
) -> bool {
    let shown =
        |node: usize, vote: ReadVote| written.has(node) && matches!(vote, ReadVote::Value(_));
    let empty = |node: usize, vote: ReadVote| {
        let next_only = !quorum.is_old(node) && !open.has(node);
        written.has(node) && next_only && vote == ReadVote::Nothing
    };
    let next = those(read, |node, vote| shown(node, vote) || empty(node, vote));
    quorum.old_only().is_met_by(those(read, shown)) && quorum.next_only().is_met_by(next)
}

/// Whether a removal is complete: a majority of the old and a majority of the next masters have executed it, and so has
/// every master that showed a value.
pub(crate) fn removed(quorum: Quorum, read: &[ReadVote], written: MasterSet) -> bool {
    let left = |node: usize, vote: ReadVote| {
        !written.has(node) && matches!(vote, ReadVote::Value(_) | ReadVote::Old)
    };
    quorum.is_met_by(written) && those(read, left) == MasterSet::default()
}

#[cfg(test)]
mod tests {
    use super::ReadVote::{Fault, Nothing, Old, Refused, Value};
    use super::WriteVote::{Counted, NotWritten, Refilled, Unknown};
    use super::*;

    fn reading(votes: &[ReadVote]) -> Option<Reading> {
        let votes: Vec<_> = votes.iter().copied().map(Some).collect();
        read(Quorum::of(votes.len()), &votes)
    }

    #[test]
    fn value_read_returns_the_value_with_the_largest_token_among_a_majority() {
        for (votes, verdict) in [
            (&[Value(7), Value(9), Value(8)][..], Reading::Found(1)),
            (&[Value(7), Value(7), Fault], Reading::Found(1)),
            (&[Nothing, Value(7), Value(9)], Reading::Found(2)),
            (&[Old, Value(9), Value(7)], Reading::Found(1)),
            (&[Refused, Value(9), Value(7)], Reading::Found(1)),
            (
                &[Value(3), Old, Nothing, Value(4), Value(2)],
                Reading::Found(3),
            ),
        ] {
            assert_eq!(reading(votes), Some(verdict), "{votes:?}");
        }
    }

    #[test]
    fn failed_value_read_returns_its_cause() {
        for (votes, verdict) in [
            (&[Value(7), Nothing, Nothing][..], Reading::Lost),
            (&[Value(7), Old, Nothing], Reading::Lost),
            (&[Old, Old, Old], Reading::Lost),
            (&[Old, Nothing, Fault], Reading::Lost),
            (&[Nothing, Nothing, Nothing], Reading::Missing),
            (&[Nothing, Nothing, Fault], Reading::Missing),
            (&[Value(7), Nothing, Fault], Reading::Outage),
            (&[Value(7), Fault, Fault], Reading::Outage),
            (&[Nothing, Fault, Fault], Reading::Outage),
            (&[Value(7), Refused, Refused], Reading::NotOurs),
            (&[Value(7), Refused, Nothing], Reading::Outage),
            (&[Value(7), Value(7), Nothing, Nothing], Reading::Lost),
        ] {
            assert_eq!(reading(votes), Some(verdict), "{votes:?}");
        }
    }

    #[test]
    fn read_of_a_value_waits_for_values_from_a_majority_or_for_all_answers() {
        let of = |votes: &[Option<ReadVote>]| read(Quorum::of(3), votes);
        assert_eq!(of(&[Some(Value(7)), None, None]), None);
        assert_eq!(of(&[Some(Nothing), Some(Nothing), None]), None);
        let found = Some(Reading::Found(0));
        assert_eq!(of(&[Some(Value(7)), Some(Value(6)), None]), found);
    }

    #[test]
    fn value_is_created_only_if_every_master_reports_no_value() {
        let of = |votes: &[ReadVote]| {
            let votes: Vec<_> = votes.iter().copied().map(Some).collect();
            vacancy(&votes)
        };
        assert_eq!(of(&[Nothing, Nothing, Nothing]), Some(Vacancy::Vacant));
        assert_eq!(of(&[Nothing, Nothing, Fault]), Some(Vacancy::Untold));
        assert_eq!(of(&[Nothing, Nothing, Refused]), Some(Vacancy::Untold));
        assert_eq!(of(&[Nothing, Value(1), Fault]), Some(Vacancy::Occupied));
        assert_eq!(of(&[Nothing, Old, Nothing]), Some(Vacancy::Occupied));
        assert_eq!(vacancy(&[Some(Nothing), Some(Nothing), None]), None);
    }

    #[test]
    fn write_of_a_value_succeeds_only_on_a_majority_that_had_answered_the_read() {
        let of = |votes: &[WriteVote]| {
            let votes: Vec<_> = votes.iter().copied().map(Some).collect();
            written(Quorum::of(votes.len()), &votes)
        };
        for (votes, verdict) in [
            (&[Counted, Counted, Unknown][..], Writing::Written),
            (&[Counted, Counted, NotWritten], Writing::Written),
            (&[Counted, Refilled, Refilled], Writing::Unknown),
            (&[Counted, Unknown, Unknown], Writing::Unknown),
            (&[Counted, NotWritten, NotWritten], Writing::Unknown),
            (&[Refilled, NotWritten, NotWritten], Writing::Unknown),
            (&[Unknown, NotWritten, NotWritten], Writing::Unknown),
            (&[NotWritten, NotWritten, NotWritten], Writing::Nowhere),
        ] {
            assert_eq!(of(votes), Some(verdict), "{votes:?}");
        }
        let open = [Some(Counted), Some(Refilled), None];
        assert_eq!(written(Quorum::of(3), &open), None);
        let decided = [Some(Counted), None, Some(Counted)];
        assert_eq!(written(Quorum::of(3), &decided), Some(Writing::Written));
    }

    /// A joint quorum of two sets. The last `both` of the old masters are also the first `both` of the next masters.
    fn sets(old: usize, both: usize, next: usize) -> Quorum {
        let nodes = |from: usize, count: usize| (from..from + count).collect();
        Quorum::joint(nodes(0, old), nodes(old - both, next))
    }

    #[test]
    fn newest_value_is_copied_if_a_majority_of_the_old_masters_has_a_value() {
        let quorum = sets(3, 1, 3);
        for (votes, verdict) in [
            (
                [Value(7), Value(9), Value(8), Nothing, Nothing],
                Carrying::Value(1),
            ),
            (
                [Value(7), Nothing, Value(5), Value(9), Value(9)],
                Carrying::Value(0),
            ),
            (
                [Fault, Value(4), Value(5), Fault, Fault],
                Carrying::Value(2),
            ),
            // Only one old master shows a value; the second old master has none.
            (
                [Fault, Nothing, Value(5), Value(5), Value(5)],
                Carrying::Undecided,
            ),
            (
                [Nothing, Nothing, Value(5), Value(5), Value(5)],
                Carrying::Lost,
            ),
            ([Old, Nothing, Nothing, Nothing, Nothing], Carrying::Lost),
            ([Old, Value(3), Old, Value(3), Value(3)], Carrying::Lost),
            (
                [Value(3), Refused, Refused, Value(3), Value(3)],
                Carrying::Undecided,
            ),
            (
                [Nothing, Nothing, Nothing, Value(5), Fault],
                Carrying::Removed,
            ),
            ([Nothing, Fault, Nothing, Fault, Old], Carrying::Removed),
            (
                [Nothing, Fault, Fault, Value(5), Value(5)],
                Carrying::Undecided,
            ),
            ([Nothing, Fault, Nothing, Nothing, Fault], Carrying::Nowhere),
            ([Fault, Fault, Fault, Nothing, Nothing], Carrying::Undecided),
        ] {
            assert_eq!(carry(quorum, &votes), verdict, "{votes:?}");
        }
    }

    #[test]
    fn value_acknowledged_by_the_old_masters_is_never_dropped() {
        for quorum in [sets(3, 1, 3), sets(2, 1, 2), sets(3, 2, 2), sets(2, 2, 3)] {
            for votes in all_votes(quorum.nodes()) {
                let of_old = |such: fn(&ReadVote) -> bool| {
                    let old = votes.iter().enumerate();
                    let old = old.filter(|(node, vote)| quorum.is_old(*node) && such(vote));
                    old.map(|(node, _)| node).collect::<MasterSet>()
                };
                let old = quorum.old_only();
                let shown = of_old(|vote| matches!(vote, Value(_)));
                let shows = of_old(|vote| matches!(vote, Value(_) | Old));
                let empty = of_old(|vote| *vote == Nothing);
                match carry(quorum, &votes) {
                    Carrying::Value(node) => {
                        assert!(old.is_met_by(shown) && shown.has(node), "{votes:?}");
                        let Value(number) = votes[node] else {
                            panic!("the chosen master must show a value: {votes:?}");
                        };
                        let larger = |(node, vote): (usize, &ReadVote)| {
                            shown.has(node) && matches!(vote, Value(other) if *other > number)
                        };
                        assert!(!votes.iter().enumerate().any(larger), "{votes:?}");
                    }
                    Carrying::Removed | Carrying::Nowhere => {
                        assert!(old.is_met_by(empty), "{votes:?}");
                        assert_eq!(shows.len(), 0, "{votes:?}");
                    }
                    Carrying::Lost => {
                        assert!(!old.is_met_by(shown) && shows.len() > 0, "{votes:?}");
                    }
                    Carrying::Undecided => assert!(!old.is_met_by(shown), "{votes:?}"),
                }
            }
        }
    }

    /// All combinations of answers of this number of masters.
    fn all_votes(masters: usize) -> Vec<Vec<ReadVote>> {
        let each = [Value(1), Value(2), Nothing, Old, Refused, Fault];
        let mut all = vec![Vec::new()];
        for _ in 0..masters {
            let with = |votes: &Vec<ReadVote>| each.map(|vote| [&votes[..], &[vote]].concat());
            all = all.iter().flat_map(with).collect();
        }
        all
    }

    #[test]
    fn copy_of_a_value_does_not_count_on_a_master_that_may_have_lost_data() {
        let quorum = sets(3, 1, 3);
        let none = MasterSet::default();
        let of = |read: [ReadVote; 5], written: &[usize], open| {
            carried(quorum, &read, written.iter().copied().collect(), open)
        };
        let read = [Value(1), Value(2), Nothing, Nothing, Nothing];
        assert!(of(read, &[0, 1, 3, 4], none));
        assert!(
            !of(read, &[0, 1, 4], none),
            "the copy must fail if only a minority of the next masters has the value"
        );
        assert!(
            !of(read, &[0, 2, 3, 4], none),
            "an old master without a value must not count as a copy, because it may have lost a later value"
        );
        assert!(
            !of(read, &[0, 1, 2, 3], none),
            "a master of both sets must not count as a copy if it did not show the value"
        );
        assert!(
            !of(read, &[0, 1, 3, 4], MasterSet::one(4)),
            "an open master must not count as a copy, because clients may have written a later value to it"
        );
        let read = [Value(1), Value(2), Value(2), Nothing, Old];
        assert!(of(read, &[0, 2, 3], none));
        assert!(
            !of(read, &[0, 2, 4], none),
            "a master with a value from an earlier server run must not count, because it may have lost a later value"
        );
    }

    #[test]
    fn removal_must_reach_a_majority_of_each_set_and_every_master_with_the_value() {
        let read = [Nothing, Nothing, Nothing, Value(3), Fault];
        let of =
            |written: &[usize]| removed(sets(3, 1, 3), &read, written.iter().copied().collect());
        assert!(of(&[0, 1, 2, 3]) && of(&[1, 2, 3]));
        assert!(
            !of(&[0, 1, 2, 4]),
            "the removal must fail while a master that showed the value may still have it"
        );
        assert!(
            !of(&[0, 1, 3]) && !of(&[2, 3, 4]),
            "the removal must fail if it reaches only a minority of the old or of the next masters"
        );
    }
}
