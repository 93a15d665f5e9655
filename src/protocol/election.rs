//! Decides from the masters' answers which client leads an election, and whether to notify an observer.

use super::quorum::{MasterSet, Quorum};

/// The leader of an election according to one master: the value of the lock key, and the leader's term.
pub(crate) type Standing = (u128, u64);

/// Returns the lock value and the term that a majority of the masters reports; `None` if no majority agrees. `votes`
/// are pairs of a master's index and its answer.
///
/// While masters are replaced, a majority of the old masters or of the new masters is enough: the leader may know only
/// one of the two sets.
pub(crate) fn leader(votes: &[(usize, Standing)], quorum: Quorum) -> Option<Standing> {
    let agree = |vote: &Standing| -> MasterSet {
        let same = votes.iter().filter(|(_, other)| other == vote);
        same.map(|(node, _)| *node).collect()
    };
    let mut said = votes.iter().map(|(_, vote)| vote);
    said.find(|vote| quorum.is_met_somewhere(agree(vote)))
        .copied()
}

/// The last state that an observer has been notified of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Observed {
    /// The largest term that the observer has been notified of.
    term: u64,
    /// The lock value of the leader whose term is `term`.
    value: u128,
    /// Whether the observer has received the note of this leader (the text that is stored with the lock).
    noted: bool,
    /// Whether the last notification of the observer named a leader; `None` before the first notification.
    led: Option<bool>,
}

impl Observed {
    /// Records the current leader, and returns whether to notify the observer. Ignores a term that is smaller than the
    /// largest known term.
    ///
    /// `found` is the leader's lock value, its term, and whether a note is stored with its lock; `None` if there is no
    /// leader.
    pub(crate) fn takes(&mut self, found: Option<(u128, u64, bool)>) -> bool {
        match found {
            Some((_, term, _)) if term < self.term => false,
            Some((value, term, noted)) => {
                let same = term == self.term && self.led == Some(true);
                let news = !same || noted && !self.noted;
                (self.value, self.term, self.led) = (value, term, Some(true));
                self.noted = noted || same && self.noted;
                news
            }
            None => self.led.replace(false) != Some(false),
        }
    }

    /// Whether the observer knows that another holder, with a lock value other than `value`, is the leader of this
    /// term. A term has only one leader, so the holder with `value` was not elected.
    pub(crate) fn was_of_another(&self, value: u128, term: u64) -> bool {
        term == self.term && value != self.value
    }

    /// The term of the leader with this lock value, if the observer has been notified of that leader.
    pub(crate) fn term_of(&self, value: u128) -> Option<u64> {
        (self.term > 0 && self.value == value).then_some(self.term)
    }

    /// Whether the observer has not been notified of this term yet.
    pub(crate) fn is_new(&self, term: u64) -> bool {
        term > self.term
    }

    /// Whether the last notification named a leader.
    pub(crate) fn is_led(&self) -> bool {
        self.led == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leader_is_the_holder_reported_by_a_majority_with_the_same_term() {
        let quorum = Quorum::of(5);
        let (a, b) = (10, 11);
        for (votes, elected) in [
            (vec![(a, 1), (a, 1), (a, 1)], Some((a, 1))),
            (vec![(b, 2), (a, 1), (a, 1), (b, 2), (b, 2)], Some((b, 2))),
            (vec![(a, 1), (a, 1)], None),
            // All masters show the same holder, but no majority shows the same term.
            (vec![(a, 1), (a, 1), (a, 2), (a, 2), (a, 3)], None),
            (vec![(a, 1), (b, 1), (a, 1), (b, 1)], None),
            (vec![], None),
        ] {
            let votes: Vec<_> = votes.into_iter().enumerate().collect();
            assert_eq!(leader(&votes, quorum), elected, "{votes:?}");
        }
    }

    #[test]
    fn observer_is_never_notified_of_a_smaller_term() {
        let mut observed = Observed::default();
        let with = |term| Some((u128::from(term), term, true));
        let without = |term| Some((u128::from(term), term, false));
        for (found, told) in [
            (None, true),
            (None, false),
            (with(5), true),
            (with(5), false),
            (with(4), false),
            (None, true),
            (with(4), false),
            (with(5), true),
            (with(7), true),
            (with(9), true),
            (with(7), false),
            (None, true),
            (without(11), true),
            (without(11), false),
            // The note causes one notification. Later answers with or without the note cause none.
            (with(11), true),
            (without(11), false),
            (with(11), false),
            (None, true),
        ] {
            assert_eq!(observed.takes(found), told, "{found:?}");
        }
        assert!(!observed.is_led());
        assert!(observed.is_new(12) && !observed.is_new(11));
        assert_eq!(
            (observed.term_of(11), observed.term_of(9)),
            (Some(11), None)
        );
        assert!(observed.was_of_another(9, 11) && !observed.was_of_another(11, 11));
        assert!(!observed.was_of_another(12, 12));
    }
}
