//! The value under a lock: what the masters' answers to a read and to a write come to.
//!
//! A master has a vote on the value only if it has one and vouches for it: written in the run of the server that
//! answers. One that has lost it, or has it from before a restart, may have had a later one.

use super::quorum::{MasterSet, Quorum};

/// What one master's answer to a read is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadVote {
    /// A value that the master vouches for, written under this number.
    Value(u64),
    /// The master has none: it never had one, or has lost it.
    Nothing,
    /// One that it does not vouch for.
    Old,
    /// The lock is not ours there, or a larger number has been there.
    Refused,
    /// No usable answer.
    Fault,
}

/// What the answers to a read come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// The value of this master is the one.
    Found(usize),
    /// Nobody shows a value, and those that have none leave no majority to others.
    Missing,
    /// Some had one once; but so many have none that no majority can tell which was the last.
    Lost,
    /// A majority says that the lock is not ours any more.
    NotOurs,
    /// Too few can tell.
    Outage,
}

/// The value that counts: of a majority that has one, that of the largest number. None while it is open.
///
/// Any one of them is not enough, nor the first: a write is on some majority, and only the largest number of
/// another majority is certain to be that write or a later one.
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

/// Whether a value may be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vacancy {
    /// Every master says that it has none.
    Vacant,
    /// Some master has one.
    Occupied,
    /// Not every master could say so.
    Untold,
}

/// Missing is not the first value: only where **all** masters have none may one be created, for those that are
/// not asked may be the ones that remember. None while it is open.
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

/// What one master's answer to a write is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteVote {
    /// Written, in a run of the server whose answer was read before.
    Counted,
    /// Written, where nothing was read or another run of the server had answered.
    Refilled,
    /// Certainly not written.
    NotWritten,
    /// It may have been written.
    Unknown,
}

/// What the answers to a write come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writing {
    /// It is the value now.
    Written,
    /// It is nowhere.
    Nowhere,
    /// It is somewhere, or may be.
    Unknown,
}

/// A write counts only on masters that were read: on others it may stand beside a later one that was not seen.
/// None while it is open.
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
    fn the_largest_number_among_a_majority_that_has_one_is_the_value() {
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
    fn without_a_majority_that_has_one_it_is_said_why() {
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
    fn a_read_waits_for_a_majority_that_has_a_value_or_for_everybody() {
        let of = |votes: &[Option<ReadVote>]| read(Quorum::of(3), votes);
        assert_eq!(of(&[Some(Value(7)), None, None]), None);
        assert_eq!(of(&[Some(Nothing), Some(Nothing), None]), None);
        let found = Some(Reading::Found(0));
        assert_eq!(of(&[Some(Value(7)), Some(Value(6)), None]), found);
    }

    #[test]
    fn only_where_all_masters_have_none_is_there_room_for_a_first_value() {
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
    fn a_write_counts_on_a_majority_that_was_read_and_nowhere_else() {
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
}
